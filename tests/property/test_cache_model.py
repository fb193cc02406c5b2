"""Whatever happens on the way, the cache ends equal to the server, and so does whoever follows its changes."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime.cache import Change, ChangeType, Informer, InformerOptions, MutationDetector
from controllers.runtime.client import EVERYTHING, Client, ClientOptions, Selection, Write
from controllers.runtime.errors import TransportError
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.testing import Answer, Pause, Reply, ScriptedTransport, Step, run_virtual
from controllers.runtime.transport import HttpRequest

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS

    size: int = 0


Json = dict[str, Any]
State = dict[str, tuple[str, str]]
"""Of each name its uid and resourceVersion."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that happens to the server, after some seconds of peace."""

    what: str
    name: str
    peace: float


@dataclass(frozen=True, slots=True)
class Follows:
    """How the cache follows the server."""

    streams: str  # lists; or streams that the server serves, refuses, or takes for plain watches
    by_namespace: bool


EXPIRED: Json = {"kind": "Status", "code": 410, "reason": "Expired", "message": "forgotten"}
AHEAD: Json = {"kind": "Status", "code": 504, "reason": "Timeout", "message": "Too large resource version"}
WRITES = ("create", "update", "delete", "recreate", "spoil")
ENDS = ("close", "reset", "truncate")
FAULTS = (
    "forget",
    "forget_in_stream",
    "expire_token",
    "refuse",
    "fail",
    "forbid",
    "bookmark",
    "twice",
    "swap",
    "noise",
)
RESTORE, RESTORE_AWAY = "restore", "restore-away"

BEFORE, AFTER = 100, 1
"""How far a write takes the version on, before and after a backup is restored: what comes after it stays below the
versions that were given out, where a watch is silent."""

steps = st.builds(
    Trouble,
    st.sampled_from(WRITES * 2 + ENDS + FAULTS),
    st.sampled_from("abcde"),
    st.sampled_from((0.0, 0.0, 0.05, 0.3, 2.0)),
)
ways = st.builds(Follows, st.sampled_from(("lists", "served", "refused", "ignored")), st.booleans())


def namespace_of(name: str) -> str:
    return "a" if name in "ab" else "b"


