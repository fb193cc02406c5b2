"""What blocks the event loop, on a clock that a test moves on while nothing else runs."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from controllers.runtime.clock import SystemClock
from controllers.runtime.meta import Key
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import run_virtual
from controllers.runtime.watchdog import TimedReconciler, watched

A = Key("ns", "a")


class Blocked(SystemClock):
    """A clock whose time a test may let pass in one piece."""

    def __init__(self) -> None:
        self._blocked = 0.0

    def block(self, seconds: float) -> None:
        self._blocked += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._blocked


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if what in record.getMessage()]


def test_a_loop_that_stood_still_for_a_second_is_told_with_how_long(caplog: pytest.LogCaptureFixture) -> None:
    clock = Blocked()

    async def scenario() -> None:
        async with watched(clock):
            for seconds in (0.0, 0.9, 0.9, 2.5, 0.0):
                await asyncio.sleep(1.1)
                clock.block(seconds)
            await asyncio.sleep(1)
        clock.block(60)
        await asyncio.sleep(1)

    run_virtual(scenario)
    assert [fields["seconds"] for fields in told(caplog, "the event loop stood still")] == [2.5]


def test_nothing_is_left_of_a_watchdog() -> None:
    async def scenario() -> int:
        with suppress(ValueError):
            async with watched(SystemClock()):
                raise ValueError
        return len(asyncio.all_tasks())

    assert run_virtual(scenario) == 1


class Blocking:
    def __init__(self, clock: Blocked, *stretches: float) -> None:
        self._clock = clock
        self._stretches = stretches

    async def reconcile(self, request: Request) -> Result:
        for seconds in self._stretches:
            await asyncio.sleep(10)
            self._clock.block(seconds)
        if request.name == "raises":
            raise ValueError("no")
        return DONE


@pytest.mark.parametrize("name", ["a", "raises"])
def test_a_reconcile_that_blocks_is_named_with_its_longest_stretch(name: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Blocked()
    reconciler = TimedReconciler(Blocking(clock, 0.5, 1.5, 0.9), "things", clock)

    async def scenario() -> None:
        with suppress(ValueError):
            await reconciler.reconcile(Key("ns", name))

    run_virtual(scenario)
    (fields,) = told(caplog, "a reconcile blocked the event loop")
    assert (fields["controller"], fields["object"], fields["seconds"]) == ("things", Key("ns", name), 1.5)


def test_a_reconcile_that_waits_for_long_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = Blocked()
    assert run_virtual(lambda: TimedReconciler(Blocking(clock, 0.9, 0.9), "things", clock).reconcile(A)) == DONE
    assert not caplog.records


class Persistent:
    """Notes what reaches it, and goes on after an error."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def reconcile(self, _: Request) -> Result:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        except TimeoutError:
            self.seen.append("timeout")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        finally:
            await asyncio.sleep(1)
            self.seen.append("cleaned up")
        return DONE


def test_a_timed_reconcile_is_cancelled_and_cleans_up_like_any_other() -> None:
    inner = Persistent()

    async def scenario() -> bool:
        task = asyncio.ensure_future(TimedReconciler(inner, "things", SystemClock()).reconcile(A))
        await asyncio.sleep(2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert run_virtual(scenario)
    assert inner.seen == ["timeout", "cancelled", "cleaned up"]
