"""Records events.k8s.io/v1 Events without ever blocking or failing the one who records.

``event`` only queues. One task posts: first sight of an event at once; repeats are counted and sent together, as an
update of the same Event's ``series``. So a loop that records on every turn costs one write per ``MERGE_WINDOW``.

Two limits protect the server, with client-go's numbers. Notes that differ although object, type and reason are the same
are combined into one Event after the tenth. And each object has a bucket of tokens, one for each write: where it is
empty a new event is discarded and counted, but the update of a series, which loses nothing by coming later, waits.
"""

import asyncio
import heapq
import random
import socket
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from cachetools import TTLCache
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from controllers.runtime import logs
from controllers.runtime.client import Client
from controllers.runtime.clock import Clock, SystemClock, rfc3339_micro
from controllers.runtime.correlator import SimilarNotes, TokenBuckets
from controllers.runtime.errors import (
    AlreadyExists,
    ApiError,
    ConfigurationError,
    Conflict,
    NamespaceTerminating,
    NotFound,
    ObjectGone,
    RuntimeFault,
    TooManyRequests,
    TransportError,
)
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.names import ending_in
from controllers.runtime.rbac import permissions

QUEUE_LENGTH = 1000
"""Different events that wait for the poster; further ones are discarded. client-go's number."""

MERGE_WINDOW = 10.0
"""Seconds between two writes about the same event."""

SERIES_LIFETIME = 360.0
"""Seconds without a repeat after which an event counts as new. client-go's number."""

KNOWN_SERIES = 4096
"""Series remembered at most; the least recently sent is forgotten first. client-go's number."""

TRIES = 12
RETRY_DELAY = 10.0
"""Seconds between tries; the first delay is a random part of it, so that many processes do not return at once."""

ALIKE = 10
"""Different notes of one object, type and reason before further ones are combined. client-go's number."""

ALIKE_WINDOW = 600.0
"""Seconds without any of them after which they are told apart again. client-go's number."""

BURST = 25
"""Writes about one object that need no pause. client-go's number."""

REFILL = 300.0
"""Seconds until one more of them is allowed. client-go's number."""

COMBINED = "(combined from similar events): "
"""What the note of a combined Event begins with, as with client-go; the rest is the first note that it stands for."""

MAX_NOTE = 1024
MAX_INSTANCE = 128

EventType: TypeAlias = Literal["Normal", "Warning"]

Discarded: TypeAlias = Literal["queue_full", "spam", "failed", "stopped"]
"""Why an event did not reach the server: too many waited, too many about one object, refused, or the end came."""

logger = logs.get_logger(__name__)


class Event(KubeObject, frozen=True, kw_only=True):
    """An Event, as far as a later update of its series needs it."""

    resource: ClassVar[Resource] = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)


PERMISSIONS = permissions(Event, "create", "patch")


class EventRecorder(Protocol):
    """What a reconciler needs of a recorder."""

    def event(self, obj: KubeObject, type_: EventType, reason: str, note: str, action: str) -> None:
        """Records that something happened to ``obj``.

        ``reason`` and ``action`` are CamelCase words, why and what was done; ``note`` is for people. Returns at once
        and never raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One call of a recorder."""

    obj: KubeObject
    type: EventType
    reason: str
    note: str
    action: str


@dataclass(slots=True)
class FakeRecorder:
    """Keeps what is recorded, for tests."""

    events: list[RecordedEvent] = field(default_factory=list)

    def event(self, obj: KubeObject, type_: EventType, reason: str, note: str, action: str) -> None:
        self.events.append(RecordedEvent(obj, type_, reason, note, action))


EventKey: TypeAlias = Callable[[RecordedEvent], Hashable]
"""What two events must have in common to be counted together; different recorders never count together."""


def same_object(event: RecordedEvent) -> Hashable:
    """Events about one object."""
    obj = event.obj
    return (obj.resource, obj.namespace, obj.name, obj.uid)


def same_reason(event: RecordedEvent) -> Hashable:
    """Events about one object, of one type and reason."""
    return (same_object(event), event.type, event.reason)


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """What a recorder combines and what it discards. Raises ConfigurationError for limits that let nothing through."""

    alike: int = ALIKE  # different notes of one ``group_key`` before further ones are combined
    alike_window: float = ALIKE_WINDOW  # seconds of silence after which they are told apart again
    group_key: EventKey = same_reason  # what alike events have in common
    burst: int = BURST  # writes about one ``spam_key`` that need no pause
    refill: float = REFILL  # seconds until one more is allowed
    spam_key: EventKey = same_object  # what shares a burst; ``same_reason`` keeps a busy reason from hiding others

    def __post_init__(self) -> None:
        if self.alike < 1 or self.burst < 1 or self.refill < 0.0:
            raise ConfigurationError(
                f"RecorderOptions: alike is {self.alike}, burst {self.burst} and refill {self.refill:g} s; "
                "use alike >= 1, burst >= 1 and refill >= 0"
            )


_Key: TypeAlias = tuple[Hashable, str | None]
"""What the same events have in common: all but their times. A combined event has no note of its own."""


