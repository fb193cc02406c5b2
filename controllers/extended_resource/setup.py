"""Publishes the extended resources of nodes and keeps them."""

from collections.abc import Iterable

from controllers.api.core import KWOK_ANNOTATION, Node
from controllers.extended_resource.capacity import (
    Holding,
    Managers,
    Plan,
    Resources,
    extended,
    fields,
    is_initialized,
    is_settled,
    plan,
    removal,
    wanted,
)
from controllers.extended_resource.holdings import Holdings
from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.errors import Conflict
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder
from controllers.topology import PERMISSIONS as READ_TOPOLOGY
from controllers.topology import TopologySource, Undecided

NAME = "extended-resource"

DECLARATION = Declaration(
    name=NAME,
    cluster=permissions(Node, *READ_CACHED) | permissions(Node, "patch", subresource="status") | RECORD_EVENTS,
    driver_namespace=READ_TOPOLOGY,
)


class ExtendedResourceReconciler:
    """Keeps the extended resources of one node.

    Server-side apply owns each of them by itself: whatever else the status has, and whoever writes it at the same time,
    is left as it is. The last ones go by JSON patch.
    """

    def __init__(self, client: Client, nodes: Reader[Node], topology: TopologySource, recorder: EventRecorder) -> None:
        self._client = client
        self._nodes = nodes
        self._topology = topology
        self._recorder = recorder
        self._holdings = Holdings(client)

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        if node is None or node.deleting:
            return DONE
        pool = self._topology.pool_of(node)
        if isinstance(pool, Undecided):
            return DONE
        resources = wanted(node, pool, self._topology.estate.pool_label)
        if is_settled(node.status, resources) or (resources and not is_initialized(node.status)):
            return DONE
        holding = await self._holdings.of(node)
        if holding is not None:
            await self._settle(node, resources, holding)
        return DONE

    async def _settle(self, node: Node, resources: Resources, holding: Holding) -> None:
        step = plan(node.status, resources, holding)
        if step.remove and not holding.live:
            # A JSON patch asks nobody whose the fields are. It holds for the version of the node that was looked at.
            looked = await self._holdings.look(node)
            if looked is None:
                return
            holding, step = looked, plan(node.status, resources, looked)
        try:
            await self._write(node, step, holding)
        except Conflict:
            # Somebody wrote since it was last looked who writes what.
            self._holdings.forget(node)
            raise
        for name in step.refused:
            self._warn(node, name, resources[name], holding.foreign[name])

    async def _write(self, node: Node, step: Plan, holding: Holding) -> None:
        if step.apply:
            await self._client.apply(node, fields(step.apply), subresource="status")
            self._holdings.wrote(node, step.apply)
        elif step.remove:
            await self._client.json_patch(node, removal(step.remove), subresource="status")
            self._holdings.wrote(node, holding.ours - {name for _, name in step.remove})

    def _warn(self, node: Node, name: str, count: int, managers: Managers) -> None:
        writer = " and ".join(sorted(managers)) or "whoever made the node"
        found = node.status.capacity.get(name, node.status.allocatable.get(name))
        self._recorder.event(
            node,
            "Warning",
            "ForeignCapacity",
            f"{name} is {found} in the node's status, written by {writer}, and is left alone, while the pool says "
            f"{count}: stop that writer and take the resource out of the status, or take the node out of the pool",
            "PublishCapacity",
        )


def setup(manager: Manager, topology: TopologySource) -> None:
    """Declares the extended-resource controller on a manager."""
    nodes = manager.reader(Node)
    client = manager.client_for(DECLARATION)

    def concerned() -> Iterable[Request]:
        """The nodes of pools, and those that may have been in one under another label."""
        left = [node.key for node in nodes.list() if extended(node.status)]
        return dict.fromkeys([*topology.nodes(nodes.list()), *left])

    controller = (
        manager.controller(NAME)
        .for_(Node, when=changed(_aspect))
        .reconciles_with(ExtendedResourceReconciler(client, nodes, topology, manager.recorder(NAME)))
    )
    topology.wakes(controller, concerned)


def _aspect(node: Node) -> tuple[object, ...]:
    """What the resources of a node depend on; heartbeats are not among it."""
    status = node.status
    simulated = KWOK_ANNOTATION in node.metadata.annotations
    return node.labels, simulated, node.deleting, status.capacity, status.allocatable
