"""Event recording: merging, series, retries, limits and the end."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, ClassVar, get_args

import msgspec
import pytest

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.clock import SystemClock, rfc3339_micro
from controllers.runtime.errors import ConfigurationError, TransportError
from controllers.runtime.manager import Manager
from controllers.runtime.meta import KubeObject, ObjectMeta, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import rules
from controllers.runtime.recorder import (
    ALIKE,
    ALIKE_WINDOW,
    BURST,
    COMBINED,
    MAX_NOTE,
    MERGE_WINDOW,
    PERMISSIONS,
    QUEUE_LENGTH,
    REFILL,
    RETRY_DELAY,
    SERIES_LIFETIME,
    TRIES,
    Discarded,
    FakeRecorder,
    Recorder,
    RecorderOptions,
    cut_note,
    same_reason,
)
from controllers.runtime.testing import EPOCH, STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest


class Widget(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)


class Node(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "nodes", "Node", namespaced=False)


WIDGET = Widget(metadata=ObjectMeta(name="w", namespace="ns", uid="u1", resource_version="7"))
NODE = Node(metadata=ObjectMeta(name="n", uid="u2"))


class LoopClock(SystemClock):
    """The wall clock follows the loop's virtual time."""

    def utcnow(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())


class EventServer:
    """Stores Events; ``refuse`` gives an answer in place of the normal one."""

    def __init__(self, refuse: Callable[[HttpRequest], Reply | None] = lambda _: None) -> None:
        self.transport = ScriptedTransport(self._answer)
        self.arrived: list[float] = []
        self._refuse = refuse
        self._names: set[str] = set()

    @property
    def requests(self) -> list[HttpRequest]:
        return self.transport.requests

    def body(self, index: int) -> Any:
        return msgspec.json.decode(self.requests[index].body or b"")

    def _answer(self, request: HttpRequest) -> Reply:
        self.arrived.append(asyncio.get_running_loop().time())
        if (refused := self._refuse(request)) is not None:
            return refused
        body = msgspec.json.decode(request.body or b"")
        if request.method == "PATCH":
            name, uid = request.path.rsplit("/", 1)[1], body[0]["value"]
        else:
            name, uid = body["metadata"]["name"], f"uid-{len(self._names)}"
            if name in self._names:
                return failure(409, "AlreadyExists")
            self._names.add(name)
        namespace = request.path.split("/")[5]
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(len(self.requests))}
        return Answer(200, {"metadata": metadata})


def failure(code: int, reason: str, cause: str = "") -> Answer:
    details = {"causes": [{"reason": cause}]} if cause else {}
    return Answer(code, {"kind": "Status", "reason": reason, "message": "no", "details": details})


class World:
    """A recorder that runs, its server and its metrics."""

    def __init__(self, server: EventServer, options: RecorderOptions | None = None) -> None:
        self.server = server
        self.metrics = Metrics()
        client = Client(server.transport, ClientOptions("test", attempts=1)).restricted_to(PERMISSIONS)
        self.recorder = Recorder(
            client, "gpu-mirage/test", self.metrics, LoopClock(), options=options, jitter=lambda: 0.25
        )

    def warn(self, note: str = "it broke", obj: KubeObject = WIDGET) -> None:
        self.recorder.event(obj, "Warning", "Broken", note, "Reconcile")

    @property
    def discarded(self) -> float:
        return sum(self.discarded_for(why) for why in get_args(Discarded))

    def discarded_for(self, why: Discarded) -> float:
        labels = rf'controller="gpu-mirage/test",reason="{why}"'
        text = self.metrics.render().decode()
        found = re.search(rf"^events_discarded_total\{{{labels}\}} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    @property
    def written(self) -> list[str]:
        """Verb and note of each write, in their order."""
        notes = [(request.method, self.server.body(n)) for n, request in enumerate(self.server.requests)]
        return [f"POST {body['note']}" if verb == "POST" else "PATCH" for verb, body in notes]


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    server: EventServer | None = None,
    options: RecorderOptions | None = None,
) -> World:
    async def main() -> World:
        world = World(server or EventServer(), options)
        task = asyncio.create_task(world.recorder.run())
        await scenario(world)
        await world.recorder.stop()
        await task
        return world

    return run_virtual(main)


def widget(name: str) -> Widget:
    return Widget(metadata=ObjectMeta(name=name, namespace="ns", uid="u-" + name))


def series(count: int, at: float) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": rfc3339_micro(EPOCH + timedelta(seconds=at))}


