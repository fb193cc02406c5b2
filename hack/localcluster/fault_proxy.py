"""A TCP proxy that does to connections what networks do: it cuts them, holds them up, and forgets one of their ends.

It sees bytes only, so TLS passes through it untouched and it can stand before any server.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

CHUNK = 65536  # bytes
CALL_TIMEOUT = 10.0  # seconds for anything asked of the proxy's thread
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class FaultProxy:
    """Passes connections to a free port of 127.0.0.1 on to `host` and `port`, from a thread of its own.

    Its methods may be called from any thread. A server that is down is one that resets connections.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._flowing = asyncio.Event()
        self._refusing = False
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        """Begins to listen."""
        self._thread.start()
        self._await(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Resets all connections and ends the thread."""
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        self._loop.close()

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 that clients connect to."""
        assert self._server is not None
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    def connections(self) -> int:
        """How many connections clients have open now."""
        count: int = self._call(lambda: len(self._links))
        return count

    def cut(self) -> None:
        """Resets all connections; what is held up on them is lost."""
        self._call(self._reset)

    def refuse(self) -> None:
        """Resets all connections, and each new one, until `admit`."""
        self._call(lambda: self._set_refusing(True))

    def admit(self) -> None:
        """Takes `refuse` back."""
        self._call(lambda: self._set_refusing(False))

    def freeze(self) -> None:
        """Passes nothing on, in either direction and on new connections too, until `thaw`."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        """Passes on what was held up, and all that follows."""
        self._call(self._flowing.set)

    def abandon(self) -> None:
        """Makes the present connections half-open: the server's end is gone, and clients never hear of it."""
        self._call(self._lose_server)

    def _set_refusing(self, refusing: bool) -> None:
        self._refusing = refusing
        if refusing:
            self._reset()

    def _reset(self) -> None:
        for link in self._links:
            link.reset()

    def _lose_server(self) -> None:
        for link in self._links:
            link.lose_server()

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer, self._flowing)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(link)
        try:
            if self._refusing:
                return
            await link.serve(self._target)
        finally:
            link.reset()
            self._links.discard(link)
            self._tasks.discard(task)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What was aborted is closed in the loop's next round.
        await asyncio.sleep(0)

    def _call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self._await(call())

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(CALL_TIMEOUT)


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        self._reader, self._writer = reader, writer
        self._flowing = flowing
        self._server: asyncio.StreamWriter | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._abandoned = False

    async def serve(self, target: tuple[str, int]) -> None:
        """Passes bytes on until both ends have gone, or the client's where the server was lost."""
        try:
            answers, self._server = await asyncio.open_connection(*target)
        except OSError:
            return
        pairs = ((self._reader, self._server), (answers, self._writer))
        self._pumps = [asyncio.create_task(self._pass_on(*pair)) for pair in pairs]
        try:
            await asyncio.wait(self._pumps)
            while self._abandoned and await self._reader.read(CHUNK):
                pass
        except OSError:
            pass  # the client was killed
        finally:
            for pump in self._pumps:
                pump.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()
            await self._flowing.wait()
            writer.write_eof()
        except OSError:
            self.reset()

    def lose_server(self) -> None:
        """Resets the server's end and is silent to the client from now on."""
        if self._server is None:
            return
        self._abandoned = True
        for pump in self._pumps:
            pump.cancel()
        _reset(self._server)

    def reset(self) -> None:
        for writer in (self._writer, self._server):
            if writer is not None:
                _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
