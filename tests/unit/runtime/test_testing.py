"""The helpers for tests: each has to be as strict as the thing it stands for."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from controllers.api.core import Namespace
from controllers.runtime import Client, ClientOptions, Manager, ObjectMeta, testing
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError, RuntimeFault, TransportError
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder
from controllers.runtime.testing import (
    EPOCH,
    STALL,
    Answer,
    Deadlock,
    FakeClock,
    FakeRecorder,
    Pause,
    RecordedEvent,
    ScriptedTransport,
    Step,
    TimeLimit,
    VirtualTimeLoop,
    connected,
    eventually,
    run_virtual,
    running,
)
from controllers.runtime.transport import HttpRequest, Transport

WATCH = HttpRequest("GET", "/api/v1/pods", (("watch", "true"),), timeout=60.0)


def test_sleeping_a_year_takes_no_time() -> None:
    async def scenario() -> float:
        await asyncio.sleep(31_536_000.0)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(scenario, limit=1e9) == 31_536_000.0
    assert time.monotonic() - started < 5.0


def test_timers_fire_in_order_at_their_exact_times() -> None:
    async def scenario() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[str, float]] = []

        def fire(name: str) -> None:
            fired.append((name, loop.time()))

        for name, delay in (("c", 0.3), ("a", 0.1), ("b", 0.1), ("d", 1e5), ("c2", 0.3 + 1e-12)):
            loop.call_later(delay, fire, name)
        await asyncio.sleep(1e5)
        return fired

    assert run_virtual(scenario, limit=1e6) == [("a", 0.1), ("b", 0.1), ("c", 0.3), ("c2", 0.3 + 1e-12), ("d", 1e5)]


def test_timeouts_run_on_virtual_time() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await asyncio.sleep(11.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5.0)
        return loop.time()

    assert run_virtual(scenario) == 15.0


def test_time_stands_still_while_a_task_can_run() -> None:
    async def scenario() -> float:
        sleeper = asyncio.create_task(asyncio.sleep(1.0))
        for _ in range(100):
            await asyncio.sleep(0)
        moment = asyncio.get_running_loop().time()
        await sleeper
        return moment

    assert run_virtual(scenario) == 0.0


def test_system_clock_follows_virtual_time() -> None:
    async def scenario() -> float:
        clock = SystemClock()
        await clock.sleep(42.0)
        return clock.monotonic()

    assert run_virtual(scenario) == 42.0


def test_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def waits_for_nobody() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        await asyncio.sleep(7.0)
        await asyncio.create_task(waits_for_nobody(), name="lonely")

    with pytest.raises(Deadlock, match=r"after virtual second 7; .*lonely in Event\.wait"):
        run_virtual(scenario)


def test_code_under_test_cannot_catch_a_deadlock() -> None:
    caught = []

    async def scenario() -> None:
        try:
            await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001
            caught.append(error)

    with pytest.raises(Deadlock):
        run_virtual(scenario)
    assert not caught


def test_sleeping_for_ever_is_a_deadlock() -> None:
    with pytest.raises(Deadlock):
        run_virtual(asyncio.sleep(float("inf")))


def test_program_that_only_ticks_ends_at_the_limit() -> None:
    async def ticking() -> None:
        while True:
            await asyncio.sleep(10.0)

    with pytest.raises(TimeLimit, match="virtual second 95 is over"):
        run_virtual(ticking, limit=95.0)


def test_cleanup_that_needs_time_gets_it_after_the_limit() -> None:
    steps: list[str] = []

    async def scenario() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.sleep(5.0)
            steps.append("cleaned up")

    with pytest.raises(TimeLimit):
        run_virtual(scenario, limit=10.0)
    assert steps == ["cleaned up"]


def test_cleanup_that_never_ends_is_cut_off() -> None:
    async def scenario() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(scenario, limit=10.0)


def test_tasks_left_over_are_cancelled_at_the_end() -> None:
    left: list[asyncio.Task[None]] = []

    async def scenario() -> str:
        left.append(asyncio.create_task(asyncio.sleep(1000.0)))
        await asyncio.sleep(0)
        return "result"

    assert run_virtual(scenario()) == "result"
    assert left[0].cancelled()


def test_errors_of_the_scenario_pass_through() -> None:
    async def scenario() -> None:
        await asyncio.sleep(1.0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(scenario)


def test_blocking_functions_run_in_the_loop() -> None:
    async def scenario() -> int:
        return await asyncio.to_thread(sum, [1, 2, 3])

    assert run_virtual(scenario) == 6


def test_virtual_loop_opens_no_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socketpair", refuse)
    monkeypatch.setattr("socket.socket", refuse)
    loop = VirtualTimeLoop()
    try:
        assert loop.run_until_complete(asyncio.sleep(1.0, "slept")) == "slept"
    finally:
        loop.close()


def test_fake_clock_moves_only_when_told_to() -> None:
    fake = FakeClock(start=100.0)
    clock: Clock = fake
    assert (clock.monotonic(), clock.utcnow()) == (100.0, EPOCH)
    fake.advance(2.5)
    assert (clock.monotonic(), clock.utcnow()) == (102.5, EPOCH + timedelta(seconds=2.5))
    run_virtual(clock.sleep(10.0))
    run_virtual(clock.sleep(-10.0))
    assert clock.monotonic() == 112.5


def test_fake_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="turn the clock back"):
        FakeClock().advance(-1.0)


def test_script_is_answered_in_order_and_requests_are_kept() -> None:
    async def scenario() -> None:
        scripted = ScriptedTransport(
            [Answer(body={"kind": "Pod"}), Answer(409, b"taken", headers={"Retry-After": "3"})]
        )
        transport: Transport = scripted
        get = HttpRequest("GET", "/api/v1/namespaces/a/pods/b")
        post = HttpRequest("POST", "/api/v1/namespaces/a/pods", body=b"{}")
        first, second = await transport.request(get), await transport.request(post)
        assert (first.status, first.body) == (200, b'{"kind":"Pod"}')
        assert (second.status, second.body, second.headers) == (409, b"taken", {"Retry-After": "3"})
        assert scripted.requests == [get, post]
        assert not scripted.closed
        await transport.close()
        assert scripted.closed

    run_virtual(scenario)


def test_request_beyond_the_script_fails_by_name() -> None:
    with pytest.raises(AssertionError, match=r"GET /api/v1/pods: the script has no answer left"):
        run_virtual(ScriptedTransport([]).request(WATCH))


def test_handler_answers_by_request() -> None:
    def handler(request: HttpRequest) -> Answer | Exception:
        return Answer(body=request.body or b"") if request.method == "PUT" else TransportError("refused")

    async def scenario() -> None:
        transport = ScriptedTransport(handler)
        assert (await transport.request(HttpRequest("PUT", "/x", body=b"echo"))).body == b"echo"
        with pytest.raises(TransportError, match="refused"):
            await transport.request(HttpRequest("GET", "/x"))
        assert len(transport.requests) == 2

    run_virtual(scenario)


def arrivals(*steps: Step, body: bytes = b"") -> list[tuple[float, bytes | str]]:
    """What a reader of such a stream sees and when, up to its end."""

    async def scenario() -> list[tuple[float, bytes | str]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, bytes | str]] = []
        transport = ScriptedTransport([Answer(body=body, stream=steps)])
        try:
            async with transport.stream(WATCH) as stream:
                assert stream.status == 200
                async for chunk in stream.chunks():
                    seen += [(loop.time(), chunk)]
        except TransportError as error:
            seen.append((loop.time(), str(error)))
        else:
            seen.append((loop.time(), "end"))
        return seen

    return run_virtual(scenario)


def test_stream_sends_bytes_and_lines_with_pauses_to_a_clean_end() -> None:
    assert arrivals(b"raw", {"type": "ADDED"}, Pause(30.0), {"type": "DELETED"}) == [
        (0.0, b"raw"),
        (0.0, b'{"type":"ADDED"}\n'),
        (30.0, b'{"type":"DELETED"}\n'),
        (30.0, "end"),
    ]


def test_stream_can_break_anywhere() -> None:
    assert arrivals(b'{"type":"AD', TransportError("reset")) == [(0.0, b'{"type":"AD'), (0.0, "reset")]


@pytest.mark.parametrize("silence", [STALL, Pause(60.0)])
def test_silence_as_long_as_the_timeout_breaks_the_stream(silence: Pause) -> None:
    assert arrivals(b"x", silence, b"never") == [(0.0, b"x"), (60.0, "GET /api/v1/pods: nothing came for 60 s")]


def test_silences_do_not_add_up() -> None:
    assert arrivals(Pause(50.0), b"x", Pause(50.0)) == [(50.0, b"x"), (100.0, "end")]


def test_body_of_a_streamed_answer_comes_first() -> None:
    assert arrivals(b"tail", body=b"head") == [(0.0, b"head"), (0.0, b"tail"), (0.0, "end")]


def test_late_answer_times_out() -> None:
    async def scenario() -> float:
        transport = ScriptedTransport([Answer(delay=5.0), Answer(delay=60.0)])
        await transport.request(WATCH)
        with pytest.raises(TransportError, match="nothing came for 60 s"):
            await transport.request(WATCH)
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 65.0


def test_stall_without_a_timeout_is_a_deadlock() -> None:
    transport = ScriptedTransport([Answer(stream=[STALL])])
    with pytest.raises(Deadlock):
        run_virtual(transport.request(HttpRequest("GET", "/x", timeout=float("inf"))))


def test_watch_that_begins_with_the_state_is_left_to_the_script_only_where_it_says_so() -> None:
    request = HttpRequest("GET", "/api/v1/pods", (("watch", "true"), ("sendInitialEvents", "true")))

    async def ask(transport: ScriptedTransport) -> tuple[int, int]:
        async with transport.stream(request) as stream:
            return stream.status, len(transport.requests)

    assert run_virtual(ask(ScriptedTransport([]))) == (422, 0)
    assert run_virtual(ask(ScriptedTransport([Answer()], initial_events=True))) == (200, 1)


def test_empty_json_body_is_sent() -> None:
    assert run_virtual(ScriptedTransport([Answer(body={})]).request(WATCH)).body == b"{}"


def test_eventually_returns_the_first_true_result() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        found: list[str] = []
        loop.call_later(3.0, found.append, "pod")
        assert await eventually(lambda: found) == ["pod"]
        assert loop.time() == pytest.approx(3.0, abs=0.011)

    run_virtual(scenario)


def test_eventually_awaits_conditions_and_forgives_assertions() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def ready() -> str:
            await asyncio.sleep(0.5)
            assert loop.time() > 2.0, "too early"
            return "ready"

        assert await eventually(ready) == "ready"

    run_virtual(scenario)


def too_few() -> int:
    return 0


def never_right() -> int:
    raise AssertionError("two members are missing")


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (too_few, r"too_few is not true after 2 s; it last gave 0"),
        (never_right, r"never_right .*two members are missing"),
    ],
)
def test_eventually_says_what_it_saw_last(condition: Callable[[], int], text: str) -> None:
    async def scenario() -> None:
        with pytest.raises(AssertionError, match=text):
            await eventually(condition, timeout=2.0, interval=0.5)
        assert asyncio.get_running_loop().time() == 2.0

    run_virtual(scenario)


def test_eventually_does_not_hide_other_errors() -> None:
    def broken() -> bool:
        raise KeyError("spec")

    with pytest.raises(KeyError):
        run_virtual(eventually(broken))


def test_eventually_waits_on_real_time_too() -> None:
    async def scenario() -> int:
        reached = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, reached.set)
        return await eventually(lambda: 7 if reached.is_set() else 0)

    assert asyncio.run(scenario()) == 7


def test_fake_recorder_keeps_what_is_recorded() -> None:
    fake = FakeRecorder()
    recorder: EventRecorder = fake
    namespace = Namespace(metadata=ObjectMeta(name="shop"))
    recorder.event(namespace, "Warning", "Refused", "it has no team", "Label")
    assert fake.events == [RecordedEvent(namespace, "Warning", "Refused", "it has no team", "Label")]


class Keys:
    """A reconciler that only notes what it was called for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request.name)
        return DONE


