"""The seam under the client: bytes to an API server and bytes back.

``Transport`` is all that the rest of the framework knows of HTTP, so tests put a scripted one in its place. The real
one takes configuration, credentials and TLS from the official ``kubernetes`` package and sends on an aiohttp session
of its own.
"""

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlsplit

import aiohttp
import yaml
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from controllers.runtime import logs
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

logger = logs.get_logger(__name__)

TOKEN_MAX_AGE = 60.0
"""Seconds after which credentials are read again: projected tokens rotate in place, kubeconfigs get rewritten."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; ``timeout`` is in seconds, for a stream the longest silence and else the whole exchange."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float = 30.0
    attempt: int = 1  # which try of one call this is; for observers


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ByteStream(Protocol):
    """An answer that is still arriving."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yields bytes as they arrive; ends on a clean close; raises TransportError on anything else."""
        ...

    async def read(self) -> bytes:
        """The rest of the body."""
        ...


class Transport(Protocol):
    """Carries requests to one API server."""

    async def request(self, request: HttpRequest) -> HttpResponse:
        """Raises TransportError where no complete answer comes."""
        ...

    def stream(self, request: HttpRequest) -> AbstractAsyncContextManager[ByteStream]:
        """Raises TransportError where no answer begins."""
        ...

    async def close(self) -> None: ...


_UNREADABLE = (
    yaml.YAMLError,
    OSError,
    TypeError,
    AttributeError,
    ValueError,
)
"""What the official package raises beside its own error for files that are missing, broken or of another shape."""


def _package() -> Any:
    """The official package's reader of configurations.

    Imported when one is read: that takes longer than all else that a program imports, and some programs read none.
    """
    from kubernetes.aio import config

    return config