class Server:
    """A list and a watch over a few objects, with a history that can be forgotten and connections that break."""

    def __init__(self, streams: str = "lists") -> None:
        self.streams = streams
        self.version = 10
        self.step = BEFORE
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[int, Json]] = []
        self.backups: list[tuple[int, dict[str, Json]]] = [(self.version, {})]
        self.forgotten = 0
        self.snapshots: dict[str, tuple[int, list[Json]]] = {}
        self.token_expires = False
        self.refusals: list[Reply] = []
        self.oddities: list[str] = []
        self.connection = 0
        self.ending = "close"
        self.lists = self.watches = self.states = 0
        self.calm = False

    def happen(self, step: Trouble) -> None:
        if step.what in WRITES:
            self.change(step)
        elif step.what in ENDS:
            self.break_connection(step.what)
        elif step.what in (RESTORE, RESTORE_AWAY):
            self.restore(away=step.what == RESTORE_AWAY)
        else:
            self.fail(step)

    def change(self, step: Trouble) -> None:
        if step.what in ("delete", "recreate"):
            self.delete(step.name)
        if step.what != "delete":
            self.write(step.name, size="huge" if step.what == "spoil" else 0)

    def fail(self, step: Trouble) -> None:
        match step.what:
            case "forget" | "forget_in_stream":
                self.version += 1
                self.forgotten = self.version
                self.break_connection("gone" if step.what == "forget_in_stream" else "reset")
            case "expire_token":
                self.token_expires = True
            case "refuse":
                self.refusals.append(TransportError("refused"))
            case "fail" | "forbid":
                self.refusals.append(Answer(500 if step.what == "fail" else 403))
            case "bookmark":
                self.history.append((self.version, {"type": "BOOKMARK", "object": self.mark()}))
            case "twice" | "swap" | "noise":
                self.oddities.append(step.what)

    def write(self, name: str, size: Any = 0) -> Write:
        known = self.objects.get(name)
        self.version += self.step
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}-{self.connection}"
        metadata = {"name": name, "namespace": namespace_of(name), "uid": uid, "resourceVersion": str(self.version)}
        item = {"kind": "Thing", "metadata": metadata, "size": size}
        self.objects[name] = item
        self.record("MODIFIED" if known else "ADDED", item)
        return Write(Thing, Key(namespace_of(name), name), uid, str(self.version))

    def delete(self, name: str) -> None:
        gone = self.objects.pop(name, None)
        if gone is not None:
            self.version += self.step
            last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self.record("DELETED", last)

    def record(self, type_: str, item: Json) -> None:
        self.history.append((self.version, {"type": type_, "object": item}))
        self.backups.append((self.version, dict(self.objects)))

    def restore(self, *, away: bool) -> None:
        """Goes back to a backup, as of three writes ago; versions are given out again from there.

        A server that was away meanwhile soon passes the old versions, and one that was not stays below them.
        """
        version, self.objects = self.backups[max(0, len(self.backups) - 4)]
        self.version, self.objects = version, dict(self.objects)
        self.history = [(then, event) for then, event in self.history if then <= version]
        self.forgotten = min(self.forgotten, version)
        self.step = BEFORE if away else AFTER
        self.snapshots.clear()
        self.break_connection("reset")
        self.refusals += [TransportError("refused")] * (2 if away else 0)

    def mark(self, **annotations: str) -> Json:
        return {"metadata": {"resourceVersion": str(self.version), "annotations": annotations}}

    def break_connection(self, how: str) -> None:
        self.connection += 1
        self.ending = how

    def state(self) -> State:
        metadata = [item["metadata"] for item in self.objects.values() if item["size"] == 0]
        return {m["name"]: (m["uid"], m["resourceVersion"]) for m in metadata}

    def unreadable(self) -> dict[str, str]:
        metadata = [item["metadata"] for item in self.objects.values() if item["size"] != 0]
        return {m["name"]: m["uid"] for m in metadata}

    # -- answering ----------------------------------------------------------------------------------------------------

    def reply(self, request: HttpRequest) -> Reply:
        if self.refusals:
            return self.refusals.pop()
        query, parts = dict(request.query), request.path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        if "sendInitialEvents" in query and self.streams == "refused":
            return Answer(422)
        if "watch" not in query:
            return self.list_page(query, namespace)
        return self.watch(query, namespace)

    def selected(self, namespace: str) -> list[Json]:
        return [item for item in self.objects.values() if namespace in ("", item["metadata"]["namespace"])]

    def list_page(self, query: dict[str, str], namespace: str) -> Reply:
        self.lists += 1
        token = query.get("continue", "")
        if token and (self.token_expires or token not in self.snapshots):
            self.token_expires = False
            return Answer(410, body=EXPIRED)
        if int(query.get("resourceVersion", "0")) > self.version:
            return Answer(504, body=AHEAD)
        version, rest = self.snapshots[token] if token else (self.version, self.selected(namespace))
        limit = int(query.get("limit", "0")) or len(rest)
        following = ""
        if len(rest) > limit:
            following = f"token-{len(self.snapshots)}-{self.connection}"
            self.snapshots[following] = (version, rest[limit:])
        metadata = {"resourceVersion": str(version), "continue": following}
        return Answer(body={"kind": "ThingList", "metadata": metadata, "items": rest[:limit]}, delay=0.02)

    def watch(self, query: dict[str, str], namespace: str) -> Reply:
        self.watches += 1
        version, timeout = int(query.get("resourceVersion", "0")), float(query["timeoutSeconds"])
        if "sendInitialEvents" in query:
            if version > self.version:
                return Answer(504, body=AHEAD)
            return Answer(stream=self.tell_state(namespace, timeout))
        return (
            Answer(410, body=EXPIRED)
            if version < self.forgotten
            else Answer(stream=self.follow(version, namespace, timeout))
        )

    def tell_state(self, namespace: str, timeout: float) -> Iterator[Step]:
        self.states += 1
        version, connection = self.version, self.connection
        for item in self.selected(namespace):
            yield {"type": "ADDED", "object": item}
            yield Pause(0.01)
            if connection != self.connection:
                yield from self.end(len(self.history))
                return
        if self.streams == "served":
            mark = {**self.mark(**{"k8s.io/initial-events-end": "true"})}
            mark["metadata"]["resourceVersion"] = str(version)
            yield {"type": "BOOKMARK", "object": mark}
        yield from self.follow(version, namespace, timeout)

    def follow(self, version: int, namespace: str, timeout: float) -> Iterator[Step]:
        connection, passed, marked, pause = self.connection, 0.0, 0.0, 0.1
        sent = next((at for at, (then, _) in enumerate(self.history) if then > version), len(self.history))
        while connection == self.connection and passed < timeout:
            if sent < len(self.history) and self.history[sent][0] > version:
                taken = self.oddly(sent)
                sent += len({at for at in taken if at is not None})
                yield from self.told(taken, namespace)
                pause = 0.1
                continue
            sent = min(sent + 1, len(self.history))
            yield Pause(pause)
            passed, pause = passed + pause, min(pause * 1.5, 10.0 if self.calm else 0.5)
            if passed - marked >= 60.0 and self.version >= version and connection == self.connection:
                marked = passed
                yield {"type": "BOOKMARK", "object": self.mark()}
        if connection != self.connection:
            yield from self.end(sent)

    def told(self, taken: list[int | None], namespace: str) -> Iterator[Step]:
        for at in taken:
            if at is None:
                yield {"type": "ADDED", "object": {"kind": "Table", "rows": []}}
            elif namespace in ("", self.history[at][1]["object"]["metadata"].get("namespace", namespace)):
                yield self.history[at][1]

    def oddly(self, sent: int) -> list[int | None]:
        """Which events are told next: usually one, now and then twice, with the next before it, or with nonsense."""
        match self.oddities.pop() if self.oddities else "":
            case "twice":
                return [sent, sent]
            case "noise":
                return [None, sent]
            case "swap" if sent + 1 < len(self.history):
                names = [self.history[at][1]["object"]["metadata"].get("name") for at in (sent, sent + 1)]
                # Servers may tell of two objects in either order, but never of one.
                return [sent + 1, sent] if None not in names and names[0] != names[1] else [sent]
        return [sent]

    def end(self, sent: int) -> Iterator[Step]:
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


