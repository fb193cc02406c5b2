"""A running sandbox: a cluster, its server on a port, and the kubeconfigs that lead there."""

import asyncio
import base64
import contextlib
import ipaddress
import logging
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop
import yaml
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controllers.runtime import logs
from controllers.runtime.clock import Clock
from controllers.runtime.errors import ConfigurationError
from controllers.sandbox.access import Access, bootstrap_roles
from controllers.sandbox.administration import Administration, Restart
from controllers.sandbox.audit import AuditLog
from controllers.sandbox.certificates import make_authority, make_serving
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.database import Database
from controllers.sandbox.errors import StatusError
from controllers.sandbox.faults import Fault, Faults, Pending
from controllers.sandbox.server import Server
from controllers.sandbox.storage import State
from controllers.sandbox.tokens import Account, Tokens, make_secret

if TYPE_CHECKING:
    from controllers.sandbox.stand_in import StandIn

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
TOKEN_LIFETIME = 86400  # seconds that the tokens of kubeconfigs for service accounts are good
STOP_TIMEOUT = 3.0  # seconds that requests get to end when the server stops
RETRY = 1.0  # seconds until the collector tries again what could not be stored
THREAD_TIMEOUT = 10.0  # seconds for the start and for the end of a server in a thread
MAXIMUM_LINE = 64 * 2**10  # bytes of a request's first line, and of each header
ANSWER_TIME = 0.1  # seconds that the answer to a request for a restart gets before all connections are reset
CONTEXT = "gpu-mirage-sandbox"

