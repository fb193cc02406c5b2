"""The proxy does to connections what it says, and nothing else."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from hack.localcluster import FaultProxy
from hack.localcluster.polling import wait_until
from hack.localcluster.ports import free_ports

SILENCE = 0.2  # seconds in which an answer would have come
PATIENCE = 10.0  # seconds


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while received := self.request.recv(4096):
                self.request.sendall(received)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with FaultProxy("127.0.0.1", server.server_address[1]) as running:
            yield running
        server.shutdown()


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def says(client: socket.socket, words: bytes) -> bytes:
    """Sends words and returns what comes back."""
    client.sendall(words)
    return client.recv(4096)


def is_refused(proxy: FaultProxy) -> bool:
    """Whether a new connection is reset; that may be so soon that it never comes about."""
    try:
        with connect(proxy) as client:
            return is_reset(client)
    except ConnectionResetError:
        return True


def is_reset(client: socket.socket) -> bool:
    try:
        client.sendall(b"is anybody there?")
        client.recv(4096)
    except ConnectionError:
        return True
    return False


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE)
    try:
        client.recv(4096)
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE)
    return False


def test_bytes_pass_in_both_directions_until_the_client_goes(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"hello") == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(4096) == b""
    wait_until(lambda: proxy.connections() == 0, PATIENCE, "the end of the connection")


def test_a_cut_resets_connections_and_spares_later_ones(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"hello") == b"hello"
        proxy.cut()
        assert is_reset(client)
    with connect(proxy) as client:
        assert says(client, b"again") == b"again"


def test_what_is_frozen_comes_after_the_thaw(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"before") == b"before"
        proxy.freeze()
        client.sendall(b"hello")
        with connect(proxy) as newcomer:
            newcomer.sendall(b"me too")
            assert is_silent(client)
            assert is_silent(newcomer)
            proxy.thaw()
            assert client.recv(4096) == b"hello"
            assert newcomer.recv(4096) == b"me too"


def test_what_is_frozen_is_lost_in_a_cut(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"before") == b"before"
        proxy.freeze()
        client.sendall(b"lost")
        proxy.cut()
        proxy.thaw()
        assert is_reset(client)


def test_an_abandoned_connection_stays_open_and_silent_while_new_ones_work(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"before") == b"before"
        proxy.abandon()
        client.sendall(b"into the void")
        assert is_silent(client)
        with connect(proxy) as newcomer:
            assert says(newcomer, b"hello") == b"hello"
        client.sendall(b"into the void again")
    wait_until(lambda: proxy.connections() == 0, PATIENCE, "the end of the abandoned connection")


def test_everything_is_reset_while_it_refuses(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert says(client, b"before") == b"before"
        proxy.refuse()
        assert is_reset(client)
    assert is_refused(proxy)
    proxy.admit()
    with connect(proxy) as client:
        assert says(client, b"after") == b"after"


def test_connections_to_a_server_that_is_down_are_reset() -> None:
    (port,) = free_ports(1)
    with FaultProxy("127.0.0.1", port) as proxy, connect(proxy) as client:
        assert is_reset(client)
