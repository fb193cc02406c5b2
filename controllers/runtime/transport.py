"""The seam under the client: bytes to an API server and bytes back.

``Transport`` is all that the rest of the framework knows of HTTP, so tests put a scripted one in its place. The real
one takes configuration, credentials and TLS from the official ``kubernetes`` package and sends on an aiohttp session
of its own.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
            raise ConfigurationError(f"cannot read {self._source()}: {error}") from error
        return configuration

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


class AiohttpTransport:
    """Requests over a keep-alive pool; watches over a pool of their own, so that they never starve requests."""

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
        self._session: aiohttp.ClientSession | None = None
        self._resolver: TimedResolver | None = None
        self._base = ""
        self._host = ""
        self._server_name: str | None = None
        self._opening = asyncio.Lock()

    async def request(self, request: HttpRequest) -> HttpResponse:
        timeout = aiohttp.ClientTimeout(total=request.timeout)
        async with self._exchange(request, timeout) as response:
            body = await response.read()
            return HttpResponse(response.status, response.headers, body)

    @asynccontextmanager
    async def stream(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=request.timeout)
        async with self._exchange(request, timeout, stream=True) as response:
            yield _AiohttpStream(response)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._resolver is not None:  # a connector closes only a resolver that it made itself
            await self._resolver.close()
            self._resolver = None

    @asynccontextmanager
    async def _exchange(
        self, request: HttpRequest, timeout: aiohttp.ClientTimeout, *, stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session, headers = await self._prepare(request)
        started = self._clock.monotonic()
        code, received = NO_ANSWER, 0
        try:
            async with session.request(
                request.method,
                URL(self._url(request), encoded=True),
                headers=headers,
                data=request.body,
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self._server_name,
            ) as response:
                code = str(response.status)
                if response.status == 401:
                    self._credentials.expire()
                yield response
                received = 0 if stream else len(await response.read())  # read before, so this is only its length
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            raise TransportError(f"{request.method} {request.path}: {str(error) or type(error).__name__}") from error
        finally:
            seconds, sent = self._clock.monotonic() - started, len(request.body or b"")
            self._observer(
                AnsweredRequest(request.method, self._host, code, seconds, sent, received, stream, request.attempt)
            )

    async def _prepare(self, request: HttpRequest) -> tuple[aiohttp.ClientSession, dict[str, str]]:
        configuration = await self._credentials.load()
        async with self._opening:
            if self._session is None:
                self._session = self._open(configuration)
        headers = {"User-Agent": self._user_agent, **request.headers}
        if token := configuration.api_key.get("BearerToken"):
            headers["Authorization"] = token.strip()  # token files often end in a newline
        return self._session, headers

    def _open(self, configuration: Any) -> aiohttp.ClientSession:
        self._base = configuration.host.rstrip("/")
        self._host = urlsplit(self._base).netloc
        self._server_name = configuration.tls_server_name
        # No limit: requests are bounded by the workers, and watches must never wait for a free connection.
        self._resolver = TimedResolver(aiohttp.DefaultResolver(), self._resolution_observer, self._clock)
        connector = aiohttp.TCPConnector(
            limit=0, ssl=_ssl_context(configuration), keepalive_timeout=60.0, resolver=self._resolver
        )
        return aiohttp.ClientSession(
            connector=connector,
            proxy=configuration.proxy,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**20,
        )

    def _url(self, request: HttpRequest) -> str:
        query = "&".join(f"{_escape(name)}={_escape(value)}" for name, value in request.query)
        return self._base + _escape(request.path, safe="/") + ("?" + query if query else "")


class _AiohttpStream:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(f"the stream broke: {str(error) or type(error).__name__}") from error

    async def read(self) -> bytes:
        return await self._response.read()


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


def _escape(text: str, safe: str = "") -> str:
    return quote(text, safe=safe)