logger = logs.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Where a sandbox listens and how much of the past it remembers."""

    host: str = "127.0.0.1"  # IP address; others than loopback only where allow_remote says so
    port: int = 0  # 0 for any that is free
    allow_remote: bool = False  # whether the address may be reachable from other machines
    window: int = 10_000  # changes of each resource that watches can go back
    kubeconfig: Path | None = None  # where the administrator's kubeconfig is written; None: a temporary file
    audit_log: Path | None = None  # file that gets a line for each request; None: there is none
    data_dir: Path | None = None  # where the state is kept beyond the end of the process; None: nowhere
    admin: bool = False  # whether /sandbox is served, where the administrator can ask for faults and restarts
    stand_in: bool = False  # whether pods are placed and run on simulated nodes; see controllers.sandbox.stand_in


class RunningSandbox:
    """A sandbox in the running event loop: ``start``, use, ``close``."""

    def __init__(self, options: SandboxOptions = SandboxOptions(), *, clock: Clock | None = None) -> None:
        _check_address(options)
        self._options = options
        self._database: Database | None = None
        self.cluster = Cluster(clock=clock, window=options.window)
        self.access = Access(self.cluster, Tokens())
        self.faults = Faults()
        self._handler: Server | None = None
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._checkpoint: State | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._accounts: dict[Path, tuple[str, str]] = {}
        self._collecting: asyncio.Task[None] | None = None
        self._audit = AuditLog(options.audit_log, self.access) if options.audit_log else None
        self._stand_in: StandIn | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.kubeconfig = Path()
        self.url = ""

    async def start(self) -> None:
        """Begins to serve. Raises ConfigurationError where the port is taken or the data directory is of no use."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        self._open()
        self._bootstrap()
        self.checkpoint()
        options = self._options
        administration = self._administration() if options.admin else None
        self._handler = Server(self.cluster, self.access, self.faults, administration, self._audit)
        self._server = web.Server(
            self._handler.handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAXIMUM_LINE,
            max_field_size=MAXIMUM_LINE,
            logger=_quiet_logger(),
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=STOP_TIMEOUT)
        await self._runner.setup()
        await self._listen(options.port)
        self.url = f"https://{_host(options.host)}:{self._port}"
        self._collecting = asyncio.create_task(self._collect())
        self._write_admin_kubeconfig()
        if options.stand_in:
            # Imported late, as it needs the whole framework, and most sandboxes do not need it.
            from controllers.sandbox.stand_in import StandIn

            self._stand_in = StandIn(self.kubeconfig, clock=self.cluster.clock)
            self._stand_in.start()

    async def close(self) -> None:
        """Ends all requests and stops."""
        if self._stand_in is not None:
            await self._stand_in.close()
        if self._restarting is not None:
            await asyncio.gather(self._restarting, return_exceptions=True)
        self.faults.clear()
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        if self._runner is not None:
            await self._stop_serving(self._runner)
        if self._audit is not None:
            self._audit.close()
        if self._directory is not None:
            self._directory.cleanup()
        if self._database is not None:
            self._database.close()

    async def _stop_serving(self, runner: web.ServerRunner) -> None:
        if self._handler is not None:
            self._handler.stop()
        connections = self._transports()
        stopping = asyncio.create_task(runner.cleanup())
        await asyncio.wait({stopping}, timeout=STOP_TIMEOUT)
        # Those are left whose client reads nothing, or does not answer the goodbye of TLS; an event loop that is closed
        # would wait for them.
        for transport in connections:
            transport.abort()
        await stopping

    def checkpoint(self) -> None:
        """Remembers the present state, for a restart that goes back to it. The first one is made at the start."""
        self._checkpoint = self.cluster.store.state()

    async def restart(self, *, restore: bool = False, down: float = 0.0) -> None:
        """Resets all connections, forgets the past, and serves again after ``down`` seconds.

        With ``restore`` the state is that of the last checkpoint, and versions that were given out since then are given
        out again, as after the restoration of a backup.
        """
        assert self._site is not None
        port = self._port
        await self._site.stop()
        self._reset_connections()
        if restore and self._checkpoint is not None:
            self.cluster.restore(self._checkpoint)
            if self._database is not None:
                self._database.restore(self._checkpoint)
        self.cluster.store.compact()
        await asyncio.sleep(down)
        # Connections that were still in the backlog belong to the server before.
        self._reset_connections()
        await self._listen(port)

    def revoke_tokens(self) -> None:
        """Makes all tokens worthless and writes new ones into the kubeconfigs that were written here."""
        secret = make_secret()
        if self._database is not None:
            self._database.keep_secret("tokens", secret)
        self.access.tokens.revoke(secret)
        self._write_kubeconfig(self.kubeconfig, self.access.tokens.admin, "default")
        for path, (namespace, service_account) in tuple(self._accounts.items()):
            with contextlib.suppress(StatusError):
                self.kubeconfig_for(namespace, service_account, path)

    def _reset_connections(self) -> None:
        for transport in self._transports():
            transport.abort()

    def _transports(self) -> list[asyncio.Transport]:
        connections = [] if self._server is None else self._server.connections
        return [connection.transport for connection in connections if connection.transport is not None]

    def _administration(self) -> Administration:
        async def restart(how: Restart) -> None:
            await asyncio.sleep(ANSWER_TIME)
            await self.restart(restore=how.restore, down=how.down)

        def begin_restart(how: Restart) -> None:
            self._restarting = asyncio.create_task(restart(how))

        return Administration(
            self.faults, self.cluster.store.compact, self.checkpoint, self.revoke_tokens, begin_restart
        )

    @property
    def _port(self) -> int:
        assert self._runner is not None
        port: int = self._runner.addresses[0][1]
        return port

    async def _listen(self, port: int) -> None:
        """Raises ConfigurationError where the port is taken."""
        assert self._runner is not None
        host = self._options.host
        self._site = web.TCPSite(self._runner, host, port, ssl_context=self._serving.context(), backlog=1024)
        try:
            await self._site.start()
        except OSError as error:
            why = f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
            raise ConfigurationError(why) from error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def kubeconfig_for(self, namespace: str, service_account: str, path: Path) -> Path:
        """Writes a kubeconfig with a token of a service account. Raises StatusError 404."""
        info = self.cluster.registry.find("", "v1", "serviceaccounts")
        assert info is not None
        uid = self.cluster.stored(info, namespace, service_account).object["metadata"]["uid"]
        now = int(self.cluster.clock.utcnow().timestamp())
        token = self.access.tokens.issue(Account(namespace, service_account, uid, now + TOKEN_LIFETIME), now, [])
        self._write_kubeconfig(path, token, namespace)
        self._accounts[path] = (namespace, service_account)
        return path

    def _open(self) -> None:
        """Takes up the state of the data directory, and the secrets without which old kubeconfigs would not work."""
        authority = None
        if self._options.data_dir is not None:
            self._database = database = Database(self._options.data_dir)
            authority = database.secret("authority", make_authority)
            self.access.tokens = Tokens(database.secret("tokens", make_secret))
            self._load(database)
        try:
            self._serving = make_serving(authority or make_authority(), [self._options.host])
        except ValueError as error:
            why = "the CA in it is damaged; put a copy of the file back, or choose another --data-dir"
            raise ConfigurationError(f"{self._options.data_dir}: {why}") from error
        self.cluster.root_ca = self._serving.ca.decode()

    def _load(self, database: Database) -> None:
        try:
            self.cluster.load(database.load())
        except StatusError as error:
            why = f"{error.message}; use the version that wrote it, or choose another --data-dir"
            raise ConfigurationError(f"{database.path}: {why}") from error
        self.cluster.store.journal = database.write

    def _bootstrap(self) -> None:
        try:
            for name in NAMESPACES:
                self.cluster.ensure("Namespace", "", {"metadata": {"name": name}})
            bootstrap_roles(self.cluster)
            self.cluster.collector.settle()
        except StatusError as error:
            raise ConfigurationError(error.message) from error
        self.cluster.store.compact()

    async def _collect(self) -> None:
        """Does what the collector has queued, a little at a time, so that requests go on meanwhile."""
        woken = asyncio.Event()
        self.cluster.collector.wake = woken.set
        woken.set()
        while True:
            await woken.wait()
            woken.clear()
            pause = 0.0
            try:
                if self.cluster.collector.step():
                    woken.set()
            except StatusError as error:
                logger.warning("what is left to be done is tried again", reason=error.message, seconds=RETRY)
                woken.set()
                pause = RETRY
            await asyncio.sleep(pause)

    def _write_admin_kubeconfig(self) -> None:
        path = self._options.kubeconfig
        if path is None:
            self._directory = tempfile.TemporaryDirectory(prefix="gpu-mirage-sandbox-")
            path = Path(self._directory.name, "kubeconfig.yaml")
        self._write_kubeconfig(path, self.access.tokens.admin, "default")
        self.kubeconfig = path

    def _write_kubeconfig(self, path: Path, token: str, namespace: str) -> None:
        authority = base64.b64encode(self._serving.ca).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": CONTEXT, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": _context(namespace)}],
            "current-context": CONTEXT,
        }
        # Renamed into place: a client that reads the file meanwhile must not see half of it.
        draft = path.with_name(f"{path.name}.draft")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(yaml.safe_dump(document, sort_keys=False))
        draft.replace(path)


