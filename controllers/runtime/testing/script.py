"""An API server that follows a script."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controllers.runtime.errors import TransportError
from controllers.runtime.transport import ByteStream, HttpRequest, HttpResponse


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
