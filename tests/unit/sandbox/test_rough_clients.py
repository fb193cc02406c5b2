"""A sandbox in a process of its own against clients that misbehave: it stays well, small and quiet."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.contract.api_server import ApiServer
from tests.contract.conftest import connect

MAPS = "/api/v1/namespaces/default/configmaps"
START_TIMEOUT = 30.0  # seconds
WATCHERS = 220
WRITES = 2000
PAYLOAD = 4000  # bytes of each written object
GROWTH = 250 * 2**20  # bytes that watchers and writes may cost together
BIG = 10 * 2**20  # bytes


class Process:
    """The binary, as its administrator sees it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        kubeconfig = directory / "kubeconfig"
        command = [sys.executable, "-m", "controllers.sandbox", "--port", "0", "--kubeconfig", str(kubeconfig)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stderr=log)
        end = time.monotonic() + START_TIMEOUT
        while not kubeconfig.exists():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, "no kubeconfig was written"
            time.sleep(0.02)
        self.api = connect("sandbox", kubeconfig)

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        """Ends it and returns its exit code."""
        self.api.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(START_TIMEOUT)
        finally:
            self._process.kill()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    running = Process(tmp_path)
    yield running
    code, log = running.stop(), running.log()
    assert code == 0
    assert "Traceback" not in log
    assert not re.search(r" (ERROR|WARN) ", log), log


def raw(api: ApiServer) -> socket.socket:
    address = urlsplit(api.url)
    assert address.hostname
    assert address.port
    plain = socket.socket()
    # The kernel's own buffers would hide for megabytes that nobody reads.
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    plain.settimeout(START_TIMEOUT)
    plain.connect((address.hostname, address.port))
    return api.tls.wrap_socket(plain, server_hostname=address.hostname)


def request(api: ApiServer, line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "Host: x", f"Authorization: {api.authorization}", *headers, "", ""]).encode()


def is_well(process: Process) -> bool:
    return process.api.get("/api/v1/namespaces/default").code == 200


def test_requests_cut_anywhere_write_nothing_and_are_not_complained_about(process: Process) -> None:
    body = b'{"metadata":{"name":"half"}}'
    whole = request(process.api, f"POST {MAPS} HTTP/1.1", f"Content-Length: {len(body)}") + body
    for length in range(1, len(whole), 7):
        with raw(process.api) as connection:
            connection.sendall(whole[:length])
    assert process.api.get(f"{MAPS}/half").code == 404
    assert is_well(process)


def test_garbage_of_all_sorts_is_not_complained_about(process: Process) -> None:
    good = request(process.api, "GET /version HTTP/1.1")
    chunked = request(process.api, f"POST {MAPS} HTTP/1.1", "Transfer-Encoding: chunked")
    garbage = [
        b"\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        good + b"\x00\x01garbage\r\n\r\n" + good,
        good * 50 + b"\xff" * 1000,
        good + b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        chunked + b"zz\r\n",
        chunked + b"5\r\nabcde\r\nzz\r\n",
        request(process.api, f"POST {MAPS} HTTP/1.1", "Content-Encoding: gzip", "Content-Length: 3") + b"abc",
        request(process.api, "GET /version HTTP/1.1", *[f"X-{n}: a" for n in range(20_000)]),
        request(process.api, "GET /" + "a" * 2_000_000 + " HTTP/1.1"),
    ]
    for data in garbage:
        # The server may hang up before it has heard all.
        with raw(process.api) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.settimeout(1.0)
            while connection.recv(65536):
                pass
    address = urlsplit(process.api.url)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"\xff" * 500, b""):
        with socket.create_connection((address.hostname, address.port), START_TIMEOUT) as plain:
            plain.sendall(data)
    assert is_well(process)


def test_huge_bodies_are_never_held(process: Process) -> None:
    before = process.memory()
    connections = [raw(process.api) for _ in range(20)]
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(request(process.api, f"POST {MAPS} HTTP/1.1", "Transfer-Encoding: chunked"))
            for _ in range(BIG // 0x10000):
                connection.sendall(chunk)
    assert is_well(process)
    assert process.memory() - before < 20 * 4 * 2**20
    for connection in connections:
        connection.close()


def test_watchers_that_never_read_cost_little_and_nobody_else(process: Process) -> None:
    before = process.memory()
    watchers = [raw(process.api) for _ in range(WATCHERS)]
    for watcher in watchers:
        watcher.sendall(request(process.api, "GET /api/v1/configmaps?watch=1 HTTP/1.1"))
    process.api.create(MAPS, {"metadata": {"name": "written"}})
    for number in range(WRITES):
        body = {"metadata": {"name": "written"}, "data": {"n": str(number), "x": "x" * PAYLOAD}}
        assert process.api.send("PUT", f"{MAPS}/written", body).code == 200
    grown = process.memory() - before
    print(f"{WATCHERS} watchers and {WRITES} writes of {PAYLOAD} bytes cost {grown / 2**20:.0f} MiB")
    assert grown < GROWTH
    for watcher in watchers:
        watcher.close()
    assert is_well(process)
