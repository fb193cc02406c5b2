"""Who hears of changes, and how far they are.

A direct handler is a plain function. It runs on the event loop as soon as the store shows a change, and must be fast:
it is meant to put a key into a queue. A buffered handler is a coroutine function that may wait for as long as it
likes: it has a buffer and a task of its own, so it delays nobody.

A buffer never holds more changes than its limit or, where more objects than that have changed, one for each object:
beyond the limit, changes of one object that still wait become one. The handler then misses states in between but never
the last one, and the log says that it lags.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from controllers.runtime.cache.change import Change, ChangeHandler, merged
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Key, KubeObject

T = TypeVar("T", bound=KubeObject)

AsyncChangeHandler = Callable[[Change[T]], Awaitable[None]]
OnFailure = Callable[[Change[T], BaseException], None]

SHORTEST_RESYNC = 1.0
"""Seconds between two resyncs at least; a shorter period is a mistake in its unit."""


class Registration(Generic[T]):
    """One handler of an informer: whether it has heard of everything that was there before it, and how to end it."""

    def __init__(self, resync: float) -> None:
        if resync and resync < SHORTEST_RESYNC:
            raise ConfigurationError(
                f"resync of {resync:g} s: it must be at least {SHORTEST_RESYNC:g} s, or 0 for none"
            )
        self.resync = resync
        self.active = True
        self._synced = asyncio.Event()

    @property
    def has_synced(self) -> bool:
        """Whether the handler has returned from the last change that is marked ``initial``."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def pending(self) -> int:
        """Changes that wait for the handler."""
        return 0

    def remove(self) -> None:
        """Ends it: not one further change is handed out, also where it is called by the handler itself. A change that
        is being handled is handled to its end. Removing twice is harmless."""
        self.active = False

    def deliver(self, change: Change[T]) -> None:
        """Tells the handler of a change, now or in time."""
        raise NotImplementedError

    def all_initial_delivered(self) -> None:
        """Says that what is delivered from here on is news."""
        raise NotImplementedError

    async def run(self) -> None:
        """Hands out what waits, for as long as the handler is not removed."""


class DirectRegistration(Registration[T]):
    """Calls the handler at once."""

    def __init__(self, handler: ChangeHandler[T], on_failure: OnFailure[T], resync: float) -> None:
        super().__init__(resync)
        self._handler = handler
        self._on_failure = on_failure

    def deliver(self, change: Change[T]) -> None:
        if not self.active:
            return
        try:
            self._handler(change)
        except Exception as error:  # noqa: BLE001 - one handler's fault must not stop the others, or the stream
            self._on_failure(change, error)

    def all_initial_delivered(self) -> None:
        self._synced.set()


class BufferedRegistration(Registration[T]):
    """Keeps changes until the handler is free; ``on_lag`` is called when it falls behind by more than ``limit``."""

    def __init__(
        self,
        handler: AsyncChangeHandler[T],
        on_failure: OnFailure[T],
        resync: float,
        limit: int,
        on_lag: Callable[[int], None],
    ) -> None:
        super().__init__(resync)
        if limit < 1:
            raise ConfigurationError(f"buffer of {limit}: it must hold at least 1 change")
        self._handler = handler
        self._on_failure = on_failure
        self._limit = limit
        self._on_lag = on_lag
        self._waiting: deque[tuple[int, Change[T]]] = deque()
        self._compact_at = limit
        self._lagging = False
        self._last = 0
        self._last_initial: int | None = None
        self._handling: int | None = None
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def remove(self) -> None:
        super().remove()
        # It may be another thread that removes it, and only this wakes a loop from there.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def deliver(self, change: Change[T]) -> None:
        if not self.active:
            return
        self._last += 1
        self._waiting.append((self._last, change))
        if len(self._waiting) > self._compact_at:
            self._compact()
        self._wake.set()

    def all_initial_delivered(self) -> None:
        self._last_initial = self._last
        self._note_progress()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while self.active:
            self._wake.clear()
            while self._waiting and self.active:
                self._handling, change = self._waiting.popleft()
                await self._handle(change)
                self._handling = None
                self._note_progress()
            self._lagging, self._compact_at = False, self._limit
            if self.active:
                await self._wake.wait()

    async def _handle(self, change: Change[T]) -> None:
        try:
            await self._handler(change)
        except asyncio.CancelledError as error:
            # Awaiting something that others have cancelled raises this too, and would end the handler without a word.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._on_failure(change, error)
        except Exception as error:  # noqa: BLE001 - the next change must be told, too
            self._on_failure(change, error)

    def _note_progress(self) -> None:
        if self._last_initial is None:
            return
        # Numbers only grow from one change that waits to the next, also where several have become one.
        oldest = self._handling or (self._waiting[0][0] if self._waiting else None)
        if oldest is None or oldest > self._last_initial:
            self._synced.set()

    def _compact(self) -> None:
        if not self._lagging:
            self._lagging = True
            self._on_lag(len(self._waiting))
        self._waiting = deque(_compacted(self._waiting))
        # Twice what is left, so that one pass is paid for by as many changes as it looks at.
        self._compact_at = max(self._limit, 2 * len(self._waiting))
        self._note_progress()


def _compacted(changes: Iterable[tuple[int, Change[T]]]) -> Iterable[tuple[int, Change[T]]]:
    """Each object's changes as one, in the place of the first of them."""
    by_key: dict[Key, tuple[int, Change[T]]] = {}
    for number, change in changes:
        key = change.subject.key
        known = by_key.get(key)
        both = change if known is None else merged(known[1], change)
        if both is None:
            del by_key[key]
        else:
            by_key[key] = (number if known is None else known[0], both)
    return by_key.values()
