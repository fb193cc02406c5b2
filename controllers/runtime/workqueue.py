"""The queue between events and reconcilers: each key waits at most once and runs at most once at a time.

``WorkQueue`` decides, told the time by its caller; ``AsyncWorkQueue`` lets tasks wait on it. The behaviour is that of
controller-runtime's priority queue, with two differences. Low priority is always served, because waiting counts (see
``AGEING``). And a shutdown still hands out what is ready, as client-go's queue does.
"""

import asyncio
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.limiter import ExponentialLimiter, Limiter

K = TypeVar("K", bound=Hashable)

AGEING = 1.0
"""Seconds of waiting that weigh as much as one level of priority.

A key that became ready at ``t`` with priority ``p`` is handed out before every key of priority ``q`` that becomes ready
later than ``t + (q - p) * AGEING``. So a resync of -100 is overtaken by real events for at most 100 s, however many
come. The order of two ready keys never changes with time, which is what lets a plain heap hold them.
"""

_STALE_ALLOWED = 64
"""Replaced entries that a heap may hold beyond one for each live entry before it is rebuilt."""

_Ready = tuple[float, int, K, int, float]
"""rank (lowest first), sequence number, key, priority, when it became pending"""

_Delayed = tuple[float, int, K, int]
"""when it becomes ready, sequence number, key, priority"""

_Entry = TypeVar("_Entry", bound=tuple[Any, ...])


class Item(msgspec.Struct, Generic[K], frozen=True, gc=False):
    """A key handed out; ``priority`` is the highest it was added with, ``waited`` the seconds it was pending."""

    key: K
    priority: int
    waited: float


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """What a queue holds at one moment; a key is counted in ``processing`` and at most one of the other three."""

    ready: int
    delayed: int
    processing: int
    dirty_while_processing: int
    oldest_processing_seconds: float  # age of the longest run that is not done
    unfinished_work_seconds: float  # sum of the ages of all runs that are not done
    shutting_down: bool


class QueueObserver(Protocol):
    """Told what happens, for metrics; the meanings are those of controller-runtime's ``workqueue_*`` series.

    The depth at a priority is ``added`` and ``lifted`` to it less ``popped`` and ``lifted`` from it: keys that are
    ready, or were added while they are processed, but not delayed ones.
    """

    def added(self, priority: int) -> None:
        """A key became pending: it was neither ready nor already waiting for its run to end."""
        ...

    def lifted(self, old: int, new: int) -> None:
        """A pending key was added again with a higher priority."""
        ...

    def popped(self, priority: int, waited: float) -> None:
        """A key was handed out, ``waited`` seconds after it became pending."""
        ...

    def done(self, worked: float) -> None:
        """A key's processing took ``worked`` seconds."""
        ...

    def retried(self) -> None:
        """An add asked for a delay, whether or not it had an effect."""
        ...


class NoObserver:
    """Ignores everything."""

    def added(self, priority: int) -> None:
        pass

    def lifted(self, old: int, new: int) -> None:
        pass

    def popped(self, priority: int, waited: float) -> None:
        pass

    def done(self, worked: float) -> None:
        pass

    def retried(self) -> None:
        pass


