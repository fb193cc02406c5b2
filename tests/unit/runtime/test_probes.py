"""Health endpoints and the scrape endpoint, over real HTTP on a free port."""

import asyncio
import re
import socket
from collections.abc import Callable

import aiohttp
import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.metrics import Metrics
from controllers.runtime.probes import Checks, HttpServer, parse_bind

Answer = tuple[int, str]


def healthy() -> str | None:
    return None


def broken() -> str | None:
    return "ResourceClaim: not synced:\n403 Forbidden"


def raising() -> str | None:
    raise KeyError("oops")


def checks(*, public: bool = False, **named: Callable[[], str | None]) -> Checks:
    made = Checks()
    for name, check in named.items():
        made.add(name, check, public=public)
    return made


def get(path: str, *, liveness: Checks | None = None, readiness: Checks | None = None) -> Answer:
    async def exchange() -> Answer:
        server = HttpServer("127.0.0.1:0", liveness=liveness, readiness=readiness, metrics=Metrics())
        await server.start()
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}{path}") as got:
                return got.status, await got.text()
        finally:
            await server.stop()

    return asyncio.run(exchange())


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/healthz/ping"])
def test_endpoint_without_checks_is_healthy(path: str) -> None:
    assert get(path, liveness=Checks()) == (200, "ok")


def test_ping_is_the_default_check() -> None:
    assert get("/healthz?verbose", liveness=Checks()) == (200, "[+]ping ok\nhealthz check passed\n")


def test_verbose_lists_all_checks_by_name() -> None:
    assert get("/readyz?verbose", readiness=checks(b=healthy, a=healthy)) == (
        200,
        "[+]a ok\n[+]b ok\nhealthz check passed\n",
    )


def test_failure_is_500_lists_all_checks_and_withholds_the_reason() -> None:
    assert get("/readyz", readiness=checks(b=broken, a=healthy)) == (
        500,
        "[+]a ok\n[-]b failed: reason withheld\nhealthz check failed\n",
    )


def test_public_check_shows_its_reason_on_one_line() -> None:
    assert get("/readyz?verbose", readiness=checks(caches=broken, public=True)) == (
        500,
        "[-]caches failed: ResourceClaim: not synced: 403 Forbidden\nhealthz check failed\n",
    )


def test_a_note_is_shown_with_a_check_that_passes() -> None:
    made = Checks()
    made.add("topology", healthy, note=lambda: "pool a:\nno such profile")
    made.add("failing", broken, note=lambda: "not told")
    assert get("/readyz?verbose", readiness=made) == (
        500,
        "[-]failing failed: reason withheld\n[+]topology ok: pool a: no such profile\nhealthz check failed\n",
    )


def test_excluded_check_does_not_count_and_is_not_run() -> None:
    def must_not_run() -> str | None:
        raise AssertionError("was run")

    readiness = checks(a=healthy, b=must_not_run)
    assert get("/readyz?exclude=b", readiness=readiness) == (200, "ok")
    assert get("/readyz?exclude=b&verbose=1", readiness=readiness) == (
        200,
        "[+]a ok\n[+]b excluded: ok\nhealthz check passed\n",
    )


def test_unknown_exclude_is_a_warning_line() -> None:
    assert get("/readyz?verbose&exclude=y&exclude=x", readiness=checks(a=healthy)) == (
        200,
        '[+]a ok\nwarn: some health checks cannot be excluded: no matches for "x","y"\nhealthz check passed\n',
    )


def test_single_check_answers_for_itself_alone() -> None:
    readiness = checks(good=healthy, bad=broken)
    assert get("/readyz/good", readiness=readiness) == (200, "ok")
    assert get("/readyz/bad", readiness=readiness) == (500, "internal server error: reason withheld\n")


def test_unknown_single_check_is_404_and_names_the_known_ones() -> None:
    status, text = get("/readyz/nope", readiness=checks(good=healthy))
    assert status == 404
    assert "good" in text


def test_liveness_and_readiness_are_separate() -> None:
    live, ready = checks(a=healthy), checks(b=broken)
    assert get("/healthz", liveness=live, readiness=ready)[0] == 200
    assert get("/readyz", liveness=live, readiness=ready)[0] == 500


