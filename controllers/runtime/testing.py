"""Helpers for tests of controllers: virtual time, a clock moved by hand and an API server that follows a script.

::

    async def scenario() -> None:
        transport = ScriptedTransport([Answer(body={"kind": "Pod"}), Answer(503)])
        ...
        await asyncio.sleep(3600)

    run_virtual(scenario)  # takes no time
"""

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, overload

import msgspec

from controllers.runtime.errors import TransportError
from controllers.runtime.transport import ByteStream, HttpRequest, HttpResponse

T = TypeVar("T")

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
"""The wall clock of a new ``FakeClock``."""


class FakeClock:
    """A clock that only moves when told to, for code without an event loop.

    ``sleep`` moves it too, at once. Tasks that sleep side by side need ``run_virtual`` and the ``SystemClock``.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._start = start
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def utcnow(self) -> datetime:
        return EPOCH + timedelta(seconds=self._now - self._start)

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Moves both readings on; raises ValueError for a negative number, since clocks never go back."""
        if seconds < 0.0:
            raise ValueError(f"FakeClock.advance: {seconds} s would turn the clock back; pass seconds >= 0")
        self._now += seconds


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


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, T]], timeout: float = ..., interval: float = ...
) -> T: ...


@overload
async def eventually(condition: Callable[[], T], timeout: float = ..., interval: float = ...) -> T: ...


async def eventually(condition: Callable[[], T | Awaitable[T]], timeout: float = 5.0, interval: float = 0.01) -> T:
    """Calls ``condition`` every ``interval`` seconds until its result is true, and returns that result.

    An AssertionError in it counts as not yet true. Raises AssertionError after ``timeout`` seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while True:
        cause: AssertionError | None = None
        outcome: object = None
        try:
            value = condition()
            result: T = await value if inspect.isawaitable(value) else value
            if result:
                return result
            outcome = result
        except AssertionError as error:
            cause, outcome = error, error
        if loop.time() >= end:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} is not true after {timeout:g} s; it last gave {outcome!r}") from cause
        await asyncio.sleep(interval)


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence inside a stream."""

    seconds: float


STALL = Pause(math.inf)
"""Silence for ever: the connection stays open and nothing comes."""

Json = Mapping[str, Any] | Sequence[Any]

Step = bytes | Mapping[str, Any] | Pause | Exception
"""Bytes as they are, an object as one line of JSON, silence, or an error that breaks the connection."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the server: ``body``, then ``stream`` step by step, then a clean end."""

    status: int = 200  # HTTP status
    body: Json | bytes = b""  # anything but bytes is sent as JSON
    stream: Iterable[Step] = ()  # what a watch sends
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0  # seconds before the answer begins


Reply = Answer | Exception
"""An exception as reply is raised instead of answering."""

_NO_INITIAL_EVENTS = Answer(
    422,
    body={"kind": "Status", "code": 422, "reason": "Invalid", "message": "sendInitialEvents is forbidden for watch"},
)


class ScriptedTransport:
    """A ``Transport`` that answers from a script and remembers what it was asked.

    ``script`` is the replies in the order of the requests, or a function from request to reply. As with the real
    transport, a silence of ``request.timeout`` seconds raises TransportError. A request beyond the end of the script
    raises AssertionError.

    A watch that is to begin with the state is refused and not remembered, as by a server that cannot do that, so that
    scripts need lists and plain watches only; with ``initial_events`` the script answers those, too.
    """

    def __init__(
        self, script: Iterable[Reply] | Callable[[HttpRequest], Reply], *, initial_events: bool = False
    ) -> None:
        self._reply = script if callable(script) else _in_turn(script)
        self._initial_events = initial_events
        self.requests: list[HttpRequest] = []
        self.closed = False

    async def request(self, request: HttpRequest) -> HttpResponse:
        async with self.stream(request) as stream:
            return HttpResponse(stream.status, stream.headers, await stream.read())

    @asynccontextmanager
    async def stream(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        if not self._initial_events and ("sendInitialEvents", "true") in request.query:
            yield _ScriptedStream(_NO_INITIAL_EVENTS, request)
            return
        self.requests.append(request)
        reply = self._reply(request)
        if isinstance(reply, Exception):
            raise reply
        await _be_silent(reply.delay, request)
        yield _ScriptedStream(reply, request)

    async def close(self) -> None:
        self.closed = True


class _ScriptedStream:
    def __init__(self, answer: Answer, request: HttpRequest) -> None:
        self._answer = answer
        self._request = request

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        if body := _encoded(self._answer.body):
            yield body
        for step in self._answer.stream:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Pause):
                await _be_silent(step.seconds, self._request)
            else:
                yield step if isinstance(step, bytes) else _encoded(step) + b"\n"

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


def _encoded(content: Json | bytes) -> bytes:
    return content if isinstance(content, bytes) else msgspec.json.encode(content)


def _in_turn(script: Iterable[Reply]) -> Callable[[HttpRequest], Reply]:
    replies = iter(script)

    def reply(request: HttpRequest) -> Reply:
        answer = next(replies, None)
        assert answer is not None, f"{request.method} {request.path}: the script has no answer left; add one for it"
        return answer

    return reply


async def _be_silent(seconds: float, request: HttpRequest) -> None:
    if seconds > 0.0:
        await asyncio.sleep(min(seconds, request.timeout))
    if seconds >= request.timeout:
        raise TransportError(f"{request.method} {request.path}: nothing came for {request.timeout:g} s")
