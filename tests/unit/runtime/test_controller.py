"""The controller's loop against scripted informers, on virtual time."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from controllers.runtime import logs
from controllers.runtime.cache import Change, ChangeHandler, ChangeType, Informer, InformerOptions, Store
from controllers.runtime.client import Client, ClientOptions, Write
from controllers.runtime.clock import SystemClock
from controllers.runtime.controller import INITIAL_PRIORITY, Controller, ControllerOptions, priority_of
from controllers.runtime.errors import ConfigurationError, Conflict, LeadershipLost, RuntimeFault, TerminalError
from controllers.runtime.limiter import ExponentialLimiter, FastSlowLimiter
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, OwnerReference, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from controllers.runtime.workqueue import Item

T = TypeVar("T", bound=KubeObject)

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)
PARTS = Resource("example.com", "v1", "parts", "Part", namespaced=True)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS

    size: int = 0


class Part(KubeObject, frozen=True, kw_only=True):
    resource = PARTS


A, B, C = Key("a", "a"), Key("a", "b"), Key("a", "c")
Behaviour = Callable[[Request], Awaitable[Result]]


class FakeInformer:
    """Hands out what a test says, and is synced and has seen a write when the test says so."""

    def __init__(self, kind: type[KubeObject]) -> None:
        self.kind = kind
        self.handlers: list[ChangeHandler[Any]] = []
        self.waited_for: list[tuple[Write, float]] = []
        self.sees_after = 0.0
        self.last_error = ""
        self.listed = asyncio.Event()
        self.listed.set()

    @property
    def synced(self) -> bool:
        return self.listed.is_set()

    async def wait_synced(self) -> None:
        await self.listed.wait()

    def add_handler(self, handler: ChangeHandler[Any]) -> None:
        self.handlers.append(handler)

    async def wait_for(self, write: Write, timeout: float) -> bool:
        self.waited_for.append((write, timeout))
        await asyncio.sleep(min(self.sees_after, timeout))
        return self.sees_after <= timeout

    def says(self, type_: ChangeType, old: KubeObject | None, new: KubeObject | None, *, initial: bool = False) -> None:
        for handler in self.handlers:
            handler(Change(type_, old, new, initial=initial))


class FakeInformers:
    def __init__(self) -> None:
        self.made: dict[type[KubeObject], FakeInformer] = {}

    def informer(self, kind: type[T]) -> Informer[T]:
        return cast("Informer[T]", self.made.setdefault(kind, FakeInformer(kind)))

    def informers_of(self, kind: type[KubeObject], cluster: str = "") -> list[Informer[Any]]:
        return [cast("Informer[Any]", fake) for made, fake in self.made.items() if made.resource == kind.resource]


class Scripted:
    """A reconciler that behaves as told and keeps a log of (second, key)."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.calls: list[tuple[float, Key]] = []

    async def reconcile(self, request: Request) -> Result:
        self.calls.append((round(asyncio.get_running_loop().time(), 6), request))
        return await self._behaviour(request)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.calls]


def in_turn(*outcomes: Result | BaseException) -> Behaviour:
    """One outcome per call, the last one for ever."""
    left = list(outcomes)

    async def behave(_: Request) -> Result:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return behave


