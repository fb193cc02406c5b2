"""Publishes the GPU slices and keeps them."""

from collections.abc import Mapping, Sequence
from typing import Any

from controllers.api.core import Node, is_simulated
from controllers.api.dra import DraApi, ResourceSlice, node_of
from controllers.estate import DRA, DYNAMIC_MIG, FAKE, Pool, gpus_of
from controllers.gpu_slices.contents import Content, contents, counted
from controllers.gpu_slices.devices import DRIVER
from controllers.gpu_slices.plan import Spelling, desired, plan
from controllers.gpu_slices.support import ASK_AGAIN, FIX, PartitionSupport
from controllers.runtime import Manager, Selection
from controllers.runtime.cache import Reader
from controllers.runtime.errors import FieldConflict, RuntimeFault
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder
from controllers.topology import PERMISSIONS as READ_TOPOLOGY
from controllers.topology import TopologySource, Undecided

NAME = "gpu-slices"
BY_NODE = "node"

DECLARATION = Declaration(
    name=NAME,
    cluster=(
        permissions(Node, "list", "watch")
        | permissions(ResourceSlice, *READ_CACHED, "create", "patch", "delete")
        | RECORD_EVENTS
    ),
    driver_namespace=READ_TOPOLOGY,
)


class GpuSlicesReconciler:
    """Keeps the slices of one node."""

    def __init__(
        self,
        owned: OwnedObjects[ResourceSlice],
        nodes: Reader[Node],
        slices: Reader[ResourceSlice],
        topology: TopologySource,
        dra: DraApi,
        support: PartitionSupport,
        recorder: EventRecorder,
    ) -> None:
        self._owned = owned
        self._nodes = nodes
        self._slices = slices
        self._topology = topology
        self._dra = dra
        self._support = support
        self._recorder = recorder
        self._spelling = Spelling()

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        present = self._slices.by_index(BY_NODE, request.name)
        if node is None or node.deleting:
            await self._withdraw(present)
            return DONE
        pool = self._topology.pool_of(node)
        if isinstance(pool, Undecided):
            return DONE
        if pool is None or not self._is_served(node, pool):
            await self._withdraw(present)
            return DONE
        if pool.mig == DYNAMIC_MIG and (why := await self._support.refusal()):
            self._warn_of_mig(pool, why)
            await self._withdraw(present)
            return Result(requeue_after=ASK_AGAIN)
        await self._publish(node, contents(self._dra, pool, gpus_of(node.name, pool)), present)
        return DONE

    def _is_served(self, node: Node, pool: Pool) -> bool:
        """Whether the GPUs of a node are devices of ours."""
        simulated = is_simulated(node, self._topology.estate.pool_label)
        return simulated and pool.offered == DRA and pool.backend == FAKE

    async def _publish(self, node: Node, offered: Sequence[Content], present: Sequence[ResourceSlice]) -> None:
        if not plan(node, offered, present, spelling=self._spelling):
            return
        foreign = [entry for entry in present if not await self._owned.is_ours(entry)]
        above = max((entry.pool_generation for entry in foreign), default=0)
        ours = [entry for entry in present if entry not in foreign]
        steps = plan(node, offered, ours, above=above, spelling=self._spelling)
        if self._left_alone(node, offered, foreign):
            return
        by_name = {entry.name: entry for entry in ours}
        for manifest in steps.write:
            try:
                written = await self._owned.ensure(manifest, by_name.get(manifest["metadata"]["name"]))
            except FieldConflict as error:
                self._warn_of_foreign_slice(node, manifest["metadata"]["name"], error.message)
                return
            self._take_note(manifest, written)
        for left_over in steps.withdraw:
            await self._owned.withdraw(left_over)

    def _left_alone(self, node: Node, offered: Sequence[Content], foreign: Sequence[ResourceSlice]) -> bool:
        """Reports slices of others, and whether one of them has the place of one of ours.

        Then nothing is written: of a pool that cannot be whole, each new generation would only be one more write.
        """
        places = {manifest["metadata"]["name"] for manifest in desired(node, offered, 1)}
        for entry in foreign:
            self._warn_of_foreign_slice(node, entry.name, f"it offers devices of {DRIVER} on this node, too")
        return any(entry.name in places for entry in foreign)

    def _take_note(self, manifest: Mapping[str, Any], written: ResourceSlice) -> None:
        """Raises RuntimeFault where the server left counters out.

        Without them instances would be given away that have no room beside each other.
        """
        name = manifest["metadata"]["name"]
        if counted(manifest["spec"]) != counted(written.spec):
            self._support.lost()
            raise RuntimeFault(f"ResourceSlice {name} is stored without counters: asking the server what it takes")
        self._spelling.learn(name, manifest["spec"], written.spec)

    async def _withdraw(self, present: Sequence[ResourceSlice]) -> None:
        """Where the node is gone, left its pool, or offers its GPUs otherwise."""
        for entry in present:
            await self._owned.withdraw(entry)

    def _warn_of_mig(self, pool: Pool, why: str) -> None:
        note = f"nodePools.{pool.name}.gpu.mig: {why}, so no GPUs of this pool are published: {FIX}"
        self._topology.warn("MigNotSupported", note, "PublishSlices")

    def _warn_of_foreign_slice(self, node: Node, name: str, why: str) -> None:
        self._recorder.event(
            node,
            "Warning",
            "ForeignResourceSlice",
            f"ResourceSlice {name} is written by somebody else and is left alone: delete it, or stop its writer "
            f"({why})",
            "PublishSlices",
        )


def setup(manager: Manager, dra: DraApi, topology: TopologySource) -> None:
    """Declares the gpu-slices controller on a manager."""
    kind = dra.slices_of(DRIVER)
    slices = manager.informer(kind, Selection(fields=f"spec.driver={DRIVER}")).store
    slices.add_index(BY_NODE, lambda entry: filter(None, (entry.node_name,)))
    nodes = manager.reader(Node)
    # A driver cannot be changed, so it stays with whoever made the slice.
    client = manager.client_for(DECLARATION)
    owned = OwnedObjects(client, kind, owners=Node, proof=("f:spec", "f:driver"))
    support = PartitionSupport(client, kind, dra, manager.clock)
    manager.readiness.add(NAME, lambda: None, note=lambda: support.known_refusal or None)

    controller = (
        manager.controller(NAME)
        .for_(Node, when=changed(lambda node: (node.labels, node.metadata.annotations, node.deleting)))
        .watches(kind, maps_to=node_of)
        .reconciles_with(GpuSlicesReconciler(owned, nodes, slices, topology, dra, support, manager.recorder(NAME)))
    )
    topology.wakes(controller, lambda: topology.nodes(nodes.list()))
