"""Which request to send next so that a cache follows a resource: a state machine without any input or output.

Its shell asks ``next_action``, does that one thing and reports how it went. All that makes following a resource hard
is decided here and can be tested without a server: where a list starts, what a watch resumes from, which failure needs
a new list, and how long to wait after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controllers.runtime.client import Page, Undecodable, WatchEvent
from controllers.runtime.errors import (
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
from controllers.runtime.meta import KubeObject

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

INTERNAL_ERROR_PATIENCE = 60.0
"""Seconds for which a watch that fails with 500, and only so, is tried again before a new list is due."""

BACKOFF_START = 0.8
BACKOFF_LIMIT = 30.0
BACKOFF_PEACE = 120.0
"""Seconds: first and longest pause, each stretched at random up to twofold, and the peace that starts over; client-go's
numbers, so that a herd of clients behaves as servers expect."""


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
class Wait:
    """Do nothing before the monotonic time ``until``."""

    until: float


Action = ListPage | Watch | Wait


@dataclass(frozen=True, slots=True)
class Replacement(Generic[T]):
    """A complete list: everything that exists as of ``resource_version``."""

    items: tuple[T, ...]
    undecodable: tuple[Undecodable, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A list is due, from this resourceVersion on; ``paged`` is off after a page's token expired."""

    resource_version: str
    paged: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Some pages have come. ``resource_version`` is that of the first page: the later ones say nothing newer."""

    start: Unlisted
    continue_token: str
    resource_version: str
    items: tuple[T, ...]
    undecodable: tuple[Undecodable, ...]


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
    """Follows one selection of one resource. ``random`` gives numbers in [0, 1)."""

    def __init__(self, *, page_size: int, random: Callable[[], float]) -> None:
        self._page_size = page_size
        self._random = random
        self._state: Unlisted | Listing[T] | Watching = Unlisted(ANY)
        self._resource_version = ""
        self._pages_from_cache = False
        self._backoff = Backoff(random)
        self._not_before = float("-inf")
        self._opened_at = 0.0
        self._opened_from = ""
        self._short_watches = 0
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

    def next_action(self, now: float) -> Action:
        if now < self._not_before:
            return Wait(self._not_before)
        match self._state:
            case Unlisted(resource_version=version):
                return ListPage(version, "", self._limit(self._state))
            case Listing(continue_token=token):
                return ListPage(NEWEST, token, self._page_size)
            case Watching(resource_version=version):
                return Watch(version, WATCH_TIMEOUT * (1.0 + self._random()))

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
        self._state = Watching(listing.resource_version)
        self._resource_version = listing.resource_version
        self._short_watches = 0
        self._last_error = ""
        return Replacement(listing.items, listing.undecodable, listing.resource_version)

    def _joined(self, page: Page[T]) -> Listing[T]:
        match self._state:
            case Listing() as sofar:
                items, undecodable = sofar.items + page.items, sofar.undecodable + page.undecodable
                return Listing(sofar.start, page.continue_token, sofar.resource_version, items, undecodable)
            case Unlisted() as start:
                return Listing(start, page.continue_token, page.resource_version, page.items, page.undecodable)
            case Watching():
                raise AssertionError("a page came that nobody asked for")

    def list_failed(self, error: RuntimeFault, now: float) -> None:
        """Takes note of a failed list: another one follows, at once where it cannot fail in the same way."""
        match self._state:
            case Listing(start=start) if start.paged and isinstance(error, Expired):
                self._state = Unlisted(start.resource_version, paged=False)
            case Unlisted(resource_version=version) if version != NEWEST and _forgotten(error):
                self._state = Unlisted(NEWEST)
            case Listing(start=start) | (Unlisted() as start):
                self._state = Unlisted(start.resource_version)
                self._pause(error, now)
            case Watching():
                raise AssertionError("a list failed that nobody asked for")
        self._last_error = f"list: {error}"

    # -- watches ------------------------------------------------------------------------------------------------------

    def watch_opened(self, now: float) -> None:
        """The server has accepted the watch."""
        self._opened_at = now
        self._opened_from = self._resource_version
        self._last_error = ""

    def event_received(self, event: WatchEvent[T]) -> None:
        """Every event moves the resourceVersion to resume from, bookmarks and undecodable objects too."""
        self._internal_errors_since = None
        if event.resource_version:
            self._resource_version = event.resource_version
            self._state = Watching(event.resource_version)

    def watch_closed(self, now: float) -> None:
        """A clean close: routine, unless the watch brought nothing and was very short."""
        self._internal_errors_since = None
        if self._resource_version != self._opened_from or now - self._opened_at >= SHORT_WATCH:
            self._short_watches = 0
            return
        self._short_watches += 1
        self._last_error = f"watch: the server closed it within {SHORT_WATCH:g} s and sent nothing"
        if self._short_watches >= SHORT_WATCHES_BEFORE_RELIST:
            self._short_watches = 0
            self._state = Unlisted(NEWEST)
        self._pause(None, now)

    def watch_failed(self, error: RuntimeFault, now: float) -> None:
        """A refused or broken watch: resumes after a pause where that can help, else lists again after it."""
        self._last_error = f"watch: {error}"
        if _forgotten(error):
            self._state = Unlisted(NEWEST)
        elif not self._worth_resuming(error, now):
            self._state = Unlisted(self._resource_version)
        self._pause(error, now)

    def _worth_resuming(self, error: RuntimeFault, now: float) -> bool:
        if not isinstance(error, InternalError):
            self._internal_errors_since = None
            return isinstance(error, TransportError | TooManyRequests | ServiceUnavailable | ServerTimeout)
        if self._internal_errors_since is None:
            self._internal_errors_since = now
        return now - self._internal_errors_since < INTERNAL_ERROR_PATIENCE

    def _pause(self, error: RuntimeFault | None, now: float) -> None:
        asked_for = getattr(error, "retry_after", None) or 0.0
        self._not_before = self._backoff.until(now, asked_for)


def _forgotten(error: RuntimeFault) -> bool:
    """The server no longer, or not yet, knows the resourceVersion: only the newest state is certain to be served."""
    return isinstance(error, Expired | ResourceVersionTooLarge)