def test_an_event_is_posted_at_once_with_all_that_the_api_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host-1")

    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(0.001)
        assert world.server.arrived == [0.0]

    world = run(scenario)
    assert world.server.requests[0].path == "/apis/events.k8s.io/v1/namespaces/ns/events"
    body = world.server.body(0)
    assert re.fullmatch(r"w\.[0-9a-f]{16}", body["metadata"].pop("name"))
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "eventTime": "2030-01-01T00:00:00.000000Z",
        "reportingController": "gpu-mirage/test",
        "reportingInstance": "host-1",
        "action": "Reconcile",
        "reason": "Broken",
        "type": "Warning",
        "note": "it broke",
        "regarding": {
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "name": "w",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "7",
        },
    }
    assert world.discarded == 0


def test_event_about_a_cluster_scoped_object_goes_to_namespace_default() -> None:
    async def scenario(world: World) -> None:
        world.warn(obj=NODE)

    world = run(scenario)
    assert world.server.requests[0].path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert world.server.body(0)["metadata"]["namespace"] == "default"
    assert "namespace" not in world.server.body(0)["regarding"]


def test_repeat_updates_the_series_of_the_same_event() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(100)
        world.warn()
        await asyncio.sleep(1)
        assert world.server.arrived == [0.0, 100.0]

    world = run(scenario)
    create, patch = world.server.requests
    assert (create.method, patch.method) == ("POST", "PATCH")
    assert patch.path == f"{create.path}/{world.server.body(0)['metadata']['name']}"
    assert world.server.body(1) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-0"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "add", "path": "/series", "value": series(2, 100.0)},
    ]


def test_hot_loop_costs_one_write_per_window_and_loses_no_count() -> None:
    async def scenario(world: World) -> None:
        for _ in range(1000):
            world.warn()
            await asyncio.sleep(0.05)

    world = run(scenario)
    # 50 s of repeats: at 0, 10, 20, 30, 40 and at the end.
    assert [request.method for request in world.server.requests] == ["POST"] + ["PATCH"] * 5
    assert world.server.arrived[:5] == pytest.approx([0, 10, 20, 30, 40])
    assert world.server.body(5)[2]["value"]["count"] == 1000


def test_repeats_before_the_first_write_are_one_create_with_a_series() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        world.warn()
        world.warn()
        await asyncio.sleep(60)

    world = run(scenario)
    assert len(world.server.requests) == 1
    assert world.server.body(0)["series"] == series(3, 0.0)


def test_repeats_during_a_slow_write_wait_for_their_window() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(1)
        world.warn()
        await asyncio.sleep(60)

    slow = [Answer(200, {"metadata": {"name": "e", "namespace": "ns", "uid": "e", "resourceVersion": "1"}}, delay=4.0)]
    world = run(scenario, EventServer(lambda _: slow.pop() if slow else None))
    assert world.server.arrived == [0.0, MERGE_WINDOW]
    assert world.server.body(1)[2]["value"] == series(2, 1.0)


def test_an_event_silent_for_longer_than_a_series_lives_is_new() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(SERIES_LIFETIME + 1)
        world.warn()

    world = run(scenario)
    assert [request.method for request in world.server.requests] == ["POST", "POST"]
    assert "series" not in world.server.body(1)
    assert world.server.body(0)["metadata"]["name"] != world.server.body(1)["metadata"]["name"]


def test_events_that_differ_in_object_type_reason_or_note_are_not_merged() -> None:
    namesake = Widget(metadata=ObjectMeta(name="w", namespace="ns", uid="another"))

    async def scenario(world: World) -> None:
        world.warn()
        world.warn("another note")
        world.warn(obj=namesake)
        world.recorder.event(WIDGET, "Normal", "Broken", "it broke", "Reconcile")
        world.recorder.event(WIDGET, "Warning", "Other", "it broke", "Reconcile")

    world = run(scenario)
    assert [request.method for request in world.server.requests] == ["POST"] * 5
    assert len({world.server.body(i)["metadata"]["name"] for i in range(5)}) == 5


@pytest.mark.parametrize("refusal", [failure(404, "NotFound"), failure(422, "Invalid"), failure(409, "Conflict")])
def test_series_whose_event_is_gone_or_changed_starts_as_a_new_event(refusal: Answer) -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(60)
        world.warn()

    world = run(scenario, EventServer(lambda request: refusal if request.method == "PATCH" else None))
    assert [request.method for request in world.server.requests] == ["POST", "PATCH", "POST"]
    assert world.discarded == 0


