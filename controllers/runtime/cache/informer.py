"""The informer: keeps a store equal to a selection of one kind on the server, and tells handlers what changed.

It is a thin shell around the reflector, which decides what to request, and the store, which holds what came. Handlers
run on the event loop one after the other and must be fast: they are meant to put a key into a queue.

An object that exists but can no longer be decoded stays in the store as it last was. Dropping it would look like a
deletion to every controller, with all that a controller does then; so it is kept, a warning names it once for each of
its versions, and ``Statistics.undecodable`` counts it for as long as that lasts.
"""

import asyncio
import gc
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from controllers.runtime import logs
from controllers.runtime.cache.reflector import ListPage, Reflector, Replacement, Wait, Watch
from controllers.runtime.cache.store import Store
from controllers.runtime.client import EVERYTHING, Client, Selection, Undecodable, WatchEvent, Write
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ApiError, DecodeError, Expired, RuntimeFault, TransportError
from controllers.runtime.meta import Key, KubeObject, Resource

T = TypeVar("T", bound=KubeObject)

logger = logs.get_logger(__name__)


class ChangeType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of one object; when a handler hears of it the store already shows it.

    ``old`` is None for ADDED and ``new`` for DELETED. An UPDATED between two uids is a deletion and a new object of
    the same name. ``initial`` marks what was there before the handler was. ``final_state_unknown`` marks a deletion
    that nobody saw: ``old`` is then the last state that was known, not the one at the end.
    """

    type: ChangeType
    old: T | None
    new: T | None
    initial: bool = False
    final_state_unknown: bool = False

    @property
    def subject(self) -> T:
        """The object that the change is about, in its newest known state."""
        subject = self.new if self.new is not None else self.old
        assert subject is not None
        return subject


ChangeHandler = Callable[[Change[T]], None]


class Happening(StrEnum):
    """What an observer is told of."""

    LIST = "list"
    LIST_FAILED = "list_failed"
    WATCH = "watch"
    WATCH_FAILED = "watch_failed"
    EVENT = "event"
    UNDECODABLE = "undecodable"
    HANDLER_FAILED = "handler_failed"


InformerObserver = Callable[[Resource, Happening], None]


def _ignore(_: Resource, __: Happening) -> None:
    return None


def _ignore_seconds(_: float) -> None:
    return None


@dataclass(frozen=True, slots=True)
class InformerOptions:
    """How an informer reads."""

    page_size: int = 500  # objects per page of a list; bounds how long decoding stalls everything else
    freeze_after_sync: bool = True  # take what the first list brought out of sight of the garbage collector
    random: Callable[[], float] = random.random  # numbers in [0, 1) that spread timeouts and pauses


@dataclass(frozen=True, slots=True)
class Statistics:
    """An informer at one moment; ``lists`` and ``watches`` count what the server granted."""

    objects: int
    lists: int
    watches: int
    events: int  # bookmarks included
    undecodable: int  # objects that exist at present and cannot be read
    handler_errors: int
    last_event_at: float | None  # monotonic seconds
    resource_version: str  # up to where the store is current; "" before the first list


class _Waiter:
    """Somebody who waits until the store shows a write."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.was_cached = False
        self.seen = asyncio.Event()


