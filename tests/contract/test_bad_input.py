"""Requests that make no sense: refused with the same code by both servers, which go on as if nothing had been."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.contract.api_server import ApiServer, Reply

DEEP = 100_000  # brackets
BIG = 10 * 2**20  # bytes
TIMEOUT = 10.0  # seconds


def maps(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{path}/{name}" if name else path


def deployment(replicas: str) -> bytes:
    template = b'{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}'
    spec = b'{"replicas":%s,"selector":{"matchLabels":{"a":"b"}},"template":%s}' % (replicas.encode(), template)
    return b'{"metadata":{"name":"d"},"spec":%s}' % spec


class Connection:
    """A connection on which a test sends what it likes, as the administrator or as nobody."""

    def __init__(self, server: ApiServer) -> None:
        address = urlsplit(server.url)
        assert address.hostname
        assert address.port
        plain = socket.create_connection((address.hostname, address.port), TIMEOUT)
        self.socket = server.tls.wrap_socket(plain, server_hostname=address.hostname)
        self._authorization = server.authorization

    def send(self, line: str, *headers: str, body: bytes = b"") -> None:
        """Sends a request; a server that has heard enough may hang up meanwhile."""
        who = [f"Authorization: {self._authorization}"] if self._authorization else []
        head = "\r\n".join([line, "Host: x", *who, *headers, "", ""])
        with suppress(OSError):
            self.socket.sendall(head.encode("utf-8", "surrogateescape") + body)

    def code(self, method: str = "GET") -> int:
        """The code of the answer, 0 where there is none."""
        try:
            response = http.client.HTTPResponse(self.socket, method=method)
            response.begin()
            response.read()
        except (OSError, http.client.HTTPException):
            return 0
        return response.status


@contextmanager
def connected(server: ApiServer) -> Iterator[Connection]:
    connection = Connection(server)
    try:
        yield connection
    finally:
        connection.socket.close()


def post(server: ApiServer, path: str, body: bytes, content_type: str = "application/json") -> Reply:
    return server.send("POST", path, body, content_type=content_type)


def is_well(server: ApiServer) -> bool:
    return server.get("/api/v1/namespaces/default").code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b'{"metadata":{"name":"x"',
        b'{"metadata":{"name":"x"}} garbage',
        b'{"metadata":{"name":"x"}}{"metadata":{"name":"y"}}',
        b'{"metadata":[]}',
        b'{"metadata":{"name":5}}',
        b'{"metadata":{"name":"x","creationTimestamp":"yesterday"}}',
        b'{"metadata":{"name":"x","generation":' + b"9" * 400 + b"}}",
        b'{"metadata":{"name":"x","generation":' + b"9" * 5000 + b"}}",
        b'{"metadata":{"name":"x"},"data":{"a":NaN}}',
        b'{"metadata":{"name":"x"},"data":{"a":' + b"9" * 400 + b"}}",
        b'{"metadata":{"name":"x"},"data":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"metadata":{"name":"x"},"data":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'\xef\xbb\xbf{"metadata":{"name":"x"}}',
        b'{"kind":"Nothing","metadata":{"name":"x"}}',
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}',
    ],
    ids=lambda body: body[:40].decode(errors="replace") + f"-{len(body)}",
)
def test_body_that_is_no_object_of_the_kind_is_a_bad_request(server: ApiServer, namespace: str, body: bytes) -> None:
    reply = post(server, maps(namespace), body)
    assert (reply.code, reply.reason) == (400, "BadRequest")
    assert server.get(maps(namespace, "x")).code == 404


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [',
        b"{" * DEEP,
        b"a: &a [x]\nb: *c\n",
        b"\n".join(
            b"%c: &%c [%s]" % (97 + n, 97 + n, b",".join([b"*%c" % (96 + n) if n else b"x"] * 10)) for n in range(12)
        ),
    ],
    ids=["open", "deep", "unknown-alias", "aliases-of-aliases"],
)
def test_yaml_that_cannot_be_read_is_a_bad_request(server: ApiServer, namespace: str, body: bytes) -> None:
    reply = server.send(
        "PATCH", maps(namespace, "x"), body, content_type="application/apply-patch+yaml", fieldManager="m"
    )
    assert (reply.code, reply.reason) == (400, "BadRequest")
    assert post(server, maps(namespace), body, "application/yaml").code == 400


@pytest.mark.parametrize("replicas", ["9" * 30, "3000000000", "-3000000000", "1.5", '"1"', "true"])
def test_number_that_does_not_fit_its_field_is_a_bad_request(server: ApiServer, namespace: str, replicas: str) -> None:
    reply = post(server, f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment(replicas))
    assert (reply.code, reply.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json-patch+json", b'{"op":"add"}'),
        ("application/json-patch+json", b'[{"op":'),
        ("application/merge-patch+json", b"[]"),
        ("application/merge-patch+json", b'{"a":'),
        ("application/merge-patch+json", b'{"data":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"),
        ("application/strategic-merge-patch+json", b'{"a":'),
    ],
    ids=["json-object", "json-open", "merge-list", "merge-open", "merge-deep", "strategic-open"],
)
def test_patch_that_is_none_is_a_bad_request(server: ApiServer, namespace: str, content_type: str, body: bytes) -> None:
    server.create(maps(namespace), {"metadata": {"name": "x"}})
    reply = server.send("PATCH", maps(namespace, "x"), body, content_type=content_type)
    assert (reply.code, reply.reason) == (400, "BadRequest")


@pytest.mark.parametrize("body", [b'{"kind":', b"[]"])
def test_delete_options_that_are_none_are_a_bad_request(server: ApiServer, namespace: str, body: bytes) -> None:
    server.create(maps(namespace), {"metadata": {"name": "x"}})
    assert server.send("DELETE", maps(namespace, "x"), body).code == 400
    assert server.get(maps(namespace, "x")).code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "application/json;;;=garbage"])
def test_format_that_is_not_read_is_unsupported(server: ApiServer, namespace: str, content_type: str) -> None:
    reply = post(server, maps(namespace), b"{}", content_type)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")


def test_body_without_a_format_is_json(server: ApiServer, namespace: str) -> None:
    assert post(server, maps(namespace), b'{"metadata":{"name":"x"}}', "").code == 201


def test_bytes_that_are_no_text_are_replaced(server: ApiServer, namespace: str) -> None:
    reply = post(server, maps(namespace), b'{"metadata":{"name":"x"},"data":{"a":"1\xff\xfe2"}}')
    assert (reply.code, reply.body["data"]) == (201, {"a": "1��2"})


def test_last_of_two_values_with_one_name_counts(server: ApiServer, namespace: str) -> None:
    reply = post(server, maps(namespace), b'{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}')
    assert (reply.code, reply.body["data"]) == (201, {"a": "2"})


def test_field_that_is_given_twice_is_told_of_or_refused(server: ApiServer, namespace: str) -> None:
    body = b'{"metadata":{"name":"x","labels":{"l":"1","l":"1","l":"1"}},"data":{"a":"1","b":"2","a":"3"}}'
    twice = ['duplicate field "metadata.labels.l"', 'duplicate field "data.a"']
    strict = post(server, f"{maps(namespace)}?fieldValidation=Strict", body)
    assert (strict.code, strict.message) == (
        400,
        f'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: {", ".join(twice)}',
    )
    warned = post(server, maps(namespace), body)
    assert (warned.code, warned.headers["Warning"]) == (201, "299 - " + json.dumps(twice[-1]))
    again = server.send("PUT", maps(namespace, "x"), body, fieldValidation="Ignore")
    assert (again.code, "Warning" in again.headers) == (200, False)


def test_fields_that_are_null_are_as_if_they_were_not_there(server: ApiServer, namespace: str) -> None:
    metadata = b'{"name":"x","creationTimestamp":null,"deletionTimestamp":null,"labels":null,"managedFields":null}'
    reply = post(server, maps(namespace), b'{"metadata":%s,"data":null}' % metadata)
    assert reply.code == 201
    assert reply.body["metadata"]["creationTimestamp"].endswith("Z")
    assert not {"data", "status"} & reply.body.keys()
    assert not {"labels", "deletionTimestamp"} & reply.body["metadata"].keys()


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/{}/nothings",
        "/apis/nothing.example.com/v1/namespaces/{}/nothings",
        "/nothing",
        "/apis/apps/v9/x",
    ],
)
def test_what_is_not_served_is_not_found(server: ApiServer, namespace: str, path: str) -> None:
    path = path.format(namespace)
    assert [server.get(path).code, post(server, path, b"{}").code] == [404, 404]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/../../etc/passwd",
        "/api/v1/./namespaces",
        "/api/v1/namespaces/default/configmaps/a%2fb",
        "/api/v1/namespaces/default/configmaps/%00",
        "//api/v1/namespaces",
        "/api/v1//namespaces/default",
        "/openapi/v3/../../data",
        "/api/v1/namespaces/" + "a" * 9000,
    ],
)
def test_crooked_paths_lead_nowhere(server: ApiServer, path: str) -> None:
    with connected(server) as connection:
        connection.send(f"GET {path} HTTP/1.1")
        assert connection.code() == 404
    assert is_well(server)


@pytest.mark.parametrize(
    "query",
    [
        "limit=abc",
        "limit=" + "9" * 20,
        "limit=" + "9" * 5000,
        "watch=1&timeoutSeconds=abc",
        "resourceVersion=-1",
        "resourceVersion=" + "9" * 20,
        "resourceVersion=" + "9" * 5000,
        "labelSelector=((((",
        "labelSelector=%ff",
        "labelSelector=" + "a" * 9000,
        "fieldSelector=bad",
        "continue=garbage",
    ],
    ids=lambda query: f"{query[:24]}-{len(query)}",
)
def test_parameters_without_sense_are_a_bad_request(server: ApiServer, query: str) -> None:
    reply = server.get(f"/api/v1/namespaces?{query}")
    assert (reply.code, reply.reason) == (400, "BadRequest")


def test_limit_below_zero_is_no_limit(server: ApiServer) -> None:
    reply = server.get("/api/v1/namespaces?limit=-1")
    assert reply.code == 200
    assert "continue" not in reply.body["metadata"]


def test_watch_is_anything_but_no(server: ApiServer, namespace: str) -> None:
    server.create(maps(namespace), {"metadata": {"name": "x"}})
    for value in ("0", "false", "False"):
        assert server.get(f"{maps(namespace)}?watch={value}").body["kind"] == "ConfigMapList"
    events = server.send("GET", f"{maps(namespace)}?watch=maybe&timeoutSeconds=1&fieldSelector=metadata.name%3Dx")
    assert events.body["type"] == "ADDED"


@pytest.mark.parametrize("method", ["FROB", "OPTIONS", "HEAD"])
def test_method_without_meaning_is_not_allowed(server: ApiServer, namespace: str, method: str) -> None:
    with connected(server) as connection:
        connection.send(f"{method} {maps(namespace)} HTTP/1.1")
        expected = {405, 400} if method == "FROB" else {405}
        assert connection.code(method) in expected


@pytest.mark.parametrize("chunked", [False, True])
def test_huge_body_is_too_large(server: ApiServer, namespace: str, chunked: bool) -> None:
    with connected(server) as connection:
        headers, body = ["Content-Type: application/json"], b"x" * BIG
        if chunked:
            body = b"".join(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" for _ in range(BIG // 0x10000)) + b"0\r\n\r\n"
        headers.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {BIG}")
        connection.send(f"POST {maps(namespace)} HTTP/1.1", *headers, body=body)
        # Where the server hangs up before it was heard out, its answer may be lost on the way.
        assert connection.code() in {413, 0}
    assert is_well(server)


def test_compressed_body_is_not_decompressed(server: ApiServer, namespace: str) -> None:
    assert server.send("POST", maps(namespace), b"xxxxx", headers={"Content-Encoding": "gzip"}).code == 400


@pytest.mark.parametrize(
    "header", ["Content-Length: -5", "Content-Length: five", "Content-Length: 5\r\nContent-Length: 6"]
)
def test_length_without_sense_is_a_bad_request(server: ApiServer, namespace: str, header: str) -> None:
    with connected(server) as connection:
        connection.send(f"POST {maps(namespace)} HTTP/1.1", header)
        assert connection.code() == 400
    assert is_well(server)


@pytest.mark.parametrize("line", ["\x01\x02\x03", "GET / HTTP/9.9", "GET /\x00 HTTP/1.1", "GET / HTTP/1.1\r\nbroken"])
def test_what_is_no_request_is_refused(server: ApiServer, line: str) -> None:
    with connected(server) as connection:
        connection.send(line)
        assert connection.code() in {400, 505}
    assert is_well(server)


def test_long_header_is_read(server: ApiServer) -> None:
    assert server.send("GET", "/version", headers={"X-Long": "a" * 9000}).code == 200


def test_header_without_end_is_refused(server: ApiServer) -> None:
    with connected(server) as connection:
        connection.send("GET /version HTTP/1.1", "X-Long: " + "a" * 2_000_000)
        assert connection.code() in {400, 431, 0}
    assert is_well(server)


@pytest.fixture
def stranger(server: ApiServer) -> Iterator[ApiServer]:
    """A client without certificate and token, which believes any server."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    client = ApiServer(server.name, server.url, tls, {}, server.kubeconfig)
    yield client
    client.close()


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer a.b.c", "bearer nonsense"])
def test_wrong_token_is_nobodys(stranger: ApiServer, header: str) -> None:
    reply = stranger.send("GET", "/api/v1/namespaces/default", headers={"Authorization": header})
    assert (reply.code, reply.reason, reply.message) == (401, "Unauthorized", "Unauthorized")


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "nonsense", ""])
def test_who_shows_no_token_is_anonymous(stranger: ApiServer, header: str) -> None:
    reply = stranger.send("GET", "/api/v1/namespaces/default", headers={"Authorization": header})
    assert (reply.code, reply.reason) == (403, "Forbidden")
    assert 'User "system:anonymous"' in reply.message


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"\xff" * 500])
def test_what_is_no_tls_ends_the_connection(server: ApiServer, data: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), TIMEOUT) as plain:
        plain.sendall(data)
        received = b""
        while part := plain.recv(4096):
            received += part
        assert len(received) < 200
    assert is_well(server)


def test_initial_events_of_a_version_still_to_come_are_an_error_event(server: ApiServer, namespace: str) -> None:
    query: dict[str, Any] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "5"}
    (event,) = server.watch(maps(namespace), resourceVersion="99999999", allowWatchBookmarks="true", **query)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 504, "Timeout")


def test_watch_from_a_version_still_to_come_is_silent_until_then(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), {"metadata": {"name": "a"}})
    ahead = str(int(made["metadata"]["resourceVersion"]) + 10_000)
    assert list(server.watch(maps(namespace), resourceVersion=ahead, timeoutSeconds="1")) == []
