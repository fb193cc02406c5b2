"""Publishes the slices and keeps them."""

from collections.abc import Iterable

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import DraApi, ResourceSlice
from controllers.channel_slices.options import ChannelSlicesOptions
from controllers.channel_slices.slices import desired_slice, is_simulated, next_generation, slice_name
from controllers.runtime import Client, Key, Manager, Selection
from controllers.runtime.cache import Reader
from controllers.runtime.errors import FieldConflict
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
        client: Client,
        nodes: Reader[Node],
        slices: Reader[ResourceSlice],
        dra: DraApi,
        recorder: EventRecorder,
        options: ChannelSlicesOptions,
    ) -> None:
        self._client = client
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
            await self._withdraw(present)
        return DONE

    async def _publish(self, node: Node, present: ResourceSlice | None) -> None:
        generation = next_generation(present, node, self._dra)
        if generation is None:
            return
        desired = desired_slice(node, self._dra, generation)
        try:
            await self._client.apply_owned(self._dra.slices, desired, force=False)
        except FieldConflict as error:
            if present is not None and await self._made(present):
                await self._client.apply_owned(self._dra.slices, desired, force=True)
            else:
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

    async def _withdraw(self, present: ResourceSlice) -> None:
        """Where the node is gone or left its pool; garbage collection would do only the former."""
        if await self._made(present):
            await self._client.delete(present)

    async def _made(self, present: ResourceSlice) -> bool:
        """Whether a slice is of our making, by a live look."""
        live = await self._client.get_ownership(self._dra.slices, present.name)
        if live is None or live.uid != present.uid:
            return False
        # A driver cannot be changed, so it stays with whoever made the slice, while an edit takes other fields over.
        return live.managers_of("f:spec", "f:driver") == {FIELD_MANAGER}


def setup(manager: Manager, dra: DraApi, options: ChannelSlicesOptions) -> None:
    """Declares the channel-slices controller on a manager."""
    slices = manager.informer(dra.slices, Selection(fields=f"spec.driver={nvidia.DRIVER}")).store
    reconciler = ChannelSlicesReconciler(
        manager.client_for(DECLARATION), manager.reader(Node), slices, dra, manager.recorder(NAME), options
    )
    (
        manager.controller(NAME)
        .for_(Node, when=changed(lambda node: (node.labels, node.metadata.annotations, node.deleting)))
        .watches(dra.slices, maps_to=_node_of)
        .reconciles_with(reconciler)
    )


def _node_of(published: ResourceSlice) -> Iterable[Request]:
    node = published.spec.get("nodeName")
    return (Key("", node),) if node else ()
