"""Plays sequences against one server and records what it answers, with the streams of the watches."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from tests.contract.fuzz.kinds import KINDS, SENTINELS
from tests.contract.fuzz.steps import METHODS, NAMELESS, Memory, Sequence, Step

REQUEST_TIMEOUT = 20.0  # seconds until a server must have answered
STREAM_TIMEOUT = 10.0  # seconds until the last event of a watch must have come
SENTINEL = "zz-sentinel"
SENTINEL_LABELS: Mapping[str, str] = {"a": "1", "b": "2"}
"""Such that the object which ends watches is in every selection that sequences watch."""

Answer = dict[str, Any]
"""``code``, ``body`` and ``warnings`` of an answer, or ``code`` and ``events`` of a watch."""


@dataclass
class Client:
    """A server under test."""

    url: str
    tls: ssl.SSLContext
    headers: Mapping[str, str]
    session: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> "Client":
        timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_TIMEOUT)
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=0)
        headers = {"User-Agent": "fuzz/1", **self.headers}
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(self, method: str, target: str, body: Any = None, content_type: str = "") -> Answer:
        """One request and its answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if content_type else {}
        async with self.session.request(method, self._url(target), data=data, headers=headers) as response:
            raw = await response.read()
            warnings = response.headers.getall("Warning", [])
            return {"code": response.status, "body": _parsed(raw), "warnings": warnings}

    async def open(self, target: str) -> aiohttp.ClientResponse:
        """An answer whose body is not read yet."""
        return await self.session.get(self._url(target))

    def _url(self, target: str) -> URL:
        return URL(self.url + target, encoded=True)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


async def play(client: Client, sequence: Sequence) -> list[Answer]:
    """The answers to all steps of a sequence."""
    return await _Player(client, sequence).run()


class _Player:
    def __init__(self, client: Client, sequence: Sequence) -> None:
        self._client = client
        self._sequence = sequence
        self._memory = Memory(sequence.name)
        self._streams: list[tuple[int, str, asyncio.Task[list[Any]]]] = []

    async def run(self) -> list[Answer]:
        namespace = {"metadata": {"name": self._sequence.name}}
        made = await self._client.send("POST", "/api/v1/namespaces", namespace, "application/json")
        assert made["code"] == 201, made
        answers = []
        try:
            for number, step in enumerate(self._sequence.steps):
                answers.append(await self._step(number, step))
            await self._end_streams(answers)
        finally:
            for _, _, task in self._streams:
                task.cancel()
            await self._sweep()
        return answers

    async def _step(self, number: int, step: Step) -> Answer:
        target = self._target(step)
        if step.do in {"get", "list", "watch"} and step.query.get("resourceVersion"):
            # Any version, or one that is not older, may be an old one; after a list of the latest one it is not.
            await self._client.send("GET", self._target(Step("list", step.resource)))
        if step.do == "watch":
            return await self._watch(number, step, target)
        method, content_type = METHODS[step.do]
        body = self._memory.resolve(step.body)
        answer = await self._client.send(method, target, body, content_type if body is not None else "")
        if answer["code"] < 300:
            self._memory.learn(step, answer["body"])
            if step.do == "list" and not KINDS[step.resource].namespaced:
                body = answer["body"]
                body["items"] = [item for item in body["items"] if self._is_ours({"object": item})]
        return answer

    def _target(self, step: Step) -> str:
        path: str = self._memory.resolve(KINDS[step.resource].root)
        if step.do not in NAMELESS:
            path += f"/{self._memory.resolve(step.name)}"
        if step.subresource:
            path += f"/{step.subresource}"
        query = {**step.query, "watch": "true"} if step.do == "watch" else step.query
        pairs = [f"{name}={quote(self._memory.resolve(value), safe='')}" for name, value in query.items()]
        return path + (f"?{'&'.join(pairs)}" if pairs else "")

    async def _watch(self, number: int, step: Step, target: str) -> Answer:
        response = await self._client.open(target)
        if response.status != 200:
            body = _parsed(await response.read())
            return {"code": response.status, "body": body, "warnings": response.headers.getall("Warning", [])}
        self._streams.append((number, step.resource, asyncio.create_task(self._collect(response))))
        return {"code": 200, "events": []}

    async def _collect(self, response: aiohttp.ClientResponse) -> list[Any]:
        events: list[Any] = []
        try:
            async with asyncio.timeout(STREAM_TIMEOUT):
                async for event in _lines(response):
                    metadata = event["object"].get("metadata") or {}
                    if metadata.get("name") in {SENTINEL, f"{self._sequence.name}-{SENTINEL}"}:
                        break
                    events.append(event)
                else:
                    events.append({"type": "END"})
        except TimeoutError:
            events.append({"type": "SILENCE"})
        finally:
            response.close()
        return events

    async def _end_streams(self, answers: list[Answer]) -> None:
        for resource in dict.fromkeys(resource for _, resource, _ in self._streams):
            await self._send_sentinel(resource)
        for number, resource, task in self._streams:
            events = await task
            if not KINDS[resource].namespaced:
                events = [event for event in events if self._is_ours(event)]
            answers[number]["events"] = events

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        name = (event.get("object", {}).get("metadata") or {}).get("name")
        return not name or name.startswith(self._sequence.name)

    async def _send_sentinel(self, resource: str) -> None:
        kind = KINDS[resource]
        name = SENTINEL if kind.namespaced else f"{self._sequence.name}-{SENTINEL}"
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            **self._memory.resolve(SENTINELS[resource]),
            "metadata": {"name": name, "labels": SENTINEL_LABELS},
        }
        made = await self._client.send("POST", self._memory.resolve(kind.root), body, "application/json")
        assert made["code"] == 201, made

    async def _sweep(self) -> None:
        """Remove what is in no namespace, lest all later sequences list it."""
        names = {(s.resource, s.name) for s in self._sequence.steps if not KINDS[s.resource].namespaced and s.name}
        names |= {(resource, f"${{namespace}}-{SENTINEL}") for _, resource, _ in self._streams}
        for resource, name in sorted(names):
            if KINDS[resource].namespaced:
                continue
            path = self._memory.resolve(f"{KINDS[resource].root}/{name}")
            bare = {"metadata": {"finalizers": None}}
            await self._client.send("PATCH", path, bare, "application/merge-patch+json")
            await self._client.send("DELETE", path)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    pending = b""
    async for chunk in response.content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