class Rig:
    def __init__(self, behaviour: Behaviour, **options: Any) -> None:
        self.informers = FakeInformers()
        self.metrics = Metrics()
        self.reconciler = Scripted(behaviour)
        options = {"workers": 1, "retry_base": 1.0, "warm_up": True, **options}
        self.controller = Controller(
            "things", self.informers, self.metrics, ControllerOptions(**options), SystemClock()
        ).for_(Thing)
        self.controller.reconciles_with(self.reconciler)

    @property
    def things(self) -> FakeInformer:
        return self.informers.made[Thing]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        task = asyncio.create_task(self.controller.run())
        try:
            yield self.controller
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def run(self, *requests: Key, seconds: float) -> Scripted:
        async def scenario() -> None:
            async with self.running() as controller:
                for request in requests:
                    controller.enqueue(request)
                await asyncio.sleep(seconds)

        run_virtual(scenario)
        return self.reconciler

    def counted(self, name: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith((name + "{", name + " ")):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def outcomes(self) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        found = [line for line in lines if line.startswith("controller_runtime_reconcile_total{")]
        counts = {line.split('result="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in found}
        return {result: count for result, count in counts.items() if count}


def thing(name: str, *, size: int = 0) -> Thing:
    return Thing(metadata=ObjectMeta(name=name, namespace="a", uid=f"u-{name}"), size=size)


def renewed(name: str, version: str) -> Thing:
    return Thing(metadata=ObjectMeta(name=name, namespace="a", uid=f"u-{name}", resource_version=version))


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_success_is_not_repeated() -> None:
    rig = Rig(in_turn(DONE))
    assert rig.run(A, seconds=10_000).calls == [(0.0, A)]
    assert rig.outcomes() == {"success": 1}


def test_errors_are_retried_with_doubling_delays() -> None:
    rig = Rig(in_turn(RuntimeFault("no"), ValueError("no"), RuntimeFault("no"), DONE))
    assert rig.run(A, seconds=100).times == [0, 1, 3, 7]
    assert rig.outcomes() == {"error": 3, "success": 1}
    assert rig.counted("controller_runtime_reconcile_errors_total") == 3


def test_success_resets_the_delay() -> None:
    rig = Rig(in_turn(RuntimeFault("1"), RuntimeFault("2"), Result(requeue_after=100), RuntimeFault("3"), DONE))
    assert rig.run(A, seconds=1000).times == [0, 1, 3, 103, 104]


def test_the_delay_is_capped() -> None:
    rig = Rig(in_turn(RuntimeFault("no")), retry_cap=4.0)
    assert rig.run(A, seconds=20).times == [0, 1, 3, 7, 11, 15, 19]


def test_requeue_after_looks_again_then() -> None:
    rig = Rig(in_turn(Result(requeue_after=30.0), DONE))
    assert rig.run(A, seconds=1000).times == [0, 30]
    assert rig.outcomes() == {"requeue_after": 1, "success": 1}


def test_a_change_before_requeue_after_is_looked_at_at_once() -> None:
    rig = Rig(in_turn(Result(requeue_after=30.0), DONE))

    async def scenario() -> None:
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(5)
            controller.enqueue(A)
            await asyncio.sleep(100)

    run_virtual(scenario)
    assert rig.reconciler.times[:2] == [0, 5]


def test_a_terminal_error_is_not_retried_and_forgets_earlier_failures() -> None:
    rig = Rig(in_turn(RuntimeFault("1"), RuntimeFault("2"), TerminalError("never"), RuntimeFault("3"), DONE))

    async def scenario() -> None:
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(100)
            assert rig.reconciler.times == [0, 1, 3]
            controller.enqueue(A)
            await asyncio.sleep(100)

    run_virtual(scenario)
    assert rig.reconciler.times == [0, 1, 3, 100, 101]
    assert rig.counted("controller_runtime_terminal_reconcile_errors_total") == 1
    assert rig.outcomes() == {"error": 4, "success": 1}


def test_a_requeue_comes_back_with_growing_delay() -> None:
    rig = Rig(in_turn(Result(requeue=True), Result(requeue=True), RuntimeFault("no"), Result(requeue=True), DONE))
    assert rig.run(A, seconds=100).times == [0, 1, 3, 7, 15]
    assert rig.outcomes() == {"requeue": 3, "error": 1, "success": 1}


def test_an_answer_that_is_no_result_is_an_error_that_says_what_to_return(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(in_turn(cast("Result", None), DONE))
    assert rig.run(A, seconds=100).times == [0, 1]
    assert rig.outcomes() == {"error": 1, "success": 1}
    assert "returned None: return a Result" in str([getattr(record, "fields", None) for record in caplog.records])


def wrapped(cause: Exception | None = None) -> RuntimeFault:
    error = RuntimeFault("told differently")
    error.__cause__ = cause or TerminalError("never")
    return error


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (TerminalError("never"), True),
        (wrapped(), True),
        (ExceptionGroup("g", [TerminalError("never"), ExceptionGroup("g", [wrapped()])]), True),
        (ExceptionGroup("g", [TerminalError("never"), RuntimeFault("not now")]), False),
    ],
)
def test_a_terminal_error_counts_as_such_in_every_wrapping(error: Exception, final: bool) -> None:
    rig = Rig(in_turn(error, DONE))
    assert rig.run(A, seconds=100).times == ([0] if final else [0, 1])
    assert rig.counted("controller_runtime_terminal_reconcile_errors_total") == final


@pytest.mark.parametrize(
    "error", [ValueError("x"), AssertionError(), ExceptionGroup("g", [KeyError("k")]), asyncio.CancelledError()]
)
def test_whatever_a_reconciler_raises_the_worker_goes_on(error: BaseException) -> None:
    rig = Rig(in_turn(error, DONE))
    assert rig.run(A, B, seconds=100).calls == [(0, A), (0, B), (1, A)]
    assert rig.counted("controller_runtime_reconcile_panics_total") == 1
    assert rig.counted("controller_runtime_active_workers") == 0


def test_expected_failures_are_no_panics() -> None:
    rig = Rig(in_turn(RuntimeFault("x"), Conflict("x", code=409), TerminalError("x")))
    rig.run(A, seconds=100)
    assert rig.counted("controller_runtime_reconcile_panics_total") == 0
    assert rig.counted("controller_runtime_reconcile_errors_total") == 3


def test_a_conflict_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Rig(in_turn(Conflict("x", code=409), DONE)).run(A, seconds=10)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("end", [DONE, Result(requeue_after=1000.0), TerminalError("never")])
def test_an_end_without_retry_frees_the_limiter_of_the_key(end: Result | Exception) -> None:
    limiter = ExponentialLimiter[Request](base=1.0, cap=60.0)
    rig = Rig(in_turn(RuntimeFault("1"), RuntimeFault("2"), end), limiter=limiter)
    assert rig.run(A, seconds=2).times == [0, 1]
    assert limiter.failures(A) == 2
    limiter = ExponentialLimiter[Request](base=1.0, cap=60.0)
    rig = Rig(in_turn(RuntimeFault("1"), RuntimeFault("2"), end), limiter=limiter)
    assert rig.run(A, seconds=10).times == [0, 1, 3]
    assert not limiter._failures


def test_another_limiter_takes_the_place_of_the_exponential_one() -> None:
    rig = Rig(in_turn(RuntimeFault("no")), limiter=FastSlowLimiter[Request](fast=2.0, slow=10.0, fast_failures=2))
    assert rig.run(A, seconds=30).times == [0, 2, 4, 14, 24]


class Shut:
    """A gate that is open until a test shuts it."""

    def __init__(self) -> None:
        self.open = True

    def admits(self, _: Key) -> bool:
        return True

    def enter(self, _: Key) -> bool:
        return self.open

    def leave(self, key: Key) -> None:
        pass


@pytest.mark.parametrize(
    "lost", [LeadershipLost("gone"), ExceptionGroup("g", [LeadershipLost("gone")]), wrapped(LeadershipLost("gone"))]
)
def test_a_reconcile_that_finds_leadership_lost_is_not_tried_again(
    lost: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(in_turn(lost))
    rig.controller.gated_by(Shut())
    assert rig.run(A, seconds=100).times == [0]
    assert "retried" not in caplog.text
    assert rig.outcomes() == {"error": 1}
    assert rig.counted("controller_runtime_reconcile_panics_total") == 0


def test_a_shut_gate_lets_no_retry_and_no_waiting_key_begin() -> None:
    gate = Shut()

    async def fail(_: Request) -> Result:
        gate.open = False
        raise RuntimeFault("no")

    rig = Rig(fail, workers=1)
    rig.controller.gated_by(gate)
    assert rig.run(A, B, seconds=100).calls == [(0, A)]


# -- cancellations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_a_reconcile_that_cancels_its_own_task_has_failed_and_its_worker_goes_on(times: int) -> None:
    async def cancel(request: Request) -> Result:
        if request == A and len(rig.reconciler.calls) <= 3:
            for _ in range(times):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0.5)
        return DONE

    rig = Rig(cancel, workers=1)
    assert rig.run(A, B, seconds=100).calls == [(0, A), (0, B), (1, A), (3, A)]
    assert rig.outcomes() == {"error": 2, "success": 2}
    assert rig.counted("controller_runtime_active_workers") == 0


def test_a_cancellation_that_is_still_to_come_does_not_hit_the_next_object() -> None:
    async def cancel(request: Request) -> Result:
        if request == A:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0.5)
        return DONE

    rig = Rig(cancel, workers=1)
    assert rig.run(A, B, C, seconds=100).calls == [(0, A), (0, B), (0.5, C)]
    assert rig.outcomes() == {"success": 3}


def test_an_idle_worker_that_a_stranger_cancels_goes_on() -> None:
    kept: list[asyncio.Task[Any]] = []

    async def keep(_: Request) -> Result:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)
        return DONE

    rig = Rig(keep, workers=1)

    async def scenario() -> None:
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(1)
            kept[0].cancel()
            await asyncio.sleep(1)
            controller.enqueue(B)
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert rig.reconciler.calls == [(0, A), (2, B)]


