"""What the stand-in leaves alone though it would make pods in a real cluster: it says so instead of being silent."""

from typing import Any, ClassVar

from controllers.runtime import KubeObject, Manager, Resource, logs
from controllers.runtime.cache import Reader
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder


class StatefulSet(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)


class DaemonSet(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)


logger = logs.get_logger(__name__)


class Notice:
    """Says once of each object of a kind that nothing comes of it."""

    def __init__(self, objects: Reader[Any], recorder: EventRecorder) -> None:
        self._objects = objects
        self._recorder = recorder

    async def reconcile(self, request: Request) -> Result:
        found: KubeObject | None = self._objects.get(request)
        if found is not None and not found.deleting:
            kind = found.resource.kind
            note = f"the sandbox's stand-in does not play {kind}s: no pods are made; use a Deployment, a Job or pods"
            logger.warning(note, kind=kind, name=str(found.key))
            self._recorder.event(found, "Warning", "NotPlayed", note, "Reconcile")
        return DONE


def setup(manager: Manager) -> None:
    """Declares a controller for each kind."""
    recorder = manager.recorder("stand-in")
    for kind in (StatefulSet, DaemonSet):
        (
            manager.controller(f"stand-in-{kind.resource.plural}")
            .for_(kind, when=changed(lambda _: None))
            .reconciles_with(Notice(manager.reader(kind), recorder))
        )
