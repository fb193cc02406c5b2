"""Leases on virtual time: an API server for nothing else, and the networks between it and each replica."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.transport import ByteStream, HttpRequest, HttpResponse


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    ``refuse``: 500. ``slow``: carried out and answered after ``seconds``. ``lose``: carried out and never answered.
    ``vanish``: neither. ``late``: carried out after ``seconds``, whether or not anybody still waits; never answered.
    """

    kind: str = "ok"
    seconds: float = 0.0


@dataclass
class LeaseServer:
    """Versions, conflicts and uids as the API server has them; ``log`` is of the writes that were carried out."""

    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[float, str, str, dict[str, Any]]] = field(default_factory=list)
    version: int = 0

    def answer(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        document = msgspec.json.decode(body) if body else {}
        name = document["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        old = self.leases.get(name)
        if method == "GET":
            return (200, old) if old else _status(404, "NotFound")
        if method == "POST":
            return _status(409, "AlreadyExists") if old else (201, self._store(method, name, document))
        if old is None:
            return _status(404, "NotFound")
        sent = document["metadata"]
        same = all(sent[part] == old["metadata"][part] for part in ("uid", "resourceVersion"))
        return (200, self._store(method, name, document)) if same else _status(409, "Conflict")

    def _store(self, method: str, name: str, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {"uid": f"uid-{self.version}", **document["metadata"], "resourceVersion": str(self.version)}
        self.leases[name] = {**document, "metadata": metadata}
        self.log.append((asyncio.get_running_loop().time(), method, name, self.leases[name].get("spec", {})))
        return self.leases[name]


def _status(code: int, reason: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": reason}


class Network:
    """A ``Transport`` whose requests meet ``faults``, in turn; when those are used up all goes well."""

    def __init__(self, server: LeaseServer, faults: Iterable[Fault] = ()) -> None:
        self.server = server
        self.faults = deque(faults)
        self.cut = False
        self.requests: list[HttpRequest] = []
        self._late: set[asyncio.Task[None]] = set()

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.requests]

    async def request(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        fault = Fault("vanish") if self.cut else self.faults.popleft() if self.faults else Fault()
        if fault.kind == "refuse":
            return HttpResponse(500, {}, b"no")
        if fault.kind == "late":
            self._carry_out_later(request, fault.seconds)
        if fault.kind in ("late", "vanish"):
            await asyncio.Event().wait()
        await asyncio.sleep(fault.seconds)
        status, body = self.server.answer(request.method, request.path, request.body)
        if fault.kind == "lose":
            await asyncio.Event().wait()
        return HttpResponse(status, {}, msgspec.json.encode(body))

    def _carry_out_later(self, request: HttpRequest, seconds: float) -> None:
        async def carry_out() -> None:
            await asyncio.sleep(seconds)
            self.server.answer(request.method, request.path, request.body)

        task = asyncio.create_task(carry_out())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def stream(self, request: HttpRequest) -> AbstractAsyncContextManager[ByteStream]:
        raise AssertionError(f"nobody watches Leases: {request.path}")

    async def close(self) -> None:
        pass

    def client(self) -> Client:
        return Client(self, ClientOptions("tests", attempts=1))