class Informer(Generic[T]):
    """Follows one selection of one kind for as long as ``run`` runs."""

    def __init__(
        self,
        client: Client,
        kind: type[T],
        selection: Selection = EVERYTHING,
        options: InformerOptions | None = None,
        *,
        clock: Clock | None = None,
        observer: InformerObserver = _ignore,
        processed: Callable[[float], None] = _ignore_seconds,
    ) -> None:
        self.store: Store[T] = Store()
        self._client = client
        self._kind = kind
        self._selection = selection
        self._options = options or InformerOptions()
        self._clock = clock or SystemClock()
        self._observer = observer
        self._processed = processed
        self._reflector: Reflector[T] = Reflector(page_size=self._options.page_size, random=self._options.random)
        self._handlers: tuple[ChangeHandler[T], ...] = ()
        self._synced = asyncio.Event()
        self._waiters: set[_Waiter] = set()
        self._unreadable: dict[Key | None, str] = {}
        self._lists = self._watches = self._events = self._handler_errors = 0
        self._last_event_at: float | None = None
        self._failing_since: float | None = None

    # -- what others ask ----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> type[T]:
        return self._kind

    @property
    def synced(self) -> bool:
        """Whether every handler has heard of everything that the first list brought."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def last_error(self) -> str:
        """Why the store cannot be kept current at present, or ""."""
        return self._reflector.last_error

    @property
    def failing_for(self) -> float:
        """Seconds for which the store could not be kept current, 0 while it can."""
        return 0.0 if self._failing_since is None else self._clock.monotonic() - self._failing_since

    def statistics(self) -> Statistics:
        return Statistics(
            objects=len(self.store),
            lists=self._lists,
            watches=self._watches,
            events=self._events,
            undecodable=len(self._unreadable),
            handler_errors=self._handler_errors,
            last_event_at=self._last_event_at,
            resource_version=self._reflector.resource_version,
        )

    def add_handler(self, handler: ChangeHandler[T]) -> None:
        """Calls ``handler`` for every change from now on, and first, at once, for everything that is already there.

        What a handler raises is logged and counted; that change is lost to it, the next one is not.
        """
        # No await between the replay and the registration, and a batch that is being handed out keeps to the handlers
        # it began with: so nothing is lost and nothing doubled, whoever calls this and whenever.
        present = self.store.list()
        self._handlers = (*self._handlers, handler)
        for item in present:
            self._call(handler, Change(ChangeType.ADDED, None, item, initial=True))

    async def wait_for(self, write: Write, timeout: float) -> bool:
        """Waits until the store is at least as new as a write of our own; False after ``timeout`` seconds.

        A write in a namespace that is not selected is not waited for. One that the selectors leave out counts as seen
        with anything newer that the server sends, at the latest a bookmark, which may take a minute.
        """
        if self._selection.namespace not in ("", write.key.namespace):
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

    # -- following the server -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the server until cancelled; anything that is not a failure of server or network propagates."""
        while True:
            now = self._clock.monotonic()
            if self.last_error and self._failing_since is None:
                self._failing_since = now
            match self._reflector.next_action(now):
                case Wait(until=until):
                    await self._clock.sleep(until - now)
                case ListPage() as page:
                    await self._list(page)
                case Watch() as watch:
                    await self._watch(watch)

    async def _list(self, action: ListPage) -> None:
        try:
            page = await self._client.list_page(
                self._kind,
                self._selection,
                limit=action.limit,
                continue_token=action.continue_token,
                resource_version=action.resource_version or None,
            )
        except (ApiError, TransportError, DecodeError) as error:
            self._reflector.list_failed(error, self._clock.monotonic())
            self._observer(self._kind.resource, Happening.LIST_FAILED)
            logger.warning("a list failed and will be repeated", resource=self._kind.resource, reason=str(error))
            return
        replacement = self._reflector.page_received(page, self._clock.monotonic())
        if replacement is not None:
            self._lists += 1
            self._observer(self._kind.resource, Happening.LIST)
            self._replace(replacement)

    async def _watch(self, action: Watch) -> None:
        try:
            async with self._client.watch(
                self._kind, self._selection, resource_version=action.resource_version, timeout=action.timeout
            ) as events:
                self._reflector.watch_opened(self._clock.monotonic())
                # Only a watch keeps a store current: a list that succeeds before every watch that is refused does not.
                self._failing_since = None
                self._watches += 1
                self._observer(self._kind.resource, Happening.WATCH)
                async for event in events:
                    self._take(event)
        except (ApiError, TransportError, DecodeError) as error:
            self._reflector.watch_failed(error, self._clock.monotonic())
            self._observer(self._kind.resource, Happening.WATCH_FAILED)
            _log_end_of_watch(self._kind.resource, error)
        else:
            self._reflector.watch_closed(self._clock.monotonic())

    # -- what comes from the server -----------------------------------------------------------------------------------

    def _replace(self, replacement: Replacement[T]) -> None:
        kept = [old for bad in replacement.undecodable if (old := self._last_readable(bad)) is not None]
        items = {item.key: item for item in (*kept, *replacement.items)}
        changes = _changes_of_list(self.store, items, initial=not self.synced)
        self.store.replace(items.values())
        self._report_all(replacement.undecodable)
        self._hand_out(changes)
        if not self.synced:
            self._synced.set()
            if self._options.freeze_after_sync:
                gc.freeze()
        self._wake_waiters()

    def _take(self, event: WatchEvent[T]) -> None:
        self._events += 1
        self._last_event_at = began = self._clock.monotonic()
        self._observer(self._kind.resource, Happening.EVENT)
        change = self._change_by(event)
        self._reflector.event_received(event)
        if change is not None:
            self._hand_out((change,))
        self._wake_waiters()
        self._processed(self._clock.monotonic() - began)

    def _change_by(self, event: WatchEvent[T]) -> Change[T] | None:
        """Brings one event into the store."""
        match event:
            case WatchEvent(type="ADDED" | "MODIFIED", object=item) if item is not None:
                self._unreadable.pop(item.key, None)
                return _change_between(self.store.put(item), item)
            case WatchEvent(type="DELETED", object=item) if item is not None:
                self._unreadable.pop(item.key, None)
                return Change(ChangeType.DELETED, item, None) if self.store.remove(item.key) else None
            case WatchEvent(type="ADDED" | "MODIFIED", undecodable=bad) if bad is not None:
                self._report(bad)
                return None if self._last_readable(bad) is not None else self._remove_unseen(bad.key)
            case WatchEvent(type="DELETED", undecodable=bad) if bad is not None:
                self._unreadable.pop(bad.key, None)
                return self._remove_unseen(bad.key)
            case WatchEvent(type="BOOKMARK"):
                return None
        logger.warning("a watch sent an event of unknown type", resource=self._kind.resource, type=event.type)
        return None

    def _remove_unseen(self, key: Key | None) -> Change[T] | None:
        old = self.store.remove(key) if key is not None else None
        return Change(ChangeType.DELETED, old, None, final_state_unknown=True) if old is not None else None

    def _last_readable(self, bad: Undecodable) -> T | None:
        """The stored state of what cannot be decoded now, if that is still the same object and not a namesake."""
        old = self.store.get(bad.key) if bad.key is not None else None
        return old if old is not None and bad.uid in ("", old.uid) else None

    def _report_all(self, undecodable: Iterable[Undecodable]) -> None:
        known, self._unreadable = self._unreadable, {}
        for bad in undecodable:
            self._report(bad, known)

    def _report(self, bad: Undecodable, known: dict[Key | None, str] | None = None) -> None:
        known = self._unreadable if known is None else known
        told = bad.key in known and known[bad.key] == bad.resource_version
        self._unreadable[bad.key] = bad.resource_version
        if told:
            return
        self._observer(self._kind.resource, Happening.UNDECODABLE)
        logger.warning(
            "an object cannot be read: the cache keeps its last readable state, or leaves it out",
            resource=self._kind.resource,
            object=bad.key or "(no readable name)",
            resource_version=bad.resource_version,
            reason=str(bad.error),
        )

    # -- who hears of it ----------------------------------------------------------------------------------------------

    def _hand_out(self, changes: Iterable[Change[T]]) -> None:
        handlers = self._handlers
        for change in changes:
            for handler in handlers:
                self._call(handler, change)

    def _call(self, handler: ChangeHandler[T], change: Change[T]) -> None:
        try:
            handler(change)
        except Exception as error:  # noqa: BLE001 - one handler's fault must not stop the others, or the stream
            self._handler_failed(change, error)

    def _handler_failed(self, change: Change[T], error: Exception) -> None:
        self._handler_errors += 1
        self._observer(self._kind.resource, Happening.HANDLER_FAILED)
        logger.error("a handler raised", resource=self._kind.resource, object=change.subject.key, exc_info=error)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if self._has_seen(waiter):
                waiter.seen.set()

    def _has_seen(self, waiter: _Waiter) -> bool:
        write = waiter.write
        stored = self.store.get(write.key)
        cached = stored if stored is not None and stored.uid == write.uid else None
        if not write.resource_version:
            return self.synced and cached is None
        # Gone after it was there is seen, whatever its last version was; merely absent may also mean not yet there.
        gone = waiter.was_cached and cached is None
        waiter.was_cached = cached is not None
        version = cached.metadata.resource_version if cached is not None else ""
        return gone or version == write.resource_version or _reached(self._reflector.resource_version, write)