@pytest.mark.parametrize("reply", [TransportError("reset"), Answer(500, b"boom"), failure(429, "TooManyRequests")])
def test_passing_failure_is_tried_twelve_times_first_after_a_random_part_of_the_delay(reply: Reply) -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(600)

    world = run(scenario, EventServer(lambda _: reply))
    first = 0.25 * RETRY_DELAY
    assert world.server.arrived == [0.0] + [first + RETRY_DELAY * n for n in range(TRIES - 1)]
    assert len({world.server.body(i)["metadata"]["name"] for i in range(TRIES)}) == 1
    assert world.discarded == 1


def test_an_event_recorded_by_a_try_whose_answer_was_lost_is_not_recorded_twice() -> None:
    replies: list[Reply] = [failure(409, "AlreadyExists"), TransportError("reset after it was stored")]

    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(600)

    world = run(scenario, EventServer(lambda _: replies.pop()))
    assert len(world.server.requests) == 2
    assert world.discarded == 0


@pytest.mark.parametrize(
    ("reply", "discarded"),
    [
        (failure(403, "Forbidden"), 1.0),
        (failure(422, "Invalid", "FieldValueInvalid"), 1.0),
        (Answer(200, b"not JSON"), 1.0),
        (failure(403, "Forbidden", "NamespaceTerminating"), 0.0),
        (failure(404, "NotFound"), 0.0),
    ],
)
def test_refusal_is_not_repeated_and_does_not_stop_later_events(reply: Answer, discarded: float) -> None:
    replies: list[Reply] = [reply]

    async def scenario(world: World) -> None:
        world.warn("refused")
        await asyncio.sleep(1)
        world.warn("taken")

    world = run(scenario, EventServer(lambda _: replies.pop() if replies else None))
    assert [world.server.body(i)["note"] for i in range(len(world.server.requests))] == ["refused", "taken"]
    assert world.discarded == discarded


def test_full_queue_counts_the_loss_and_recording_returns_at_once() -> None:
    async def scenario(world: World) -> None:
        for number in range(QUEUE_LENGTH + 5):
            world.warn(obj=widget(f"w-{number}"))
        assert world.server.requests == []
        assert world.discarded_for("queue_full") == 5
        await asyncio.sleep(0.001)

    assert len(run(scenario).server.requests) == QUEUE_LENGTH


def test_recording_goes_on_while_the_server_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        for number in range(3):
            world.warn(obj=widget(f"w-{number}"))
            await asyncio.sleep(10)
        assert len(world.server.requests) == 1  # the poster hangs in the first
        assert asyncio.get_running_loop().time() == 30.0

    stalled = Answer(200, stream=[STALL])
    assert run(scenario, EventServer(lambda _: stalled)).discarded == 3


# -- alike events -----------------------------------------------------------------------------------------------------


def test_the_eleventh_alike_note_begins_a_combined_event_and_further_ones_are_its_series() -> None:
    async def scenario(world: World) -> None:
        for number in range(ALIKE + 3):
            world.warn(f"node {number} lost")
        await asyncio.sleep(60)
        world.warn("node 99 lost")
        await asyncio.sleep(60)

    world = run(scenario)
    alone = [f"POST node {n} lost" for n in range(ALIKE)]
    assert world.written == [*alone, f"POST {COMBINED}node {ALIKE} lost", "PATCH"]
    assert world.server.body(ALIKE)["series"] == series(3, 0.0)
    assert world.server.body(ALIKE + 1)[2]["value"] == series(4, 60.0)
    assert world.discarded == 0


def test_a_note_seen_before_the_eleventh_keeps_its_own_series() -> None:
    async def scenario(world: World) -> None:
        for number in range(ALIKE + 1):
            world.warn(f"node {number} lost")
        await asyncio.sleep(60)
        world.warn("node 0 lost")

    world = run(scenario)
    assert world.server.requests[-1].path.endswith(world.server.body(0)["metadata"]["name"])


def test_events_of_another_reason_or_object_are_not_combined() -> None:
    async def scenario(world: World) -> None:
        for number in range(ALIKE):
            world.warn(f"note {number}")
        world.recorder.event(WIDGET, "Warning", "Other", "note x", "Reconcile")
        world.warn("note y", obj=NODE)

    assert not [line for line in run(scenario).written if COMBINED in line]


