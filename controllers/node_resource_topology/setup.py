"""Publishes the topology of each simulated node and keeps it."""

from collections.abc import Iterable

from cachetools import LRUCache, TTLCache

from controllers.api.core import Node, Pod
from controllers.api.topology import NodeResourceTopology
from controllers.estate import EXTENDED_RESOURCE, Pool
from controllers.estate.estate import GPU_RESOURCE
from controllers.node_resource_topology.manifest import Manifest, is_current, is_marked, manifest
from controllers.runtime import Key, Manager, Selection
from controllers.runtime.cache import Reader
from controllers.runtime.clock import Clock
from controllers.runtime.errors import FieldConflict
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder
from controllers.topology import PERMISSIONS as READ_TOPOLOGY
from controllers.topology import TopologySource, Undecided

NAME = "node-resource-topology"
BY_NODE = "node"

SETTLE = 0.2
"""Seconds between two writes of one topology: the first pod of a burst is told at once, the others together."""

GPU_GRACE = 0.5
"""Seconds for which a new node's first topology waits for GPUs that its pool says it has: to a scheduler that saw one
without them, GPUs would be of no zone."""

REMEMBERED = 20_000
"""Nodes of which something is remembered: beyond any estate that one controller serves."""

DECLARATION = Declaration(
    name=NAME,
    cluster=(
        permissions(Node, "list", "watch")
        | permissions(Pod, "list", "watch")
        | permissions(NodeResourceTopology, *READ_CACHED, "create", "patch", "delete")
        | RECORD_EVENTS
    ),
    driver_namespace=READ_TOPOLOGY,
)


class TopologyReconciler:
    """Keeps the topology of one node."""

    def __init__(
        self,
        owned: OwnedObjects[NodeResourceTopology],
        nodes: Reader[Node],
        pods: Reader[Pod],
        present: Reader[NodeResourceTopology],
        topology: TopologySource,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._owned = owned
        self._nodes = nodes
        self._pods = pods
        self._present = present
        self._topology = topology
        self._recorder = recorder
        self._ours: LRUCache[str, bool] = LRUCache(REMEMBERED)
        self._just_written: TTLCache[str, bool] = TTLCache(REMEMBERED, SETTLE, clock.monotonic)
        self._first_seen: LRUCache[str, float] = LRUCache(REMEMBERED)
        self._clock = clock

    async def reconcile(self, request: Request) -> Result:
        node, present = self._nodes.get(request), self._present.get(request)
        if node is None or node.deleting:
            return await self._withdraw(present)
        pool = self._topology.pool_of(node)
        if isinstance(pool, Undecided):
            return DONE
        if pool is None or pool.numa is None:
            return await self._withdraw(present)
        # What plays the node says what it has some time after the node is made.
        if not node.status.allocatable:
            return DONE
        if present is None and (wait := self._wait_for_gpus(node, pool)) > 0:
            return Result(requeue_after=wait)
        wanted = manifest(node, pool.numa, self._pods.by_index(BY_NODE, node.name), present)
        if present is not None and is_current(wanted, present):
            return DONE
        if node.name in self._just_written:
            return Result(requeue_after=SETTLE)
        await self._publish(node, wanted, present)
        return DONE

    def _wait_for_gpus(self, node: Node, pool: Pool) -> float:
        """Seconds for which GPUs may still come."""
        if pool.offered != EXTENDED_RESOURCE or not pool.gpu_count or GPU_RESOURCE in node.status.allocatable:
            return 0.0
        now = self._clock.monotonic()
        return self._first_seen.setdefault(node.uid, now) + GPU_GRACE - now

    async def _publish(self, node: Node, wanted: Manifest, present: NodeResourceTopology | None) -> None:
        # An apply would co-own what another manager wrote and happens to equal ours, so that is looked at before.
        if present is not None and not await self._is_ours(present):
            self._warn_of_foreign_topology(node, "it was there before, or somebody has changed its zones")
            return
        try:
            written = await self._owned.ensure(wanted, present)
        except FieldConflict as error:
            self._ours.pop(present.uid if present else "", None)
            self._warn_of_foreign_topology(node, error.message)
            return
        self._ours[written.uid] = True
        self._just_written[node.name] = True

    async def _is_ours(self, present: NodeResourceTopology) -> bool:
        if present.uid not in self._ours and await self._owned.made(present):
            self._ours[present.uid] = True
        return present.uid in self._ours

    async def _withdraw(self, present: NodeResourceTopology | None) -> Result:
        """Where the node is gone or left its pool, or the pool has no zones any more."""
        if present is not None and is_marked(present):
            await self._owned.withdraw(present)
        return DONE

    def _warn_of_foreign_topology(self, node: Node, why: str) -> None:
        self._recorder.event(
            node,
            "Warning",
            "ForeignNodeResourceTopology",
            f"NodeResourceTopology {node.name} is written by somebody else and is left alone: delete it, and stop its "
            f"writer, such as the topology updater of node feature discovery ({why})",
            "PublishTopology",
        )


def setup(manager: Manager, topology: TopologySource) -> None:
    """Declares the node-resource-topology controller on a manager."""
    # Pods that have ended hold nothing, and neither do those that nobody has bound.
    pods = manager.informer(Pod, Selection(fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")).store
    pods.add_index(BY_NODE, lambda pod: (pod.node_name,))
    nodes, published = manager.reader(Node), manager.reader(NodeResourceTopology)
    # Whoever wrote the zones last has taken the object over, so they tell whose it is.
    owned = OwnedObjects(manager.client_for(DECLARATION), NodeResourceTopology, owners=Node, proof=("f:zones",))

    def of_pools() -> Iterable[Request]:
        # Those that are published, too: the label that makes a node one of a pool may be another one now.
        return {*topology.nodes(nodes.list()), *(found.key for found in published.list() if is_marked(found))}

    controller = (
        manager.controller(NAME)
        .for_(Node, when=changed(_what_matters_of_a_node))
        .watches(NodeResourceTopology, maps_to=lambda present: (present.key,))
        .watches(Pod, maps_to=lambda pod: (Key("", pod.node_name),), when=changed(lambda pod: (pod.spec, pod.running)))
        .reconciles_with(
            TopologyReconciler(owned, nodes, pods, published, topology, manager.recorder(NAME), manager.clock)
        )
    )
    topology.wakes(controller, of_pools)


def _what_matters_of_a_node(node: Node) -> object:
    return node.labels, node.status.capacity, node.status.allocatable, node.deleting