class Credentials:
    """What the official package reads from a kubeconfig or a pod's service account, read again as it ages.

    ``kubeconfig`` and ``context`` None mean: ``$KUBECONFIG``, then ``~/.kube/config``, then the pod's own account.
    """

    def __init__(
        self, kubeconfig: str | None = None, context: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._clock = clock or SystemClock()
        self._configuration: Configuration | None = None
        self._read_at = -TOKEN_MAX_AGE
        self._reading = asyncio.Lock()

    async def load(self) -> "Configuration":
        """The configuration, at most ``TOKEN_MAX_AGE`` old; raises ConfigurationError where there is none.

        Where it cannot be read again, as while somebody rewrites it, what was read before stays in use.
        """
        # One at a time: an exec plugin may take a second, and all requests of that second would start one each.
        async with self._reading:
            if self._clock.monotonic() - self._read_at >= TOKEN_MAX_AGE:
                self._configuration = await self._read_again()
                self._read_at = self._clock.monotonic()
            return self._configuration

    def expire(self) -> None:
        """Makes the next ``load`` read afresh; for use after a 401."""
        self._read_at = self._clock.monotonic() - TOKEN_MAX_AGE

    async def _read_again(self) -> "Configuration":
        try:
            return await self._read()
        except ConfigurationError as error:
            if self._configuration is None:
                raise
            logger.warning("keeping the credentials that were read before", reason=str(error))
            return self._configuration

    async def _read(self) -> "Configuration":
        from kubernetes.aio.client import Configuration

        configuration, package = Configuration(), _package()
        if self._is_missing():
            raise ConfigurationError(f"there is no kubeconfig {self._kubeconfig}")
        try:
            if self._in_cluster():
                package.load_incluster_config(client_configuration=configuration)
            else:
                await package.load_kube_config(
                    config_file=self._kubeconfig, context=self._context, client_configuration=configuration
                )
        except (package.ConfigException, *_UNREADABLE) as error:
            raise ConfigurationError(f"cannot read {self._source()}: {self._defect() or error}") from error
        return configuration

    def _defect(self) -> str | None:
        """What is wrong with a file that is no kubeconfig at all; the official package names its own variables then."""
        for path in (self._kubeconfig or _package().KUBE_CONFIG_DEFAULT_LOCATION).split(os.pathsep):
            with suppress(OSError, ValueError, yaml.YAMLError):
                content = yaml.safe_load(Path(path).expanduser().read_text())
                if content is None:
                    return f"{path} is empty"
                if not isinstance(content, dict):
                    return f"{path} holds no mapping of clusters, users and contexts"
        return None

    def _is_missing(self) -> bool:
        """Whether a file is named that is not there; the official package speaks of its contents then."""
        return self._kubeconfig is not None and not Path(self._kubeconfig).exists()

    def _in_cluster(self) -> bool:
        default = Path(_package().KUBE_CONFIG_DEFAULT_LOCATION.split(":")[0]).expanduser()
        return self._kubeconfig is None and not default.exists()

    def _source(self) -> str:
        if self._in_cluster():
            return (
                "the pod's service account (no kubeconfig was given or found: "
                "use --kubeconfig or KUBECONFIG when running outside a cluster)"
            )
        return f"kubeconfig {self._kubeconfig or _package().KUBE_CONFIG_DEFAULT_LOCATION}"


USED_DESCRIPTOR: Final = "is used by transport"
"""In the words of a RuntimeError with which uvloop refuses to connect where another connection was reset or given up in
its handshake just before (https://github.com/MagicStack/uvloop/issues/653); the next attempt has another descriptor."""

NO_ANSWER: Final = "<error>"
"""The code of a request that no answer came to, as in client-go."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """What an observer is told of each request; ``code`` is ``NO_ANSWER`` where no answer came."""

    method: str
    host: str
    code: str
    seconds: float  # until the end of the answer's body
    sent: int = 0  # bytes of the request's body
    received: int = 0  # bytes of the answer's body; 0 for a stream
    stream: bool = False
    attempt: int = 1


Observer = Callable[[AnsweredRequest], None]

ResolutionObserver = Callable[[str, float], None]
"""Told the host and the seconds of each resolution of a name."""


def _ignore(_: AnsweredRequest) -> None:
    return None


def _ignore_resolution(_host: str, _seconds: float) -> None:
    return None


class TimedResolver(AbstractResolver):
    """Resolves as ``inner`` does and tells ``observer`` how long each name took; known addresses never come here."""

    def __init__(self, inner: AbstractResolver, observer: ResolutionObserver, clock: Clock) -> None:
        self._inner = inner
        self._observer = observer
        self._clock = clock

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        started = self._clock.monotonic()
        try:
            return await self._inner.resolve(host, port, family)
        finally:
            self._observer(host, self._clock.monotonic() - started)

    async def close(self) -> None:
        await self._inner.close()


class _Connection:
    """A pool of connections made with one reading of the certificates; it closes once it is retired and idle."""

    def __init__(self, configuration: "Configuration", observer: ResolutionObserver, clock: Clock) -> None:
        self.base = configuration.host.rstrip("/")
        self.host = urlsplit(self.base).netloc
        self.server_name = configuration.tls_server_name
        self._users = 0
        self._retired = False
        # No limit: requests are bounded by the workers, and watches must never wait for a free connection.
        self._resolver = TimedResolver(aiohttp.DefaultResolver(), observer, clock)
        connector = aiohttp.TCPConnector(
            limit=0,
            ssl=_ssl_context(configuration),
            keepalive_timeout=60.0,
            socket_factory=_kept_alive,
            resolver=self._resolver,
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            proxy=configuration.proxy,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**20,
        )

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired and not self._users:
                await self.close()

    async def retire(self) -> None:
        """Lets what is under way, watches included, come to its end, and closes then."""
        self._retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        await self.session.close()
        await self._resolver.close()  # a connector closes only a resolver that it made itself


class AiohttpTransport:
    """Requests over a keep-alive pool that grows with the watches, so that they never starve requests.

    Certificates are read again with the credentials, and new ones are used for new connections. A request that is
    answered 401 is sent once more where reading again brings another token.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str = "gpu-mirage",
        observer: Observer = _ignore,
        resolution_observer: ResolutionObserver = _ignore_resolution,
        clock: Clock | None = None,
    ) -> None:
        self._credentials = credentials
        self._user_agent = user_agent
        self._observer = observer
        self._resolution_observer = resolution_observer
        self._clock = clock or SystemClock()
        self._configuration: Configuration | None = None
        self._connection: _Connection | None = None
        self._made_of = b""
        self._opening = asyncio.Lock()

    async def request(self, request: HttpRequest) -> HttpResponse:
        timeout = aiohttp.ClientTimeout(total=request.timeout)
        async with self._authenticated(request, timeout) as response:
            body = await response.read()
            return HttpResponse(response.status, response.headers, body)

    @asynccontextmanager
    async def stream(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=request.timeout)
        async with self._authenticated(request, timeout, stream=True) as response:
            yield _AiohttpStream(response, request.timeout)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._configuration = self._connection = None

    @asynccontextmanager
    async def _authenticated(
        self, request: HttpRequest, timeout: aiohttp.ClientTimeout, *, stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        connection, headers = await self._prepare(request)
        async with self._exchange(connection, request, headers, timeout, stream=stream) as response:
            if response.status == 401:
                self._credentials.expire()
                connection, renewed = await self._prepare(request)
            if response.status != 401 or renewed == headers:
                yield response
                return
        async with self._exchange(connection, request, renewed, timeout, stream=stream) as response:
            yield response

    @asynccontextmanager
    async def _exchange(
        self,
        connection: _Connection,
        request: HttpRequest,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        *,
        stream: bool,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        started = self._clock.monotonic()
        code, received = NO_ANSWER, 0
        try:
            async with (
                connection.in_use(),
                connection.session.request(
                    request.method,
                    URL(_url(connection.base, request), encoded=True),
                    headers=headers,
                    data=request.body,
                    timeout=timeout,
                    allow_redirects=False,
                    server_hostname=connection.server_name,
                ) as response,
            ):
                code = str(response.status)
                yield response
                received = 0 if stream else len(await response.read())  # read before, so this is only its length
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
                self._credentials.expire()  # the server may have got certificates of another CA
            raise TransportError(f"{request.method} {request.path}: {str(error) or type(error).__name__}") from error
        except RuntimeError as error:
            if USED_DESCRIPTOR not in str(error):
                raise
            raise TransportError(f"{request.method} {request.path}: {error}") from error
        finally:
            seconds, sent = self._clock.monotonic() - started, len(request.body or b"")
            self._observer(
                AnsweredRequest(request.method, connection.host, code, seconds, sent, received, stream, request.attempt)
            )

    async def _prepare(self, request: HttpRequest) -> tuple[_Connection, dict[str, str]]:
        configuration = await self._credentials.load()
        async with self._opening:
            connection = await self._connected(configuration)
        headers = {"User-Agent": self._user_agent, **request.headers}
        if token := _token(configuration):
            headers["Authorization"] = token
        return connection, headers

    async def _connected(self, configuration: "Configuration") -> _Connection:
        if self._connection is not None and configuration is self._configuration:
            return self._connection
        self._configuration = configuration
        try:
            made_of = _material(configuration)
            if self._connection is not None and made_of == self._made_of:
                return self._connection
            fresh = _Connection(configuration, self._resolution_observer, self._clock)
        except ConfigurationError as error:
            if self._connection is None:
                raise
            logger.warning("keeping the certificates that were read before", reason=str(error))
            return self._connection
        former, self._connection, self._made_of = self._connection, fresh, made_of
        if former is not None:
            logger.info("server or certificates have changed, connecting anew", host=fresh.host)
            await former.retire()
        return fresh


class _AiohttpStream:
    def __init__(self, response: aiohttp.ClientResponse, silence: float) -> None:
        self._response = response
        self._silence = silence

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        self._end_with_connection()
        content = self._response.content
        try:
            while True:
                async with asyncio.timeout(self._silence):
                    chunk = await content.readany()
                if not chunk:
                    return
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(f"the stream broke: {str(error) or type(error).__name__}") from error

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    def _end_with_connection(self) -> None:
        # After a chunk that is none, aiohttp closes the connection, drops its timeout and tells the reader nothing:
        # without this, and the timeout in chunks(), a watch would be silent for ever.
        connection = self._response.connection
        closed = getattr(connection.protocol, "closed", None) if connection is not None else None
        if closed is not None:
            closed.add_done_callback(lambda _: self._break())

    def _break(self) -> None:
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed in the middle"))


KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = 30, 10, 3
"""Seconds of silence before the kernel asks whether the other end is there, seconds between questions, and questions
without an answer after which the connection is broken: a minute, where the longest silence of a watch is ten."""


def _kept_alive(address: tuple[Any, ...]) -> socket.socket:
    family, type_, protocol, _, _ = address
    made = socket.socket(family, type_, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    settings = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
    }
    for name, value in settings.items():
        if hasattr(socket, name):  # not every system has each of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _token(configuration: "Configuration") -> str:
    token: str = configuration.api_key.get("BearerToken") or ""
    return token.strip()  # token files often end in a newline


def _material(configuration: "Configuration") -> bytes:
    """All that connections are made of; two configurations with the same can share them. Raises ConfigurationError."""
    digest = hashlib.sha256(
        repr(
            (configuration.host, configuration.proxy, configuration.verify_ssl, configuration.tls_server_name)
        ).encode()
    )
    for path in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        digest.update(b"\0" + (_read_certificate(configuration.host, path) if path else b""))
    return digest.digest()


def _read_certificate(host: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the certificates for {host}: {error}") from error


def _ssl_context(configuration: Any) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https"):
        return True
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    except OSError as error:
        raise ConfigurationError(f"cannot read the certificates for {configuration.host}: {error}") from error
    # Clusters with a CA older than RFC 5280's key identifiers are common; kubectl accepts them too.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _url(base: str, request: HttpRequest) -> str:
    query = "&".join(f"{_escape(name)}={_escape(value)}" for name, value in request.query)
    return base + _escape(request.path, safe="/") + ("?" + query if query else "")


def _escape(text: str, safe: str = "") -> str:
    return quote(text, safe=safe)
