"""A cheap HTTP/1.1 client for loading a server: connections that are given one prepared request after the other.

It does per request what cannot be left out, so that the server is the bound and not its measurement.
"""

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import yaml

END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"content-length: "
CHUNKED = b"transfer-encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
TICK = 0.0005  # seconds between looks of a paced load at what is due


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to be let in."""

    host: str
    port: int
    tls: ssl.SSLContext
    token: str

    @classmethod
    def of(cls, kubeconfig: Path) -> "Target":
        """What a kubeconfig with a bearer token leads to."""
        document = yaml.safe_load(kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        address = urlsplit(cluster["server"])
        tls = ssl.create_default_context(cadata=authority)
        return cls(str(address.hostname), address.port or 443, tls, document["users"][0]["user"]["token"])

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
        """A request, ready to be sent."""
        content = msgspec.json.encode(body) if body is not None else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            f"User-Agent: bench/1\r\nAccept: application/json\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    async def connect(self, protocol: asyncio.Protocol) -> None:
        await asyncio.get_running_loop().create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)


class Connection(asyncio.Protocol):
    """What lanes and listeners share: sending."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()


class Lane(Connection):
    """One request at a time; ``idle`` is called with the lane after each answer."""

    def __init__(self, idle: Callable[["Lane"], None]) -> None:
        self._idle = idle
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not is_whole(self._buffer):
            return
        if not self._buffer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise ValueError(self._buffer.decode(errors="replace"))
        self._buffer = b""
        self._idle(self)


def is_whole(answer: bytes) -> bool:
    """Whether an answer has come to its end, which its length or a last, empty chunk tells."""
    head, end, body = answer.partition(END_OF_HEAD)
    if not end:
        return False
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        return CHUNKED not in lowered or body.endswith(LAST_CHUNK)
    return len(body) >= int(head[at + len(LENGTH) :].split(b"\r", 1)[0])


class Listener(Connection):
    """A watch; ``arrived`` is called with each line."""

    def __init__(self, arrived: Callable[[bytes], None]) -> None:
        self._arrived = arrived
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._arrived(line)


@contextlib.asynccontextmanager
async def connected(target: Target, connections: Sequence[Connection]) -> AsyncIterator[None]:
    """Opens connections for as long as the context lasts."""
    for connection in connections:
        await target.connect(connection)
    yield
    for connection in connections:
        connection.close()


async def crowd(target: Target, requests: Iterable[bytes], in_flight: int) -> float:
    """Sends requests as fast as ``in_flight`` connections get answers; returns the seconds that it took."""
    waiting = iter(requests)
    finished = asyncio.get_running_loop().create_future()
    at_work = in_flight

    def go_on(lane: Lane) -> None:
        nonlocal at_work
        request = next(waiting, None)
        if request is not None:
            lane.send(request)
            return
        at_work -= 1
        if not at_work:
            finished.set_result(None)

    lanes = [Lane(go_on) for _ in range(in_flight)]
    async with connected(target, lanes):
        began = time.perf_counter()
        for lane in lanes:
            go_on(lane)
        await finished
        return time.perf_counter() - began


async def pace(target: Target, make: Callable[[int, float], bytes], count: int, rate: float, in_flight: int) -> None:
    """Sends ``rate`` requests per second; one that finds no free connection waits for one.

    ``make`` gets a request's number and the moment, on the clock of ``time.perf_counter``, at which it was due.
    """
    free: list[Lane] = []
    lanes = [Lane(free.append) for _ in range(in_flight)]
    async with connected(target, lanes):
        free += lanes
        began = time.perf_counter()
        sent = 0
        while sent < count or len(free) < in_flight:
            due = min(count, int((time.perf_counter() - began) * rate))
            while free and sent < due:
                free.pop().send(make(sent, began + sent / rate))
                sent += 1
            await asyncio.sleep(TICK)
