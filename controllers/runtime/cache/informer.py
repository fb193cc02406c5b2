"""The informer: keeps a store equal to what is selected of one kind on the server, and tells handlers what changed.

It puts the parts together: feeds, which follow the server, the store, which holds what came, and the handlers.
"""

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from controllers.runtime import logs
from controllers.runtime.cache.change import Change, ChangeHandler, ChangeType
from controllers.runtime.cache.feed import Feed, Happening, InformerObserver, InformerOptions, unobserved
from controllers.runtime.cache.handlers import (
    AsyncChangeHandler,
    BufferedRegistration,
    DirectRegistration,
    Registration,
)
from controllers.runtime.cache.intake import Intake
from controllers.runtime.cache.store import Store
from controllers.runtime.client import EVERYTHING, Client, Selection, Write
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

logger = logs.get_logger(__name__)

BATCH = 1_000
"""Changes of a list that are handed out at once; between two batches everything else on the event loop gets a turn."""

SLOW = 0.5
"""Seconds of one batch, or one event, in direct handlers that are worth a warning: nothing else runs meanwhile."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """An informer at one moment; ``lists`` and ``watches`` count what the server granted."""

    objects: int
    lists: int
    watches: int
    events: int  # bookmarks included
    undecodable: int  # objects that exist at present and cannot be read
    unindexed: int  # objects that exist at present and that an index cannot take, once for each such index
    handler_errors: int
    last_event_at: float | None  # monotonic seconds
    resource_version: str  # up to where the store is current; "" before the first list, or where feeds differ


class _Waiter:
    """Somebody who waits until the store shows a write."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.was_cached = False
        self.seen = asyncio.Event()


def _ignore_seconds(_: float) -> None:
    return None


