"""Sets the condition on nodes, and takes it off."""

from collections.abc import Iterable, MutableMapping

from cachetools import LRUCache

from controllers.api.core import Node, NodeCondition
from controllers.gpu_fractioning.condition import FIELD, READY, fields, has_gpus, is_due, removal
from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.clock import Clock
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder
from controllers.topology import PERMISSIONS as READ_TOPOLOGY
from controllers.topology import TopologySource, Undecided

NAME = "gpu-fractioning"
REMEMBERED = 20_000
"""Nodes with a condition of somebody else's that are remembered: beyond any estate that one controller serves."""

DECLARATION = Declaration(
    name=NAME,
    cluster=permissions(Node, *READ_CACHED) | permissions(Node, "patch", subresource="status") | RECORD_EVENTS,
    driver_namespace=READ_TOPOLOGY,
)


class FractioningReconciler:
    """Keeps the condition of one node.

    Conditions are a list by type, so that an apply touches ours alone, and it survives whatever kubelets and KWOK write
    to the others.
    """

    def __init__(
        self, client: Client, nodes: Reader[Node], topology: TopologySource, recorder: EventRecorder, clock: Clock
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._topology = topology
        self._recorder = recorder
        self._clock = clock
        self._foreign: MutableMapping[str, frozenset[str]] = LRUCache(REMEMBERED)

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        if node is None or node.deleting:
            return DONE
        pool = self._topology.pool_of(node)
        if isinstance(pool, Undecided):
            return DONE
        present, due = node.condition(READY), is_due(node, pool)
        if present is None:
            if due:
                await self._set(node)
        elif not due or present.status != "True":
            await self._correct(node, present, due=due)
        return DONE

    async def _set(self, node: Node) -> None:
        # Never forced: where somebody else has set it meanwhile, that is another look's concern.
        await self._client.apply(node, fields(self._clock.utcnow()), subresource="status")
        self._foreign.pop(node.uid, None)

    async def _correct(self, node: Node, present: NodeCondition, *, due: bool) -> None:
        """Takes off or sets right a condition that is there, provided that it is ours."""
        others = await self._others(node)
        if others is None:
            return
        if others:
            if due:
                self._warn(node, present, others)
        elif due:
            await self._set(node)
        else:
            # It holds for the version of the node that was looked at, so nobody can have written it since.
            await self._client.json_patch(node, removal(node), subresource="status")

    async def _others(self, node: Node) -> frozenset[str] | None:
        """Who else wrote the condition, by a live look; None where it is no more."""
        known = self._foreign.get(node.uid)
        if known is not None:
            return known
        live = await self._client.get_ownership(Node, node.name)
        if live is None or live.uid != node.uid:
            return None
        managers = live.managers_of(*FIELD, subresource="status")
        if managers == {self._client.field_manager}:
            return frozenset()
        self._foreign[node.uid] = managers - {self._client.field_manager} or frozenset({"whoever made the node"})
        return self._foreign[node.uid]

    def _warn(self, node: Node, present: NodeCondition, managers: frozenset[str]) -> None:
        self._recorder.event(
            node,
            "Warning",
            "ForeignCondition",
            f"the condition {READY} is {present.status}, written by {' and '.join(sorted(managers))}, and is left "
            "alone, while the node's GPUs can be allocated: stop that writer and take the condition off",
            "SetCondition",
        )


def setup(manager: Manager, topology: TopologySource) -> None:
    """Declares the gpu-fractioning controller on a manager."""
    nodes = manager.reader(Node)
    client = manager.client_for(DECLARATION)

    def concerned() -> Iterable[Request]:
        """The nodes of pools, and those that may have been in one under another label."""
        left = [node.key for node in nodes.list() if node.condition(READY) is not None]
        return dict.fromkeys([*topology.nodes(nodes.list()), *left])

    controller = (
        manager.controller(NAME)
        .for_(Node, when=changed(lambda node: (node.labels, node.deleting, has_gpus(node), node.condition(READY))))
        .reconciles_with(FractioningReconciler(client, nodes, topology, manager.recorder(NAME), manager.clock))
    )
    topology.wakes(controller, concerned)
