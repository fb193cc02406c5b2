"""The controller's loop against scripted informers, on virtual time."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import pytest

from controllers.runtime import logs
from controllers.runtime.cache import Change, ChangeHandler, ChangeType, Informer
from controllers.runtime.client import Client, ClientOptions, Write
from controllers.runtime.clock import SystemClock
from controllers.runtime.controller import INITIAL_PRIORITY, Controller, ControllerOptions
from controllers.runtime.errors import ConfigurationError, Conflict, RuntimeFault, TerminalError
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, OwnerReference, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import Answer, ScriptedTransport, run_virtual

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
    """Hands out what a test says, and has seen a write when the test says so."""

    def __init__(self) -> None:
        self.handlers: list[ChangeHandler[Any]] = []
        self.waited_for: list[tuple[Write, float]] = []
        self.sees_after = 0.0

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
        return cast("Informer[T]", self.made.setdefault(kind, FakeInformer()))

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
        options = {"workers": 1, "retry_base": 1.0, **options}
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
    ids = [fields["reconcile_id"] for fields in seen]
    assert len(ids) == len(set(ids)) >= 4
    assert {fields["object"] for fields in seen} == {"a/a", "a/b"}
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
    assert ended == [A, B]
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