def _reached(current: str, write: Write) -> bool:
    """Whether a resourceVersion is at or after a write. Servers order decimal ones within a resource; others may only
    be compared for equality."""
    if _is_decimal(current) and _is_decimal(write.resource_version):
        return int(current) >= int(write.resource_version)
    return current == write.resource_version


def _is_decimal(version: str) -> bool:
    return version.isascii() and version.isdigit()


def _change_between(old: T | None, new: T, *, initial: bool = False) -> Change[T] | None:
    """None where the server only repeats itself."""
    if old is None:
        return Change(ChangeType.ADDED, None, new, initial=initial)
    version = new.metadata.resource_version
    if version and (version, new.uid) == (old.metadata.resource_version, old.uid):
        return None
    return Change(ChangeType.UPDATED, old, new)


def _changes_of_list(store: Store[T], items: dict[Key, T], *, initial: bool) -> list[Change[T]]:
    """From the store to a fresh list: deletions first, so that nothing is ever there twice under two names."""
    deletions = [
        Change(ChangeType.DELETED, old, None, final_state_unknown=True) for old in store.list() if old.key not in items
    ]
    others = [_change_between(store.get(item.key), item, initial=initial) for item in items.values()]
    return deletions + [change for change in others if change is not None]


def _log_end_of_watch(resource: Resource, error: RuntimeFault) -> None:
    # Connections break and histories expire all the time; what else ends a watch deserves a look.
    if isinstance(error, TransportError):
        tell = logger.debug
    else:
        tell = logger.info if isinstance(error, Expired) else logger.warning
    tell("a watch broke and will be repeated", resource=resource, reason=str(error))
