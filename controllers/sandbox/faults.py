"""Faults on demand: what servers, and the networks before them, do to their clients now and then.

A fault says which requests it strikes, how often, and what it does to them. Faults wait in a list; the first one that
concerns a request strikes it, or strikes a watch that is open. Nothing here happens unless somebody asks for it.
"""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from controllers.sandbox.errors import StatusError, conflict, expired
from controllers.sandbox.requests import Target

DEEDS = ("refuse", "delay", "stall", "cut", "lose", "truncate", "expire", "lag", "duplicate", "reorder")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
AT_REQUESTS: frozenset[str] = frozenset({"refuse", "delay", "stall", "cut", "lose", "truncate"})
"""What can happen to a request before its answer, or to an answer as a whole."""
AT_WATCHES: frozenset[str] = AT_REQUESTS - {"lose", "truncate"}
"""The same for a watch, whose answer has no end."""
IN_WATCHES: frozenset[str] = frozenset({"stall", "cut", "expire"})
"""What can happen to a watch that is open, even if nothing is to be told on it."""
IN_LINES: frozenset[str] = IN_WATCHES | {"truncate", "lag", "duplicate", "reorder"}
"""What can happen to the next lines of a watch."""
SOMEBODY = "somebody asked for this"
REFUSALS: Mapping[int, tuple[str, str]] = {
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", f"forbidden: {SOMEBODY}"),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", f"Internal error occurred: {SOMEBODY}"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}
"""The API's reason and text of each code that can be asked for, beside 409 and 410."""
LONGEST = 3600.0
"""Seconds of a delay or lag at most."""
CODES = (401, 403, 409, 410, 429, 500, 503, 504)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What happens to whom, and how often.

    To requests: ``refuse`` answers ``code`` and does nothing; ``delay`` answers after ``seconds``; ``lose`` does what
    is asked and resets the connection instead of answering. To watches: ``expire`` ends one with the event that its
    version is forgotten; ``lag`` tells what happens ``seconds`` later; ``duplicate`` tells it twice; ``reorder`` tells
    the next two or more changes backwards. To both: ``stall`` keeps the connection open and is silent, as one whose
    other end has vanished; ``cut`` resets it; ``truncate`` ends it within an answer or within a line of a watch, and
    within a character where there is one of several bytes.
    """

    do: str  # one of the words above
    verbs: tuple[str, ...] = ()  # of RBAC, so that watch is not list; none stands for all
    resource: str = ""  # its plural; "" for all
    namespace: str = ""  # of the path, which a watch of all namespaces has not; "" for all
    name: str = ""  # of the path; "" for all
    agent: str = ""  # how the client's User-Agent begins; "" for all
    times: int = 1  # strikes until it is over; 0 for as long as it is not taken back
    code: int = 500  # of a refusal
    retry_after: int = 0  # seconds, of a refusal; 0 says nothing of it
    seconds: float = 0.0  # of a delay or lag

    def __post_init__(self) -> None:
        """Raises ValueError for values that make no sense."""
        if self.do not in DEEDS:
            raise ValueError(f"do must be one of {', '.join(DEEDS)}, not {self.do!r}")
        if unknown := [verb for verb in self.verbs if verb not in VERBS]:
            raise ValueError(f"verbs must be of {', '.join(VERBS)}, not {unknown[0]!r}")
        if self.code not in CODES:
            raise ValueError(f"code must be one of {', '.join(map(str, CODES))}, not {self.code}")
        for field in ("times", "retry_after", "seconds"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must be at least 0, not {getattr(self, field)}")
        if self.seconds > LONGEST:
            raise ValueError(
                f"seconds must be at most {LONGEST:g}, not {self.seconds:g}; stall lasts until it is cleared"
            )
        if self.do in {"delay", "lag"} and not self.seconds:
            raise ValueError(f"seconds must be more than 0 to {self.do}")

    def concerns(self, subject: "Subject") -> bool:
        """Whether it strikes such requests."""
        target = subject.target
        return (
            (not self.verbs or subject.verb in self.verbs)
            and self.resource in {"", target.resource}
            and self.namespace in {"", target.namespace}
            and self.name in {"", target.name}
            and subject.agent.startswith(self.agent)
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """A request as faults see it: its verb, what its path means, and its User-Agent."""

    verb: str
    target: Target
    agent: str


@dataclass(slots=True)
class Pending:
    """A fault that waits; ``left`` is how often it will strike yet, None for ever."""

    id: int
    fault: Fault
    left: int | None
    struck: int = 0


class Faults:
    """The faults that wait, and the watches that want to know of them."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._ids = itertools.count(1)
        self._cleared = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()
        self.struck = 0
        """How often any fault has struck."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def pending(self) -> tuple[Pending, ...]:
        return tuple(self._pending.values())

    def add(self, *faults: Fault) -> tuple[int, ...]:
        """Puts faults behind those that wait already, and returns their numbers."""
        added = [Pending(next(self._ids), fault, fault.times or None) for fault in faults]
        self._pending |= {each.id: each for each in added}
        for listener in tuple(self._listeners):
            listener()
        return tuple(each.id for each in added)

    def remove(self, number: int) -> bool:
        """Takes one back; tells whether it was waiting."""
        return self._pending.pop(number, None) is not None

    def clear(self) -> None:
        """Takes all back; connections that are stalled end."""
        self._pending.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    def strike(self, subject: Subject, deeds: frozenset[str]) -> Fault | None:
        """The fault that strikes now, one of its strikes used up."""
        for each in self._pending.values():
            if each.fault.do in deeds and each.fault.concerns(subject):
                return self._use(each)
        return None

    def _use(self, pending: Pending) -> Fault:
        pending.struck += 1
        self.struck += 1
        if pending.left is not None:
            pending.left -= 1
            if not pending.left:
                del self._pending[pending.id]
        return pending.fault

    async def stall(self) -> None:
        """Waits until all faults are taken back."""
        await self._cleared.wait()

    async def wait(self, seconds: float) -> None:
        """Waits for so long, or until all faults are taken back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cleared.wait()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` whenever a fault is added."""
        self._listeners.add(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    async def around(
        self, request: web.BaseRequest, subject: Subject, serve: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Serves a request unless a fault strikes it. Raises StatusError, and ConnectionResetError after a cut."""
        fault = self.strike(subject, AT_WATCHES if subject.verb == "watch" else AT_REQUESTS)
        if fault is None:
            return await serve()
        match fault.do:
            case "refuse":
                raise _refusal(fault, subject.target)
            case "delay":
                await self.wait(fault.seconds)
            case "stall":
                await self.stall()
                _reset(request)
            case "cut":
                _reset(request)
            case "lose":
                with contextlib.suppress(StatusError):
                    await serve()
                _reset(request)
            case "truncate":
                await _truncated(request, await serve())
        return await serve()


class Disturbance:
    """What faults make of one watch."""

    def __init__(
        self, faults: Faults, request: web.BaseRequest, response: web.StreamResponse, subject: Subject
    ) -> None:
        self._faults = faults
        self._request = request
        self._response = response
        self._subject = subject
        self._held: list[bytes] = []

    async def alter(self, lines: bytes) -> tuple[bytes, bool]:
        """What is to be sent instead of lines, and whether the watch goes on. Raises ConnectionResetError."""
        if self._held and lines:
            lines, self._held = _backwards([*self._held, *_split(lines)]), []
        fault = self._faults.strike(self._subject, IN_LINES if lines else IN_WATCHES) if self._faults else None
        if fault is None:
            return lines, True
        match fault.do:
            case "expire":
                event = {"type": "ERROR", "object": expired(f"too old resource version: {SOMEBODY}").status()}
                return lines + msgspec.json.encode(event) + b"\n", False
            case "lag":
                assert self._faults is not None
                await self._faults.wait(fault.seconds)
            case "duplicate":
                lines = b"".join(line * 2 for line in _split(lines))
            case "reorder":
                lines = self._reordered(_split(lines))
            case "truncate":
                await self._response.write(_cut_within(lines))
                _close(self._request)
            case "stall":
                await self._faults.stall()
                _reset(self._request)
            case "cut":
                _reset(self._request)
        return lines, True

    def _reordered(self, lines: list[bytes]) -> bytes:
        """Lines backwards; a single one is held until another one comes."""
        if len(lines) == 1:
            self._held = lines
            return b""
        return _backwards(lines)


def _split(lines: bytes) -> list[bytes]:
    return lines.splitlines(keepends=True)


def _backwards(lines: Iterable[bytes]) -> bytes:
    return b"".join(reversed([*lines]))


def _cut_within(data: bytes) -> bytes:
    """The beginning of data, up to within its last character of several bytes, or within its last line."""
    leads = [index for index, byte in enumerate(data) if byte >= 0xC0]
    if leads:
        return data[: leads[-1] + 1]
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    return data[: (start + len(data)) // 2]


def _reset(request: web.BaseRequest) -> NoReturn:
    """Resets the connection of a request. Raises ConnectionResetError, which ends its handler."""
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        transport.abort()
    raise ConnectionResetError(SOMEBODY)


def _close(request: web.BaseRequest) -> NoReturn:
    """Closes the connection once what was written has been sent. Raises ConnectionResetError."""
    if request.transport is not None:
        request.transport.close()
    raise ConnectionResetError(SOMEBODY)


async def _truncated(request: web.BaseRequest, response: web.StreamResponse) -> NoReturn:
    body = response.body if isinstance(response, web.Response) and isinstance(response.body, bytes) else b""
    half = web.StreamResponse(status=response.status, headers={"Content-Length": str(len(body))})
    half.content_type = response.content_type
    await half.prepare(request)
    await half.write(_cut_within(body))
    _close(request)


def _refusal(fault: Fault, target: Target) -> StatusError:
    if fault.code == 409:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        return conflict(target.group, target.resource, target.name, why)
    if fault.code == 410:
        return expired(f"too old resource version: {SOMEBODY}")
    reason, message = REFUSALS[fault.code]
    details = {"retryAfterSeconds": fault.retry_after} if fault.retry_after else None
    return StatusError(fault.code, reason, message, details=details)


def described(pending: Pending) -> dict[str, Any]:
    """A fault that waits, as JSON: ``times`` is how often it will strike yet."""
    content = msgspec.to_builtins(pending.fault)
    return {"id": pending.id, "struck": pending.struck, **content, "times": pending.left or 0}
