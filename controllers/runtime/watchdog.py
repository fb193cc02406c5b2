"""Who holds up the event loop: everything in a process runs on one, and stands still while something blocks it.

``watched`` tells that it stood still and for how long, whoever it was. ``TimedReconciler`` names the reconcile that did
it, for which it measures each stretch between two awaits.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from controllers.runtime import logs
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.reconcile import Reconciler, Request, Result

T = TypeVar("T")

TICK = 0.25
"""Seconds between two looks."""

LATE = 1.0
"""Seconds of standing still that are worth a warning: leases of 15 s, and probes of 1 s, begin to suffer."""

logger = logs.get_logger(__name__)


@asynccontextmanager
async def watched(clock: Clock | None = None) -> AsyncIterator[None]:
    """Warns, while the block runs, each time the event loop stood still for ``LATE`` or longer."""
    task = asyncio.create_task(_watch(clock or SystemClock()), name="watchdog")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _watch(clock: Clock) -> None:
    while True:
        due = clock.monotonic() + TICK
        await clock.sleep(TICK)
        late = clock.monotonic() - due
        if late >= LATE:
            logger.warning("the event loop stood still: something blocked it", seconds=round(late, 3))


class TimedReconciler:
    """Warns where a reconcile blocks the event loop for ``LATE`` or longer between two awaits."""

    def __init__(self, reconciler: Reconciler, controller: str, clock: Clock) -> None:
        self._reconciler = reconciler
        self._controller = controller
        self._clock = clock

    async def reconcile(self, request: Request) -> Result:
        timed = _Timed(self._reconciler.reconcile(request), self._clock)
        try:
            return await timed
        finally:
            if timed.longest >= LATE:
                logger.warning(
                    "a reconcile blocked the event loop: await instead, or use asyncio.to_thread",
                    **{**logs.bound(), "controller": self._controller, "object": request},
                    seconds=round(timed.longest, 3),
                )


class _Timed(Generic[T]):
    """Awaits a coroutine, and knows how long it ran at a stretch."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], clock: Clock) -> None:
        self._coroutine = coroutine
        self._clock = clock
        self.longest = 0.0  # seconds

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, monotonic = self._coroutine, self._clock.monotonic
        error: BaseException | None = None
        while True:
            began = monotonic()
            try:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                error = None  # its traceback refers to this frame
                self.longest = max(self.longest, monotonic() - began)
            try:
                yield waits_for
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is the coroutine's
                error = raised
