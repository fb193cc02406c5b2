"""The real transport against a small server on the loopback address."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import pytest
from aiohttp import web
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration

from controllers.runtime import transport as transport_module
from controllers.runtime.errors import ConfigurationError, TransportError
from controllers.runtime.testing import FakeClock
from controllers.runtime.transport import TOKEN_MAX_AGE, AiohttpTransport, AnsweredRequest, Credentials, HttpRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def kubeconfig(path: Path, port: int, token: str = "t1") -> str:
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return str(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """An HTTP server that gives every request to one handler; yields its port."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield port
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving_bytes(answer: bytes) -> AsyncIterator[int]:
    """A server that reads a request, writes these bytes and closes, whatever HTTP says."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Rig:
    """A transport whose observer is kept."""

    def __init__(self, config: str, clock: FakeClock | None = None) -> None:
        self.observed: list[AnsweredRequest] = []
        self.transport = AiohttpTransport(
            Credentials(config, clock=clock), user_agent="tests/1", observer=self.observed.append
        )

    @property
    def codes(self) -> list[str]:
        return [answered.code for answered in self.observed]


@asynccontextmanager
async def connected(path: Path, port: int, clock: FakeClock | None = None) -> AsyncIterator[Rig]:
    rig = Rig(kubeconfig(path / "config", port), clock)
    try:
        yield rig
    finally:
        await rig.transport.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_arrives_as_it_was_written_and_the_answer_comes_back(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.raw_path, await request.read(), request.headers))
        return web.Response(status=201, body=b"answer", headers={"X-It": "yes"})

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            request = HttpRequest(
                "PATCH",
                "/api/v1/nodes/a b",
                (("q", "x=y,z in (a)"), ("empty", "")),
                {"Content-Type": "t/x"},
                b"\x00body",
            )
            response = await rig.transport.request(request)
            assert (response.status, response.body, response.headers["X-It"]) == (201, b"answer", "yes")
            assert rig.codes == ["201"]
            assert (rig.observed[0].method, rig.observed[0].host) == ("PATCH", f"127.0.0.1:{port}")

    run(scenario)
    ((method, path, body, headers),) = seen
    assert (method, body) == ("PATCH", b"\x00body")
    assert path == "/api/v1/nodes/a%20b?q=x%3Dy%2Cz%20in%20%28a%29&empty="
    assert (headers["User-Agent"], headers["Content-Type"]) == ("tests/1", "t/x")
    assert headers["Authorization"] == "Bearer t1"


@pytest.mark.parametrize("status", [404, 409, 500])
def test_an_error_status_is_an_answer(tmp_path: Path, status: int) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, body=b"why")

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            response = await rig.transport.request(HttpRequest("GET", "/x"))
            assert (response.status, response.body, rig.codes) == (status, b"why", [str(status)])

    run(scenario)


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://example.invalid/"})

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 302

    run(scenario)


def test_compressed_answers_are_unpacked(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        response = web.Response(body=b"x" * 10_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).body == b"x" * 10_000

    run(scenario)


def test_connections_are_kept_and_reused(tmp_path: Path) -> None:
    peers: set[Any] = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response()

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            for _ in range(5):
                await rig.transport.request(HttpRequest("GET", "/x"))

    run(scenario)
    assert len(peers) == 1


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_refused_connection_is_a_transport_error_that_the_observer_hears_of(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, free_port()) as rig:
            with pytest.raises(TransportError, match=r"GET /x: .*onnect"):
                await rig.transport.request(HttpRequest("GET", "/x"))
            with pytest.raises(TransportError):
                async with rig.transport.stream(HttpRequest("GET", "/x")):
                    pytest.fail("nothing answered")
            assert rig.codes == ["<error>", "<error>"]

    run(scenario)


@pytest.mark.parametrize(
    ("message", "raised"),
    [("File descriptor 15 is used by transport <TCPTransport closed=False>", TransportError), ("a bug", RuntimeError)],
)
def test_a_descriptor_that_the_loop_takes_for_used_is_a_transport_error_and_bugs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, raised: type[Exception]
) -> None:
    async def start_connection(**_: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", start_connection)

    async def scenario() -> None:
        async with connected(tmp_path, free_port()) as rig:
            with pytest.raises(raised, match=message.split(" <")[0]):
                await rig.transport.request(HttpRequest("GET", "/x"))

    run(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly a part",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nonly a part",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"",
        b"not http at all\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_is_a_transport_error(tmp_path: Path, answer: bytes) -> None:
    async def scenario() -> None:
        async with serving_bytes(answer) as port, connected(tmp_path, port) as rig:
            with pytest.raises(TransportError, match="GET /x"):
                await rig.transport.request(HttpRequest("GET", "/x"))

    run(scenario)


def test_a_request_that_takes_too_long_is_a_transport_error(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            with pytest.raises(TransportError, match=r"GET /x: .*imeout"):
                await rig.transport.request(HttpRequest("GET", "/x", timeout=0.1))
            assert rig.codes == ["<error>"]

    run(scenario)


# -- streams ----------------------------------------------------------------------------------------------------------


def streaming(*chunks: bytes, then: float = 0.0, gap: float = 0.0) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(gap)
        await asyncio.sleep(then)
        return response

    return handler


def test_a_stream_yields_what_comes_and_ends_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(streaming(b"a\n", b"b\n")) as port, connected(tmp_path, port) as rig:
            async with rig.transport.stream(HttpRequest("GET", "/x")) as stream:
                assert stream.status == 200
                assert b"".join([chunk async for chunk in stream.chunks()]) == b"a\nb\n"
            assert rig.codes == ["200"]

    run(scenario)


async def receive(rig: Rig, received: list[bytes]) -> None:
    async with rig.transport.stream(HttpRequest("GET", "/x", timeout=0.2)) as stream:
        async for chunk in stream.chunks():
            received.append(chunk)  # noqa: PERF401 - what came before the error counts


def test_a_half_open_stream_is_a_transport_error_after_the_longest_silence(tmp_path: Path) -> None:
    async def scenario() -> None:
        received: list[bytes] = []
        async with serving(streaming(b"a\n", then=10)) as port, connected(tmp_path, port) as rig:
            with pytest.raises(TransportError, match="imeout"):
                await receive(rig, received)
        assert received == [b"a\n"]

    run(scenario)


def test_the_timeout_of_a_stream_is_for_silence_and_not_for_its_whole_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        handler = streaming(*[b"x"] * 8, gap=0.1)
        request = HttpRequest("GET", "/x", timeout=0.5)
        async with serving(handler) as port, connected(tmp_path, port) as rig, rig.transport.stream(request) as stream:
            assert await stream.read() == b"x" * 8

    run(scenario)


def test_a_stream_that_breaks_is_a_transport_error(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n"

    async def scenario() -> None:
        async with serving_bytes(answer) as port, connected(tmp_path, port) as rig:
            with pytest.raises(TransportError, match="the stream broke"):
                async with rig.transport.stream(HttpRequest("GET", "/x")) as stream:
                    assert [chunk async for chunk in stream.chunks()] == [b"a\n"]

    run(scenario)


def test_many_open_streams_do_not_hold_up_a_request(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await (streaming(b"a\n", then=5)(request) if request.path == "/watch" else answer(request))

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"here")

    async def hold(rig: Rig, opened: asyncio.Semaphore) -> None:
        async with rig.transport.stream(HttpRequest("GET", "/watch")) as stream:
            async for _ in stream.chunks():
                opened.release()

    async def scenario() -> None:
        async with serving(handler) as port, connected(tmp_path, port) as rig:
            opened = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(hold(rig, opened)) for _ in range(120)]
            for _ in tasks:
                await opened.acquire()
            response = await rig.transport.request(HttpRequest("GET", "/x", timeout=2.0))
            assert response.body == b"here"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario)


# -- credentials ------------------------------------------------------------------------------------------------------


def by_token(accepted: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == f"Bearer {accepted}" else 401)

    return handler


def test_a_401_makes_the_next_request_read_the_credentials_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(by_token("t2")) as port, connected(tmp_path, port, clock) as rig:
            kubeconfig(tmp_path / "config", port, "t1")
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 401
            kubeconfig(tmp_path / "config", port, "t2")
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 200

    run(scenario)


def test_credentials_are_read_again_as_they_age_and_not_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(by_token("t1")) as port, connected(tmp_path, port, clock) as rig:
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 200
            kubeconfig(tmp_path / "config", port, "rotated")
            clock.advance(TOKEN_MAX_AGE - 1)
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 200
            clock.advance(1)
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 401

    run(scenario)


def test_credentials_that_cannot_be_read_again_stay_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        async with serving(by_token("t1")) as port, connected(tmp_path, port, clock) as rig:
            await rig.transport.request(HttpRequest("GET", "/x"))
            (tmp_path / "config").write_text("clusters: [")
            clock.advance(TOKEN_MAX_AGE)
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 200
            kubeconfig(tmp_path / "config", port, "t2")
            clock.advance(TOKEN_MAX_AGE)
            assert (await rig.transport.request(HttpRequest("GET", "/x"))).status == 401

    run(scenario)
    assert len([record for record in caplog.records if "keeping the credentials" in record.message]) == 1


def test_many_requests_read_the_credentials_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    load = kubernetes_config.load_kube_config

    async def slow(**arguments: Any) -> None:
        reads.append(1)
        await asyncio.sleep(0.05)
        await load(**arguments)

    monkeypatch.setattr(kubernetes_config, "load_kube_config", slow)

    async def scenario() -> None:
        async with serving(by_token("t1")) as port, connected(tmp_path, port) as rig:
            requests = [rig.transport.request(HttpRequest("GET", "/x")) for _ in range(20)]
            assert {response.status for response in await asyncio.gather(*requests)} == {200}

    run(scenario)
    assert len(reads) == 1


@pytest.mark.parametrize("content", [None, "", "not: [yaml", "clusters: []", "current-context: nowhere"])
def test_an_unusable_kubeconfig_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)

    async def scenario() -> None:
        said = "there is no kubeconfig" if content is None else "cannot read kubeconfig"
        with pytest.raises(ConfigurationError, match=said) as caught:
            await Credentials(str(path)).load()
        assert str(path) in str(caught.value)

    run(scenario)


def test_without_kubeconfig_and_pod_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(kubernetes_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))

    async def scenario() -> None:
        with pytest.raises(ConfigurationError, match="use --kubeconfig or KUBECONFIG when running outside a cluster"):
            await Credentials().load()

    run(scenario)


def test_unreadable_certificates_name_the_server(tmp_path: Path) -> None:
    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = "https://10.0.0.1", str(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match=r"cannot read the certificates for https://10\.0\.0\.1"):
        transport_module._ssl_context(configuration)


def test_closing_twice_and_without_use_is_harmless(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path, 1) as rig:
            await rig.transport.close()
            await rig.transport.close()

    run(scenario)
