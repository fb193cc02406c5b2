"""Which request to send next so that a cache follows a resource: a state machine without any input or output.

Its shell asks ``next_action``, does that one thing and reports how it went. All that makes following a resource hard
is decided here and can be tested without a server: where a list starts, what a watch resumes from, which failure needs
a new list, and how long to wait after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from controllers.runtime.client import Page, Undecodable, WatchEvent
from controllers.runtime.errors import (
    ApiError,
    DecodeError,
    Expired,
    InternalError,
    ResourceVersionTooLarge,
    RuntimeFault,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    TransportError,
)
from controllers.runtime.meta import Key, KubeObject

T = TypeVar("T", bound=KubeObject)

ANY = "0"
"""As resourceVersion of a list: whatever the server has at hand, possibly a little old."""
NEWEST = ""
"""As resourceVersion of a list: the newest state, by a quorum read."""

WATCH_TIMEOUT = 300.0
"""Seconds after which the server ends a watch, at least; up to twice that, so that not all watches end at once."""

SHORT_WATCH = 1.0
"""Seconds below which a watch that ended without news counts as a failure and not as routine."""
SHORT_WATCHES_BEFORE_RELIST = 5
"""Some servers end a watch from a forgotten resourceVersion cleanly and at once, for ever, instead of saying 410."""

SILENT_WATCH = 120.0
"""Seconds after which a watch without a single bookmark is suspicious, from a server that sends them each minute: one
that was restored from a backup says nothing until it has reached the old resourceVersion again."""

INTERNAL_ERROR_PATIENCE = 60.0
"""Seconds for which a watch that fails with 500, and only so, is tried again before a new list is due; a watch that
stays open for as long starts them anew."""

STREAM_ATTEMPTS = 3
"""Streams of the state that may break in a row before it is listed instead."""

BACKOFF_START = 0.8
BACKOFF_LIMIT = 30.0
BACKOFF_PEACE = 120.0
"""Seconds: first and longest pause, each stretched at random up to twofold, and the peace that starts over; client-go's
numbers, so that a herd of clients behaves as servers expect."""

FRESH_LIST = 30.0
"""Seconds for which a list is fresh. A server that forgets its resourceVersion sooner is given a pause before the next
one; one that forgets it later, such as one that comes back from an outage, is asked at once."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Ask for one page; ``limit`` 0 means everything at once."""

    resource_version: str
    continue_token: str
    limit: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch from ``resource_version`` on; the server ends it after ``timeout`` seconds."""

    resource_version: str
    timeout: float


@dataclass(frozen=True, slots=True)
class StreamList:
    """Watch, beginning with the state at ``resource_version`` or later; ends after ``timeout`` seconds."""

    resource_version: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Check:
    """Find out, by a list of nothing, whether the server has reached ``resource_version``."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before the monotonic time ``until``."""

    until: float


Action = ListPage | StreamList | Watch | Check | Wait