def test_reconciles_that_do_not_end_at_their_deadline_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def swallow(request: Request) -> Result:
        for _ in range(2 if request == A else 1):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
        return DONE

    rig = Rig(swallow, reconcile_timeout=10.0)
    rig.run(A, B, seconds=500)
    lines = [record.fields for record in caplog.records if "not ended at its deadline" in record.message]  # type: ignore[attr-defined]
    assert lines == [{"controller": rig.controller.name, "about": str(A)}]


# -- timeouts ---------------------------------------------------------------------------------------------------------


def test_a_reconcile_that_hangs_is_cancelled_counted_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def hang(_: Request) -> Result:
        if ended:
            return DONE
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return DONE

    rig = Rig(hang, reconcile_timeout=60.0)
    assert rig.run(A, seconds=200).times == [0, 61]
    assert ended == ["cancelled"]
    assert rig.counted("controller_runtime_reconcile_timeouts_total") == 1
    assert rig.counted("controller_runtime_reconcile_panics_total") == 0
    assert "60 s" in str([getattr(record, "fields", None) for record in caplog.records])


def test_a_timeout_of_the_reconcilers_own_is_not_counted_as_ours() -> None:
    rig = Rig(in_turn(TimeoutError("mine"), DONE))
    rig.run(A, seconds=10)
    assert rig.counted("controller_runtime_reconcile_timeouts_total") == 0


def test_a_deadline_that_fired_is_counted_whatever_the_reconciler_makes_of_it() -> None:
    async def stubborn(_: Request) -> Result:
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            if len(rig.reconciler.calls) == 1:
                raise RuntimeFault("interrupted") from None
        return DONE

    rig = Rig(stubborn, reconcile_timeout=10.0)
    assert rig.run(A, seconds=100).times == [0, 11]
    assert rig.counted("controller_runtime_reconcile_timeouts_total") == 2
    assert rig.outcomes() == {"error": 1, "success": 1}


def test_an_end_from_outside_is_not_counted_as_a_timeout() -> None:
    async def hang(_: Request) -> Result:
        await asyncio.sleep(10_000)
        return DONE

    rig = Rig(hang, reconcile_timeout=60.0)
    rig.run(A, seconds=59)
    assert rig.counted("controller_runtime_reconcile_timeouts_total") == 0


# -- logs -------------------------------------------------------------------------------------------------------------


def test_each_run_has_a_fresh_id_that_all_its_lines_carry() -> None:
    seen: list[dict[str, Any]] = []

    async def look(_: Request) -> Result:
        first = dict(logs._bound.get())
        await asyncio.sleep(1)
        assert dict(logs._bound.get()) == first
        seen.append(first)
        return DONE if len(seen) > 3 else Result(requeue_after=1.0)

    Rig(look, workers=2).run(A, B, seconds=100)
    ids = [fields["reconcileID"] for fields in seen]
    assert len(ids) == len(set(ids)) >= 4
    assert {(fields["namespace"], fields["name"]) for fields in seen} == {("a", "a"), ("a", "b")}
    assert {fields["controller"] for fields in seen} == {"things"}
    assert dict(logs._bound.get()) == {}


# -- concurrency ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3, 16])
def test_no_object_is_ever_reconciled_twice_at_once(workers: int) -> None:
    chance = random.Random(workers)
    busy: set[Key] = set()
    most = 0

    async def work(request: Request) -> Result:
        nonlocal most
        assert request not in busy, f"{request} is being reconciled already"
        busy.add(request)
        most = max(most, len(busy))
        try:
            await asyncio.sleep(chance.random())
        finally:
            busy.remove(request)
        match chance.randrange(3):
            case 0:
                return Result(requeue_after=chance.random())
            case 1:
                raise RuntimeFault("again")
        return DONE

    rig = Rig(work, workers=workers, retry_base=0.1, retry_cap=1.0)
    keys = [Key("a", str(number)) for number in range(20)]

    async def scenario() -> None:
        async with rig.running() as controller:
            for _ in range(2000):
                controller.enqueue(chance.choice(keys))
                await asyncio.sleep(chance.random() / 20)

    run_virtual(scenario)
    assert len(rig.reconciler.calls) > 40
    assert most == workers
    assert rig.counted("controller_runtime_reconcile_panics_total") == 0