def test_check_that_raises_is_a_failed_check() -> None:
    assert get("/readyz", readiness=checks(a=raising, public=True)) == (
        500,
        "[-]a failed: KeyError: 'oops'\nhealthz check failed\n",
    )


def test_reason_is_logged_when_it_changes_and_not_on_every_probe(caplog: pytest.LogCaptureFixture) -> None:
    reasons = iter(["first", "first", "second", None, None])
    made = checks(a=lambda: next(reasons))
    caplog.set_level("INFO")
    for _ in range(5):
        made.result("a")
    assert [(record.levelname, record.__dict__["fields"].get("reason")) for record in caplog.records] == [
        ("WARNING", "first"),
        ("WARNING", "second"),
        ("INFO", None),
    ]


def test_a_check_name_can_be_taken_only_once() -> None:
    with pytest.raises(ConfigurationError, match="two health checks named a"):
        checks(a=healthy).add("a", healthy)


def test_metrics_are_served_in_the_text_format() -> None:
    async def exchange() -> tuple[str, str]:
        server = HttpServer("127.0.0.1:0", metrics=Metrics())
        await server.start()
        url = f"http://127.0.0.1:{server.port}/metrics"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as got:
                return got.headers["Content-Type"], await got.text()
        finally:
            await server.stop()

    content_type, text = asyncio.run(exchange())
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE workqueue_depth gauge\n" in text


def test_what_is_not_given_is_not_served() -> None:
    assert get("/readyz", liveness=Checks())[0] == 404


@pytest.mark.parametrize("bind", ["", "0"])
def test_switched_off_server_listens_nowhere(bind: str) -> None:
    async def start_and_stop() -> int:
        server = HttpServer(bind, metrics=Metrics())
        await server.start()
        port = server.port
        await server.stop()
        return port

    assert asyncio.run(start_and_stop()) == 0


def test_server_without_host_is_reached_and_can_start_again_after_stop() -> None:
    async def exchange() -> list[int]:
        statuses = []
        for _ in range(2):
            server = HttpServer(":0", liveness=Checks())
            await server.start()
            url = f"http://127.0.0.1:{server.port}/healthz"
            async with aiohttp.ClientSession() as session, session.get(url) as got:
                statuses.append(got.status)
            await server.stop()
            assert server.port == 0
        return statuses

    assert asyncio.run(exchange()) == [200, 200]


@pytest.mark.parametrize(
    ("made_for", "flag"), [("metrics", "--metrics-bind-address"), ("probes", "--health-probe-bind-address")]
)
def test_taken_port_is_an_error_that_names_the_flag(made_for: str, flag: str) -> None:
    async def start(bind: str) -> None:
        if made_for == "metrics":
            await HttpServer(bind, metrics=Metrics()).start()
        else:
            await HttpServer(bind, liveness=Checks(), metrics=Metrics()).start()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"^{flag} {re.escape(bind)}: cannot listen: .*in use"):
            asyncio.run(start(bind))


@pytest.mark.parametrize("host", ["203.0.113.1", "x" * 70])
def test_host_that_is_not_ours_is_an_error_that_names_the_flag(host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--metrics-bind-address {host}:0: cannot listen: "):
        asyncio.run(HttpServer(f"{host}:0", metrics=Metrics()).start())


@pytest.mark.parametrize(
    ("bind", "parsed"),
    [
        (":8080", ("", 8080)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:8080", ("::1", 8080)),
        ("0", None),
        ("", None),
    ],
)
def test_bind_address_is_host_and_port(bind: str, parsed: tuple[str, int] | None) -> None:
    assert parse_bind(bind, "--flag") == parsed


@pytest.mark.parametrize("bind", ["8080", "host", "host:", "host:http", "::1:80", ":65536", ":-1", ":\uff18\uff10"])
def test_malformed_bind_address_is_an_error_that_names_flag_and_fix(bind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--flag .* is not host:port: use for example :8080"):
        parse_bind(bind, "--flag")
