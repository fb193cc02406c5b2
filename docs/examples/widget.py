"""A controller of a kind of its own: a Widget takes its colour from a ConfigMap, and is listed in the catalogue."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from controllers.runtime import Client, Key, KubeObject, Manager, Projection, Resource, conditions
from controllers.runtime.cache import Reader
from controllers.runtime.clock import Clock
from controllers.runtime.conditions import Condition
from controllers.runtime.entrypoint import run
from controllers.runtime.options import manager_options, parser_for
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import PERMISSIONS, EventRecorder


class ColourSource(Projection, frozen=True, kw_only=True):
    config_map: str  # configMap in the API
    key: str = "colour"


class WidgetSpec(Projection, frozen=True, kw_only=True):
    colour_from: ColourSource
    label_url: str = msgspec.field(name="labelURL", default="")  # would be labelUrl


class WidgetStatus(Projection, frozen=True, kw_only=True):
    colour: str = ""
    conditions: tuple[Condition, ...] = ()


class Widget(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)

    spec: WidgetSpec
    status: WidgetStatus = WidgetStatus()


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)

    data: Mapping[str, str] = {}


CATALOGUE = os.environ.get("POD_NAMESPACE", "default")  # the namespace that this runs in
FINALIZER = "example.com/catalogue"
DECLARATION = Declaration(
    name="widgets",
    cluster=permissions(Widget, "list", "watch", "patch")  # patch: the finalizer
    | permissions(Widget, "patch", subresource="status")
    | permissions(ConfigMap, "list", "watch")
    | PERMISSIONS,  # of Events
    driver_namespace=permissions(ConfigMap, "create", "patch", "delete"),
)


def source_of(widget: Widget) -> Key:
    return Key(widget.namespace, widget.spec.colour_from.config_map)


def entry_of(widget: Widget) -> Key:
    return Key(CATALOGUE, f"{widget.namespace}.{widget.name}")


@dataclass(frozen=True, slots=True)
class WidgetReconciler:
    client: Client
    recorder: EventRecorder
    clock: Clock
    widgets: Reader[Widget]
    maps: Reader[ConfigMap]

    async def reconcile(self, request: Request) -> Result:
        widget = self.widgets.get(request)
        if widget is not None and widget.deleting:
            if (entry := self.maps.get(entry_of(widget))) is not None:
                await self.client.delete(entry)
            await self.client.remove_finalizer(widget, FINALIZER)
        elif widget is not None:
            widget = await self.client.add_finalizer(widget, FINALIZER)
            source = self.maps.get(source_of(widget))
            colour = source.data.get(widget.spec.colour_from.key, "") if source else ""
            await self._list(entry_of(widget), {"colour": colour, "url": widget.spec.label_url})
            await self._tell(widget, colour)
        return DONE

    async def _list(self, key: Key, data: Mapping[str, str]) -> None:
        present = self.maps.get(key)
        if present is None or present.data != data:
            body = {"metadata": {"name": key.name, "namespace": key.namespace}, "data": data}
            await self.client.apply_owned(ConfigMap, body)

    async def _tell(self, widget: Widget, colour: str) -> None:
        state, reason = ("True", "Painted") if colour else ("False", "NoColour")
        ready = Condition(type="Ready", status=state, reason=reason, observed_generation=widget.metadata.generation)
        known = conditions.put(widget.status.conditions, ready, self.clock.utcnow())
        if (status := WidgetStatus(colour=colour, conditions=known)) != widget.status:
            await self.client.apply(widget, {"status": msgspec.to_builtins(status)}, subresource="status")
            if not colour:
                self.recorder.event(widget, "Warning", reason, f"no colour in ConfigMap {source_of(widget)}", "Paint")


def setup(manager: Manager) -> None:
    widgets, maps = manager.informer(Widget).store, manager.reader(ConfigMap)
    widgets.add_index("maps", lambda widget: (str(source_of(widget)), str(entry_of(widget))))
    client, recorder = manager.client_for(DECLARATION), manager.recorder(DECLARATION.name)
    reconciler = WidgetReconciler(client, recorder, manager.clock, widgets, maps)
    controller = manager.controller(DECLARATION.name).for_(Widget).reconciles_with(reconciler)
    controller.watches(ConfigMap, lambda found: [widget.key for widget in widgets.by_index("maps", str(found.key))])


if __name__ == "__main__":
    parser = parser_for(DECLARATION.name, "Paints widgets and lists them in a catalogue.")
    sys.exit(run(DECLARATION.name, setup, manager_options(parser.parse_args())))
