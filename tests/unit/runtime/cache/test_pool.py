"""Informers that come and go at run time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from controllers.runtime.cache import InformerOptions, InformerPool
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.testing import Pause, Reply, ScriptedTransport
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.cache.rig import Follower, Thing, event, listed, raw, virtually, watched


class Other(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "others", "Other", namespaced=True)


def reply(request: HttpRequest) -> Reply:
    watch = ("watch", "true") in request.query
    return watched(Pause(5.0), event("ADDED", raw("b", 11))) if watch else listed(raw("a", 1))


def pool_of(answers: object = reply) -> tuple[InformerPool, ScriptedTransport]:
    transport = ScriptedTransport(answers)  # type: ignore[arg-type]
    client = Client(transport, ClientOptions("tests", attempts=1))
    return InformerPool(client, InformerOptions(stream_lists=False, freeze_after_sync=False)), transport


@asynccontextmanager
async def running(pool: InformerPool) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(pool.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_an_informer_runs_whether_it_was_asked_for_before_or_while_the_pool_runs() -> None:
    pool, transport = pool_of()
    first = pool.informer(Thing)

    async def scenario() -> None:
        async with running(pool):
            await pool.wait_synced()
            second = pool.informer(Other)
            await pool.wait_synced()
            assert len(first.store) == len(second.store) == 1
            assert dict(pool.informers) == {Thing: first, Other: second}
        assert first.stopped
        assert second.stopped

    virtually(scenario)
    assert len(transport.requests) == 4


def test_a_kind_has_one_informer_and_only_its_first_use_selects() -> None:
    pool, _ = pool_of()
    selected = pool.informer(Thing, Selection("a"))
    assert pool.informer(Thing) is selected
    with pytest.raises(ConfigurationError, match="exists already: select before its first use"):
        pool.informer(Thing, Selection("b"))


def test_a_removed_informer_ends_and_the_kind_can_be_asked_for_again() -> None:
    pool, _ = pool_of()
    follower = Follower()

    async def scenario() -> None:
        async with running(pool) as task:
            former = pool.informer(Thing)
            former.add_handler(follower)
            await pool.wait_synced()
            await pool.remove(Thing)
            await pool.remove(Thing)
            assert former.stopped
            await asyncio.sleep(10.0)
            assert follower.told() == ["ADDED a"]
            again = pool.informer(Thing)
            assert again is not former
            await asyncio.sleep(10.0)
            assert len(again.store) == 2
            assert not task.done()

    virtually(scenario)


def test_a_handler_may_remove_its_own_informer() -> None:
    pool, _ = pool_of()

    async def scenario() -> None:
        async with running(pool) as task:
            informer = pool.informer(Thing)
            informer.add_buffered_handler(lambda _: pool.remove(Thing))
            await asyncio.sleep(1.0)
            assert informer.stopped
            assert not task.done()
            assert not pool.informers

    virtually(scenario)


def test_an_informer_removed_before_it_took_a_step_is_no_error() -> None:
    pool, transport = pool_of()

    async def scenario() -> None:
        async with running(pool) as task:
            await asyncio.sleep(0.0)
            pool.informer(Thing)
            await pool.remove(Thing)
            await asyncio.sleep(1.0)
            assert not task.done()

    virtually(scenario)
    assert transport.requests == []


def test_what_ends_an_informer_unexpectedly_ends_the_pool_with_it() -> None:
    pool, _ = pool_of([listed(), ZeroDivisionError("a bug")])
    pool.informer(Thing)

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await pool.run()

    virtually(scenario)


def test_an_informer_that_stops_without_being_removed_is_an_error() -> None:
    pool, _ = pool_of()
    informer = pool.informer(Thing)

    async def scenario() -> None:
        asyncio.get_running_loop().call_later(1.0, informer.stop)
        with pytest.raises(Exception, match=r"informer of things\.example\.com has ended, but was not removed"):
            await pool.run()

    virtually(scenario)
