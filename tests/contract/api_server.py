"""A plain HTTP client for tests that say exactly what they send, and one of the servers that they run against."""

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT = 30.0  # seconds for a request, and for the silence of a watch


@dataclass(frozen=True)
class Reply:
    """An answer; ``body`` is its JSON, or its text where it is none."""

    code: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else ""

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class ApiServer:
    """A server under test, as its administrator sees it. ``name`` is sandbox or kube-apiserver."""

    def __init__(self, name: str, url: str, tls: ssl.SSLContext, headers: Mapping[str, str], kubeconfig: Path) -> None:
        self.name = name
        self.url = url
        self.kubeconfig = kubeconfig
        self.tls = tls
        self._headers = dict(headers)
        self._connections = threading.local()

    @property
    def authorization(self) -> str:
        """The header by which the administrator is known, "" where a certificate does that."""
        return self._headers.get("Authorization", "")

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Reply:
        """Sends one request. A body that is not bytes is sent as JSON; an empty header value leaves the header out."""
        merged = {**self._headers, "Content-Type": content_type, **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = self._connect()
        try:
            connection.request(method, _with_query(path, query), data, {k: v for k, v in merged.items() if v})
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        return Reply(response.status, _parsed(raw), dict(response.headers.items()))

    def begin(self, method: str, path: str, **query: str) -> http.client.HTTPSConnection:
        """Sends a request on a connection of its own; the caller reads the answer, or does not, and closes it."""
        connection = self._open()
        connection.request(method, _with_query(path, query), headers=self._headers)
        return connection

    def get(self, path: str, **query: str) -> Reply:
        return self.send("GET", _with_query(path, query))

    def create(self, path: str, body: Any, **query: str) -> Any:
        """Creates an object and returns it. Fails where the server refuses."""
        reply = self.send("POST", _with_query(path, query), body)
        assert reply.code == 201, reply
        return reply.body

    def watch(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """The events of a watch until the server ends it; the caller sets timeoutSeconds."""
        connection = self._open()
        connection.request("GET", _with_query(path, {"watch": "true", **query}), headers=self._headers)
        response = connection.getresponse()
        try:
            if response.status != 200:
                raise AssertionError(f"{response.status} {response.read().decode()}")
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def close(self) -> None:
        connection = getattr(self._connections, "open", None)
        if connection is not None:
            connection.close()

    def _connect(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._connections, "open", None)
        if connection is None:
            connection = self._connections.open = self._open()
        return connection

    def _open(self) -> http.client.HTTPSConnection:
        address = urlsplit(self.url)
        assert address.hostname
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=TIMEOUT, context=self.tls)


def _with_query(path: str, query: Mapping[str, str]) -> str:
    pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    return f"{path}?{pairs}" if pairs else path


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
