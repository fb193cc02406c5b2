"""An event loop on virtual time, on which an hour takes no time and a deadlock is told instead of waited for."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeError(Exception):
    """A scenario on virtual time cannot end. Raised out of the loop, so no code under test can catch it."""


class Deadlock(VirtualTimeError):
    """Every task waits and no timer is armed, so nothing can ever happen again."""


class TimeLimit(VirtualTimeError):
    """More virtual time has gone by than the test allows."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop whose ``time`` starts at 0 and jumps to the next timer as soon as nothing else is left to do.

    ``asyncio.sleep``, ``timeout`` and ``wait_for`` thus take no real time, and things happen in the same order in
    every run. There are no sockets, pipes or signals; functions for an executor run in the loop itself.
    """

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, *, limit: float = math.inf) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = math.ulp(0.0)
        self._limit = limit
        self._end = limit
        # The base class waits for input and output in exactly one place; that is where the time jumps.
        self._selector = SimpleNamespace(select=self._select)

    def time(self) -> float:
        return self._now

    def run_in_executor(self, _executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        async def call() -> T:
            return func(*args)

        return self.create_task(call())

    def _select(self, timeout: float | None) -> Sequence[object]:
        if timeout is None or timeout > 0.0:
            self._jump(self._scheduled[0].when() if self._scheduled else math.inf)
        return ()

    def _jump(self, when: float) -> None:
        if when == math.inf:
            raise Deadlock(f"nothing can happen after virtual second {self._now:g}; {self._waiting()}")
        if when > self._end:
            message = f"virtual second {self._end:g} is over; {self._waiting()}"
            # The tasks get as much time again to clean up in, and no more: a cleanup may be what does not end.
            self._move(self._end)
            self._end += self._limit
            raise TimeLimit(message)
        self._move(when)

    def _move(self, when: float) -> None:
        self._now = max(self._now, when)
        # The base class runs timers up to one resolution ahead: the smallest step makes that exactly those due now,
        # and a fixed one vanishes in the rounding of late times, where no timer would ever fire.
        self._clock_resolution = math.ulp(self._now)

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=asyncio.Task.get_name)
        return "waiting: " + (", ".join(map(_place, tasks)) or "no task")

    def _process_events(self, event_list: Sequence[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _place(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    while inspect.iscoroutine(coroutine) and inspect.iscoroutine(coroutine.cr_await):
        coroutine = coroutine.cr_await
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return task.get_name()
    return f"{task.get_name()} in {coroutine.__qualname__} ({frame.f_code.co_filename}:{frame.f_lineno})"


def run_virtual(main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], *, limit: float = 86_400.0) -> T:
    """Runs ``main`` to its end on a ``VirtualTimeLoop`` and returns its result; other tasks are then cancelled.

    Raises Deadlock where ``main`` waits for something that cannot come, and TimeLimit after ``limit`` virtual seconds.
    Both say where each task waits.
    """
    coroutine = main if isinstance(main, Coroutine) else main()
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit=limit)) as runner:
        return runner.run(coroutine)