class Patient:
    """A buffered handler that is slow, and so misses states in between."""

    def __init__(self) -> None:
        self.objects: dict[Key, Thing] = {}

    async def __call__(self, change: Change[Thing]) -> None:
        await asyncio.sleep(0.2)
        known = self.objects.pop(change.subject.key, None)
        assert (known is None) == (change.type is ChangeType.ADDED)
        if change.new is not None:
            self.objects[change.new.key] = change.new


def state_of(objects: dict[Key, Thing] | tuple[Thing, ...], without: dict[str, str]) -> State:
    items = objects.values() if isinstance(objects, dict) else objects
    return {item.name: (item.uid, item.metadata.resource_version) for item in items if item.name not in without}


def check(informer: Informer[Thing], server: Server, followers: list[dict[Key, Thing]]) -> None:
    unreadable = server.unreadable()
    stored = informer.store.list()
    assert state_of(stored, unreadable) == server.state()
    # What cannot be read is kept as it was last, unless a namesake has taken its place.
    assert all(item.uid == unreadable[item.name] for item in stored if item.name in unreadable)
    for objects in followers:
        assert objects == {item.key: item for item in stored}
    assert informer.statistics().handler_errors == 0
    assert informer.statistics().undecodable == len(unreadable)
    assert informer.store.index_sizes() == {"uid": len(stored)}


async def follow(
    server: Server, happenings: list[Trouble], follows: Follows = Follows("lists", by_namespace=False)
) -> None:
    client = Client(ScriptedTransport(server.reply, initial_events=True), ClientOptions("tests", attempts=1))
    options = InformerOptions(
        page_size=2, stream_lists=follows.streams != "lists", freeze_after_sync=False, random=lambda: 0.5
    )
    selection = (Selection("a"), Selection("b")) if follows.by_namespace else EVERYTHING
    informer = Informer(client, Thing, selection, options)
    early, late, patient = Follower(), Follower(), Patient()
    informer.add_handler(early)
    informer.add_buffered_handler(patient, limit=3)
    informer.store.add_index("uid", lambda item: [item.uid])
    detector = MutationDetector(informer.store)
    task = asyncio.create_task(informer.run())
    restores = any(step.what in (RESTORE, RESTORE_AWAY) for step in happenings)
    if restores:
        server.calm = True
        await asyncio.sleep(200.0)  # until bookmarks have come, without which nothing can be told from silence
    server.calm = False
    for number, step in enumerate(happenings):
        await asyncio.sleep(step.peace)
        server.happen(step)
        detector.check()
        if number == len(happenings) // 2:
            informer.add_handler(late)
    if not happenings:
        informer.add_handler(late)
    server.calm = True
    if restores:
        await asyncio.sleep(3000.0)
    # Our own last writes are in the cache once the wait for them is over, and with them everything before.
    for name in ("a", "last"):
        assert await informer.wait_for(server.write(name), 600.0)
    check(informer, server, [early.objects, late.objects])
    await asyncio.sleep(60.0)
    check(informer, server, [early.objects, late.objects, patient.objects])
    detector.check()
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40), ways)
def test_store_and_followers_equal_the_server_after_anything(happenings: list[Trouble], follows: Follows) -> None:
    run_virtual(follow(Server(follows.streams), happenings, follows))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(steps, max_size=15),
    st.lists(steps, max_size=15),
    st.sampled_from((RESTORE, RESTORE_AWAY)),
    st.sampled_from(("lists", "served")),
)
def test_store_and_followers_go_back_with_a_restored_backup(
    before: list[Trouble], after: list[Trouble], restore: str, streams: str
) -> None:
    ruled_out = ("spoil", "forget", "forget_in_stream")
    earlier, later = ([step for step in part if step.what not in ruled_out] for part in (before, after))
    # Whoever is away is looked at again before much has happened; what passes the old versions first is seen by nobody.
    peace = Trouble("bookmark", "a", 120.0)
    happenings = [*earlier, peace, Trouble(restore, "a", 1.0), replace(peace, peace=900.0), *later]
    run_virtual(follow(Server(streams), happenings, Follows(streams, by_namespace=False)))


def test_the_model_reaches_every_kind_of_trouble() -> None:
    for streams in ("lists", "served"):
        server = Server(streams)
        for name in "abcde":
            server.write(name)
        troubles = [Trouble(what, "a", 40.0) for what in (*ENDS, *FAULTS, "forget", *WRITES, *WRITES)]
        run_virtual(follow(server, troubles, Follows(streams, by_namespace=False)))
        # The first state, and one for each time the history was forgotten: in pages, or as one stream.
        assert (server.lists >= 3 + 3 + 3) if streams == "lists" else (server.states >= 1 + 3)
        assert server.watches >= 1 + len(ENDS) + 3  # the first watch, and one after each break
        assert server.token_expires == (streams != "lists")
        assert not server.refusals
        assert not server.oddities
