"""Informers that take the state from a watch: what they ask for, what they believe, and when they list instead."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from controllers.runtime.cache import Happening, Informer, InformerOptions
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import TransportError
from controllers.runtime.testing import STALL, Answer, Pause, Reply, ScriptedTransport
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.cache.rig import (
    Json,
    Rig,
    Thing,
    bookmark,
    end_of_state,
    event,
    listed,
    names,
    raw,
    status,
    virtually,
    watched,
)


def added(*items: Json) -> list[Json]:
    return [event("ADDED", item) for item in items]


def streamed(*items: Json, at: int = 10, then: tuple[Any, ...] = ()) -> Answer:
    """The state, its end, further steps, and silence."""
    return watched(*added(*items), end_of_state(at), *then)


def streaming(script: Any, **options: Any) -> Rig:
    return Rig(script, stream_lists=True, **options)


def asked(rig: Rig) -> list[str]:
    """What was asked for, in short: ``stream``, ``watch`` or ``list``, and from which version."""
    what = []
    for query in rig.queries():
        kind = "stream" if "sendInitialEvents" in query else "watch" if "watch" in query else "list"
        what.append(f"{kind} {query.get('resourceVersion', 'newest')}")
    return what


def test_the_state_comes_with_the_watch_that_follows_it_on() -> None:
    rig = streaming([streamed(raw("a", 1), raw("b", 2), then=(event("ADDED", raw("c", 11)),))])
    assert names(rig.run()) == {"a": "1", "b": "2", "c": "11"}
    assert rig.queries() == [
        {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "timeoutSeconds": "300",
        }
    ]
    assert [(change.subject.name, change.initial) for change in rig.follower.changes] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert rig.happenings == [Happening.LIST, Happening.WATCH, Happening.EVENT]
    assert rig.informer.statistics().resource_version == "11"


def test_an_object_that_an_index_cannot_take_keeps_no_cache_from_filling() -> None:
    rig = streaming([streamed(raw("a", 1), raw("b", 2))])
    rig.informer.store.add_index("odd", lambda item: [str(1 // (item.name != "b"))])
    informer = rig.run()
    assert (names(informer), informer.synced, informer.last_error) == ({"a": "1", "b": "2"}, True, "")
    assert (informer.statistics().unindexed, asked(rig)) == (1, ["stream newest"])


def test_nothing_is_believed_before_the_end_of_the_state_is_told() -> None:
    rig = streaming([watched(*added(raw("a", 1)), Pause(5.0), *added(raw("b", 2)), Pause(5.0), end_of_state(10))])

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(7.0)
            assert (len(informer.store), informer.synced, informer.statistics().resource_version) == (0, False, "")
            await asyncio.sleep(4.0)
            assert (len(informer.store), informer.synced, informer.statistics().resource_version) == (2, True, "10")

    virtually(scenario)


def test_an_ordinary_bookmark_is_not_the_end_of_the_state() -> None:
    rig = streaming([watched(*added(raw("a", 1)), bookmark(5), *added(raw("b", 2)), end_of_state(10))])
    assert names(rig.run()) == {"a": "1", "b": "2"}
    assert [change.initial for change in rig.follower.changes] == [True, True]


def test_what_changes_while_the_state_is_told_is_part_of_it() -> None:
    steps = [
        *added(raw("a", 1), raw("b", 2), raw("c", 3)),
        event("MODIFIED", raw("a", 11)),
        event("DELETED", raw("b", 12)),
    ]
    rig = streaming([watched(*steps, end_of_state(12))])
    assert names(rig.run()) == {"a": "11", "c": "3"}
    assert rig.follower.told() == ["ADDED a", "ADDED c"]


def test_an_unreadable_object_of_the_state_costs_only_itself() -> None:
    rig = streaming([streamed(raw("bad", 1, size="huge"), raw("a", 2))])
    assert names(rig.run()) == {"a": "2"}
    assert rig.informer.statistics().undecodable == 1
    rig = streaming([watched(*added(raw("bad", 1, size="huge")), event("DELETED", raw("bad", 5)), end_of_state(9))])
    assert rig.run().statistics().undecodable == 0


def test_half_a_state_is_thrown_away_and_asked_for_again() -> None:
    cut = Answer(stream=[*added(raw("gone", 1)), TransportError("reset")])
    closed = Answer(stream=added(raw("gone", 1)))
    rig = streaming([cut, closed, streamed(raw("a", 1))])
    assert names(rig.run(5.0)) == {"a": "1"}
    assert rig.follower.told() == ["ADDED a"]
    assert asked(rig) == ["stream newest"] * 3


@pytest.mark.parametrize("code", [400, 405, 406, 415, 422])
def test_a_server_that_refuses_streams_is_asked_for_lists_from_then_on(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Answer(code, body=status(code, ""))
    gone = Answer(stream=[Pause(60.0), event("ERROR", status(410, "Expired"))])
    rig = streaming([refused, listed(raw("a", 1)), gone, listed(raw("b", 20), at=20), watched()])
    assert names(rig.run(70.0)) == {"b": "20"}
    assert asked(rig) == ["stream newest", "list 0", "watch 10", "list newest", "watch 20"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("code", [401, 403, 404])
def test_any_other_refusal_leads_to_a_list_in_the_same_round(code: int) -> None:
    gone = Answer(stream=[Pause(60.0), event("ERROR", status(410, "Expired"))])
    rig = streaming([Answer(code, body=status(code, "")), listed(raw("a", 1)), gone, streamed(raw("b", 20), at=20)])
    assert names(rig.run(61.0)) == {"b": "20"}
    assert asked(rig) == ["stream newest", "list 0", "watch 10", "stream newest"]


def test_a_line_that_is_no_event_leads_to_a_list_in_the_same_round() -> None:
    rig = streaming([Answer(stream=[b"<html>\n"]), listed(raw("a", 1)), watched()])
    assert names(rig.run()) == {"a": "1"}


def test_a_stream_refused_for_load_is_asked_for_again_after_the_named_time() -> None:
    busy = Answer(429, body=status(429, "TooManyRequests"), headers={"Retry-After": "7"})
    rig = streaming([busy, streamed(raw("a", 1))])
    rig.run(6.9)
    assert asked(rig) == ["stream newest"]
    rig = streaming([busy, streamed(raw("a", 1))])
    assert names(rig.run(8.0)) == {"a": "1"}
    assert asked(rig) == ["stream newest", "stream newest"]


def test_streams_that_break_three_times_are_listed_once() -> None:
    rig = streaming([TransportError("reset")] * 3 + [listed(raw("a", 1)), watched()])
    assert names(rig.run(10.0)) == {"a": "1"}
    assert asked(rig)[2:4] == ["stream newest", "list 0"]


@pytest.mark.parametrize(
    "refusal",
    [
        status(410, "Expired"),
        {"kind": "Status", "code": 504, "reason": "Timeout", "message": "Too large resource version: 10, current: 3"},
    ],
    ids=["forgotten", "not reached"],
)
def test_a_version_that_a_stream_is_refused_for_is_dropped_at_once(refusal: Json) -> None:
    script: list[Reply] = [streamed(at=10, then=(event("ERROR", status(400, "BadRequest")),))]
    rig = streaming([*script, Answer(refusal["code"], body=refusal), streamed(raw("b", 3), at=3)])
    assert names(rig.run(2.0)) == {"b": "3"}
    assert asked(rig) == ["stream newest", "stream 10", "stream newest"]


def test_a_server_that_never_tells_the_end_is_listed_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """As one does that takes the request for a plain watch."""
    rig = streaming([watched(*added(raw("a", 1))), listed(raw("a", 1)), watched()])

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(59.0)
            synced = [informer.synced]
            await asyncio.sleep(2.0)
            assert [*synced, informer.synced] == [False, True]
            assert len(asyncio.all_tasks()) == 3, "the guard is still there"

    virtually(scenario)
    assert asked(rig) == ["stream newest", "list 0", "watch 10"]
    assert caplog.text.count("not yet told the end") == 6


def test_the_collector_rests_while_the_state_comes_and_works_again_after_it() -> None:
    client = Client(ScriptedTransport([streamed(raw("a", 1))], initial_events=True), ClientOptions("tests"))
    seen: list[bool] = []

    class Curious(Thing, frozen=True, kw_only=True):
        def __post_init__(self) -> None:
            seen.append(gc.isenabled())

    async def scenario() -> None:
        informer = Informer(client, Curious, options=InformerOptions(freeze_after_sync=False))
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert gc.isenabled()
        task.cancel()

    virtually(scenario)
    assert seen == [False]


def test_no_kind_of_failing_stream_makes_a_hot_loop() -> None:
    for answer in (
        Answer(500),
        Answer(403),
        Answer(),
        Answer(410),
        Answer(stream=[b"garbage\n"]),
        TransportError("no"),
    ):

        def reply(request: HttpRequest, answer: Any = answer) -> Reply:
            return answer if ("sendInitialEvents", "true") in request.query else Answer(403)

        rig = streaming(reply)
        rig.run(120.0)
        assert 4 < len(rig.transport.requests) < 30


def test_a_relist_by_stream_tells_deletions_first_and_only_what_changed() -> None:
    gone = event("ERROR", status(410, "Expired"))
    first = streamed(raw("a", 1), raw("b", 2), raw("c", 3), then=(gone,))
    rig = streaming([first, streamed(raw("d", 4), raw("a", 15), raw("c", 3), at=20)])
    rig.run(2.0)
    assert rig.follower.told()[3:] == ["DELETED b", "ADDED d", "UPDATED a"]


def test_a_stream_that_is_silent_for_too_long_is_given_up() -> None:
    rig = streaming([Answer(stream=[end_of_state(10), STALL]), watched(event("ADDED", raw("a", 11)))])
    assert names(rig.run(320.0)) == {"a": "11"}
    assert asked(rig) == ["stream newest", "watch 10"]
