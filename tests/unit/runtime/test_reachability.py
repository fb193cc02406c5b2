"""An API server that is gone is told once, and once when it is back."""

import logging

import pytest

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import NotFound, TransportError
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.reachability import Reachability
from controllers.runtime.testing import Answer, FakeClock, Reply, ScriptedTransport, run_virtual

GONE = TransportError("refused")


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_single_failures_between_answers_are_routine(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    server = Reachability(clock)
    for _ in range(20):
        server.failed(GONE)
        clock.advance(4.0)
        assert server.failing_for == 4.0
        server.answered()
        assert server.failing_for == 0.0
    assert told(caplog) == []


def test_a_server_that_is_gone_for_some_seconds_is_told_once_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    server = Reachability(clock)
    for _ in range(2):
        for _ in range(20):
            server.failed(GONE)
            clock.advance(1.0)
        for _ in range(20):
            server.answered()
    assert [text.split(" s")[0] for text in told(caplog)] == ["the API", "the API"] * 2
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields[0] == {"seconds": 5.0, "reason": "refused"}
    assert fields[1] == {"seconds": 20.0}


def test_requests_and_watches_of_all_controllers_tell_it_together(caplog: pytest.LogCaptureFixture) -> None:
    replies: list[Reply] = [GONE, GONE, GONE, GONE, Answer(404)]
    client = Client(ScriptedTransport(replies), ClientOptions("tests", attempts=1))
    other = client.restricted_to([])
    other._allowed = None

    async def watch() -> None:
        async with client.watch(Thing, resource_version="1", timeout=300.0):
            pass

    async def scenario() -> None:
        with pytest.raises(TransportError):
            await client.get(Thing, "x", "a")
        with pytest.raises(TransportError):
            await watch()
        await client._clock.sleep(5.0)
        with pytest.raises(TransportError):
            await other.get(Thing, "x", "a")
        with pytest.raises(TransportError):
            await watch()
        with pytest.raises(NotFound):
            await other.get(Thing, "x", "a")

    run_virtual(scenario)
    assert told(caplog) == ["the API server cannot be reached", "the API server can be reached again"]


def test_a_watch_that_breaks_after_it_was_answered_is_no_failure_to_reach_the_server() -> None:
    client = Client(ScriptedTransport([Answer(stream=[GONE])]), ClientOptions("tests"))

    async def watch() -> None:
        async with client.watch(Thing, resource_version="1", timeout=300.0) as events:
            async for _ in events:
                pass

    async def scenario() -> None:
        with pytest.raises(TransportError):
            await watch()
        assert client.reachability.failing_for == 0.0

    run_virtual(scenario)