def cluster_of(*names: str) -> Callable[[HttpRequest], Answer]:
    """A server with namespaces in which nothing ever happens."""

    def answer(request: HttpRequest) -> Answer:
        if ("watch", "true") in request.query:
            return Answer(stream=[STALL])
        items = [{"metadata": {"name": name, "uid": name, "resourceVersion": "1"}} for name in names]
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": items})

    return answer


def client_of(script: Callable[[HttpRequest], Answer]) -> Client:
    return Client(ScriptedTransport(script), ClientOptions("test"))


def test_controllers_run_for_as_long_as_the_block() -> None:
    keys = Keys()

    async def scenario() -> int:
        async with running(
            client_of(cluster_of("a", "b")), lambda m: m.controller("c").for_(Namespace).reconciles_with(keys)
        ):
            await eventually(lambda: sorted(keys.seen) == ["a", "b"])
        return len(asyncio.all_tasks())

    assert run_virtual(scenario) == 1


def test_failure_of_the_manager_ends_the_block_and_is_what_the_test_reports() -> None:
    async def fails() -> None:
        raise RuntimeFault("out of order")

    async def scenario() -> None:
        async with running(client_of(cluster_of()), lambda m: m.add("broken", fails)):
            await asyncio.Event().wait()

    with pytest.raises(RuntimeFault, match="out of order"):
        run_virtual(scenario)


def test_failure_of_the_block_is_raised_as_it_is_after_the_manager_has_stopped() -> None:
    managers: list[Manager] = []

    async def scenario() -> None:
        async with running(client_of(cluster_of()), managers.append) as manager:
            assert managers == [manager]
            raise AssertionError("not so")

    with pytest.raises(AssertionError, match="not so"):
        run_virtual(scenario)


def test_client_of_a_missing_kubeconfig_says_so_when_it_is_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path / "none") as client:
            await client.get(Namespace, "default")

    with pytest.raises(ConfigurationError, match="none"):
        asyncio.run(scenario())


def test_public_names_are_sorted_and_there() -> None:
    assert testing.__all__ == sorted(testing.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(testing, name) for name in testing.__all__)