def test_alike_notes_are_told_apart_again_after_their_window() -> None:
    async def scenario(world: World) -> None:
        for number in range(ALIKE):
            world.warn(f"note {number}")
        await asyncio.sleep(ALIKE_WINDOW + 1)
        world.warn("note 99")

    assert run(scenario).written[-1] == "POST note 99"


def test_a_combined_note_keeps_to_the_limit() -> None:
    async def scenario(world: World) -> None:
        for number in range(ALIKE + 1):
            world.warn(f"{number:03}" + "x" * MAX_NOTE)

    note = run(scenario).server.body(ALIKE)["note"]
    assert note.startswith(COMBINED + "010x")
    assert len(note.encode()) == MAX_NOTE


# -- writes about one object ------------------------------------------------------------------------------------------


def reasons(world: World, count: int, obj: KubeObject = WIDGET) -> None:
    """Records events that have nothing in common but their object."""
    for number in range(count):
        world.recorder.event(obj, "Warning", f"Reason{number}", "note", "Reconcile")


def test_new_events_beyond_the_burst_are_discarded_and_counted() -> None:
    async def scenario(world: World) -> None:
        reasons(world, BURST + 5)
        await asyncio.sleep(1)

    world = run(scenario)
    assert len(world.server.requests) == BURST
    assert world.discarded_for("spam") == 5


def test_one_more_event_about_the_object_passes_after_each_refill() -> None:
    async def scenario(world: World) -> None:
        reasons(world, BURST)
        await asyncio.sleep(REFILL)
        world.warn("first")
        world.warn("second")

    world = run(scenario)
    assert world.written[BURST:] == ["POST first"]
    assert world.discarded_for("spam") == 1


def test_the_bucket_of_one_object_says_nothing_of_another() -> None:
    async def scenario(world: World) -> None:
        reasons(world, BURST)
        reasons(world, BURST, obj=NODE)

    assert run(scenario).discarded == 0


def test_a_loop_that_never_rests_ends_at_one_write_for_each_refill_and_loses_no_count() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3600):
            world.warn()
            await asyncio.sleep(1)

    world = run(scenario)
    # Twenty-five, ten seconds apart; then as tokens come: the 26th has waited for its token since the first was taken.
    assert world.server.arrived[:BURST] == pytest.approx([MERGE_WINDOW * n for n in range(BURST)])
    assert world.server.arrived[BURST:-1] == pytest.approx([REFILL * n for n in range(1, 12)])
    assert world.server.body(-1)[2]["value"]["count"] == 3600
    assert world.discarded == 0


def test_an_update_is_sent_in_the_moment_in_which_its_token_comes() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(1)
        world.warn()
        await asyncio.sleep(60)

    assert run(scenario, options=RecorderOptions(burst=1, refill=12.5)).server.arrived == [0.0, 12.5]


def test_stop_sends_also_what_waits_for_a_token() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(60)
        world.warn()

    world = run(scenario, options=RecorderOptions(burst=1))
    assert world.server.arrived == [0.0, 60.0]
    assert world.server.body(1)[2]["value"]["count"] == 2


def test_the_spam_key_can_keep_a_busy_reason_from_hiding_others() -> None:
    async def scenario(world: World) -> None:
        for number in range(3):
            world.recorder.event(WIDGET, "Warning", "Busy", f"note {number}", "Reconcile")
        world.recorder.event(WIDGET, "Warning", "Rare", "note", "Reconcile")

    one_bucket = run(scenario, options=RecorderOptions(burst=2))
    bucket_each = run(scenario, options=RecorderOptions(burst=2, spam_key=same_reason))
    assert one_bucket.written == ["POST note 0", "POST note 1"]
    assert bucket_each.written == ["POST note 0", "POST note 1", "POST note"]
    assert (one_bucket.discarded_for("spam"), bucket_each.discarded_for("spam")) == (2, 1)


def test_the_group_key_says_what_is_alike() -> None:
    async def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.warn(f"{name} broke", obj=widget(name))
        await asyncio.sleep(1)

    world = run(scenario, options=RecorderOptions(alike=1, group_key=lambda event: event.reason))
    assert world.written == ["POST a broke", f"POST {COMBINED}b broke"]
    assert world.server.body(1)["series"]["count"] == 2


@pytest.mark.parametrize("wrong", [{"alike": 0}, {"burst": 0}, {"refill": -1.0}])
def test_options_that_let_nothing_through_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="use alike >= 1, burst >= 1 and refill >= 0"):
        RecorderOptions(**wrong)


