"""An informer against a scripted server on virtual time, for the tests of this directory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from controllers.runtime.cache import Change, ChangeType, Happening, Informer, InformerOptions
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, Step, run_virtual
from controllers.runtime.transport import HttpRequest

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS

    size: int = 0


Json = dict[str, Any]


def raw(
    name: str, version: int | str, *, uid: str = "", size: Any = 0, deleting: bool = False, namespace: str = "a"
) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if deleting:
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return {"metadata": metadata, "size": size}


def listed(*items: Json, at: int | str = 10, token: str = "") -> Answer:
    return Answer(body={"metadata": {"resourceVersion": str(at), "continue": token}, "items": list(items)})


def event(type_: str, item: Json) -> Json:
    return {"type": type_, "object": item}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def end_of_state(version: int) -> Json:
    """The bookmark that ends the state with which a stream begins."""
    annotations = {"k8s.io/initial-events-end": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


def watched(*steps: Step) -> Answer:
    """A watch that says these things and then stays open in silence."""
    return Answer(stream=(*steps, STALL))


def status(code: int, reason: str) -> Json:
    return {"kind": "Status", "code": code, "reason": reason, "message": "said the server"}


class Follower:
    """Replays changes; fails where one does not fit the state it is applied to."""

    def __init__(self) -> None:
        self.changes: list[Change[Thing]] = []
        self.objects: dict[Key, Thing] = {}

    def __call__(self, change: Change[Thing]) -> None:
        self.changes.append(change)
        key = change.subject.key
        match change:
            case Change(type=ChangeType.ADDED, old=None, new=new) if new is not None:
                assert key not in self.objects
                self.objects[key] = new
            case Change(type=ChangeType.UPDATED, old=old, new=new) if new is not None:
                assert self.objects[key] == old
                self.objects[key] = new
            case Change(type=ChangeType.DELETED, new=None):
                del self.objects[key]
            case _:
                raise AssertionError(f"malformed: {change}")

    def told(self) -> list[str]:
        return [f"{change.type} {change.subject.name}" for change in self.changes]


class Rig:
    """An informer with a follower, running against a script."""

    def __init__(self, script: Iterable[Reply] | Callable[[HttpRequest], Reply], **options: Any) -> None:
        self.transport = ScriptedTransport(script, initial_events=True)
        self.happenings: list[Happening] = []
        self.expected_handler_errors = 0
        self.follower = Follower()
        clock = options.pop("clock", None)
        self.informer = Informer(
            Client(self.transport, ClientOptions("tests", attempts=1)),
            Thing,
            options.pop("selection", Selection()),
            InformerOptions(freeze_after_sync=False, random=lambda: 0.0, **{"stream_lists": False, **options}),
            clock=clock,
            observer=lambda _, happening: self.happenings.append(happening),
        )
        self.informer.add_handler(self.follower)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Informer[Thing]]:
        task = asyncio.create_task(self.informer.run())
        try:
            yield self.informer
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert self.informer.statistics().handler_errors == self.expected_handler_errors
        assert self.follower.objects == {item.key: item for item in self.informer.store.list()}

    def run(self, seconds: float = 1.0) -> Informer[Thing]:
        async def scenario() -> None:
            async with self.running():
                await asyncio.sleep(seconds)

        run_virtual(scenario)
        return self.informer

    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.transport.requests]


def names(informer: Informer[Thing]) -> dict[str, str]:
    return {item.name: item.metadata.resource_version for item in informer.store.list()}


def virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scenario)