def test_a_change_during_a_reconcile_causes_exactly_one_more() -> None:
    async def slow(_: Request) -> Result:
        await asyncio.sleep(10)
        return DONE

    rig = Rig(slow, workers=4)

    async def scenario() -> None:
        async with rig.running() as controller:
            for _ in range(5):
                controller.enqueue(A)
                await asyncio.sleep(1)
            await asyncio.sleep(100)

    run_virtual(scenario)
    assert rig.reconciler.times == [0, 10]


# -- what wakes it ----------------------------------------------------------------------------------------------------


def test_what_was_there_at_the_start_comes_after_every_real_change() -> None:
    priorities: list[int] = []
    rig = Rig(in_turn(DONE))
    add = rig.controller._queue.add

    def record(key: Key, *, priority: int = 0, after: float = 0.0) -> None:
        priorities.append(priority)
        add(key, priority=priority, after=after)

    rig.controller._queue.add = record  # type: ignore[method-assign]

    async def scenario() -> None:
        rig.things.says(ChangeType.ADDED, None, thing("a"), initial=True)
        rig.things.says(ChangeType.ADDED, None, thing("b"), initial=True)
        rig.things.says(ChangeType.ADDED, None, thing("c"))
        async with rig.running():
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert priorities == [INITIAL_PRIORITY, INITIAL_PRIORITY, 0] == [-100, -100, 0]
    assert [key for _, key in rig.reconciler.calls] == [C, A, B]


def test_a_failed_initial_reconcile_keeps_its_low_priority() -> None:
    rig = Rig(in_turn(RuntimeFault("no"), DONE))

    async def scenario() -> None:
        rig.things.says(ChangeType.ADDED, None, thing("a"), initial=True)
        async with rig.running() as controller:
            await asyncio.sleep(0.5)
            controller.enqueue(B, after=0.5)
            await asyncio.sleep(5)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [A, B, A]


@pytest.mark.parametrize(
    ("answer", "priorities"),
    [
        (Result(requeue_after=1.0), [-100, -100]),
        (Result(requeue=True), [-100, -100]),
        (RuntimeFault("no"), [-100, -100]),
        (Result(requeue_after=1.0, priority=7), [-100, 7]),
        (Result(requeue=True, priority=7), [-100, 7]),
    ],
)
def test_another_look_has_the_priority_of_this_one_unless_the_result_names_it(
    answer: Result | Exception, priorities: list[int]
) -> None:
    rig = Rig(in_turn(answer, DONE))
    taken: list[int] = []
    get = rig.controller._queue.get

    async def record() -> Item[Request] | None:
        if (item := await get()) is not None:
            taken.append(item.priority)
        return item

    rig.controller._queue.get = record  # type: ignore[method-assign]

    async def scenario() -> None:
        rig.things.says(ChangeType.ADDED, None, thing("a"), initial=True)
        async with rig.running():
            await asyncio.sleep(5)

    run_virtual(scenario)
    assert taken == priorities


@pytest.mark.parametrize(
    ("change", "priority"),
    [
        (Change(ChangeType.ADDED, None, renewed("a", "1"), initial=True), -100),
        (Change(ChangeType.ADDED, None, renewed("a", "1")), 0),
        (Change(ChangeType.UPDATED, renewed("a", "1"), renewed("a", "1")), -100),
        (Change(ChangeType.UPDATED, renewed("a", "1"), renewed("a", "2")), 0),
        (Change(ChangeType.UPDATED, renewed("a", ""), renewed("a", "")), 0),
        (Change(ChangeType.DELETED, renewed("a", "1"), None), 0),
        (Change(ChangeType.DELETED, renewed("a", "1"), None, initial=True), 0),
    ],
)
def test_only_what_nobody_has_just_done_has_low_priority(change: Change[Thing], priority: int) -> None:
    assert priority_of(change) == priority


@pytest.mark.parametrize("way", ["owns", "watches", "handles"])
def test_low_priority_goes_for_every_sort_of_handler(way: str) -> None:
    rig = Rig(in_turn(DONE))
    match way:
        case "owns":
            rig.controller.owns(Part)
        case "watches":
            rig.controller.watches(Part, maps_to=lambda part: (Key("a", "t"),))
        case "handles":
            rig.controller.handles(Part, lambda change: (Key("a", "t"),))
    owner = OwnerReference(api_version="example.com/v1", kind="Thing", name="t", uid="u", controller=True)
    part = Part(metadata=ObjectMeta(name="p", namespace="a", owner_references=(owner,)))

    async def scenario() -> int:
        rig.informers.made[Part].says(ChangeType.ADDED, None, part, initial=True)
        item = await rig.controller._queue.get()
        assert item is not None
        return item.priority

    assert run_virtual(scenario) == INITIAL_PRIORITY


def test_owned_and_mapped_kinds_wake_their_requests() -> None:
    rig = Rig(in_turn(DONE))
    rig.controller.owns(Part)
    rig.controller.watches(Part, maps_to=lambda part: (Key("a", "of-" + part.name),))
    owner = OwnerReference(api_version="example.com/v1", kind="Thing", name="t", uid="u", controller=True)
    part = Part(metadata=ObjectMeta(name="p", namespace="a", owner_references=(owner,)))

    async def scenario() -> None:
        async with rig.running():
            rig.informers.made[Part].says(ChangeType.ADDED, None, part)
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert {key for _, key in rig.reconciler.calls} == {Key("a", "t"), Key("a", "of-p")}


