"""The server against clients that misbehave."""

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from controllers.sandbox import Sandbox, SandboxOptions
from controllers.sandbox.cluster import Cluster, WriteOptions

TIMEOUT = 20.0  # seconds
WATCHERS = 100
WRITES = 300


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxOptions(window=50)) as running:
        yield running


class Connection:
    """A connection on which a test sends what it likes."""

    def __init__(self, sandbox: Sandbox) -> None:
        address = urlsplit(sandbox.url)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection((address.hostname, address.port), TIMEOUT)
        self.socket = context.wrap_socket(plain)
        self._token = sandbox.admin_token

    def send(self, line: str, body: bytes = b"", *headers: str) -> None:
        head = [line, "Host: x", f"Authorization: Bearer {self._token}", *headers, "", ""]
        self.socket.sendall("\r\n".join(head).encode("utf-8", "surrogateescape") + body)

    def status(self) -> int:
        first = self.socket.recv(65536).split(b"\r\n", 1)[0]
        return int(first.split(b" ")[1]) if first else 0

    def close(self) -> None:
        self.socket.close()


def is_well(sandbox: Sandbox) -> bool:
    connection = Connection(sandbox)
    connection.send("GET /api/v1/namespaces/default HTTP/1.1")
    status = connection.status()
    connection.close()
    return status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/../../etc/passwd",
        "/api/v1/namespaces/%2e%2e/configmaps",
        "/api/v1/namespaces/default/configmaps/a%2fb",
        "/api/v1/namespaces//configmaps",
        "/api/v1/namespaces/default/configmaps/%00",
        "/openapi/v3/../../data",
    ],
)
def test_crooked_paths_lead_nowhere(sandbox: Sandbox, path: str) -> None:
    connection = Connection(sandbox)
    connection.send(f"GET {path} HTTP/1.1")
    assert connection.status() in {400, 404}
    connection.close()
    assert is_well(sandbox)


@pytest.mark.parametrize(
    "line", ["GET", "GET / HTTP/9.9", "\x01\x02\x03", "POST /api/v1/nodes HTTP/1.1\r\nContent-Length: -5"]
)
def test_broken_requests_are_refused(sandbox: Sandbox, line: str) -> None:
    connection = Connection(sandbox)
    connection.send(line)
    assert connection.status() in {0, 400, 501, 505}
    connection.close()
    assert is_well(sandbox)


def test_request_cut_half_way_writes_nothing(sandbox: Sandbox) -> None:
    connection = Connection(sandbox)
    body = b'{"metadata":{"name":"half"}}'
    line = "POST /api/v1/namespaces/default/configmaps HTTP/1.1"
    connection.send(line, body, f"Content-Length: {len(body) + 1}", "Content-Type: application/json")
    connection.close()
    assert is_well(sandbox)
    assert sandbox.call(lambda cluster: cluster.store.get("configmaps", "default/half")) is None


def test_huge_body_is_refused_by_its_announcement(sandbox: Sandbox) -> None:
    connection = Connection(sandbox)
    line = "POST /api/v1/namespaces/default/configmaps HTTP/1.1"
    connection.send(line, b"", "Content-Length: 10485760", "Content-Type: application/json")
    assert connection.status() == 413
    connection.close()


def test_deeply_nested_json_is_refused(sandbox: Sandbox) -> None:
    body = b'{"metadata":{"name":"deep"},"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    connection = Connection(sandbox)
    line = "POST /api/v1/namespaces/default/configmaps HTTP/1.1"
    connection.send(line, body, f"Content-Length: {len(body)}", "Content-Type: application/json")
    assert connection.status() == 400
    connection.close()
    assert is_well(sandbox)


def test_watchers_that_never_read_cost_nobody_else(sandbox: Sandbox) -> None:
    watchers = [Connection(sandbox) for _ in range(WATCHERS)]
    for watcher in watchers:
        watcher.send("GET /api/v1/configmaps?watch=1 HTTP/1.1")
    payload = "x" * 20_000

    def write(cluster: Cluster) -> None:
        info = cluster.registry.find("", "v1", "configmaps")
        assert info is not None
        for number in range(WRITES):
            body = {"metadata": {"generateName": "w-"}, "data": {"n": str(number), "x": payload}}
            cluster.create(info, "default", body, WriteOptions())

    sandbox.call(write)
    assert is_well(sandbox)
    remembered = sandbox.call(lambda cluster: len(cluster.store.collection("configmaps").changes))
    assert remembered <= 100
    for watcher in watchers:
        watcher.close()
    assert is_well(sandbox)
