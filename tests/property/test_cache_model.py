"""Whatever happens on the way, the cache ends equal to the server, and so does whoever follows its changes."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime.cache import Change, ChangeType, Informer, InformerOptions
from controllers.runtime.client import EVERYTHING, Client, ClientOptions, Write
from controllers.runtime.errors import TransportError
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.testing import Answer, Pause, Reply, ScriptedTransport, Step, run_virtual
from controllers.runtime.transport import HttpRequest

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS


Json = dict[str, Any]
State = dict[str, tuple[str, str]]
"""Of each name its uid and resourceVersion."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that happens to the server, after some seconds of peace."""

    what: str
    name: str
    peace: float


EXPIRED: Json = {"kind": "Status", "code": 410, "reason": "Expired", "message": "forgotten"}
WRITES = ("create", "update", "delete", "recreate")
ENDS = ("close", "reset", "truncate")
FAULTS = ("forget", "forget_in_stream", "expire_token", "refuse", "fail", "bookmark")

steps = st.builds(
    Trouble,
    st.sampled_from(WRITES * 2 + ENDS + FAULTS),
    st.sampled_from("abcde"),
    st.sampled_from((0.0, 0.0, 0.05, 0.3, 2.0)),
)


class Server:
    """A list and a watch over a few objects, with a history that can be forgotten and connections that break."""

    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[int, Json]] = []
        self.forgotten = 0
        self.snapshots: dict[str, tuple[int, list[Json]]] = {}
        self.token_expires = False
        self.refusals: list[Reply] = []
        self.connection = 0
        self.ending = "close"
        self.lists = self.watches = 0

    def happen(self, step: Trouble) -> None:
        match step.what:
            case "create" | "update":
                self.write(step.name)
            case "delete":
                self.delete(step.name)
            case "recreate":
                self.delete(step.name)
                self.write(step.name)
            case "close" | "reset" | "truncate":
                self.break_connection(step.what)
            case "forget" | "forget_in_stream":
                self.version += 1
                self.forgotten = self.version
                self.break_connection("gone" if step.what == "forget_in_stream" else "reset")
            case "expire_token":
                self.token_expires = True
            case "refuse":
                self.refusals.append(TransportError("refused"))
            case "fail":
                self.refusals.append(Answer(500))
            case "bookmark":
                self.history.append((self.version, {"type": "BOOKMARK", "object": self.mark()}))

    def write(self, name: str) -> Write:
        known = self.objects.get(name)
        self.version += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        item = {"metadata": {"name": name, "namespace": "a", "uid": uid, "resourceVersion": str(self.version)}}
        self.objects[name] = item
        self.history.append((self.version, {"type": "MODIFIED" if known else "ADDED", "object": item}))
        return Write(Thing, Key("a", name), uid, str(self.version))

    def delete(self, name: str) -> None:
        gone = self.objects.pop(name, None)
        if gone is not None:
            self.version += 1
            last = {"metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self.history.append((self.version, {"type": "DELETED", "object": last}))

    def mark(self) -> Json:
        return {"metadata": {"resourceVersion": str(self.version)}}

    def break_connection(self, how: str) -> None:
        self.connection += 1
        self.ending = how

    def state(self) -> State:
        metadata = [item["metadata"] for item in self.objects.values()]
        return {m["name"]: (m["uid"], m["resourceVersion"]) for m in metadata}

    # -- answering ----------------------------------------------------------------------------------------------------

    def reply(self, request: HttpRequest) -> Reply:
        if self.refusals:
            return self.refusals.pop()
        query = dict(request.query)
        return self.watch(query) if "watch" in query else self.list(query)

    def list(self, query: dict[str, str]) -> Reply:
        self.lists += 1
        token = query.get("continue", "")
        if token and self.token_expires:
            self.token_expires = False
            return Answer(410, body=EXPIRED)
        version, rest = self.snapshots[token] if token else (self.version, [*self.objects.values()])
        limit = int(query.get("limit", "0")) or len(rest)
        following = ""
        if len(rest) > limit:
            following = f"token-{len(self.snapshots)}"
            self.snapshots[following] = (version, rest[limit:])
        metadata = {"resourceVersion": str(version), "continue": following}
        return Answer(body={"metadata": metadata, "items": rest[:limit]}, delay=0.02)

    def watch(self, query: dict[str, str]) -> Reply:
        self.watches += 1
        version = int(query["resourceVersion"])
        return Answer(410, body=EXPIRED) if version < self.forgotten else Answer(stream=self.follow(version))

    def follow(self, version: int) -> Iterator[Step]:
        connection = self.connection
        sent = next((at for at, (then, _) in enumerate(self.history) if then > version), len(self.history))
        while connection == self.connection:
            if sent == len(self.history):
                yield Pause(0.1)
                continue
            yield self.history[sent][1]
            sent += 1
        match self.ending:
            case "reset":
                yield TransportError("reset")
            case "truncate":
                following = self.history[sent : sent + 1] or [(0, {"type": "BOOKMARK", "object": self.mark()})]
                yield msgspec.json.encode(following[0][1])[:-1]
            case "gone":
                yield {"type": "ERROR", "object": EXPIRED}


class Follower:
    """Knows only what changes say."""

    def __init__(self) -> None:
        self.objects: dict[Key, Thing] = {}

    def __call__(self, change: Change[Thing]) -> None:
        key = change.subject.key
        known = self.objects.pop(key, None)
        # A handler may build on this: what a change calls old is what the changes before it have left.
        assert (known is None) == (change.type is ChangeType.ADDED)
        if change.type is ChangeType.UPDATED:
            assert known == change.old
        if change.new is not None:
            self.objects[key] = change.new


def state_of(objects: dict[Key, Thing] | tuple[Thing, ...]) -> State:
    items = objects.values() if isinstance(objects, dict) else objects
    return {item.name: (item.uid, item.metadata.resource_version) for item in items}


async def follow(server: Server, happenings: list[Trouble]) -> None:
    client = Client(ScriptedTransport(server.reply), ClientOptions("tests", attempts=1))
    options = InformerOptions(page_size=2, stream_lists=False, freeze_after_sync=False, random=lambda: 0.5)
    informer = Informer(client, Thing, EVERYTHING, options)
    early, late = Follower(), Follower()
    informer.add_handler(early)
    informer.store.add_index("uid", lambda item: [item.uid])
    task = asyncio.create_task(informer.run())
    for number, step in enumerate(happenings):
        await asyncio.sleep(step.peace)
        server.happen(step)
        if number == len(happenings) // 2:
            informer.add_handler(late)
    if not happenings:
        informer.add_handler(late)
    # Our own last write is in the cache once the wait for it is over, and with it everything before.
    assert await informer.wait_for(server.write("last"), 600.0)
    assert state_of(informer.store.list()) == server.state()
    assert state_of(early.objects) == state_of(late.objects) == server.state()
    assert informer.statistics().handler_errors == 0
    assert informer.store.index_sizes() == {"uid": len(server.objects)}
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_store_and_followers_equal_the_server_after_anything(happenings: list[Trouble]) -> None:
    run_virtual(follow(Server(), happenings))


def test_the_model_reaches_every_kind_of_trouble() -> None:
    server = Server()
    for name in "abcde":
        server.write(name)
    troubles = [Trouble(what, "a", 5.0) for what in (*ENDS, *FAULTS, "forget", *WRITES)]
    run_virtual(follow(server, troubles))
    assert server.lists >= 3 + 3 + 3  # the first list, and one for each time the history was forgotten, in pages
    assert server.watches >= 1 + len(ENDS) + 3  # the first watch, and one after each break
    assert not server.token_expires
    assert not server.refusals