class Sandbox:
    """A sandbox in a thread with an event loop of its own, for tests and scripts: a context manager.

    ``kubeconfig`` is the path of the administrator's kubeconfig, ``url`` the server's address.
    """

    def __init__(self, options: SandboxOptions = SandboxOptions(), *, clock: Clock | None = None) -> None:
        self._running = RunningSandbox(options, clock=clock)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gpu-mirage-sandbox", daemon=True)

    @property
    def kubeconfig(self) -> Path:
        return self._running.kubeconfig

    @property
    def url(self) -> str:
        return self._running.url

    @property
    def admin_token(self) -> str:
        return self._running.access.tokens.admin

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._running.start(), self._loop).result(THREAD_TIMEOUT)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._running.close(), self._loop).result(THREAD_TIMEOUT)
        self._end()

    def call(self, function: Callable[[Cluster], Any]) -> Any:
        """Runs a function on the cluster between two requests and returns what it returns."""
        return self._between_requests(lambda: function(self._running.cluster))

    def kubeconfig_for(self, namespace: str, service_account: str, path: Path) -> Path:
        """Writes a kubeconfig for a service account that exists and returns its path. Raises StatusError 404."""
        return self._between_requests(lambda: self._running.kubeconfig_for(namespace, service_account, path))

    def add_faults(self, *faults: Fault) -> tuple[int, ...]:
        """Lets the next requests and watches that they concern be struck; returns the numbers of the faults."""
        return self._between_requests(lambda: self._running.faults.add(*faults))

    def remove_fault(self, number: int) -> bool:
        """Takes a fault back; tells whether it was still waiting."""
        return self._between_requests(lambda: self._running.faults.remove(number))

    def clear_faults(self) -> None:
        """Takes all faults back and ends the connections that they stall."""
        self._between_requests(self._running.faults.clear)

    @property
    def faults(self) -> tuple[Pending, ...]:
        """The faults that wait."""
        return self._between_requests(lambda: self._running.faults.pending)

    @property
    def struck(self) -> int:
        """How often faults have struck."""
        return self._running.faults.struck

    def checkpoint(self) -> None:
        """Remembers the state for a restart that goes back to it."""
        self._between_requests(self._running.checkpoint)

    def restart(self, *, restore: bool = False, down: float = 0.0) -> None:
        """Resets all connections and serves again after ``down`` seconds; ``restore`` goes back to the checkpoint."""
        restarting = self._running.restart(restore=restore, down=down)
        asyncio.run_coroutine_threadsafe(restarting, self._loop).result(THREAD_TIMEOUT + down)

    def revoke_tokens(self) -> None:
        """Makes all tokens worthless and writes new ones into the kubeconfigs that were written here."""
        self._between_requests(self._running.revoke_tokens)

    def _between_requests(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(THREAD_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(THREAD_TIMEOUT)
        with contextlib.closing(self._loop):
            asyncio.set_event_loop(None)


def _quiet_logger() -> logging.Logger:
    """For what the HTTP server finds wrong by itself; a client's mistake is answered, and deserves no traceback."""
    logger = logging.getLogger(f"{__name__}.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError)


def _check_address(options: SandboxOptions) -> None:
    try:
        address = ipaddress.ip_address(options.host)
    except ValueError:
        raise ConfigurationError(f"--host {options.host!r} is not an IP address; use 127.0.0.1") from None
    if not address.is_loopback and not options.allow_remote:
        raise ConfigurationError(
            f"--host {options.host} can be reached from other machines; use 127.0.0.1, or add --allow-remote if that "
            "is what you want"
        )


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _context(namespace: str) -> dict[str, str]:
    return {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}