def test_a_predicate_holds_changes_back() -> None:
    rig = Rig(in_turn(DONE))
    rig.controller.watches(Part, maps_to=lambda part: (part.key,), when=lambda change: change.subject.name == "b")

    async def scenario() -> None:
        async with rig.running():
            for name in "abc":
                part = Part(metadata=ObjectMeta(name=name, namespace="a"))
                rig.informers.made[Part].says(ChangeType.ADDED, None, part)
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [B]


def test_owners_that_do_not_control_are_woken_where_that_is_asked_for() -> None:
    rig = Rig(in_turn(DONE))
    rig.controller.owns(Part, every_owner=True)
    owners = [OwnerReference(api_version="example.com/v1", kind="Thing", name=name, uid=name) for name in "ab"]
    part = Part(metadata=ObjectMeta(name="p", namespace="a", owner_references=tuple(owners)))

    async def scenario() -> None:
        async with rig.running():
            rig.informers.made[Part].says(ChangeType.ADDED, None, part)
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [A, B]


def test_a_change_without_any_object_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        async with rig.running():
            rig.things.says(ChangeType.UPDATED, None, None)
            rig.things.says(ChangeType.ADDED, None, thing("b"))
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [B]
    assert "a change without any object was dropped" in caplog.text


@pytest.mark.parametrize("way", ["watches", "handles"])
def test_a_handler_that_returns_no_requests_is_named_and_the_controller_goes_on(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(in_turn(DONE))
    wrong: Any = lambda each: "abc" if way == "watches" else each  # noqa: E731 - one expression says it all
    getattr(rig.controller, way)(Part, wrong)

    async def scenario() -> None:
        async with rig.running():
            part = Part(metadata=ObjectMeta(name="p", namespace="a"))
            rig.informers.made[Part].says(ChangeType.ADDED, None, part)
            rig.things.says(ChangeType.ADDED, None, thing("b"))
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [B]
    (told,) = [record.__dict__["fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert (told["controller"], told["resource"], str(told["object"])) == ("things", PARTS, "a/p")
    assert told["returned"].startswith("'abc': return a list" if way == "watches" else "Change(")


def test_only_requests_can_be_queued_from_outside() -> None:
    with pytest.raises(ConfigurationError, match=r"controller things: enqueue\('a/b'\): give a Key"):
        Rig(in_turn(DONE)).controller.enqueue("a/b")  # type: ignore[arg-type]


def test_a_handler_that_raises_in_a_replay_costs_that_object_alone(caplog: pytest.LogCaptureFixture) -> None:
    def picky(change: Change[Thing]) -> list[Key]:
        if change.subject.size:
            raise ValueError("too big")
        return [change.subject.key]

    informers = FakeInformers()
    made = cast("Any", informers.informer(Thing))
    made.store = Store()
    made.store.put(thing("a", size=1))
    made.store.put(thing("b"))
    controller = Controller("parts", informers, Metrics(), ControllerOptions(), SystemClock())
    controller.handles(Thing, picky).replay(lambda _: True)
    assert controller.statistics().ready == 1
    assert "a handler raised" in caplog.text


def test_predicates_and_handlers_see_whether_the_last_state_is_known() -> None:
    rig = Rig(in_turn(DONE))
    seen: list[tuple[str, Thing | None, bool]] = []

    def look(who: str) -> Callable[[Change[Thing]], Any]:
        def note(change: Change[Thing]) -> tuple[Key, ...]:
            seen.append((who, change.old, change.final_state_unknown))
            return (change.subject.key,)

        return note

    rig.controller.handles(Thing, look("handler"), when=look("predicate"))
    lost = Change(ChangeType.DELETED, thing("a", size=3), None, final_state_unknown=True)
    for handle in rig.things.handlers:
        handle(lost)
    assert seen == [("predicate", lost.old, True), ("handler", lost.old, True)]


def test_the_last_state_of_a_burst_is_always_looked_at() -> None:
    state, seen = [0], list[int]()

    async def slow(_: Request) -> Result:
        seen.append(state[0])
        await asyncio.sleep(10)
        return DONE

    rig = Rig(slow, workers=3)

    async def scenario() -> None:
        async with rig.running():
            for number in range(1, 101):
                state[0] = number
                rig.things.says(ChangeType.UPDATED, thing("a", size=number - 1), thing("a", size=number))
                await asyncio.sleep(0.1)
            await asyncio.sleep(100)

    run_virtual(scenario)
    assert len(seen) < 5
    assert seen[-1] == 100


def test_an_outside_request_may_name_its_priority() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        rig.controller.enqueue(A)
        rig.controller.enqueue(B, priority=5)
        async with rig.running():
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [B, A]


def test_keys_that_wait_for_their_time_are_counted_apart_from_the_depth() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        rig.controller.enqueue(A, after=10.0)
        rig.controller.enqueue(B, after=20.0)
        rig.controller.enqueue(C)
        assert rig.controller.statistics().delayed == 2
        assert rig.counted("workqueue_depth") == 1
        async with rig.running():
            await asyncio.sleep(15)
            assert rig.controller.statistics().delayed == 1
            assert rig.counted("workqueue_depth") == 0

    run_virtual(scenario)


def test_the_histograms_of_the_queue_tell_minutes_from_hours() -> None:
    async def slow(_: Request) -> Result:
        await asyncio.sleep(300)
        return DONE

    rig = Rig(slow, reconcile_timeout=3600.0)
    rig.run(A, B, seconds=1000)
    lines = rig.metrics.render().decode().splitlines()
    for name, counts in (("queue", (1, 2)), ("work", (0, 2))):
        found = [line for line in lines if line.startswith(f"workqueue_{name}_duration_seconds_bucket")]
        ends = [float(line.rpartition(" ")[2]) for line in found if 'le="100"' in line or 'le="1000"' in line]
        assert tuple(ends) == counts
        assert len(found) == 13


def test_a_deletion_wakes_the_object_that_is_gone() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        async with rig.running():
            rig.things.says(ChangeType.DELETED, thing("a"), None)
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [A]


def test_owns_before_for_is_refused() -> None:
    controller = Controller("x", FakeInformers(), Metrics(), ControllerOptions(), SystemClock())
    with pytest.raises(ConfigurationError, match=r"controller x: owns\(\) needs for_\(\)"):
        controller.owns(Part)


def test_a_controller_without_reconciler_is_refused() -> None:
    controller = Controller("x", FakeInformers(), Metrics(), ControllerOptions(), SystemClock())
    with pytest.raises(ConfigurationError, match="controller x has no reconciler"):
        run_virtual(controller.run)


def declared() -> Controller:
    return Controller("x", FakeInformers(), Metrics(), ControllerOptions(), SystemClock())


class Synchronous:
    def reconcile(self, _: Request) -> Result:
        return DONE


@pytest.mark.parametrize(
    ("reconciler", "told"),
    [
        (Scripted, "Scripted is a class: give an instance of it"),
        (Synchronous(), r"Synchronous\.reconcile is no coroutine function: make it async def"),
        (lambda _: DONE, "has no method reconcile"),
    ],
)
def test_what_is_no_reconciler_is_refused_where_it_is_given(reconciler: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"controller x: .*{told}"):
        declared().reconciles_with(reconciler)


def test_a_second_reconciler_or_primary_kind_is_refused() -> None:
    controller = declared().for_(Thing).reconciles_with(Scripted(in_turn(DONE)))
    with pytest.raises(ConfigurationError, match="controller x has a reconciler already"):
        controller.reconciles_with(Scripted(in_turn(DONE)))
    with pytest.raises(ConfigurationError, match=r"controller x is for things\.example\.com.* already"):
        controller.for_(Part)


def test_a_predicate_that_is_a_coroutine_function_is_refused() -> None:
    async def when(_: Change[Thing]) -> bool:
        return False

    with pytest.raises(ConfigurationError, match=r"controller x: a predicate of things\.example\.com.* is async"):
        declared().for_(Thing, when=cast("Any", when))


def test_a_controller_that_nothing_wakes_is_refused() -> None:
    controller = declared().reconciles_with(Scripted(in_turn(DONE)))
    with pytest.raises(ConfigurationError, match=r"controller x: nothing wakes it: call for_\(\)"):
        run_virtual(controller.run)


# -- the start --------------------------------------------------------------------------------------------------------


def started(rig: Rig) -> "asyncio.Task[None]":
    return asyncio.create_task(rig.controller.run())


def test_workers_start_when_everything_has_been_listed_and_not_before() -> None:
    rig = Rig(in_turn(DONE))
    rig.controller.owns(Part)
    parts = rig.informers.made[Part]

    async def scenario() -> None:
        rig.things.listed.clear()
        parts.listed.clear()
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(5)
            rig.things.listed.set()
            await asyncio.sleep(5)
            assert rig.reconciler.calls == []
            assert controller.unsynced == {"parts.example.com": ""}
            parts.listed.set()
            await asyncio.sleep(5)

    run_virtual(scenario)
    assert rig.reconciler.times == [10]


def test_a_kind_that_cannot_be_listed_ends_the_start_with_its_name_and_reason() -> None:
    rig = Rig(in_turn(DONE), sync_timeout=120.0)
    rig.controller.owns(Part)
    rig.informers.made[Part].last_error = "403 Forbidden: parts is forbidden"

    async def scenario() -> tuple[float, str]:
        rig.informers.made[Part].listed.clear()
        with pytest.raises(RuntimeFault) as failure:
            await rig.controller.run()
        return asyncio.get_running_loop().time(), str(failure.value)

    when, message = run_virtual(scenario)
    assert when == 120.0
    assert message == (
        "controller things: not everything was listed within 120 s: "
        "parts.example.com: 403 Forbidden: parts is forbidden"
    )


def test_a_stop_while_kinds_are_being_listed_is_no_failure() -> None:
    rig = Rig(in_turn(DONE), sync_timeout=120.0)

    async def scenario() -> float:
        rig.things.listed.clear()
        rig.controller.enqueue(A)
        task = started(rig)
        await asyncio.sleep(50)
        rig.controller.stop()
        await task
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 50.0
    assert rig.reconciler.calls == []


def test_a_controller_stopped_before_its_start_reconciles_nothing() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        rig.controller.enqueue(A)
        rig.controller.stop()
        await rig.controller.run()

    run_virtual(scenario)
    assert rig.reconciler.calls == []


def test_starting_twice_is_refused() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        async with rig.running():
            await asyncio.sleep(1)
            with pytest.raises(ConfigurationError, match="controller things was started before"):
                await rig.controller.run()

    run_virtual(scenario)


def test_warming_up_fills_the_queue_and_starts_no_worker() -> None:
    rig = Rig(in_turn(DONE))

    async def scenario() -> None:
        await rig.controller.warm_up()
        rig.things.says(ChangeType.ADDED, None, thing("a"), initial=True)
        rig.things.says(ChangeType.ADDED, None, thing("b"))
        await asyncio.sleep(1000)
        assert rig.reconciler.calls == []
        assert rig.controller.statistics().ready == 2
        async with rig.running():
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert rig.reconciler.calls == [(1000, B), (1000, A)]


def test_without_warm_up_a_controller_hears_of_nothing_before_it_runs() -> None:
    rig = Rig(in_turn(DONE), warm_up=ControllerOptions().warm_up)

    async def scenario() -> None:
        rig.things.says(ChangeType.ADDED, None, thing("a"))
        async with rig.running():
            await asyncio.sleep(1)
            rig.things.says(ChangeType.ADDED, None, thing("b"))
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert [key for _, key in rig.reconciler.calls] == [B]


def test_each_watch_is_connected_once() -> None:
    rig = Rig(in_turn(DONE), warm_up=False)

    async def scenario() -> None:
        await rig.controller.warm_up()
        await rig.controller.warm_up()
        async with rig.running():
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert len(rig.things.handlers) == 1


class LiveInformers:
    """Real informers that start when they are asked for, as those of a running manager do."""

    def __init__(self, script: Callable[[HttpRequest], Reply]) -> None:
        self._client = Client(ScriptedTransport(script), ClientOptions("tests"))
        self._made: dict[type[KubeObject], Informer[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def informer(self, kind: type[T]) -> Informer[T]:
        if kind not in self._made:
            options = InformerOptions(freeze_after_sync=False, random=lambda: 0.5)
            self._made[kind] = Informer(self._client, kind, options=options)
            self._tasks.append(asyncio.create_task(self._made[kind].run()))
        return self._made[kind]

    def informers_of(self, kind: type[KubeObject], cluster: str = "") -> list[Informer[Any]]:
        return [self._made[kind]] if kind in self._made else []


def serving(request: HttpRequest) -> Reply:
    """One object of each kind, and silent watches."""
    if ("watch", "true") in request.query:
        return Answer(stream=[STALL])
    name = request.path.rpartition("/")[2][0]
    item = {"metadata": {"name": name, "namespace": "a", "uid": f"u-{name}", "resourceVersion": "1"}}
    return Answer(body={"metadata": {"resourceVersion": "9"}, "items": [item]})


def live(script: Callable[[HttpRequest], Reply], reconciler: Scripted) -> Controller:
    controller = Controller("live", LiveInformers(script), Metrics(), ControllerOptions(), SystemClock())
    return controller.for_(Thing).reconciles_with(reconciler)


def test_kinds_are_listed_side_by_side() -> None:
    reconciler = Scripted(in_turn(DONE))

    def slow(request: HttpRequest) -> Reply:
        answer = serving(request)
        assert isinstance(answer, Answer)
        return replace(answer, delay=10.0)

    async def scenario() -> None:
        controller = live(slow, reconciler)
        task = asyncio.create_task(controller.owns(Part).run())
        await asyncio.sleep(15)
        task.cancel()

    run_virtual(scenario)
    assert reconciler.calls == [(10, Key("a", "t"))]


def test_what_the_caches_hold_when_it_starts_is_looked_at() -> None:
    reconciler = Scripted(in_turn(DONE))

    async def scenario() -> None:
        controller = live(serving, reconciler)
        await asyncio.sleep(50)
        assert controller.statistics().ready == 0
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(1)
        task.cancel()

    run_virtual(scenario)
    assert reconciler.calls == [(50, Key("a", "t"))]


def test_a_watch_added_later_starts_at_once() -> None:
    reconciler = Scripted(in_turn(DONE))

    async def scenario() -> None:
        controller = live(serving, reconciler)
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(60)
        controller.watches(Part, maps_to=lambda part: (part.key,))
        await asyncio.sleep(60)
        task.cancel()

    run_virtual(scenario)
    assert reconciler.calls == [(0, Key("a", "t")), (60, Key("a", "p"))]


def test_a_kind_that_comes_late_is_asked_for_again_until_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    reconciler = Scripted(in_turn(DONE))

    def late(request: HttpRequest) -> Reply:
        missing = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such resource"}
        return serving(request) if asyncio.get_running_loop().time() > 60 else Answer(404, body=missing)

    async def scenario() -> None:
        task = asyncio.create_task(live(late, reconciler).run())
        await asyncio.sleep(119)
        task.cancel()

    run_virtual(scenario)
    assert [key for _, key in reconciler.calls] == [Key("a", "t")]
    failures = [record for record in caplog.records if "list failed" in record.getMessage()]
    assert len(failures) >= 3
    assert {str(getattr(record, "fields", {})["resource"]) for record in failures} == {"things.example.com"}


def test_a_kind_that_never_comes_ends_the_start_with_its_name() -> None:
    missing = Answer(404, body={"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such resource"})

    async def scenario() -> float:
        with pytest.raises(RuntimeFault, match=r"120 s: things\.example\.com: list: 404 NotFound: no such resource"):
            await live(lambda _: missing, Scripted(in_turn(DONE))).run()
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 120.0


# -- its own writes ---------------------------------------------------------------------------------------------------


def client_for_one_write() -> Client:
    written = {"metadata": {"name": "a", "namespace": "a", "uid": "u", "resourceVersion": "7"}}
    return Client(ScriptedTransport(lambda _: Answer(body=written)), ClientOptions("tests"))


def writing_once(kind: type[KubeObject] = Thing) -> Behaviour:
    client = client_for_one_write()
    wrote: list[bool] = []

    async def behave(_: Request) -> Result:
        if not wrote:
            wrote.append(True)
            await client.create(kind, {"metadata": {"name": "a", "namespace": "a"}})
            return Result(requeue_after=1.0)
        return DONE

    return behave


WRITE = Write(Thing, A, "u", "7")


def test_a_reconcile_after_a_write_waits_until_the_cache_has_it() -> None:
    rig = Rig(writing_once(), cache_wait=5.0)
    rig.things.sees_after = 3.0
    assert rig.run(A, seconds=100).times == [0, 4]
    assert rig.things.waited_for == [(WRITE, 5.0)]


def test_other_objects_do_not_wait_for_it() -> None:
    rig = Rig(writing_once(), workers=2)
    rig.things.sees_after = 3.0

    async def scenario() -> None:
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(1.5)
            controller.enqueue(B)
            await asyncio.sleep(10)

    run_virtual(scenario)
    assert rig.reconciler.calls == [(0, A), (1.5, B), (4, A)]


def test_where_the_cache_does_not_catch_up_the_key_is_put_back_and_the_write_is_not_forgotten() -> None:
    rig = Rig(writing_once(), cache_wait=5.0, retry_base=1.0)
    rig.things.sees_after = 1000.0

    async def scenario() -> None:
        async with rig.running() as controller:
            controller.enqueue(A)
            await asyncio.sleep(20)
            assert rig.reconciler.times == [0]
            rig.things.sees_after = 0.0
            await asyncio.sleep(20)

    run_virtual(scenario)
    # Waits of 5 s with growing pauses between them: 1-6, 7-12, 14-19, then the fourth try at 23.
    assert rig.reconciler.times == [0, 23]
    assert [write for write, _ in rig.things.waited_for] == [WRITE] * 4


def test_a_write_that_was_seen_is_waited_for_once() -> None:
    rig = Rig(writing_once())

    async def scenario() -> None:
        async with rig.running() as controller:
            for _ in range(5):
                controller.enqueue(A)
                await asyncio.sleep(2)

    run_virtual(scenario)
    assert len(rig.reconciler.calls) > 4
    assert len(rig.things.waited_for) == 1


def test_a_write_of_a_kind_that_nobody_caches_is_not_waited_for() -> None:
    rig = Rig(writing_once(Part))
    assert rig.run(A, seconds=10).times == [0, 1]


def test_writes_of_a_reconcile_that_failed_are_waited_for_too() -> None:
    client = client_for_one_write()

    async def behave(_: Request) -> Result:
        if len(rig.reconciler.calls) == 1:
            await asyncio.gather(client.create(Thing, {"metadata": {"name": "a", "namespace": "a"}}))
            raise RuntimeFault("after the write")
        return DONE

    rig = Rig(behave)
    rig.things.sees_after = 2.0
    assert rig.run(A, seconds=10).times == [0, 3]


def test_a_retry_is_not_lost_to_the_event_of_an_own_write() -> None:
    client = client_for_one_write()

    async def behave(_: Request) -> Result:
        if len(rig.reconciler.calls) == 1:
            await client.create(Thing, {"metadata": {"name": "a", "namespace": "a"}})
            asyncio.get_running_loop().call_later(0.5, rig.things.says, ChangeType.ADDED, None, thing("a"))
        if len(rig.reconciler.calls) < 4:
            raise RuntimeFault("not done yet")
        return DONE

    rig = Rig(behave, retry_base=1.0)
    assert rig.run(A, seconds=100).times == [0, 0.5, 2.5, 6.5]


def test_a_look_asked_for_comes_though_each_look_writes() -> None:
    client = client_for_one_write()

    async def behave(_: Request) -> Result:
        if len(rig.reconciler.calls) % 2:
            await client.create(Thing, {"metadata": {"name": "a", "namespace": "a"}})
            asyncio.get_running_loop().call_soon(rig.things.says, ChangeType.ADDED, None, thing("a"))
        return Result(requeue_after=30.0)

    rig = Rig(behave)
    assert rig.run(A, seconds=100).times == [0, 0, 30, 30, 60, 60, 90, 90]


def test_a_write_that_the_server_refuses_is_repeated_with_growing_delay() -> None:
    refusal = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"}
    client = Client(ScriptedTransport(lambda _: Answer(422, body=refusal)), ClientOptions("tests"))

    async def behave(_: Request) -> Result:
        await client.create(Thing, {"metadata": {"name": "a", "namespace": "a"}})
        return DONE

    rig = Rig(behave, retry_base=1.0, retry_cap=60.0)
    assert rig.run(A, seconds=200).times == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert rig.counted("controller_runtime_reconcile_panics_total") == 0


def test_a_status_written_before_an_error_is_kept_and_the_error_retried() -> None:
    written = {"metadata": {"name": "a", "namespace": "a", "uid": "u", "resourceVersion": "7"}}
    transport = ScriptedTransport(lambda _: Answer(body=written))
    client = Client(transport, ClientOptions("tests"))

    async def behave(_: Request) -> Result:
        await client.apply(thing("a"), {"status": {"phase": "Failed"}}, subresource="status")
        raise RuntimeFault("because of this")

    rig = Rig(behave, retry_base=1.0)
    assert rig.run(A, seconds=2).times == [0, 1]
    assert [request.path.rpartition("/")[2] for request in transport.requests] == ["status", "status"]


# -- the end ----------------------------------------------------------------------------------------------------------


def test_stop_lets_running_reconciles_end_and_starts_none() -> None:
    ended: list[Key] = []

    async def slow(request: Request) -> Result:
        await asyncio.sleep(10)
        ended.append(request)
        return Result(requeue_after=1.0)

    rig = Rig(slow, workers=2)

    async def scenario() -> float:
        task = asyncio.create_task(rig.controller.run())
        for request in (A, B, C):
            rig.controller.enqueue(request)
        await asyncio.sleep(1)
        rig.controller.stop()
        rig.controller.enqueue(Key("a", "late"))
        await task
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 10.0
    assert sorted(ended) == [A, B]
    assert [key for _, key in rig.reconciler.calls] == [A, B]


def test_stop_ends_idle_workers_at_once() -> None:
    rig = Rig(in_turn(DONE), workers=3)

    async def scenario() -> float:
        task = asyncio.create_task(rig.controller.run())
        await asyncio.sleep(1)
        rig.controller.stop()
        await task
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 1.0


def test_cancelling_ends_a_running_reconcile() -> None:
    ended: list[str] = []

    async def hang(_: Request) -> Result:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("ended")
        return DONE

    assert Rig(hang).run(A, seconds=1).times == [0]
    assert ended == ["ended"]