@dataclass(slots=True)
class _Occurrences:
    """The same event, once or more often, not yet sent."""

    key: _Key
    event: RecordedEvent
    first: datetime
    last: datetime
    has_token: bool
    count: int = 1


@dataclass(slots=True)
class _Series:
    """What was sent of an event; ``written`` is None until the server has confirmed it."""

    sent_at: float
    written: Event | None = None
    count: int = 0


class Recorder:
    """Posts the Events of one controller. ``run`` must be running for anything to arrive."""

    def __init__(
        self,
        client: Client,
        reporting_controller: str,
        metrics: Metrics,
        clock: Clock | None = None,
        *,
        options: RecorderOptions | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._source = {
            "reportingController": reporting_controller,
            "reportingInstance": socket.gethostname()[:MAX_INSTANCE],
        }
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self._options = options = options or RecorderOptions()
        self._similar = SimilarNotes(options.alike, options.alike_window, KNOWN_SERIES)
        self._buckets = TokenBuckets(options.burst, options.refill, KNOWN_SERIES)
        discarded = metrics.counter(
            "events_discarded_total",
            "Events that were recorded and did not reach the server.",
            ("controller", "reason"),
        )
        self._discarded = {why: discarded.labels(reporting_controller, why) for why in get_args(Discarded)}
        self._waiting: dict[_Key, _Occurrences] = {}
        self._due: list[tuple[float, int, _Key]] = []
        self._queued = 0
        self._series: TTLCache[_Key, _Series] = TTLCache(KNOWN_SERIES, SERIES_LIFETIME, self._clock.monotonic)
        self._wake = asyncio.Event()
        self._posting = asyncio.Lock()
        self._stopping = False
        self._cut = 0

    def event(self, obj: KubeObject, type_: EventType, reason: str, note: str, action: str) -> None:
        """See ``EventRecorder``. After ``stop`` it does nothing; with a full queue it only counts the loss."""
        if self._stopping:
            return
        now = self._clock.monotonic()
        key, recorded = self._combined(RecordedEvent(obj, type_, reason, cut_note(note), action), now)
        if (waiting := self._waiting.get(key)) is not None:
            waiting.count += 1
            waiting.last = self._clock.utcnow()
        elif len(self._waiting) >= QUEUE_LENGTH:
            self._discarded["queue_full"].inc()
        else:
            self._admit(key, recorded, now)

    async def run(self) -> None:
        """Posts until ``stop`` is called and nothing is left; cancel it after ``stop``."""
        await self._post_all()

    async def stop(self, seconds: float = 5.0) -> None:
        """Takes no more events and sends those that are queued, for at most ``seconds``; the rest is discarded.

        Works also where ``run`` was cancelled before, or is while this waits for it.
        """
        self._stopping = True
        self._wake.set()
        try:
            async with asyncio.timeout(seconds):
                await self._post_all()
        except TimeoutError:
            # What was being sent is lost as well, and where there was nothing there is nothing to say.
            if lost := len(self._waiting) + self._cut:
                logger.warning("events discarded at the end", count=lost)
        self._discarded["stopped"].inc(len(self._waiting))
        self._waiting.clear()
        self._due.clear()

    def _combined(self, event: RecordedEvent, now: float) -> tuple[_Key, RecordedEvent]:
        """The event, or where there are too many of its sort, the one that stands for all further ones."""
        group = self._options.group_key(event)
        if self._similar.too_many(group, event.note, now):
            return (group, None), replace(event, note=cut_note(COMBINED + event.note))
        return (same_reason(event), event.note), event

    def _admit(self, key: _Key, event: RecordedEvent, now: float) -> None:
        series = self._series.get(key)
        if series is None and not self._buckets.take(self._options.spam_key(event), now):
            self._discarded["spam"].inc()
            logger.debug("event discarded, there are too many about its object", about=str(event.obj.key))
            return
        at = self._clock.utcnow()
        self._waiting[key] = _Occurrences(key, event, at, at, has_token=series is None)
        self._schedule(key, now if series is None else series.sent_at + MERGE_WINDOW)

    def _schedule(self, key: _Key, due: float) -> None:
        self._queued += 1
        heapq.heappush(self._due, (due, self._queued, key))
        self._wake.set()

    async def _post_all(self) -> None:
        async with self._posting:
            while (occurrences := await self._next()) is not None:
                try:
                    await self._post(occurrences)
                except asyncio.CancelledError:
                    self._discarded["stopped"].inc()
                    self._cut += 1
                    raise

    async def _next(self) -> _Occurrences | None:
        """Waits for the next that is due; while stopping everything is due, and None says that nothing is left."""
        while True:
            self._wake.clear()
            delay = self._due[0][0] - self._clock.monotonic() if self._due else None
            if delay is not None and (delay <= 0.0 or self._stopping):
                occurrences = self._take(heapq.heappop(self._due)[2])
                if occurrences is not None:
                    return occurrences
            elif self._stopping:
                return None
            else:
                await self._woken(delay)

    def _take(self, key: _Key) -> _Occurrences | None:
        """What is due under the key, or None where it has to wait for a token."""
        occurrences, now = self._waiting[key], self._clock.monotonic()
        bucket = self._options.spam_key(occurrences.event)
        if occurrences.has_token or self._stopping or self._buckets.take(bucket, now):
            return self._waiting.pop(key)
        self._schedule(key, self._buckets.next_at(bucket, now))
        return None

    async def _woken(self, within: float | None) -> None:
        try:
            async with asyncio.timeout(within):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _post(self, occurrences: _Occurrences) -> None:
        key = occurrences.key
        series = self._series.get(key) or _Series(0.0)
        # Known as sent before it is, so that repeats recorded meanwhile wait for their window too.
        self._series[key] = _Series(self._clock.monotonic(), series.written, series.count)
        try:
            self._series[key] = await self._send(occurrences, series)
        except RuntimeFault as error:
            self._series.pop(key, None)
            with logs.bind(about=str(occurrences.event.obj.key), event_reason=occurrences.event.reason):
                self._lost(error)

    async def _send(self, occurrences: _Occurrences, series: _Series) -> _Series:
        sent_at = self._clock.monotonic()
        if series.written is not None:
            count = series.count + occurrences.count
            try:
                written = await self._continue(series.written, count, occurrences.last)
                return _Series(sent_at, written, count)
            except (ObjectGone, Conflict) as error:
                logger.debug("event cannot be continued, recording a new one", error=error)
        written = await self._create(occurrences)
        return _Series(sent_at, written, occurrences.count)

    async def _create(self, occurrences: _Occurrences) -> Event:
        body = event_body(occurrences.event, occurrences.first, self._source)
        if occurrences.count > 1:
            body["series"] = _series(occurrences.count, occurrences.last)
        return await self._retrying()(self._client.create, Event, body)

    async def _continue(self, written: Event, count: int, last: datetime) -> Event:
        # "add" also replaces, so it does not matter whether the Event has a series yet.
        operations = [{"op": "add", "path": "/series", "value": _series(count, last)}]
        return await self._retrying()(self._client.json_patch, written, operations)

    def _lost(self, error: RuntimeFault) -> None:
        if isinstance(error, AlreadyExists):
            logger.debug("event was recorded by an earlier try whose answer was lost", error=error)
        elif isinstance(error, NamespaceTerminating | NotFound):
            logger.debug("event dropped, its namespace is gone", error=error)
        else:
            self._discarded["failed"].inc()
            logger.warning("event not recorded", error=error)

    def _retrying(self) -> AsyncRetrying:
        return AsyncRetrying(
            stop=stop_after_attempt(TRIES),
            retry=retry_if_exception(_passing),
            wait=self._delay_before_retry,
            sleep=self._clock.sleep,
            reraise=True,
        )

    def _delay_before_retry(self, state: RetryCallState) -> float:
        return RETRY_DELAY * self._jitter() if state.attempt_number == 1 else RETRY_DELAY


def event_body(event: RecordedEvent, at: datetime, source: Mapping[str, str]) -> dict[str, Any]:
    """The Event as the API wants it; one about a cluster-scoped object lives in the namespace ``default``."""
    namespace = event.obj.namespace or "default"
    return {
        "metadata": {"name": event_name(event, at, source), "namespace": namespace},
        "eventTime": rfc3339_micro(at),
        **source,
        "action": event.action,
        "reason": event.reason,
        "type": event.type,
        "note": event.note,
        "regarding": regarding(event.obj),
    }


def event_name(event: RecordedEvent, at: datetime, source: Mapping[str, str]) -> str:
    """The object's name, cut where it must be, and a hash of what the Event says; the same for every try to post it."""
    obj = event.obj
    parts = (str(obj.resource), str(obj.key), obj.uid, event.type, event.reason, event.note, at.isoformat())
    text = "\0".join((*parts, *source.values()))
    suffix = "." + blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return ending_in(suffix, obj.name)


def regarding(obj: KubeObject) -> dict[str, str]:
    """A reference to the object, in the state in which it was seen."""
    reference = {
        "apiVersion": obj.resource.api_version,
        "kind": obj.resource.kind,
        "name": obj.name,
        "namespace": obj.namespace,
        "uid": obj.uid,
        "resourceVersion": obj.metadata.resource_version,
    }
    return {name: value for name, value in reference.items() if value}


def cut_note(note: str) -> str:
    """At most ``MAX_NOTE`` bytes of UTF-8, never ending inside a character; what was cut ends in an ellipsis."""
    encoded = note.encode("utf-8", "replace")
    if len(encoded) > MAX_NOTE:
        encoded = encoded[: MAX_NOTE - len("…".encode())].decode("utf-8", "ignore").encode() + "…".encode()
    return encoded.decode("utf-8")


def _series(count: int, last: datetime) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": rfc3339_micro(last)}


def _passing(error: BaseException) -> bool:
    """Whether the failure may pass: no answer, or one that speaks of the server rather than of the Event."""
    if isinstance(error, ApiError):
        return error.code >= 500 or isinstance(error, TooManyRequests)
    return isinstance(error, TransportError)
