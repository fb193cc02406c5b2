"""Health checks, and the small HTTP server that answers probes and scrapes.

Answers have the form that Kubernetes' own health endpoints have, so tools and people can read them. One thing is added
on purpose: a check registered as public shows its reason.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from controllers.runtime import logs
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.metrics import CONTENT_TYPE, Metrics

Check = Callable[[], str | None]
"""Says why something is not healthy, or None where it is."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_TIMEOUT = 1.0
"""Seconds that open connections get when the server stops; probes and scrapes are short."""

logger = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check as a probe sees it; ``reason`` None means healthy, ``note`` is what there is to say even then."""

    name: str
    reason: str | None = None
    public: bool = False
    excluded: bool = False
    note: str | None = None

    @property
    def failed(self) -> bool:
        return self.reason is not None

    @property
    def shown_reason(self) -> str:
        return _one_line(self.reason or "") if self.public else "reason withheld"

    def line(self) -> str:
        if self.failed:
            return f"[-]{self.name} failed: {self.shown_reason}"
        noted = f": {_one_line(self.note)}" if self.note else ""
        return f"[+]{self.name} {'excluded: ' if self.excluded else ''}ok{noted}"


@dataclass(frozen=True, slots=True)
class _Registered:
    check: Check
    public: bool
    note: Check


class Checks:
    """Named checks behind one endpoint; without any there is ``ping``, which is healthy."""

    def __init__(self) -> None:
        self._checks: dict[str, _Registered] = {}
        self._last: dict[str, str | None] = {}

    def add(self, name: str, check: Check, *, public: bool = False, note: Check = lambda: None) -> None:
        """Adds a check; ``public`` shows its reason to whoever asks. Raises ConfigurationError for a taken name.

        ``note`` says what keeps nobody from being healthy and is worth knowing all the same; it is public.
        """
        if name in self._checks:
            raise ConfigurationError(f"there are two health checks named {name}")
        self._checks[name] = _Registered(check, public, note)

    def names(self) -> Sequence[str]:
        return sorted(self._checks) or ["ping"]

    def result(self, name: str) -> CheckResult:
        """Runs one of ``names``; a reason is logged when it is new, not on every probe."""
        registered = self._checks.get(name)
        if registered is None:
            return CheckResult(name)
        reason = _run(registered.check)
        if reason != self._last.get(name):
            self._last[name] = reason
            if reason is None:
                logger.info("health check passes again", check=name)
            else:
                logger.warning("health check fails", check=name, reason=reason)
        return CheckResult(name, reason, registered.public, note=_run(registered.note))


def report(results: Sequence[CheckResult], unknown_excludes: Sequence[str], *, verbose: bool) -> str:
    """The body for all checks of an endpoint: ``ok``, or a line each where something fails or ``verbose`` asks."""
    failed = any(result.failed for result in results)
    if not failed and not verbose:
        return "ok"
    lines = [result.line() for result in results]
    if unknown_excludes:
        quoted = ",".join(f'"{name}"' for name in unknown_excludes)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {_one_line(quoted)}")
    lines.append("healthz check failed" if failed else "healthz check passed")
    return "\n".join(lines) + "\n"


class HttpServer:
    """Serves ``/healthz`` and ``/livez`` (``liveness``), ``/readyz`` (``readiness``) and ``/metrics``, as far as given.

    ``bind`` is ``host:port``; without a host it is every address, port 0 takes a free one, and ``0`` or nothing
    switches the server off.
    """

    def __init__(
        self,
        bind: str,
        *,
        metrics: Metrics | None = None,
        liveness: Checks | None = None,
        readiness: Checks | None = None,
    ) -> None:
        self._bind = bind
        self._flag = "--metrics-bind-address" if liveness is readiness is None else "--health-probe-bind-address"
        self._app = _application(metrics, liveness, readiness)
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is served; 0 where nothing is."""
        return self._port

    async def start(self) -> None:
        """Listens. Raises ConfigurationError, naming the flag, where the address is malformed or taken."""
        address = parse_bind(self._bind, self._flag)
        if address is None:
            return
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT)
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, _listen(*address)).start()
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that cannot be a DNS name
            await self.stop()
            raise ConfigurationError(
                f"{self._flag} {self._bind}: cannot listen: {error}: use another host:port, or 0 to switch it off"
            ) from error
        self._port = self._runner.addresses[0][1]
        logger.info("serving HTTP", address=f"{address[0]}:{self._port}", paths=self._paths())

    async def stop(self) -> None:
        """Stops listening; does nothing where the server is not running."""
        runner, self._runner, self._port = self._runner, None, 0
        if runner is not None:
            await runner.cleanup()

    def _paths(self) -> str:
        return ",".join(r.canonical for r in self._app.router.resources() if "{" not in r.canonical)


def parse_bind(bind: str, flag: str) -> tuple[str, int] | None:
    """Host ("" for every address) and port, or None for "off". Raises ConfigurationError for anything else."""
    if bind in ("", "0"):
        return None
    host, colon, port = bind.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # an IPv6 address without brackets: where the port begins is a guess
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(
            f"{flag} {bind!r} is not host:port: use for example :8080 or [::1]:8080, or 0 for none"
        )
    return host, int(port)


def _application(metrics: Metrics | None, liveness: Checks | None, readiness: Checks | None) -> web.Application:
    app = web.Application()
    for path, checks in (("/healthz", liveness), ("/livez", liveness), ("/readyz", readiness)):
        if checks is not None:
            app.router.add_get(path, _all_checks(checks))
            app.router.add_get(path + "/{name}", _one_check(checks))
    if metrics is not None:
        app.router.add_get("/metrics", _scrape(metrics))
    return app


def _all_checks(checks: Checks) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        names = checks.names()
        results = [CheckResult(name, excluded=True) if name in excluded else checks.result(name) for name in names]
        unknown = sorted(set(excluded) - set(names))
        text = report(results, unknown, verbose="verbose" in request.query)
        return _plain(text, failed=any(result.failed for result in results))

    return answer


def _one_check(checks: Checks) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in checks.names():
            raise web.HTTPNotFound(text=f"404: there is no health check of that name, only {', '.join(checks.names())}")
        result = checks.result(name)
        return _plain(
            f"internal server error: {result.shown_reason}\n" if result.failed else "ok", failed=result.failed
        )

    return answer


def _scrape(metrics: Metrics) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    return answer


def _plain(text: str, *, failed: bool) -> web.Response:
    return web.Response(text=text, status=500 if failed else 200, headers={"X-Content-Type-Options": "nosniff"})


def _listen(host: str, port: int) -> socket.socket:
    # One socket for both families: two would get two different ports where a free one is asked for.
    dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=dual)


def _run(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that cannot tell is a failed check, not a failed server
        return f"{type(error).__name__}: {error}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