class WorkQueue(Generic[K]):
    """Keys in order of priority and arrival; a pure state machine.

    ``now`` is in seconds on a clock that never goes back. A delay that has run out takes effect in the next call of
    ``add``, ``pop``, ``done`` or ``next_deadline``, and then counts from the moment it ran out.

    A key has at most one pending entry, whatever it is added with: the time is the earliest asked for and the priority
    the highest. While a key is processed, adds collapse into one more run, at the tail, after ``done``.
    """

    __slots__ = (
        "_closed",
        "_delayed",
        "_delayed_heap",
        "_dirty",
        "_limiter",
        "_next_due",
        "_observer",
        "_processing",
        "_ready",
        "_ready_heap",
        "_sequence",
    )

    def __init__(self, *, limiter: Limiter[K] | None = None, observer: QueueObserver | None = None) -> None:
        self._limiter: Limiter[K] = limiter or ExponentialLimiter[K]()
        self._observer: QueueObserver = observer or NoObserver()
        self._ready: dict[K, _Ready[K]] = {}
        self._ready_heap: list[_Ready[K]] = []
        self._delayed: dict[K, _Delayed[K]] = {}
        self._delayed_heap: list[_Delayed[K]] = []
        self._next_due = math.inf
        self._processing: dict[K, float] = {}
        self._dirty: dict[K, tuple[int, float]] = {}
        self._sequence = 0
        self._closed = False

    def __len__(self) -> int:
        """Keys that ``pop`` can hand out."""
        return len(self._ready)

    @property
    def shutting_down(self) -> bool:
        return self._closed

    @property
    def delays(self) -> bool:
        """Whether a key is delayed, or was and is not forgotten yet."""
        return bool(self._delayed_heap)

    @property
    def idle(self) -> bool:
        """Whether nothing is ready and nothing is being processed."""
        return not self._ready and not self._processing

    def add(self, key: K, now: float, *, priority: int = 0, after: float = 0.0) -> None:
        """Asks for a run of ``key``, ``after`` seconds from now at the latest; dropped after shutdown.

        A key that is already ready stays ready, also where ``after`` is positive. A higher priority than before puts
        it at the tail of that class, unless it has waited long enough to be further ahead already.
        """
        if self._closed:
            return
        if self._next_due <= now:
            self._promote(now)
        if after > 0.0:
            self._observer.retried()
        if key in self._ready:
            if priority > self._ready[key][3]:
                self._lift(self._ready[key], priority, now)
        elif key in self._dirty:
            self._lift_dirty(key, priority)
        elif after > 0.0:
            self._delay(key, now + after, priority)
        else:
            if self._delayed and (delayed := self._delayed.pop(key, None)) is not None:
                priority = max(priority, delayed[3])
            self._arrive(key, priority, now)

    def add_rate_limited(self, key: K, now: float, *, priority: int = 0) -> None:
        """Counts a failure of ``key`` and adds it after the limiter's delay."""
        self.add(key, now, priority=priority, after=self._limiter.when(key))

    def forget(self, key: K) -> None:
        """Ends the failures of ``key``, so that its next delay is the shortest; a pending entry stays."""
        self._limiter.forget(key)

    def pop(self, now: float) -> Item[K] | None:
        """Hands out the first ready key, which counts as processed until ``done``; None where no key is ready."""
        if self._next_due <= now:
            self._promote(now)
        heap, ready = self._ready_heap, self._ready
        while heap:
            entry = heappop(heap)
            _, _, key, priority, since = entry
            if ready.get(key) is entry:
                del ready[key]
                self._processing[key] = now
                self._observer.popped(priority, now - since)
                return Item(key, priority, now - since)
        return None

    def done(self, key: K, now: float) -> None:
        """Ends the processing of ``key``; harmless where it is not being processed."""
        if self._next_due <= now:
            self._promote(now)
        started = self._processing.pop(key, None)
        if started is None:
            return
        self._observer.done(now - started)
        if self._dirty and (dirty := self._dirty.pop(key, None)) is not None:
            priority, since = dirty
            self._push(key, priority, now, since)

    def next_deadline(self, now: float) -> float | None:
        """Makes ready what is due, and returns the time at which to call again; None where nothing is delayed."""
        if self._next_due <= now:
            self._promote(now)
        heap = self._delayed_heap
        while heap and self._delayed.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        self._next_due = heap[0][0] if heap else math.inf
        return heap[0][0] if heap else None

    def shut_down(self) -> None:
        """Drops delayed keys and all later adds; ready keys are still handed out, and so is a re-run asked for."""
        self._closed = True
        self._delayed.clear()
        self._delayed_heap.clear()
        self._next_due = math.inf

    def statistics(self, now: float) -> QueueStatistics:
        ages = [now - started for started in self._processing.values()]
        return QueueStatistics(
            ready=len(self._ready),
            delayed=len(self._delayed),
            processing=len(ages),
            dirty_while_processing=len(self._dirty),
            oldest_processing_seconds=max(ages, default=0.0),
            unfinished_work_seconds=math.fsum(ages),
            shutting_down=self._closed,
        )

    def _arrive(self, key: K, priority: int, since: float) -> None:
        self._observer.added(priority)
        if key in self._processing:
            self._dirty[key] = (priority, since)
        else:
            self._push(key, priority, since, since)

    def _push(self, key: K, priority: int, arrival: float, since: float) -> None:
        self._sequence = sequence = self._sequence + 1
        entry = (arrival - priority * AGEING, sequence, key, priority, since)
        self._ready[key] = entry
        heappush(self._ready_heap, entry)

    def _lift(self, entry: _Ready[K], priority: int, now: float) -> None:
        rank, _, key, old, since = entry
        self._observer.lifted(old, priority)
        self._sequence += 1
        # Age may have brought the key further than the tail of the new class; being lifted must not throw it back.
        lifted = (min(rank, now - priority * AGEING), self._sequence, key, priority, since)
        self._ready[key] = lifted
        heappush(self._ready_heap, lifted)
        _rebuild_if_stale(self._ready_heap, self._ready)

    def _lift_dirty(self, key: K, priority: int) -> None:
        old, since = self._dirty[key]
        if priority > old:
            self._observer.lifted(old, priority)
            self._dirty[key] = (priority, since)

    def _delay(self, key: K, due: float, priority: int) -> None:
        if (old := self._delayed.get(key)) is not None:
            if due >= old[0] and priority <= old[3]:
                return
            due, priority = min(due, old[0]), max(priority, old[3])
        self._sequence += 1
        entry = (due, self._sequence, key, priority)
        self._delayed[key] = entry
        heappush(self._delayed_heap, entry)
        _rebuild_if_stale(self._delayed_heap, self._delayed)
        self._next_due = self._delayed_heap[0][0]

    def _promote(self, now: float) -> None:
        heap = self._delayed_heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            due, _, key, priority = entry
            if self._delayed.get(key) is entry:
                del self._delayed[key]
                self._arrive(key, priority, due)
        self._next_due = heap[0][0] if heap else math.inf


