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
        try:
            await self._client.apply_owned(self._dra.slices, desired_slice(node, self._dra, generation), force=False)
        except FieldConflict as error:
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
        live = await self._client.get_ownership(self._dra.slices, present.name)
        if live is not None and live.uid == present.uid and live.managers_of("f:spec") == {FIELD_MANAGER}:
            await self._client.delete(present)


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
