"""A server that sends prepared lists and events and nothing else, so that only the client's work is measured.

Run as a process: ``python -m hack.bench.canned --pods N --nodes N`` prints its URL. It is told by POST what to send:
``/bench/show?pods=N`` makes lists that short, ``/bench/burst?count=N`` sends so many events at once and
``/bench/pace?count=N&rate=R`` so many per second. Each event changes another pod, until all have had their turn.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvloop

from hack.bench import objects

HOST = "127.0.0.1"
LIST_VERSION = 1_000_000
"""resourceVersion of every list; those of events follow it."""

VERSION, DUE = "@version@", "@due@"  # what is put in their place is in each event
TOGETHER = 64  # events that are handed to the connection at once in a burst

# kopf waits until namespaces are known, also where it watches all of them.
RESOURCES = (("pods", "Pod", True), ("nodes", "Node", False), ("namespaces", "Namespace", False))

DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.2"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": name, "singularName": name[:-1], "kind": kind, "namespaced": namespaced, "verbs": verbs}
            for verbs in (["get", "list", "watch", "patch"],)
            for name, kind, namespaced in RESOURCES
        ],
    },
}

REFUSAL = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}
"""For a watch that shall begin with the state, so that every client lists."""


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """The line of one pod's change, in the parts between which its version and its time go."""

    before: bytes
    between: bytes
    after: bytes

    @classmethod
    def of(cls, number: int) -> "EventTemplate":
        # Items of a list do not say what they are; what comes by watch does.
        changed = {"kind": "Pod", "apiVersion": "v1", **objects.pod(number, VERSION, DUE)}
        line = objects.encoded({"type": "MODIFIED", "object": changed}) + b"\n"
        before, _, rest = line.partition(VERSION.encode())
        between, _, after = rest.partition(DUE.encode())
        return cls(before, between, after)

    def line(self, version: int) -> bytes:
        """The change to ``version``, as of now."""
        return b"%b%d%b%d%b" % (self.before, version, self.between, time.monotonic_ns(), self.after)


@dataclass(slots=True)
class Canned:
    """What the server holds, and who watches."""

    lists: dict[str, Sequence[bytes]]
    events: Sequence[EventTemplate]
    shown: dict[str, int] = field(default_factory=dict)
    watchers: set[asyncio.StreamWriter] = field(default_factory=set)
    arrival: asyncio.Event = field(default_factory=asyncio.Event)
    version: int = LIST_VERSION

    @classmethod
    def holding(cls, *, pods: int, nodes: int) -> "Canned":
        return cls(
            {
                "pods": [objects.encoded(objects.pod(number)) for number in range(pods)],
                "nodes": [objects.encoded(objects.node(number)) for number in range(nodes)],
            },
            [EventTemplate.of(number) for number in range(pods)],
        )

    # -- answering ----------------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection until it ends."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target = head.decode("latin-1").split(" ", 2)[:2]
                await self._answer(method, target, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.watchers.discard(writer)
            writer.close()

    async def _answer(
        self, method: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        resource = url.path.rpartition("/")[2]
        if method == "POST":
            await self._told(resource, query)
            _send(writer, 200, b"{}")
        elif url.path in DISCOVERY:
            _send(writer, 200, json.dumps(DISCOVERY[url.path]).encode())
        elif resource not in self.lists:
            _send(writer, 404, b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}')
        elif query.get("sendInitialEvents", "").lower() == "true":
            _send(writer, 422, json.dumps(REFUSAL).encode())
        elif query.get("watch", "").lower() in ("true", "1"):
            await self._watch(resource, reader, writer)
        else:
            _send(writer, 200, self.page(resource, int(query.get("limit") or 0), int(query.get("continue") or 0)))
        await writer.drain()

    def page(self, resource: str, limit: int, begin: int) -> bytes:
        """A part of a list; a limit of 0 is none, and the token is where the next page begins."""
        items = self.lists[resource][: self.shown.get(resource)]
        end = begin + limit if limit else len(items)
        token = str(end) if end < len(items) else ""
        metadata = {"resourceVersion": str(LIST_VERSION), **({"continue": token} if token else {})}
        kind = {"pods": "PodList", "nodes": "NodeList"}[resource]
        head = objects.encoded({"kind": kind, "apiVersion": "v1", "metadata": metadata})
        return head[:-1] + b',"items":[' + b",".join(items[begin:end]) + b"]}"

    async def _watch(self, resource: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )
        if resource == "pods":
            self.watchers.add(writer)
            self.arrival.set()
        await reader.read()
        raise ConnectionError("the watcher has left")

    # -- being told ---------------------------------------------------------------------------------------------------

    async def _told(self, what: str, query: dict[str, str]) -> None:
        if what == "show":
            self.shown = {resource: int(count) for resource, count in query.items()}
            return
        while not self.watchers:
            self.arrival.clear()
            await self.arrival.wait()
        count = int(query["count"])
        if what == "burst":
            await self._burst(count)
        else:
            await self._pace(count, float(query["rate"]))

    async def _burst(self, count: int) -> None:
        for begin in range(0, count, TOGETHER):
            chunks = b"".join(self._chunk(number) for number in range(begin, min(begin + TOGETHER, count)))
            await self._tell(chunks)

    async def _pace(self, count: int, rate: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(count):
            pause = began + number / rate - loop.time()
            if pause > 0.0:
                await asyncio.sleep(pause)
            await self._tell(self._chunk(number))

    def _chunk(self, number: int) -> bytes:
        # One chunk for each event, as Go's server sends them.
        self.version += 1
        line = self.events[number % len(self.events)].line(self.version)
        return b"%x\r\n%b\r\n" % (len(line), line)

    async def _tell(self, chunks: bytes) -> None:
        for writer in tuple(self.watchers):
            # One that has just left is taken out by its own task.
            with contextlib.suppress(ConnectionError):
                writer.write(chunks)
                await writer.drain()


def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    reason = {200: "OK", 404: "Not Found", 422: "Unprocessable Entity"}[status]
    writer.write(
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)


async def serve(pods: int, nodes: int) -> None:
    """Serves until the process ends, and prints the URL once it can be used."""
    canned = Canned.holding(pods=pods, nodes=nodes)
    server = await asyncio.start_server(canned.serve, HOST, 0)
    print(f"http://{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=0)
    options = parser.parse_args()
    uvloop.run(serve(options.pods, options.nodes))


if __name__ == "__main__":
    main()
