"""Publishes the slices and keeps them."""

from controllers.api import nvidia
from controllers.api.core import Node, is_simulated
from controllers.api.dra import DraApi, ResourceSlice, node_of
from controllers.channel_slices.options import ChannelSlicesOptions
from controllers.channel_slices.slices import desired_slice, next_generation, slice_name
from controllers.runtime import Key, Manager, Selection
from controllers.runtime.cache import Reader
from controllers.runtime.errors import FieldConflict
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.predicate import changed
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS
from controllers.runtime.recorder import EventRecorder

NAME = "channel-slices"
FIELD_MANAGER = f"gpu-mirage/{NAME}"

DECLARATION = Declaration(
    name=NAME,
    cluster=(
        permissions(Node, "list", "watch")
        | permissions(ResourceSlice, *READ_CACHED, "create", "patch", "delete")
        | RECORD_EVENTS
    ),
)


class ChannelSlicesReconciler:
    """Keeps the slice of one node."""

    def __init__(
        self,
        owned: OwnedObjects[ResourceSlice],
        nodes: Reader[Node],
        slices: Reader[ResourceSlice],
        dra: DraApi,
        recorder: EventRecorder,
        options: ChannelSlicesOptions,
    ) -> None:
        self._owned = owned
        self._nodes = nodes
        self._slices = slices
        self._dra = dra
        self._recorder = recorder
        self._options = options

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        present = self._slices.get(Key("", slice_name(request.name)))
        if node is not None and not node.deleting and is_simulated(node, self._options.pool_label):
            await self._publish(node, present)
        elif present is not None:
            # Where the node is gone or left its pool; garbage collection would do only the former.
            await self._owned.withdraw(present)
        return DONE

    async def _publish(self, node: Node, present: ResourceSlice | None) -> None:
        generation = next_generation(present, node, self._dra)
        if generation is None:
            return
        try:
            await self._owned.ensure(desired_slice(node, self._dra, generation), present)
        except FieldConflict as error:
            self._warn_of_foreign_slice(node, error)

    def _warn_of_foreign_slice(self, node: Node, error: FieldConflict) -> None:
        self._recorder.event(
            node,
            "Warning",
            "ForeignResourceSlice",
            f"ResourceSlice {slice_name(node.name)} is written by somebody else and is left alone: delete it, or "
            f"stop its writer ({error.message})",
            "PublishSlice",
        )


def setup(manager: Manager, dra: DraApi, options: ChannelSlicesOptions) -> None:
    """Declares the channel-slices controller on a manager."""
    kind = dra.slices_of(nvidia.DRIVER)
    slices = manager.informer(kind, Selection(fields=f"spec.driver={nvidia.DRIVER}")).store
    # A driver cannot be changed, so it stays with whoever made the slice.
    owned = OwnedObjects(manager.client_for(DECLARATION), kind, owners=Node, proof=("f:spec", "f:driver"))
    reconciler = ChannelSlicesReconciler(owned, manager.reader(Node), slices, dra, manager.recorder(NAME), options)
    (
        manager.controller(NAME)
        .for_(Node, when=changed(lambda node: (node.labels, node.metadata.annotations, node.deleting)))
        .watches(kind, maps_to=node_of)
        .reconciles_with(reconciler)
    )