@dataclass(frozen=True, slots=True)
class Replacement(Generic[T]):
    """A complete list: everything that exists as of ``resource_version``."""

    items: tuple[T, ...]
    undecodable: tuple[Undecodable, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The state is due, from this resourceVersion on; ``paged`` is off after a page's token expired, ``streamed`` is
    off where the server is to be asked for a list this time."""

    resource_version: str
    paged: bool = True
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Some pages have come. ``resource_version`` is that of the first page: the later ones say nothing newer."""

    start: Unlisted
    continue_token: str
    resource_version: str
    items: tuple[T, ...]
    undecodable: tuple[Undecodable, ...]


@dataclass(frozen=True, slots=True)
class Streaming(Generic[T]):
    """A watch is open and tells the state; none of it counts before its end is told."""

    start: Unlisted
    items: dict[Key, T] = field(default_factory=dict)
    undecodable: dict[Key | None, Undecodable] = field(default_factory=dict)

    def take(self, event: WatchEvent[T]) -> None:
        if event.object is not None:
            self.undecodable.pop(event.object.key, None)
            self.items[event.object.key] = event.object
            if event.type == "DELETED":
                del self.items[event.object.key]
        elif (bad := event.undecodable) is not None:
            if bad.key is not None:
                self.items.pop(bad.key, None)
            self.undecodable[bad.key] = bad
            if event.type == "DELETED":
                del self.undecodable[bad.key]


@dataclass(frozen=True, slots=True)
class Watching:
    """The list is complete; events up to ``resource_version`` have been seen."""

    resource_version: str


class Backoff:
    """Pauses that double, are stretched at random, and start over after a time of peace."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._pause = BACKOFF_START
        self._last_pause_ended = float("-inf")

    def until(self, now: float, at_least: float = 0.0) -> float:
        """The time until which to pause after a failure at ``now``; ``at_least`` is what the server asked for."""
        if now - self._last_pause_ended >= BACKOFF_PEACE:
            self._pause = BACKOFF_START
        pause = max(self._pause * (1.0 + self._random()), at_least)
        self._pause = min(self._pause * 2, BACKOFF_LIMIT)
        self._last_pause_ended = now + pause
        return self._last_pause_ended


class Reflector(Generic[T]):
    """Follows one selection of one resource.

    ``random`` gives numbers in [0, 1). With ``stream_lists`` the state is taken from a watch that begins with it,
    until a server refuses that, and from lists where a stream fails.
    """

    def __init__(self, *, page_size: int, random: Callable[[], float], stream_lists: bool = False) -> None:
        self._page_size = page_size
        self._random = random
        self._streams = stream_lists
        self._state: Unlisted | Listing[T] | Streaming[T] | Watching = Unlisted(ANY)
        self._resource_version = ""
        self._pages_from_cache = False
        self._backoff = Backoff(random)
        self._not_before = float("-inf")
        self._listed_at = float("-inf")
        self._opened_at: float | None = None
        self._opened_from = ""
        self._silent = True
        self._sends_bookmarks = False
        self._short_watches = 0
        self._broken_streams = 0
        self._was_absent = False
        self._internal_errors_since: float | None = None
        self._last_error = ""

    @property
    def resource_version(self) -> str:
        """Up to where the followed state is known; "" before the first list."""
        return self._resource_version

    @property
    def last_error(self) -> str:
        """Why the resource cannot be followed at present, or ""."""
        return self._last_error

    @property
    def streaming(self) -> bool:
        """Whether a watch is telling the state and has not come to its end."""
        return isinstance(self._state, Streaming)

    def next_action(self, now: float) -> Action:
        if now < self._not_before:
            return Wait(self._not_before)
        match self._state:
            case Unlisted(resource_version=version, streamed=True) if self._streams:
                return StreamList(NEWEST if version == ANY else version, self._timeout())
            case Unlisted(resource_version=version):
                return ListPage(version, "", self._limit(self._state))
            case Listing(continue_token=token):
                return ListPage(NEWEST, token, self._page_size)
            case Watching(resource_version=version):
                return Check(version) if self._was_absent else Watch(version, self._timeout())
            case Streaming():
                raise AssertionError("a stream is open")

    def _timeout(self) -> float:
        return WATCH_TIMEOUT * (1.0 + self._random())

    def _limit(self, state: Unlisted) -> int:
        # A limit makes a server answer a list of a certain resourceVersion from etcd and not from its cache, so it is
        # left out, unless the first list has shown that this server has no cache.
        whole = state.resource_version not in (ANY, NEWEST) and not self._pages_from_cache
        return self._page_size if state.paged and not whole else 0

    # -- lists --------------------------------------------------------------------------------------------------------

    def page_received(self, page: Page[T], now: float) -> Replacement[T] | None:
        """Takes the page that was asked for; the whole list once it was the last one."""
        listing = self._joined(page)
        if listing.resource_version in ("", ANY):
            self.list_failed(DecodeError("the list carries no resourceVersion, so it cannot be watched"), now)
            return None
        if listing.continue_token:
            self._pages_from_cache |= listing.start.resource_version == ANY
            self._state = listing
            return None
        self._last_error = ""
        return self._listed(listing.items, listing.undecodable, listing.resource_version, now)

    def _listed(
        self, items: tuple[T, ...], undecodable: tuple[Undecodable, ...], version: str, now: float
    ) -> Replacement[T]:
        self._state = Watching(version)
        self._resource_version = version
        self._listed_at = now
        self._short_watches = self._broken_streams = 0
        self._was_absent = False
        return Replacement(items, undecodable, version)

    def _joined(self, page: Page[T]) -> Listing[T]:
        match self._state:
            case Listing() as sofar:
                items, undecodable = sofar.items + page.items, sofar.undecodable + page.undecodable
                return Listing(sofar.start, page.continue_token, sofar.resource_version, items, undecodable)
            case Unlisted() as start:
                return Listing(start, page.continue_token, page.resource_version, page.items, page.undecodable)
            case Watching() | Streaming():
                raise AssertionError("a page came that nobody asked for")

    def list_failed(self, error: RuntimeFault, now: float) -> None:
        """Takes note of a failed list: another one follows, at once where it cannot fail in the same way."""
        match self._state:
            case Listing(start=start) if start.paged and isinstance(error, Expired):
                self._state = replace(start, paged=False, streamed=False)
            case Unlisted(resource_version=version) if version != NEWEST and _forgotten(error):
                self._state = Unlisted(NEWEST, streamed=False)
            case Listing(start=start) | (Unlisted() as start):
                self._state = Unlisted(start.resource_version)
                self._pause(error, now)
            case Watching() | Streaming():
                raise AssertionError("a list failed that nobody asked for")
        self._last_error = f"list: {error}"

    def replacement_failed(self, error: Exception, now: float) -> None:
        """The store could not take a complete list: another one follows after a pause."""
        self._state = Unlisted(self._resource_version)
        self._last_error = f"list: the cache could not take it: {type(error).__name__}: {error}"
        self._pause(None, now)

    # -- watches ------------------------------------------------------------------------------------------------------

    def watch_opened(self, now: float) -> None:
        """The server has accepted the watch."""
        self._opened_at = now
        self._opened_from = self._resource_version
        self._silent = True
        if isinstance(self._state, Unlisted):
            self._state = Streaming(self._state)
        else:
            self._last_error = ""

    def event_received(self, event: WatchEvent[T], now: float) -> Replacement[T] | None:
        """Takes an event; the whole state where it ends that with which a stream begins.

        Every later event moves the resourceVersion to resume from, bookmarks and undecodable objects too.
        """
        self._internal_errors_since = None
        if isinstance(self._state, Streaming):
            return self._streamed(self._state, event, now)
        self._silent = False
        self._sends_bookmarks |= event.type == "BOOKMARK"
        if event.resource_version:
            self._resource_version = event.resource_version
            self._state = Watching(event.resource_version)
        return None

    def _streamed(self, stream: Streaming[T], event: WatchEvent[T], now: float) -> Replacement[T] | None:
        # The versions of what the state consists of are in no order: until its end nothing can be resumed from.
        if not event.ends_initial:
            stream.take(event)
            return None
        self._last_error = ""
        items, undecodable = tuple(stream.items.values()), tuple(stream.undecodable.values())
        return self._listed(items, undecodable, event.resource_version, now)

    def watch_closed(self, now: float) -> None:
        """A clean close: routine, unless the watch brought nothing and was very short, or suspiciously little."""
        self._internal_errors_since = None
        opened_for = self._closed(now)
        if isinstance(self._state, Unlisted):
            return  # it was given up on this side: that has its own reason, and its own pause
        if isinstance(self._state, Streaming):
            self._stream_broke(self._state.start, TransportError("the server closed it before its end"), now)
        elif self._silent and self._sends_bookmarks and opened_for >= SILENT_WATCH:
            self._state = Unlisted(NEWEST)
        elif self._resource_version != self._opened_from or opened_for >= SHORT_WATCH:
            self._short_watches = 0
        else:
            self._was_short(now)

    def _was_short(self, now: float) -> None:
        self._short_watches += 1
        self._last_error = f"watch: the server closed it within {SHORT_WATCH:g} s and sent nothing"
        if self._short_watches >= SHORT_WATCHES_BEFORE_RELIST:
            self._short_watches = 0
            self._state = Unlisted(NEWEST)
        self._pause(None, now)

    def watch_failed(self, error: RuntimeFault, now: float) -> None:
        """A refused or broken watch: resumes after a pause where that can help, else lists again."""
        # One that was not even answered may come back from a backup, and would say nothing of it on a watch.
        self._was_absent |= self._opened_at is None and isinstance(error, TransportError | ServiceUnavailable)
        opened_for = self._closed(now)
        match self._state:
            case Streaming(start=start) | (Unlisted() as start):
                self._stream_broke(start, error, now)
                return
        self._last_error = f"watch: {error}"
        if _forgotten(error):
            self._state = Unlisted(NEWEST)
            if now - self._listed_at >= FRESH_LIST:
                return
        elif not self._worth_resuming(error, opened_for, now):
            self._state = Unlisted(self._resource_version)
        self._pause(error, now)

    def check_passed(self) -> None:
        """The server has reached the version: a watch from it tells all that happened since."""
        self._was_absent = False

    def check_failed(self, error: RuntimeFault, now: float) -> None:
        """The server did not answer a check, or has not reached the version that it once gave out."""
        self._last_error = f"list: {error}"
        if _forgotten(error):
            self._state = Unlisted(NEWEST)
            return
        # One that starts refuses what it will allow in a moment. Taking the state anew asks the same question.
        if not isinstance(error, TransportError) and not _passes(error):
            self._state = Unlisted(self._resource_version)
        self._pause(error, now)

    def stream_stuck(self, seconds: float) -> None:
        """A stream goes on without telling where the state ends, as from servers that do not know of it: none is asked
        for again."""
        assert isinstance(self._state, Streaming)
        self._streams = False
        self._state = self._state.start
        self._last_error = f"watch: the server has not told the end of the initial events for {seconds:g} s"

    def _closed(self, now: float) -> float:
        """How long the watch was open."""
        opened_at, self._opened_at = self._opened_at, None
        return 0.0 if opened_at is None else now - opened_at

    def _stream_broke(self, start: Unlisted, error: RuntimeFault, now: float) -> None:
        self._last_error = f"watch: {error}"
        if _forgotten(error) and start.resource_version not in (ANY, NEWEST):
            self._state = Unlisted(NEWEST)
        elif isinstance(error, TransportError) or _passes(error):
            self._broken_streams += 1
            self._state = replace(start, streamed=self._broken_streams < STREAM_ATTEMPTS)
            self._pause(error, now)
        else:
            self._streams = not refuses_streams(error)
            self._state = replace(start, streamed=False)

    def _worth_resuming(self, error: RuntimeFault, opened_for: float, now: float) -> bool:
        if not isinstance(error, InternalError):
            self._internal_errors_since = None
            return isinstance(error, TransportError | TooManyRequests | ServiceUnavailable | ServerTimeout)
        if self._internal_errors_since is None or opened_for >= INTERNAL_ERROR_PATIENCE:
            self._internal_errors_since = now
        return now - self._internal_errors_since < INTERNAL_ERROR_PATIENCE

    def _pause(self, error: RuntimeFault | None, now: float) -> None:
        asked_for = getattr(error, "retry_after", None) or 0.0
        self._not_before = self._backoff.until(now, asked_for)


def _forgotten(error: RuntimeFault) -> bool:
    """The server no longer, or not yet, knows the resourceVersion: only the newest state is certain to be served."""
    if isinstance(error, Expired | ResourceVersionTooLarge):
        return True
    # Before 1.18.6 servers said so in the text only.
    texts = (error.message, *(cause.message for cause in error.causes)) if isinstance(error, ServerTimeout) else ()
    return any("Too large resource version" in text for text in texts)


def _passes(error: RuntimeFault) -> bool:
    """A refusal that says nothing of what was asked for."""
    return isinstance(error, TooManyRequests | InternalError | ServiceUnavailable | ServerTimeout | Expired)


def refuses_streams(error: RuntimeFault) -> bool:
    """400, 405, 406, 415 or 422: the server does not know, or does not allow, a watch that begins with the state."""
    return isinstance(error, ApiError) and error.code in (400, 405, 406, 415, 422)
