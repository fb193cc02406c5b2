"""A feed: the shell around a reflector, which does what that decides and hands on what comes.

An informer has one for each selection that it follows.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from controllers.runtime import logs
from controllers.runtime.cache.change import Change
from controllers.runtime.cache.intake import Intake, Transform
from controllers.runtime.cache.reflector import (
    Check,
    ListPage,
    Reflector,
    Replacement,
    StreamList,
    Wait,
    Watch,
    refuses_streams,
)
from controllers.runtime.client import Client, Selection, WatchEvent
from controllers.runtime.clock import Clock
from controllers.runtime.collector import collector_paused
from controllers.runtime.errors import ApiError, DecodeError, Expired, RuntimeFault, TransportError
from controllers.runtime.meta import KubeObject, Resource

T = TypeVar("T", bound=KubeObject)

logger = logs.get_logger(__name__)

NOBODY = "nobody.invalid"
"""A name that no object has: a list of it costs nothing and yet tells whether the server has reached a version."""

STREAM_WARNING = 10.0
STREAM_PATIENCE = 60.0
"""Seconds without the end of a stream's initial events after which the log says so, each time, and after which the
state is listed instead: some servers take the request for a plain watch and will never tell the end."""


class Happening(StrEnum):
    """What an observer is told of."""

    LIST = "list"
    LIST_FAILED = "list_failed"
    WATCH = "watch"
    WATCH_FAILED = "watch_failed"
    EVENT = "event"
    UNDECODABLE = "undecodable"
    HANDLER_FAILED = "handler_failed"
    HANDLER_LAGS = "handler_lags"


InformerObserver = Callable[[Resource, Happening], None]


def unobserved(_: Resource, __: Happening) -> None:
    """The observer of an informer of which nobody wants to hear."""


@dataclass(frozen=True, slots=True)
class InformerOptions:
    """How an informer reads."""

    page_size: int = 500  # objects per page of a list; bounds how long decoding stalls everything else
    stream_lists: bool = True  # take the state from a watch where the server can; spares it whole lists in memory
    transform: Transform | None = None  # what is stored in the place of an object, such as one without a large field
    freeze_after_sync: bool = True  # take what the first list brought out of sight of the garbage collector
    random: Callable[[], float] = random.random  # numbers in [0, 1) that spread timeouts and pauses


class Audience(Protocol[T]):
    """Who is told what a feed has brought into the store."""

    async def replaced(self, feed: "Feed[T]", changes: Iterator[Change[T]]) -> None:
        """A complete list is in the store."""
        ...

    def advanced(self, feed: "Feed[T]", change: Change[T] | None) -> None:
        """An event is in the store, and the resourceVersion has moved on."""
        ...


class Feed(Generic[T]):
    """Follows one selection of one kind for as long as ``run`` runs."""

    def __init__(
        self,
        client: Client,
        kind: type[T],
        selection: Selection,
        options: InformerOptions,
        clock: Clock,
        intake: Intake[T],
        audience: Audience[T],
        observe: Callable[[Happening], None],
    ) -> None:
        self.selection = selection
        self.intake = intake
        self.synced = False
        self.lists = self.watches = self.events = 0
        self.last_event_at: float | None = None
        self._client = client
        self._kind = kind
        self._clock = clock
        self._audience = audience
        self._observe = observe
        self._failing_since: float | None = None
        self._reflector: Reflector[T] = Reflector(
            page_size=options.page_size, random=options.random, stream_lists=options.stream_lists
        )

    @property
    def resource_version(self) -> str:
        """Up to where the store is current; "" before the first list."""
        return self._reflector.resource_version

    @property
    def last_error(self) -> str:
        """Why the store cannot be kept current at present, or ""."""
        return self._reflector.last_error

    @property
    def failing_for(self) -> float:
        """Seconds for which the store could not be kept current, 0 while it can."""
        return 0.0 if self._failing_since is None else self._clock.monotonic() - self._failing_since

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
                case StreamList() as stream:
                    await self._stream(stream)
                case Watch() as watch:
                    await self._watch(watch)
                case Check() as check:
                    await self._check(check)

    async def _list(self, action: ListPage) -> None:
        try:
            page = await self._client.list_page(
                self._kind,
                self.selection,
                limit=action.limit,
                continue_token=action.continue_token,
                resource_version=action.resource_version or None,
            )
        except (ApiError, TransportError, DecodeError) as error:
            self._reflector.list_failed(error, self._clock.monotonic())
            self._observe(Happening.LIST_FAILED)
            logger.warning("a list failed and will be repeated", resource=self._kind.resource, reason=str(error))
            return
        replacement = self._reflector.page_received(page, self._clock.monotonic())
        if replacement is not None:
            await self._replace(replacement)

    async def _check(self, action: Check) -> None:
        fields = ",".join(filter(None, (self.selection.fields, f"metadata.name={NOBODY}")))
        try:
            await self._client.list_page(
                self._kind,
                replace(self.selection, fields=fields),
                limit=0,
                resource_version=action.resource_version,
            )
        except (ApiError, TransportError, DecodeError) as error:
            self._reflector.check_failed(error, self._clock.monotonic())
        else:
            self._reflector.check_passed()

    async def _stream(self, action: StreamList) -> None:
        await self._follow(action.resource_version, action.timeout, initial_events=True)

    async def _watch(self, action: Watch) -> None:
        await self._follow(action.resource_version, action.timeout, initial_events=False)

    async def _follow(self, resource_version: str, timeout: float, *, initial_events: bool) -> None:
        try:
            async with self._client.watch(
                self._kind,
                self.selection,
                resource_version=resource_version,
                timeout=timeout,
                initial_events=initial_events,
            ) as events:
                self._reflector.watch_opened(self._clock.monotonic())
                if not initial_events or await self._receive_state(events):
                    await self._receive_changes(events)
        except (ApiError, TransportError, DecodeError) as error:
            self._reflector.watch_failed(error, self._clock.monotonic())
            self._observe(Happening.WATCH_FAILED)
            _log_end_of_watch(self._kind.resource, error, streaming=initial_events)
        else:
            self._reflector.watch_closed(self._clock.monotonic())

    async def _receive_changes(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        # Only a watch keeps a store current: a list that succeeds before every watch that is refused does not.
        self._failing_since = None
        self.watches += 1
        self._observe(Happening.WATCH)
        async for event in events:
            self._take(event)

    async def _receive_state(self, events: AsyncIterator[WatchEvent[T]]) -> bool:
        """Takes the state with which a stream begins; False where it did not come to its end."""
        limit = asyncio.timeout(None)
        guard = asyncio.create_task(self._guard(limit), name=f"guard-{self._kind.resource}")
        try:
            async with limit:
                with collector_paused():
                    replacement = await self._state_of(events)
        except TimeoutError:
            if not limit.expired():
                raise
            self._reflector.stream_stuck(STREAM_PATIENCE)
            return False
        finally:
            guard.cancel()
        return replacement is not None and await self._replace(replacement)

    async def _state_of(self, events: AsyncIterator[WatchEvent[T]]) -> Replacement[T] | None:
        async for event in events:
            if replacement := self._reflector.event_received(event, self._clock.monotonic()):
                return replacement
        return None

    async def _guard(self, limit: asyncio.Timeout) -> None:
        """Says that a stream is slow to come to the end of its initial events, and gives it up in the end."""
        waited = 0.0
        while waited < STREAM_PATIENCE:
            await self._clock.sleep(STREAM_WARNING)
            waited += STREAM_WARNING
            logger.warning(
                "the server has not yet told the end of the initial events", resource=self._kind.resource, after=waited
            )
        limit.reschedule(asyncio.get_running_loop().time())

    # -- what comes from the server -----------------------------------------------------------------------------------

    async def _replace(self, replacement: Replacement[T]) -> bool:
        # Filing makes as many containers again as the list brought: a full collection meanwhile would stall everything.
        with collector_paused():
            try:
                changes = await self.intake.replace(replacement, initial=not self.synced)
            except Exception as error:  # noqa: BLE001 - what one list does to an index may be mended by the next
                self._list_refused(error)
                return False
            self.lists += 1
            self._observe(Happening.LIST)
            await self._audience.replaced(self, changes)
        return True

    def _list_refused(self, error: Exception) -> None:
        self._reflector.replacement_failed(error, self._clock.monotonic())
        self._observe(Happening.LIST_FAILED)
        logger.error("the cache could not take a list", resource=self._kind.resource, exc_info=error)

    def _take(self, event: WatchEvent[T]) -> None:
        self.events += 1
        self.last_event_at = self._clock.monotonic()
        self._observe(Happening.EVENT)
        change = self.intake.take(event)
        self._reflector.event_received(event, self.last_event_at)
        self._audience.advanced(self, change)


def _log_end_of_watch(resource: Resource, error: RuntimeFault, *, streaming: bool) -> None:
    # Connections break and histories expire all the time; what else ends a watch deserves a look.
    if streaming and refuses_streams(error):
        logger.info("the server does not stream its state, so it is listed", resource=resource, reason=str(error))
        return
    if isinstance(error, TransportError):
        tell = logger.debug
    else:
        tell = logger.info if isinstance(error, Expired) else logger.warning
    tell("a watch broke and will be repeated", resource=resource, reason=str(error))
