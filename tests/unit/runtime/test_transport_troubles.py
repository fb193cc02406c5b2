"""What went wrong between other clients and their servers, on real sockets of the loopback address."""

import asyncio
import base64
import json
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.config import incluster_config

from controllers.runtime import client as client_module
from controllers.runtime.cache import Informer, InformerOptions
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import RuntimeFault, TransportError
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.testing import FakeClock
from controllers.runtime.transport import (
    KEEPALIVE_IDLE,
    TOKEN_MAX_AGE,
    AiohttpTransport,
    AnsweredRequest,
    Credentials,
    HttpRequest,
)
from controllers.sandbox.certificates import Serving, make_authority, make_serving

RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)

    text: str = ""


def kubeconfig(
    path: Path, server: str, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None
) -> str:
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
                "users": [{"name": "u", "user": {"token": "t1"} if user is None else user}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return str(path)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()
        # Connections with TLS are closed only once both ends have said goodbye.
        await asyncio.sleep(0.05)

    asyncio.run(bounded())


@asynccontextmanager
async def serving_raw(handler: RawHandler) -> AsyncIterator[int]:
    """A server that does with each connection what ``handler`` says; none is left at the end."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await handler(reader, writer)
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        assert site._server is not None
        yield site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def transport_of(
    config: str, clock: FakeClock | None = None, observed: list[AnsweredRequest] | None = None
) -> AsyncIterator[AiohttpTransport]:
    record: Callable[[AnsweredRequest], None] = observed.append if observed is not None else lambda _: None
    transport = AiohttpTransport(Credentials(config, clock=clock), observer=record)
    try:
        yield transport
    finally:
        await transport.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def line(type_: str, name: str, version: int, text: str = "") -> bytes:
    metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(version)}
    item = {"kind": "Thing", "metadata": metadata, "text": text}
    return json.dumps({"type": type_, "object": item}, ensure_ascii=False).encode() + b"\n"


# -- watches that break -----------------------------------------------------------------------------------------------

ENDS = {
    "end of file without the last chunk": b"",
    "an invalid chunk length": b"zz\r\n",
    "half a chunk": b"ff\r\nhalf",
    "a reset": None,
}


class Breaking:
    """A server whose watches send one object each, cut in two within a character, and then break in one way."""

    def __init__(self, ending: bytes | None) -> None:
        self.ending = ending
        self.version = 10
        self.asked_from: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        while "watch=true" not in head:
            await self.list(writer)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked_from.append(head.partition("resourceVersion=")[2].partition("&")[0])
        await self.watch(writer)

    async def list(self, writer: asyncio.StreamWriter) -> None:
        body = b'{"metadata":{"resourceVersion":"10"},"items":[]}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()

    async def watch(self, writer: asyncio.StreamWriter) -> None:
        self.version += 1
        sent = line("ADDED", f"t{self.version}", self.version, "größer")
        cut = sent.index("ö".encode()) + 1
        writer.write(CHUNKED + chunk(sent[:cut]))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(chunk(sent[cut:]) + (self.ending or b""))
        await writer.drain()
        if self.ending is None:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await asyncio.sleep(0.05)
            writer.transport.abort()
        else:
            writer.close()
            await writer.wait_closed()


class FastClock:
    """Pauses of the informer pass a hundred times as fast."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * 100

    def utcnow(self) -> Any:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


@asynccontextmanager
async def following(config: str, clock: Any, **options: Any) -> AsyncIterator[Informer[Thing]]:
    async with transport_of(config) as transport:
        options = {"stream_lists": False, "freeze_after_sync": False, "random": lambda: 0.0, **options}
        client = Client(transport, ClientOptions("tests"), clock=clock)
        informer = Informer(client, Thing, options=InformerOptions(**options), clock=clock)
        task = asyncio.create_task(informer.run())
        try:
            yield informer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ending", ENDS.values(), ids=ENDS.keys())
def test_a_watch_that_breaks_is_resumed_and_nothing_is_lost_or_told_at_a_high_level(
    tmp_path: Path, ending: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    server = Breaking(ending)

    async def scenario() -> None:
        async with serving_raw(server) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
            async with following(config, FastClock()) as informer:
                while len(informer.store) < 4:
                    await asyncio.sleep(0.01)
                assert informer.statistics().lists == 1
                assert {item.text for item in informer.store.list()} == {"größer"}

    run(scenario)
    assert server.asked_from[:4] == ["10", "11", "12", "13"]
    ours = [record for record in caplog.records if record.name.startswith("controllers")]
    assert not [record for record in ours if record.levelname in ("WARNING", "ERROR")]


def test_a_half_open_watch_is_given_up_after_the_longest_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end has vanished without a word, as behind a load balancer that forgot the connection."""
    monkeypatch.setattr(client_module, "WATCH_GRACE", 0.2)
    monkeypatch.setattr("controllers.runtime.cache.reflector.WATCH_TIMEOUT", 0.2)
    opened: list[asyncio.StreamWriter] = []

    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"watch=true" not in head:
            await Breaking(b"").list(writer)
            head = await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + (chunk(line("ADDED", "late", 11)) if len(opened) > 2 else b""))
        await asyncio.sleep(60.0)

    async def scenario() -> None:
        async with serving_raw(vanish) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
            async with following(config, FastClock()) as informer:
                while not len(informer.store):
                    await asyncio.sleep(0.01)
                assert informer.statistics().lists == 1

    run(scenario)
    assert len(opened) >= 3


def test_sockets_are_kept_alive_by_the_kernel(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"x")
            await asyncio.sleep(5.0)
            return response

        async with serving(handler) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
            async with transport_of(config) as transport, transport.stream(HttpRequest("GET", "/x")) as stream:
                connection = stream._response.connection  # type: ignore[attr-defined]
                used = connection.transport.get_extra_info("socket")
                assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                if hasattr(socket, "TCP_KEEPIDLE"):
                    assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE

    run(scenario)


# -- ends at any moment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["http", "https"])
def test_stopping_while_a_connection_is_being_opened_takes_no_time(tmp_path: Path, server: str) -> None:
    """It is accepted, but nothing comes: no answer, or no handshake of TLS."""

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60.0)

    async def scenario() -> None:
        async with serving_raw(silent) as port:
            config = kubeconfig(tmp_path / "config", f"{server}://127.0.0.1:{port}", {"insecure-skip-tls-verify": True})
            loop = asyncio.get_running_loop()
            for _ in range(25):
                async with following(config, FastClock()):
                    await asyncio.sleep(0.01)
                    began = loop.time()
                assert loop.time() - began < 1.0
            assert len(asyncio.all_tasks()) < 40

    threads = threading.active_count()
    run(scenario)
    assert threading.active_count() <= threads + 1  # the default executor's


def test_stopping_while_a_watch_is_silent_takes_no_time(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await Breaking(b"").list(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        await asyncio.sleep(60.0)

    async def scenario() -> None:
        async with serving_raw(silent) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
            async with following(config, FastClock()) as informer:
                while not informer.statistics().watches:
                    await asyncio.sleep(0.01)
                began = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began < 1.0

    run(scenario)


# -- tokens -----------------------------------------------------------------------------------------------------------


def accepting(*tokens: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.headers.get("Authorization") in tokens else 401)

    return handler


async def status(transport: AiohttpTransport) -> int:
    return (await transport.request(HttpRequest("GET", "/x"))).status


def token_file(path: Path, token: str) -> dict[str, Any]:
    (path / "token").write_text(token + "\n")
    return {"tokenFile": str(path / "token")}


def exec_plugin(path: Path, token: str) -> dict[str, Any]:
    api_version = "client.authentication.k8s.io/v1"
    credential = {"kind": "ExecCredential", "apiVersion": api_version, "status": {"token": token}}
    (path / "credential").write_text(json.dumps(credential))
    script = f"print(open({str(path / 'credential')!r}).read())"
    return {
        "exec": {
            "apiVersion": api_version,
            "command": sys.executable,
            "args": ["-c", script],
            "interactiveMode": "Never",
        }
    }


def in_kubeconfig(_: Path, token: str) -> dict[str, Any]:
    return {"token": token}


@pytest.mark.parametrize("source", [token_file, exec_plugin, in_kubeconfig])
def test_a_token_that_was_rotated_is_found_with_the_refusal_of_the_old_one(
    tmp_path: Path, source: Callable[[Path, str], dict[str, Any]]
) -> None:
    observed: list[AnsweredRequest] = []

    async def scenario() -> None:
        async with serving(accepting("Bearer new")) as port:
            server = f"http://127.0.0.1:{port}"
            config = kubeconfig(tmp_path / "config", server, user=source(tmp_path, "old"))
            async with transport_of(config, FakeClock(), observed) as transport:
                assert await status(transport) == 401
                kubeconfig(tmp_path / "config", server, user=source(tmp_path, "new"))
                assert await status(transport) == 200
                assert await status(transport) == 200

    run(scenario)
    assert [answered.code for answered in observed] == ["401", "401", "200", "200"]


def test_a_watch_begins_with_the_rotated_token_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(accepting("Bearer new")) as port:
            server = f"http://127.0.0.1:{port}"
            config = kubeconfig(tmp_path / "config", server, user=token_file(tmp_path, "old"))
            async with transport_of(config, FakeClock()) as transport:
                assert await status(transport) == 401
                token_file(tmp_path, "new")
                async with transport.stream(HttpRequest("GET", "/x")) as stream:
                    assert stream.status == 200

    run(scenario)


def test_a_token_file_is_read_again_each_minute_without_any_refusal(tmp_path: Path) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.Response()

    async def scenario() -> None:
        clock = FakeClock()
        async with serving(handler) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}", user=token_file(tmp_path, "old"))
            async with transport_of(config, clock) as transport:
                for wait in (0.0, TOKEN_MAX_AGE - 1, 1.0):
                    clock.advance(wait)
                    await status(transport)
                    token_file(tmp_path, "new")

    run(scenario)
    assert seen == ["Bearer old", "Bearer old", "Bearer new"]


def test_a_pods_own_token_is_followed_as_the_kubelet_swaps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is behind a symbolic link to a directory, which is replaced as a whole."""

    def swap(name: str, token: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
        (tmp_path / "next").symlink_to(name)
        (tmp_path / "next").rename(tmp_path / "data")

    observed: list[AnsweredRequest] = []
    secure = SecureServer()
    (tmp_path / "ca.crt").write_bytes(secure.serving.ca)
    swap("first", "old")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "data" / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kubernetes_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")

    async def scenario() -> None:
        async with serving(accepting("bearer new"), secure.context) as port:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            transport = AiohttpTransport(Credentials(clock=FakeClock()), observer=observed.append)
            assert await status(transport) == 401
            swap("second", "new")
            assert await status(transport) == 200
            await transport.close()
            await asyncio.sleep(0.05)  # until both ends have said goodbye

    run(scenario)
    assert [answered.code for answered in observed] == ["401", "401", "200"]


def test_a_server_that_refuses_every_token_is_asked_once_and_not_in_a_loop(tmp_path: Path) -> None:
    observed: list[AnsweredRequest] = []

    async def scenario() -> None:
        async with serving(accepting()) as port:
            config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}", user=token_file(tmp_path, "bad"))
            async with transport_of(config, FakeClock(), observed) as transport:
                assert await status(transport) == 401

    run(scenario)
    assert len(observed) == 1


# -- certificates -----------------------------------------------------------------------------------------------------


class SecureServer:
    """A server with TLS whose certificate, and CA, can be replaced."""

    def __init__(self) -> None:
        self.serving = self.renewed()
        self.context = self.serving.context()
        self.greeted = 0

    def renewed(self) -> Serving:
        return make_serving(make_authority(), ["127.0.0.1"])

    def replace(self, tmp_path: Path) -> None:
        self.serving = self.renewed()
        with (tmp_path / "serving.pem").open("wb") as file:
            file.write(self.serving.key + self.serving.certificate)
        self.context.load_cert_chain(tmp_path / "serving.pem")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/watch":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"a\n")
            await asyncio.sleep(0.5)
            await response.write(b"b\n")
            return response
        self.greeted += 1
        # Another connection for each request: only those know the new certificate.
        return web.Response(headers={"Connection": "close"})

    @asynccontextmanager
    async def started(self) -> AsyncIterator[int]:
        async with serving(self.answer, self.context) as port:
            yield port


@contextmanager
def secured(tmp_path: Path) -> Iterator[SecureServer]:
    server = SecureServer()
    (tmp_path / "ca.pem").write_bytes(server.serving.ca)
    yield server


def test_new_certificates_are_followed_and_what_is_under_way_comes_to_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        with secured(tmp_path) as server:
            async with server.started() as port:
                ca = {"certificate-authority": str(tmp_path / "ca.pem")}
                config = kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", ca)
                async with transport_of(config, clock) as transport:
                    assert await status(transport) == 200
                    async with transport.stream(HttpRequest("GET", "/watch")) as stream:
                        server.replace(tmp_path)
                        with pytest.raises(TransportError, match="ertificate"):
                            await status(transport)
                        (tmp_path / "ca.pem").write_bytes(server.serving.ca)
                        assert await status(transport) == 200
                        assert await stream.read() == b"a\nb\n"

    run(scenario)


def test_a_ca_in_the_kubeconfig_itself_is_followed_as_well(tmp_path: Path) -> None:
    def embedded(server: SecureServer) -> dict[str, Any]:
        return {"certificate-authority-data": base64.b64encode(server.serving.ca).decode()}

    async def scenario() -> None:
        clock = FakeClock()
        with secured(tmp_path) as server:
            async with server.started() as port:
                address = f"https://127.0.0.1:{port}"
                config = kubeconfig(tmp_path / "config", address, embedded(server))
                async with transport_of(config, clock) as transport:
                    assert await status(transport) == 200
                    server.replace(tmp_path)
                    kubeconfig(tmp_path / "config", address, embedded(server))
                    clock.advance(TOKEN_MAX_AGE)
                    assert await status(transport) == 200

    run(scenario)


def test_a_ca_file_that_is_gone_costs_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = FakeClock()
        with secured(tmp_path) as server:
            async with server.started() as port:
                ca = {"certificate-authority": str(tmp_path / "ca.pem")}
                config = kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", ca)
                async with transport_of(config, clock) as transport:
                    assert await status(transport) == 200
                    (tmp_path / "ca.pem").unlink()
                    clock.advance(TOKEN_MAX_AGE)
                    assert await status(transport) == 200
                    (tmp_path / "ca.pem").write_bytes(b"no certificate")
                    clock.advance(TOKEN_MAX_AGE)
                    assert await status(transport) == 200

    run(scenario)
    assert [record.message.split(" that")[0] for record in caplog.records] == [
        "keeping the credentials",
        "keeping the certificates",
    ]


def test_a_ca_file_that_is_gone_from_the_start_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        ca = {"certificate-authority": str(tmp_path / "ca.pem")}
        async with transport_of(kubeconfig(tmp_path / "config", "https://127.0.0.1:1", ca)) as transport:
            with pytest.raises(RuntimeFault, match=r"ca\.pem"):
                await status(transport)

    run(scenario)