def test_two_calls_for_one_name_give_the_same_recorder_so_that_repeats_meet() -> None:
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions())
    assert manager.recorder("c") is manager.recorder("c")
    assert manager.recorder("c") is not manager.recorder("d")
    with pytest.raises(ConfigurationError, match="the recorder of c exists already"):
        manager.recorder("c", RecorderOptions())


# -- the end ----------------------------------------------------------------------------------------------------------


def test_recording_after_stop_is_a_no_op() -> None:
    async def main() -> World:
        world = World(EventServer())
        await world.recorder.stop()
        world.warn()
        await world.recorder.stop()
        return world

    world = run_virtual(main)
    assert world.server.requests == []
    assert world.discarded == 0


def test_stop_sends_what_waits_for_its_window() -> None:
    async def scenario(world: World) -> None:
        world.warn()
        await asyncio.sleep(1)
        world.warn()

    world = run(scenario)
    assert world.server.arrived == [0.0, 1.0]


def test_stop_flushes_also_after_run_was_cancelled() -> None:
    async def main() -> World:
        world = World(EventServer())
        task = asyncio.create_task(world.recorder.run())
        await asyncio.sleep(1)
        world.warn()
        task.cancel()
        await world.recorder.stop()
        return world

    assert len(run_virtual(main).server.requests) == 1


def test_stop_gives_up_after_its_time_and_counts_the_rest() -> None:
    async def main() -> World:
        world = World(EventServer(lambda _: Answer(200, stream=[STALL])))
        for number in range(3):
            world.warn(f"note {number}")
        await world.recorder.stop(2.0)
        assert asyncio.get_running_loop().time() == 2.0
        return world

    assert run_virtual(main).discarded_for("stopped") == 3


@pytest.mark.parametrize("length", [1, 236, 237, 253])
def test_event_name_keeps_to_the_limit_and_to_dns_rules(length: int) -> None:
    name = ("a" * 235 + "-." + "b" * 16)[:length].rstrip("-.")
    long_named = Widget(metadata=ObjectMeta(name=name, namespace="ns", uid="u"))

    async def scenario(world: World) -> None:
        world.warn(obj=long_named)

    posted = run(scenario).server.body(0)["metadata"]["name"]
    assert len(posted) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", posted)


def test_objects_whose_long_names_share_their_beginning_get_different_event_names() -> None:
    async def scenario(world: World) -> None:
        for end in "ab":
            world.warn(obj=Widget(metadata=ObjectMeta(name="x" * 252 + end, namespace="ns")))

    server = run(scenario).server
    assert len({server.body(i)["metadata"]["name"] for i in range(2)}) == 2


def test_note_is_cut_to_its_limit_on_a_character_border() -> None:
    assert cut_note("a" * 1024) == "a" * 1024
    assert cut_note("a" * 1025) == "a" * 1021 + "…"
    cut = cut_note("a" + "é" * 600)
    assert cut == "a" + "é" * 510 + "…"
    assert len(cut.encode()) == 1024


def test_note_that_is_not_unicode_is_recorded_all_the_same() -> None:
    async def scenario(world: World) -> None:
        world.warn("bad \ud800 half")

    assert run(scenario).server.body(0)["note"] == "bad ? half"


def test_permissions_are_create_and_patch_of_events() -> None:
    assert rules(PERMISSIONS) == [
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
    ]


def test_fake_recorder_keeps_what_is_recorded() -> None:
    fake = FakeRecorder()
    fake.event(WIDGET, "Normal", "Ready", "all there", "Reconcile")
    assert [(e.obj, e.type, e.reason, e.note, e.action) for e in fake.events] == [
        (WIDGET, "Normal", "Ready", "all there", "Reconcile")
    ]


@pytest.mark.parametrize(("events", "lines"), [(0, []), (1, [1]), (3, [3])])
def test_what_is_discarded_at_the_end_is_told_with_its_number_and_nothing_where_there_is_none(
    events: int, lines: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(EventServer(lambda _: Answer(200, stream=[STALL])))
        for number in range(events):
            world.warn(f"note {number}")
        if not events:
            # As where the task that posts has not ended yet.
            await world.recorder._posting.acquire()
        await world.recorder.stop(1.0)

    run_virtual(main)
    assert [r.fields["count"] for r in caplog.records if "discarded at the end" in r.message] == lines  # type: ignore[attr-defined]
