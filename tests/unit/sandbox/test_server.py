"""The server against clients that misbehave."""

import functools
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from controllers.sandbox import Sandbox, SandboxOptions, server
from controllers.sandbox.cluster import Cluster, WriteOptions
from tests.contract.conftest import connect

TIMEOUT = 20.0  # seconds
WATCHERS = 100
WRITES = 300
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxOptions(window=50)) as running:
        yield running


@functools.cache
def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Connection:
    """A connection on which a test sends what it likes."""

    def __init__(self, sandbox: Sandbox) -> None:
        address = urlsplit(sandbox.url)
        plain = socket.create_connection((address.hostname, address.port), TIMEOUT)
        self.socket = trusting().wrap_socket(plain)
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


def test_body_that_does_not_come_is_given_up(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT", 0.2)
    connection = Connection(sandbox)
    line = "POST /api/v1/namespaces/default/configmaps HTTP/1.1"
    connection.send(line, b"{", "Content-Length: 100", "Content-Type: application/json")
    assert connection.status() == 504
    connection.close()
    assert is_well(sandbox)


def test_object_that_is_nested_too_deeply_to_be_kept_is_refused(sandbox: Sandbox) -> None:
    spec = {
        "group": "test.example.com",
        "scope": "Cluster",
        "names": {"plural": "deeps", "kind": "Deep"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}],
    }
    api = connect("sandbox", sandbox.kubeconfig)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(definitions, {"metadata": {"name": "deeps.test.example.com"}, "spec": spec})
    codes = set()
    for depth in range(50, 1000, 50):
        body = b'{"apiVersion":"test.example.com/v1","kind":"Deep","metadata":{"name":"d%d"},"spec":%s}'
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        reply = api.send("POST", "/apis/test.example.com/v1/deeps", body % (depth, nested))
        codes.add(reply.code)
    assert codes == {201, 400}
    assert api.get("/apis/test.example.com/v1/deeps").code == 200
    api.close()


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
