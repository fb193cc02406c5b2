"""Keeps labels and ConfigMaps of the nodes of pools."""

from collections.abc import Iterable, Mapping

from controllers.api.core import Node
from controllers.estate import Pool, node_labels
from controllers.node_pool.config_map import desired_config_map, is_as, name_of
from controllers.node_pool.kinds import NodeTopology
from controllers.node_pool.labels import NodeLabels
from controllers.node_pool.options import NodePoolOptions
from controllers.node_pool.racks import Racks
from controllers.runtime import Key, Manager, Selection
from controllers.runtime.cache import Reader
from controllers.runtime.errors import FieldConflict
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder
from controllers.topology import TopologySource, Undecided

NAME = "node-pool"
SELECTOR = "node-topology=true"

DECLARATION = Declaration(
    name=NAME,
    cluster=permissions(Node, *READ_CACHED, "patch") | RECORD_EVENTS,
    driver_namespace=permissions(NodeTopology, *READ_CACHED, "create", "patch", "delete"),
)


class NodePoolReconciler:
    """Keeps what one node says of its GPUs."""

    def __init__(
        self,
        labels: NodeLabels,
        config_maps: OwnedObjects[NodeTopology],
        nodes: Reader[Node],
        present: Reader[NodeTopology],
        topology: TopologySource,
        recorder: EventRecorder,
        options: NodePoolOptions,
    ) -> None:
        self._labels = labels
        self._config_maps = config_maps
        self._nodes = nodes
        self._present = present
        self._topology = topology
        self._recorder = recorder
        self._options = options
        self._racks = Racks()

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        here = self._options.topology
        present = self._present.get(Key(here.namespace, name_of(request.name, here)))
        pool = self._topology.pool_of(node) if node is not None and not node.deleting else None
        if isinstance(pool, Undecided):
            return DONE
        self._racks.forget(request.name, pool.name if pool else "")
        if node is not None and not node.deleting:
            if pool is None:
                self._warn_of_unknown_pool(node)
            await self._label(node, self._desired_labels(node, pool))
        if node is not None and pool is not None:
            await self._write(node, pool, present)
        elif present is not None:
            await self._config_maps.withdraw(present)
        return DONE

    def _desired_labels(self, node: Node, pool: Pool | None) -> Mapping[str, str]:
        if pool is None or not self._options.label_nodes:
            return {}
        label = self._topology.estate.pool_label
        members = (member for member in self._nodes.list() if member.labels.get(label) == pool.name)
        return node_labels(pool, self._racks.clique_of(node, pool, members))

    def _warn_of_unknown_pool(self, node: Node) -> None:
        estate = self._topology.estate
        name = node.labels.get(estate.pool_label)
        if name is not None:
            self._recorder.event(
                node,
                "Warning",
                "UnknownPool",
                f"the topology has no pool {name!r}: correct the label {estate.pool_label} (pools are "
                f"{', '.join(sorted(estate.pools)) or 'none'}), or add the pool",
                "LabelNode",
            )

    async def _label(self, node: Node, desired: Mapping[str, str]) -> None:
        if foreign := await self._labels.ensure(node, desired):
            self._recorder.event(
                node,
                "Warning",
                "ForeignLabels",
                f"labels that somebody else writes are left alone: {', '.join(sorted(foreign))}; remove them, or stop "
                "their writer, to have those of the pool",
                "LabelNode",
            )

    async def _write(self, node: Node, pool: Pool, present: NodeTopology | None) -> None:
        desired = desired_config_map(node, pool, present, self._options.topology)
        if is_as(present, desired):
            return
        try:
            await self._config_maps.ensure(desired, present)
        except FieldConflict as error:
            self._recorder.event(
                node,
                "Warning",
                "ForeignNodeTopology",
                f"ConfigMap {desired['metadata']['name']} is written by somebody else and is left alone: delete it, or "
                f"stop its writer ({error.message})",
                "WriteNodeTopology",
            )


def setup(manager: Manager, topology: TopologySource, options: NodePoolOptions) -> None:
    """Declares the node-pool controller on a manager."""
    client = manager.client_for(DECLARATION)
    here = Selection(namespace=options.topology.namespace, labels=SELECTOR)
    present = manager.informer(NodeTopology, here).store
    nodes = manager.reader(Node)
    owned = OwnedObjects(client, NodeTopology, owners=Node, proof=("f:metadata", "f:labels", "f:node-topology"))

    controller = (
        # Places in racks are given away one by one, by one process that knows them all.
        manager.controller(NAME, sharded=False)
        .for_(Node, when=changed(lambda node: (node.labels, node.metadata.annotations, node.deleting)))
        .watches(NodeTopology, maps_to=_node_of)
        .reconciles_with(
            NodePoolReconciler(NodeLabels(client), owned, nodes, present, topology, manager.recorder(NAME), options)
        )
    )
    topology.wakes(controller, lambda: topology.nodes(nodes.list()))


def _node_of(written: NodeTopology) -> Iterable[Request]:
    """The node that owns a ConfigMap; its label is cut where the node's name is long."""
    owners = [owner.name for owner in written.metadata.owner_references if owner.kind == "Node"]
    return [Key("", name) for name in owners or filter(None, (written.metadata.labels.get("node-name"),))]
