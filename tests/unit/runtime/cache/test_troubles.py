"""What clusters do to long-lived caches: outages, upgrades, rights taken away, restored backups."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from controllers.runtime.cache.feed import NOBODY
from controllers.runtime.errors import TransportError
from controllers.runtime.testing import Answer, Pause, Reply
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.cache.rig import Json, Rig, bookmark, event, listed, names, raw, status, virtually, watched

GONE = TransportError("refused")
FORBIDDEN = Answer(
    403,
    body={**status(403, "Forbidden"), "message": 'User "x" cannot watch resource "things" in API group "example.com"'},
)


def seconds() -> float:
    return asyncio.get_running_loop().time()


class Phases:
    """A server that behaves in one way until a certain second, then in another."""

    def __init__(self, *phases: tuple[float, Callable[[bool], Reply]]) -> None:
        self.phases = phases
        self.log: list[tuple[float, str]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        watch = ("watch", "true") in request.query
        check = ("fieldSelector", f"metadata.name={NOBODY}") in request.query
        self.log.append((round(seconds(), 3), "watch" if watch else "check" if check else "list"))
        return next(answer for until, answer in self.phases if seconds() < until)(watch)


def serves(*items: Json, at: int = 10, then: tuple[Json, ...] = (), until: float = 1e9) -> Callable[[bool], Reply]:
    """Lists these objects; its watches say ``then`` and break at that second."""

    def answer(watch: bool) -> Reply:
        if not watch:
            return listed(*items, at=at)
        return Answer(stream=[*then, Pause(max(0.0, min(until - seconds(), 299.0))), GONE])

    return answer


def always(reply: Reply) -> Callable[[bool], Reply]:
    return lambda _: reply


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_list_follows_an_outage_with_the_first_answer_and_not_a_pause_later() -> None:
    """As of an API server that comes back after minutes and has forgotten the past."""
    expired = Answer(410, body=status(410, "Expired"))
    server = Phases(
        (60.0, serves(raw("a", 1), until=60.0)),
        (240.0, always(GONE)),
        (
            1e9,
            lambda watch: expired if watch and len(server.log) == before[0] + 2 else serves(raw("b", 90), at=95)(watch),
        ),
    )
    before = [0]
    rig = Rig(server)

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(239.9)
            before[0] = len(server.log)
            await asyncio.sleep(60.0)
            assert names(informer) == {"b": "90"}

    virtually(scenario)
    back = server.log[before[0] :]
    assert [what for _, what in back[:4]] == ["check", "watch", "list", "watch"]
    assert len({at for at, _ in back[:4]}) == 1


def test_an_outage_is_told_once_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Phases((60.0, serves(raw("a", 1), until=60.0)), (180.0, always(GONE)), (1e9, serves(raw("a", 1)))))
    rig.run(300.0)
    assert warnings(caplog) == ["the API server cannot be reached", "the API server can be reached again"]
    assert rig.follower.told() == ["ADDED a"]


def test_an_upgrade_with_all_that_goes_with_it_loses_nothing() -> None:
    """The server goes, its successor answers 503 and does not serve the kind yet, then serves it with a new history."""
    busy = Answer(503, body=status(503, "ServiceUnavailable"), headers={"Retry-After": "1"})
    rig = Rig(
        Phases(
            (30.0, serves(raw("a", 1), raw("b", 2), then=(event("MODIFIED", raw("a", 11)),), until=30.0)),
            (50.0, always(GONE)),
            (60.0, always(busy)),
            (90.0, always(Answer(404, body=status(404, "NotFound")))),
            (1e9, serves(raw("a", 12), raw("c", 40), at=41)),
        )
    )
    assert names(rig.run(200.0)) == {"a": "12", "c": "40"}
    assert rig.follower.told()[-3:] == ["DELETED b", "UPDATED a", "ADDED c"]


def test_rights_taken_away_and_given_back_cost_time_only_and_show_meanwhile() -> None:
    rig = Rig(
        Phases(
            (30.0, serves(raw("a", 1), until=30.0)),
            (120.0, always(FORBIDDEN)),
            (1e9, serves(raw("a", 1), raw("b", 50), at=60)),
        )
    )

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(100.0)
            assert informer.failing_for > 60.0
            assert 'cannot watch resource "things" in API group "example.com"' in informer.last_error
            assert names(informer) == {"a": "1"}, "what is known is kept"
            await asyncio.sleep(100.0)
            assert (informer.failing_for, informer.last_error) == (0.0, "")
            assert names(informer) == {"a": "1", "b": "50"}

    virtually(scenario)
    assert rig.follower.told() == ["ADDED a", "ADDED b"]


def test_a_kind_that_is_forbidden_at_the_start_is_never_given_up() -> None:
    rig = Rig(Phases((3600.0, always(FORBIDDEN)), (1e9, serves(raw("a", 1)))))
    assert rig.run(3700.0).synced
    assert len(rig.transport.requests) < 200


def test_a_restored_backup_is_noticed_by_the_silence_of_its_watches() -> None:
    def before(watch: bool) -> Reply:
        if not watch:
            return listed(raw("kept", 900), raw("lost", 950), at=1000)
        return Answer(stream=[Pause(60.0), bookmark(1000), Pause(40.0), GONE])

    def after(watch: bool) -> Reply:
        # The old version is not reached again yet: of what happens nothing is told, not even by a bookmark.
        silent = Answer(stream=[Pause(300.0)])
        return silent if watch else listed(raw("kept", 400), at=500)

    rig = Rig(Phases((100.0, before), (1e9, after)))
    assert names(rig.run(1000.0)) == {"kept": "400"}
    assert rig.follower.told()[-2:] == ["DELETED lost", "UPDATED kept"]


def test_a_backup_restored_while_the_server_was_away_is_noticed_with_its_first_answer() -> None:
    ahead = Answer(504, body={**status(504, "Timeout"), "message": "Too large resource version: 1000, current: 500"})

    def restored(watch: bool) -> Reply:
        if server.log[-1][1] == "check":
            return ahead
        return watched() if watch else listed(raw("kept", 400), at=500)

    before = serves(raw("kept", 900), raw("lost", 950), at=1000, until=30.0)
    server = Phases((30.0, before), (60.0, always(GONE)), (1e9, restored))
    rig = Rig(server)

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(90.0)
            assert names(informer) == {"kept": "400"}

    virtually(scenario)
    assert [what for at, what in server.log if at >= 60.0] == ["check", "list", "watch"]


def test_a_version_that_a_restored_server_has_not_reached_is_no_loop() -> None:
    ahead = Answer(
        504, body={**status(504, "Timeout"), "message": "Timeout: Too large resource version: 10, current: 5"}
    )

    def restored(watch: bool) -> Reply:
        return ahead if len(server.log) <= refused else serves(raw("a", 3), at=5)(watch)

    server = Phases(
        (1e9, lambda watch: serves(raw("a", 1), raw("b", 9))(watch) if seconds() < 50.0 else restored(watch))
    )
    refused = 0
    rig = Rig(server)

    async def scenario() -> None:
        nonlocal refused
        async with rig.running() as informer:
            await asyncio.sleep(200.0)
            refused = len(server.log) + 1
            await asyncio.sleep(400.0)
            assert names(informer) == {"a": "3"}

    virtually(scenario)
    assert len(server.log) < 20


def test_the_last_event_tells_how_old_the_cache_may_be() -> None:
    rig = Rig([listed(raw("a", 1)), watched(Pause(40.0), bookmark(15))])

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(100.0)
            assert informer.statistics().last_event_at == 40.0

    virtually(scenario)