class Informer(Generic[T]):
    """Follows one kind for as long as ``run`` runs, which it does once.

    ``selection`` is what it follows; several selections must each be of another namespace. Raises ConfigurationError
    where they are not.
    """

    def __init__(
        self,
        client: Client,
        kind: type[T],
        selection: Selection | Sequence[Selection] = EVERYTHING,
        options: InformerOptions | None = None,
        *,
        clock: Clock | None = None,
        observer: InformerObserver = unobserved,
        processed: Callable[[float], None] = _ignore_seconds,
    ) -> None:
        self.store: Store[T] = Store()
        self._client = client
        self._kind = kind
        self._options = options or InformerOptions()
        self._clock = clock or SystemClock()
        self._observer = observer
        self._processed = processed
        self._feeds = {each.namespace: self._feed(each) for each in _selections(kind, selection)}
        self._registrations: tuple[Registration[T], ...] = ()
        self._synced = asyncio.Event()
        self._waiters: set[_Waiter] = set()
        self._handler_errors = 0
        self._handing_out = asyncio.Lock()
        self._has_run = self._stopped = False
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()

    def _feed(self, selection: Selection) -> Feed[T]:
        resource = self._kind.resource
        options, transform = self._options, self._options.transform
        intake = Intake(
            self.store, resource, selection.namespace, transform, lambda: self._observe(Happening.UNDECODABLE)
        )
        return Feed(self._client, self._kind, selection, options, self._clock, intake, self, self._observe)

    def _observe(self, happening: Happening) -> None:
        self._observer(self._kind.resource, happening)

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> type[T]:
        return self._kind

    @property
    def pending(self) -> int:
        """Changes that wait for a handler, counted once for each."""
        return sum(registration.pending for registration in self._registrations)

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What it follows."""
        return tuple(feed.selection for feed in self._feeds.values())

    @property
    def synced(self) -> bool:
        """Whether every direct handler has heard of everything that the first lists brought."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def stopped(self) -> bool:
        """Whether it follows the server no more: what the store shows is the past."""
        return self._stopped

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """What runs for it at present: feeds, buffered handlers and resyncs."""
        return frozenset(self._running)

    @property
    def last_error(self) -> str:
        """Why the store cannot be kept current at present, or ""."""
        return next((feed.last_error for feed in self._feeds.values() if feed.last_error), "")

    @property
    def failing_for(self) -> float:
        """Seconds for which the store could not be kept current, 0 while it can."""
        return max(feed.failing_for for feed in self._feeds.values())

    def statistics(self) -> Statistics:
        feeds = self._feeds.values()
        versions = {feed.resource_version for feed in feeds}
        return Statistics(
            objects=len(self.store),
            lists=sum(feed.lists for feed in feeds),
            watches=sum(feed.watches for feed in feeds),
            events=sum(feed.events for feed in feeds),
            undecodable=sum(feed.intake.unreadable for feed in feeds),
            unindexed=self.store.unindexed,
            handler_errors=self._handler_errors,
            last_event_at=max((feed.last_event_at for feed in feeds if feed.last_event_at is not None), default=None),
            resource_version=versions.pop() if len(versions) == 1 else "",
        )

    # -- handlers -----------------------------------------------------------------------------------------------------

    def add_handler(self, handler: ChangeHandler[T], *, resync: float = 0.0) -> Registration[T]:
        """Calls ``handler`` for every change from now on, and first, at once, for everything that is already there.

        What a handler raises is logged and counted; that change is lost to it, the next one is not. With ``resync`` it
        is also reminded of every object each so many seconds (at least 1), by a change from the object to itself.
        Raises ConfigurationError where the informer has stopped, and for a coroutine function, never awaited.
        """
        if inspect.iscoroutinefunction(handler):
            what = f"the informer of {self._kind.resource}: the handler is a coroutine function"
            raise ConfigurationError(f"{what}: make it a plain one, or use add_buffered_handler")
        return self._register(DirectRegistration(handler, self._handler_failed, resync))

    def add_buffered_handler(
        self, handler: AsyncChangeHandler[T], *, limit: int = 1024, resync: float = 0.0
    ) -> Registration[T]:
        """The same for a coroutine function, which may take its time: it is called for one change after the other, in
        order, and delays nobody else.

        Where more than ``limit`` changes wait for it, those of one object become one, and a warning says so.
        """
        return self._register(BufferedRegistration(handler, self._handler_failed, resync, limit, self._handler_lags))

    def _register(self, registration: Registration[T]) -> Registration[T]:
        if self._stopped:
            raise ConfigurationError(f"the informer of {self._kind.resource} has stopped: add handlers before that")
        # No await between the replay and the registration, and a batch that is being handed out keeps to the handlers
        # it began with: so nothing is lost and nothing doubled, whoever calls this and whenever.
        present = self.store.list()
        self._registrations = (*(each for each in self._registrations if each.active), registration)
        for item in present:
            registration.deliver(Change(ChangeType.ADDED, None, item, initial=True))
        if self.synced:
            registration.all_initial_delivered()
        if self._tasks is not None:
            self._serve(registration)
        return registration

    def _serve(self, registration: Registration[T]) -> None:
        if isinstance(registration, BufferedRegistration):
            self._start(registration.run(), "handler")
        if registration.resync:
            self._start(self._remind(registration), "resync")

    async def _remind(self, registration: Registration[T]) -> None:
        await self._synced.wait()
        while registration.active:
            await self._clock.sleep(registration.resync)
            # Not amid a list of which the handler has heard a part: it would be reminded of what it does not know.
            async with self._handing_out:
                for item in self.store.list():
                    registration.deliver(Change(ChangeType.UPDATED, item, item))

    def _hand_out(self, changes: Sequence[Change[T]], registrations: tuple[Registration[T], ...]) -> None:
        began = self._clock.monotonic()
        for change in changes:
            for registration in registrations:
                registration.deliver(change)
        taken = self._clock.monotonic() - began
        if taken >= SLOW:
            self._observe(Happening.HANDLER_LAGS)
            what = "handlers held up the whole process: let slow ones be buffered"
            logger.warning(what, resource=self._kind.resource, seconds=round(taken, 3), changes=len(changes))

    def _handler_failed(self, change: Change[T], error: BaseException) -> None:
        self._handler_errors += 1
        self._observe(Happening.HANDLER_FAILED)
        logger.error("a handler raised", resource=self._kind.resource, object=change.subject.key, exc_info=error)

    def _handler_lags(self, pending: int) -> None:
        self._observe(Happening.HANDLER_LAGS)
        logger.warning("a handler lags and will miss states in between", resource=self._kind.resource, pending=pending)

    # -- following the server -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the server until cancelled or stopped; anything that is not a failure of server or network
        propagates. Raises ConfigurationError where it has run before."""
        if self._has_run:
            raise ConfigurationError(f"the informer of {self._kind.resource} has run before: make another one")
        self._has_run = True
        if self._stopped:
            return
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for feed in self._feeds.values():
                    self._start(feed.run(), f"feed-{feed.selection.namespace or 'all'}")
                for registration in self._registrations:
                    self._serve(registration)
        except BaseExceptionGroup as group:
            # One cause ends them all; who started this wants to see it, not the group.
            raise group.exceptions[0] from None
        finally:
            self._stopped = True
            self._tasks = None

    def stop(self) -> None:
        """Makes ``run`` return at once; the store keeps what it has."""
        self._stopped = True
        for task in self._running:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work, name=f"{what}-{self._kind.resource}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # -- what the feeds tell ------------------------------------------------------------------------------------------

    async def replaced(self, feed: Feed[T], changes: Iterator[Change[T]]) -> None:
        """A feed has brought a complete list."""
        registrations = self._registrations
        async with self._handing_out:
            while batch := tuple(islice(changes, BATCH)):
                self._hand_out(batch, registrations)
                await asyncio.sleep(0)
        feed.synced = True
        if not self.synced and all(each.synced for each in self._feeds.values()):
            self._all_synced()
        self._wake_waiters()

    def _all_synced(self) -> None:
        self._synced.set()
        for registration in self._registrations:
            registration.all_initial_delivered()
        if self._options.freeze_after_sync:
            gc.freeze()

    def advanced(self, feed: Feed[T], change: Change[T] | None) -> None:
        """A feed has brought an event."""
        if change is not None:
            self._hand_out((change,), self._registrations)
        self._wake_waiters()
        if feed.last_event_at is not None:
            self._processed(self._clock.monotonic() - feed.last_event_at)

    # -- reading our own writes ---------------------------------------------------------------------------------------

    async def wait_for(self, write: Write, timeout: float) -> bool:
        """Waits until the store is at least as new as a write of our own; False after ``timeout`` seconds.

        A write in a namespace that is not selected is not waited for. One that the selectors leave out counts as seen
        with anything newer that the server sends, at the latest a bookmark, which may take a minute.
        """
        feed = self._feeds.get("") or self._feeds.get(write.key.namespace)
        if feed is None:
            return True
        waiter = _Waiter(write)
        if self._has_seen(waiter):
            return True
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter.seen.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if self._has_seen(waiter):
                waiter.seen.set()

    def _has_seen(self, waiter: _Waiter) -> bool:
        write = waiter.write
        feed = self._feeds.get("") or self._feeds[write.key.namespace]
        stored = self.store.get(write.key)
        cached = stored if stored is not None and stored.uid == write.uid else None
        if not write.resource_version:
            return feed.synced and cached is None
        # Gone after it was there is seen, whatever its last version was; merely absent may also mean not yet there.
        gone = waiter.was_cached and cached is None
        waiter.was_cached = cached is not None
        version = cached.metadata.resource_version if cached is not None else ""
        return gone or version == write.resource_version or _reached(feed.resource_version, write)


def _selections(kind: type[KubeObject], selection: Selection | Sequence[Selection]) -> tuple[Selection, ...]:
    selections = (selection,) if isinstance(selection, Selection) else tuple(selection)
    namespaces = [each.namespace for each in selections]
    if not selections:
        raise ConfigurationError(f"the informer of {kind.resource} selects nothing: give it one selection at least")
    if not kind.resource.namespaced and any(namespaces):
        raise ConfigurationError(f"the informer of {kind.resource} selects a namespace, but the kind has none: drop it")
    if len(selections) > 1 and ("" in namespaces or len(set(namespaces)) < len(namespaces)):
        told = ", ".join(each or "all" for each in namespaces)
        raise ConfigurationError(
            f"the informer of {kind.resource} has selections in namespaces {told}: each must be of another namespace"
        )
    return selections


def _reached(current: str, write: Write) -> bool:
    """Whether a resourceVersion is at or after a write. Servers order decimal ones within a resource; others may only
    be compared for equality."""
    if _is_decimal(current) and _is_decimal(write.resource_version):
        return int(current) >= int(write.resource_version)
    return current == write.resource_version


def _is_decimal(version: str) -> bool:
    return version.isascii() and version.isdigit()