def _rebuild_if_stale(heap: list[_Entry], live: dict[K, _Entry]) -> None:
    # Without this, a key that is requeued for an hour and added by events every second leaves 3,600 entries behind.
    if len(heap) > 2 * len(live) + _STALE_ALLOWED:
        heap[:] = live.values()
        heapify(heap)


class AsyncWorkQueue(Generic[K]):
    """A ``WorkQueue`` that tasks wait on; all methods belong to the thread of one event loop.

    ``clock`` has to run at the pace of that loop, whose timer wakes the queue when a delay runs out.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limiter: Limiter[K] | None = None,
        observer: QueueObserver | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._queue = WorkQueue[K](limiter=limiter, observer=observer)
        self._getters: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        self._drains: set[asyncio.Future[bool]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def shutting_down(self) -> bool:
        return self._queue.shutting_down

    def add(self, key: K, *, priority: int = 0, after: float = 0.0) -> None:
        """Asks for a run of ``key`` within ``after`` seconds; see ``WorkQueue.add``."""
        now = self._clock.monotonic()
        self._queue.add(key, now, priority=priority, after=after)
        self._settle(now)

    def add_rate_limited(self, key: K, *, priority: int = 0) -> None:
        """Counts a failure of ``key`` and adds it after the limiter's delay."""
        now = self._clock.monotonic()
        self._queue.add_rate_limited(key, now, priority=priority)
        self._settle(now)

    def forget(self, key: K) -> None:
        """Ends the failures of ``key``; every success has to, or the limiter keeps the key for ever."""
        self._queue.forget(key)

    async def get(self) -> Item[K] | None:
        """Waits for a key and takes it; None once the queue is shut down and no key is ready.

        Whoever gets a key owes a ``done`` for it. A cancelled ``get`` takes no key.
        """
        while (item := self._queue.pop(self._clock.monotonic())) is None and not self._queue.shutting_down:
            await self._wake_up()
        return item

    def done(self, key: K) -> None:
        """Ends the processing of ``key``; harmless where it is not being processed."""
        now = self._clock.monotonic()
        self._queue.done(key, now)
        self._settle(now)
        if self._drains and self._queue.idle:
            self._end_drains(idle=True)

    def shut_down(self) -> None:
        """Drops delayed keys and later adds and wakes every getter; called again, it also ends every ``drained``."""
        again = self._queue.shutting_down
        self._queue.shut_down()
        self._disarm()
        while self._getters:
            self._wake_one()
        if again:
            self._end_drains(idle=False)

    async def drained(self) -> bool:
        """Waits until nothing is ready and nothing is processed; delayed keys do not count.

        False where a second ``shut_down`` ended the wait. Bound it with ``asyncio.timeout``: where no worker is left,
        ready keys stay for ever.
        """
        while not self._queue.idle:
            drain = asyncio.get_running_loop().create_future()
            self._drains.add(drain)
            try:
                if not await drain:
                    return False
            finally:
                self._drains.discard(drain)
        return True

    def statistics(self) -> QueueStatistics:
        return self._queue.statistics(self._clock.monotonic())

    async def _wake_up(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            # Woken for a key and cancelled in the same turn of the loop: the next getter must come for that key.
            if not getter.cancelled():
                self._woken -= 1
                self._wake()
            elif getter in self._getters:
                self._getters.remove(getter)
            raise
        self._woken -= 1

    def _wake(self) -> None:
        while self._getters and self._woken < len(self._queue):
            self._wake_one()

    def _wake_one(self) -> None:
        getter = self._getters.popleft()
        if not getter.done():
            getter.set_result(None)
            self._woken += 1

    def _settle(self, now: float) -> None:
        """Brings timer and getters in line with the queue after a change."""
        if self._timer is None and not self._queue.delays:
            # Nearly always: nothing is delayed, so that there is no timer to set and none to stop.
            if self._getters:
                self._wake()
            return
        deadline = self._queue.next_deadline(now)
        self._wake()
        if deadline is None:
            self._disarm()
        elif deadline < self._timer_at:
            self._disarm()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_later(deadline - now, self._ring)

    def _ring(self) -> None:
        # A loop's timer may fire a clock tick early; then nothing is ready yet and the rest is waited for again.
        self._timer, self._timer_at = None, math.inf
        self._settle(self._clock.monotonic())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf

    def _end_drains(self, *, idle: bool) -> None:
        for drain in self._drains:
            if not drain.done():
                drain.set_result(idle)
