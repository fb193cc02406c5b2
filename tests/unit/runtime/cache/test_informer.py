"""The informer against a scripted server, on virtual time."""

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from controllers.runtime.cache import Change, Happening, Informer, InformerOptions
from controllers.runtime.client import Client, ClientOptions, Selection, Write
from controllers.runtime.errors import ConfigurationError, TransportError
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.testing import Answer, Pause, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.cache.rig import (
    Follower,
    Json,
    Rig,
    Thing,
    bookmark,
    event,
    listed,
    names,
    raw,
    status,
    virtually,
    watched,
)

# -- lists and watches ------------------------------------------------------------------------------------------------


def test_pages_become_one_cache_and_the_watch_starts_at_the_first_pages_version() -> None:
    rig = Rig([listed(raw("a", 1), at=7, token="t"), listed(raw("b", 2), at=9), watched()], page_size=1)
    assert names(rig.run()) == {"a": "1", "b": "2"}
    first, second, watch = rig.queries()
    assert first == {"limit": "1", "resourceVersion": "0"}
    assert second == {"limit": "1", "continue": "t"}
    assert watch == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "300",
    }


def test_a_selection_goes_into_every_request() -> None:
    rig = Rig([listed(), watched()], selection=Selection("a", "x=y", "metadata.name=b"))
    rig.run()
    for request in rig.transport.requests:
        assert request.path == "/apis/example.com/v1/namespaces/a/things"
        assert dict(request.query)["labelSelector"] == "x=y"
        assert dict(request.query)["fieldSelector"] == "metadata.name=b"


def test_what_the_first_list_brings_is_initial_and_what_follows_is_not() -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("ADDED", raw("b", 11)))])
    rig.run()
    assert [(change.subject.name, change.initial) for change in rig.follower.changes] == [("a", True), ("b", False)]


def test_events_reach_store_and_handlers_in_order() -> None:
    steps = [event("ADDED", raw("b", 11)), event("MODIFIED", raw("b", 12, size=2)), event("DELETED", raw("b", 13))]
    rig = Rig([listed(raw("a", 1)), watched(*steps)])
    assert names(rig.run()) == {"a": "1"}
    assert rig.follower.told() == ["ADDED a", "ADDED b", "UPDATED b", "DELETED b"]
    deletion = rig.follower.changes[-1]
    assert deletion.old is not None
    assert deletion.old.metadata.resource_version == "13"
    assert not deletion.final_state_unknown


def test_the_store_shows_a_change_before_handlers_hear_of_it() -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("DELETED", raw("a", 11)), event("ADDED", raw("b", 12)))])
    seen: list[tuple[str, bool]] = []

    def look(change: Change[Thing]) -> None:
        seen.append((change.type, rig.informer.store.get(change.subject.key) is not None))

    rig.informer.add_handler(look)
    rig.run()
    assert seen == [("ADDED", True), ("DELETED", False), ("ADDED", True)]


def test_a_repeated_version_is_no_change() -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("ADDED", raw("a", 1)), event("MODIFIED", raw("a", 1)))])
    rig.run()
    assert rig.follower.told() == ["ADDED a"]
    assert rig.informer.statistics().events == 2


def test_the_deletion_of_something_never_seen_is_no_change() -> None:
    rig = Rig([listed(), watched(event("DELETED", raw("a", 11)))])
    rig.run()
    assert rig.follower.told() == []


def test_a_broken_watch_resumes_after_a_pause_from_the_last_event() -> None:
    script = [
        listed(),
        Answer(stream=[event("ADDED", raw("a", 11)), bookmark(15), TransportError("cut")]),
        watched(event("ADDED", raw("b", 16))),
    ]
    rig = Rig(script)
    assert names(rig.run(2.0)) == {"a": "11", "b": "16"}
    assert [query.get("resourceVersion") for query in rig.queries()] == ["0", "10", "15"]


def test_a_line_cut_in_the_middle_is_sent_again_by_the_server_and_taken_once() -> None:
    script = [listed(), Answer(stream=[b'{"type":"ADDED","obj']), watched(event("ADDED", raw("a", 11)))]
    rig = Rig(script)
    rig.run(2.0)
    assert rig.follower.told() == ["ADDED a"]
    assert rig.queries()[2]["resourceVersion"] == "10"


def test_routine_closes_need_no_list_and_leave_no_error() -> None:
    def reply(request: HttpRequest) -> Reply:
        return Answer(stream=[Pause(300.0)]) if ("watch", "true") in request.query else listed(raw("a", 1))

    rig = Rig(reply)
    informer = rig.run(3100.0)
    assert (informer.statistics().lists, informer.statistics().watches) == (1, 11)
    assert informer.last_error == ""
    assert rig.follower.told() == ["ADDED a"]


def test_a_silent_connection_is_given_up_shortly_after_the_servers_own_timeout() -> None:
    rig = Rig([listed(), watched(), watched(event("ADDED", raw("a", 11)))])
    assert names(rig.run(320.0)) == {"a": "11"}


@pytest.mark.parametrize(
    "gone",
    [Answer(410, body=status(410, "Expired")), Answer(stream=[event("ERROR", status(410, "Expired"))])],
    ids=["as status", "as event"],
)
def test_a_forgotten_version_in_either_form_leads_to_a_fresh_list(gone: Answer) -> None:
    rig = Rig([listed(raw("a", 1)), gone, listed(raw("b", 20), at=20), watched()])
    assert names(rig.run(2.0)) == {"b": "20"}
    assert "resourceVersion" not in rig.queries()[2]
    assert rig.queries()[3]["resourceVersion"] == "20"


def relisted(before: list[Json], after: list[Json]) -> Rig:
    gone = Answer(410, body=status(410, "Expired"))
    rig = Rig([listed(*before), gone, listed(*after, at=20), watched()])
    rig.run(2.0)
    return rig


def test_a_relist_tells_deletions_first_and_only_what_changed() -> None:
    rig = relisted([raw("a", 1), raw("b", 2), raw("c", 3)], [raw("d", 4), raw("a", 15), raw("c", 3)])
    assert rig.follower.told()[3:] == ["DELETED b", "ADDED d", "UPDATED a"]
    deletion, addition, _ = rig.follower.changes[3:]
    assert deletion.final_state_unknown
    assert not addition.initial


def test_handlers_of_a_relist_see_the_new_store_from_the_first_change_on() -> None:
    rig = Rig([listed(raw("a", 1)), Answer(410), listed(raw("b", 12), raw("c", 13), at=20), watched()])
    sizes: list[int] = []
    rig.informer.add_handler(lambda _: sizes.append(len(rig.informer.store)))
    rig.run(2.0)
    assert sizes == [1, 2, 2, 2]


def test_a_namesake_made_in_a_gap_is_one_update_between_two_uids() -> None:
    rig = relisted([raw("a", 1, uid="one")], [raw("a", 15, uid="two")])
    assert rig.follower.told() == ["ADDED a", "UPDATED a"]
    change = rig.follower.changes[1]
    assert change.old is not None
    assert change.new is not None
    assert (change.old.uid, change.new.uid) == ("one", "two")


def test_a_list_that_breaks_off_changes_nothing() -> None:
    script = [listed(raw("a", 1)), Answer(410), listed(at=20, token="t"), Answer(500), *[Answer(500)] * 20]
    rig = Rig(script)
    assert names(rig.run(8.0)) == {"a": "1"}
    assert "500" in rig.informer.last_error


def test_a_forbidden_list_is_repeated_until_the_right_is_granted() -> None:
    script: list[Reply] = [Answer(403, body=status(403, "Forbidden")) for _ in range(6)]
    rig = Rig([*script, listed(raw("a", 1)), watched()])

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(10.0)
            assert "403 Forbidden: said the server" in informer.last_error
            assert not informer.synced
            await informer.wait_synced()
            assert informer.last_error == ""

    virtually(scenario)
    assert names(rig.informer) == {"a": "1"}
    assert rig.happenings.count(Happening.LIST_FAILED) == 6


@pytest.mark.parametrize("refused", ["watches", "everything"])
def test_a_store_that_cannot_be_kept_current_says_for_how_long(refused: str) -> None:
    def reply(request: HttpRequest) -> Reply:
        if asyncio.get_running_loop().time() > 100.0:
            return watched() if ("watch", "true") in request.query else listed(raw("a", 1))
        if refused == "watches" and ("watch", "true") not in request.query:
            return listed(raw("a", 1))
        return Answer(403, body=status(403, "Forbidden"))

    rig = Rig(reply)

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(60.0)
            assert 58.0 < informer.failing_for <= 60.0
            await asyncio.sleep(120.0)
            assert informer.failing_for == 0.0

    virtually(scenario)


@pytest.mark.parametrize("answer", [Answer(500), Answer(403), Answer(), Answer(stream=[b"garbage\n"])])
def test_no_kind_of_failing_watch_makes_a_hot_loop(answer: Answer) -> None:
    rig = Rig(lambda request: answer if ("watch", "true") in request.query else listed(raw("a", 1)))
    rig.run(120.0)
    assert 4 < len(rig.transport.requests) < 30
    assert rig.follower.told() == ["ADDED a"]


def test_an_event_of_unknown_type_is_skipped() -> None:
    rig = Rig([listed(), watched(event("SURPRISE", raw("x", 11)), event("ADDED", raw("a", 12)))])
    assert names(rig.run()) == {"a": "12"}


# -- several selections -----------------------------------------------------------------------------------------------


class Namespaces:
    """A server whose namespaces are listed and watched one by one."""

    def __init__(self, **answers: list[Reply]) -> None:
        self.answers = answers
        self.labels: dict[str, str] = {}

    def __call__(self, request: HttpRequest) -> Reply:
        namespace = request.path.split("/")[5]
        self.labels[namespace] = dict(request.query).get("labelSelector", "")
        return self.answers[namespace].pop(0)


BOTH = (Selection("a"), Selection("b", labels="x=y"))


def test_several_namespaces_are_one_cache_each_with_its_own_selection() -> None:
    server = Namespaces(
        a=[listed(raw("x", 1)), watched(event("ADDED", raw("new", 11)))],
        b=[listed(raw("x", 2, namespace="b"), at=20), watched(event("DELETED", raw("x", 21, namespace="b")))],
    )
    rig = Rig(server, selection=BOTH)
    informer = rig.run()
    assert {item.key for item in informer.store.list()} == {Key("a", "x"), Key("a", "new")}
    assert server.labels == {"a": "", "b": "x=y"}
    assert informer.selections == BOTH
    assert (informer.statistics().lists, informer.statistics().watches) == (2, 2)


def test_a_relist_of_one_namespace_leaves_the_others_alone() -> None:
    server = Namespaces(
        a=[listed(raw("x", 1), raw("y", 2)), Answer(410), listed(raw("y", 15), at=20), watched()],
        b=[listed(raw("x", 3, namespace="b")), watched()],
    )
    rig = Rig(server, selection=BOTH)
    informer = rig.run(3.0)
    assert {item.key for item in informer.store.list()} == {Key("a", "y"), Key("b", "x")}
    assert rig.follower.told()[3:] == ["DELETED x", "UPDATED y"]


def test_it_is_synced_once_every_namespace_is() -> None:
    server = Namespaces(
        a=[listed(), watched()], b=[Answer(delay=5.0, body=listed(raw("x", 3, namespace="b")).body), watched()]
    )
    rig = Rig(server, selection=BOTH)

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(4.0)
            assert not informer.synced
            await informer.wait_synced()
            assert asyncio.get_running_loop().time() == 5.0

    virtually(scenario)
    assert rig.follower.changes[0].initial


def test_one_namespace_that_is_forbidden_shows_and_does_not_stop_the_others() -> None:
    server = Namespaces(
        a=[listed(raw("x", 1)), watched(Pause(5.0), event("MODIFIED", raw("x", 11)))], b=[Answer(403)] * 9
    )
    rig = Rig(server, selection=BOTH)

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(10.0)
            assert names(informer) == {"x": "11"}
            assert not informer.synced
            assert "403" in informer.last_error
            assert informer.failing_for == 10.0

    virtually(scenario)


@pytest.mark.parametrize(
    "selections", [(), (Selection(), Selection("a")), (Selection("a"), Selection("a", labels="x=y"))]
)
def test_selections_that_overlap_or_select_nothing_are_refused(selections: tuple[Selection, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"the informer of things\.example\.com"):
        Rig([], selection=selections)


def test_a_namespace_of_a_kind_that_has_none_is_refused() -> None:
    class Everywhere(KubeObject, frozen=True, kw_only=True):
        resource = Resource("example.com", "v1", "everywheres", "Everywhere", namespaced=False)

    client = Client(ScriptedTransport([]), ClientOptions("tests"))
    with pytest.raises(
        ConfigurationError, match=r"everywheres\.example\.com selects a namespace, but the kind has none"
    ):
        Informer(client, Everywhere, Selection("a"))


def test_a_write_is_waited_for_in_its_own_namespace() -> None:
    server = Namespaces(
        a=[listed(at=100), watched()],
        b=[listed(at=10), watched(Pause(3.0), event("ADDED", raw("x", 11, namespace="b")))],
    )
    rig = Rig(server, selection=BOTH)
    own = Write(Thing, Key("b", "x"), "uid-x", "11")

    async def scenario() -> None:
        async with rig.running() as informer:
            await informer.wait_synced()
            assert await seen_after(informer, own) == (True, 3.0)
            assert await seen_after(informer, Write(Thing, Key("c", "x"), "u", "999")) == (True, 0.0)

    virtually(scenario)


# -- life -------------------------------------------------------------------------------------------------------------


def test_running_twice_is_an_error() -> None:
    rig = Rig([listed(), watched()])

    async def scenario() -> None:
        async with rig.running() as informer:
            await informer.wait_synced()
            with pytest.raises(ConfigurationError, match="has run before"):
                await informer.run()
        with pytest.raises(ConfigurationError, match="has run before"):
            await rig.informer.run()

    virtually(scenario)


def test_a_stopped_informer_returns_keeps_what_it_has_and_takes_no_handler() -> None:
    rig = Rig([listed(raw("a", 1)), watched()])
    rig.informer.add_buffered_handler(lambda _: asyncio.sleep(60.0))

    async def scenario() -> None:
        task = asyncio.create_task(rig.informer.run())
        await rig.informer.wait_synced()
        before = rig.informer.stopped
        rig.informer.stop()
        await task
        assert (before, rig.informer.stopped) == (False, True)
        assert not rig.informer.tasks
        assert asyncio.get_running_loop().time() == 0.0

    virtually(scenario)
    assert names(rig.informer) == {"a": "1"}
    with pytest.raises(ConfigurationError, match="has stopped"):
        rig.informer.add_handler(Follower())


def test_an_informer_may_be_stopped_by_its_own_handler_and_before_it_runs() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched()])
    rig.informer.add_handler(lambda _: rig.informer.stop())

    async def scenario() -> None:
        await rig.informer.run()
        early = Rig([]).informer
        early.stop()
        await early.run()

    virtually(scenario)


def test_a_list_of_thousands_lets_others_run_in_between() -> None:
    rig = Rig([listed(*(raw(f"t{n}", 1) for n in range(2500))), watched()])
    turns: list[int] = []

    async def other() -> None:
        while not rig.informer.synced:
            turns.append(len(rig.follower.changes))
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with rig.running():
            await other()

    virtually(scenario)
    assert {1000, 2000} <= set(turns)


def test_a_handler_added_between_two_batches_hears_of_everything_once() -> None:
    rig = Rig([listed(*(raw(f"t{n}", 1) for n in range(2500))), watched(event("ADDED", raw("z", 11)))])
    late = Follower()

    async def scenario() -> None:
        async with rig.running():
            while len(rig.follower.changes) < 1000:
                await asyncio.sleep(0)
            assert len(rig.follower.changes) == 1000
            registration = rig.informer.add_handler(late)
            assert not registration.has_synced
            await registration.wait_synced()
            await asyncio.sleep(1.0)

    virtually(scenario)
    assert late.objects == rig.follower.objects
    assert len(late.changes) == 2501


def test_starting_and_stopping_at_any_moment_never_hangs_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        for tenths in range(60):
            script = [
                Answer(delay=0.5, body=listed(raw("a", 1)).body),
                Answer(delay=0.5, stream=[Pause(1.0)]),
                Answer(500),
            ]
            rig = Rig([*script, *script, *[Answer(500)] * 9], stream_lists=tenths % 2 == 0)
            rig.informer.add_buffered_handler(lambda _: asyncio.sleep(0.3), resync=1.0)
            task = asyncio.create_task(rig.informer.run())
            await asyncio.sleep(tenths / 10)
            began = asyncio.get_running_loop().time()
            if tenths % 3:
                rig.informer.stop()
                await task
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert asyncio.get_running_loop().time() == began
            assert len(asyncio.all_tasks()) == 1

    virtually(scenario)


def test_ten_thousand_reconnects_leave_no_task_thread_or_object_behind() -> None:
    def reply(request: HttpRequest) -> Reply:
        return Answer(stream=[Pause(300.0)]) if ("watch", "true") in request.query else listed(raw("a", 1))

    rig = Rig(reply)
    tasks: set[int] = set()

    async def scenario() -> None:
        async with rig.running() as informer:
            threads = threading.active_count()
            for _ in range(10):
                await asyncio.sleep(300.0 * 1000)
                tasks.add(len(asyncio.all_tasks()))
                rig.transport.requests.clear()
            assert threading.active_count() == threads
            assert informer.statistics().watches >= 10_000

    run_virtual(scenario, limit=1e9)
    assert len(tasks) == 1
    assert rig.follower.told() == ["ADDED a"]


# -- readiness and statistics -----------------------------------------------------------------------------------------


def test_synced_comes_after_the_last_initial_change_was_handed_out() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 2)), watched()])
    seen: list[bool] = []
    rig.informer.add_handler(lambda _: seen.append(rig.informer.synced))
    assert rig.run().synced
    assert seen == [False, False]


def test_an_empty_list_is_synced_too() -> None:
    assert Rig([listed(), watched()]).run().synced


def test_statistics_count_what_happened() -> None:
    rig = Rig([listed(raw("a", 1)), watched(Pause(0.5), event("ADDED", raw("b", 11)), bookmark(14))])
    statistics = rig.run().statistics()
    assert (statistics.objects, statistics.lists, statistics.watches, statistics.events) == (2, 1, 1, 2)
    assert (statistics.last_event_at, statistics.resource_version) == (0.5, "14")
    assert rig.happenings == [Happening.LIST, Happening.WATCH, Happening.EVENT, Happening.EVENT]


def test_run_ends_at_once_when_cancelled_and_whatever_it_is_doing() -> None:
    scripts: list[list[Reply]] = [
        [Answer(delay=20.0)],
        [Answer(500)],
        [listed(), watched()],
    ]

    async def scenario() -> None:
        for script in scripts:
            task = asyncio.create_task(Rig(script).informer.run())
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.get_running_loop().time() == began

    virtually(scenario)


def test_an_unexpected_exception_ends_run_with_it() -> None:
    rig = Rig([ZeroDivisionError("a bug")])

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await rig.informer.run()

    virtually(scenario)


def test_the_collector_stays_enabled_and_is_relieved_of_what_the_first_list_brought() -> None:
    informer = Informer(
        Client(ScriptedTransport([listed(raw("a", 1)), watched()]), ClientOptions("tests")),
        Thing,
        options=InformerOptions(stream_lists=False),
    )

    async def scenario() -> None:
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
        task.cancel()

    gc.unfreeze()
    try:
        virtually(scenario)
    finally:
        gc.unfreeze()


# -- handlers ---------------------------------------------------------------------------------------------------------


def test_a_late_handler_hears_of_everything_once() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 2)), watched(Pause(5.0), event("ADDED", raw("c", 11)))])
    late = Follower()

    async def scenario() -> None:
        async with rig.running() as informer:
            await asyncio.sleep(1.0)
            informer.add_handler(late)
            assert late.told() == ["ADDED a", "ADDED b"]
            await asyncio.sleep(9.0)

    virtually(scenario)
    assert [(change.subject.name, change.initial) for change in late.changes] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]


def test_a_handler_added_by_a_handler_hears_of_everything_once() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 2)), watched(event("ADDED", raw("c", 11)))])
    late = Follower()

    def add(change: Change[Thing]) -> None:
        if change.subject.name == "a":
            rig.informer.add_handler(late)

    rig.informer.add_handler(add)
    rig.run()
    assert late.told() == ["ADDED a", "ADDED b", "ADDED c"]


def test_a_raising_handler_is_counted_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("ADDED", raw("b", 11)))])
    behind = Follower()

    def fail(_: Change[Thing]) -> None:
        raise ValueError("bad handler")

    rig.expected_handler_errors = 2
    rig.informer.add_handler(fail)
    rig.informer.add_handler(behind)
    rig.run()
    assert behind.told() == rig.follower.told() == ["ADDED a", "ADDED b"]
    assert rig.informer.statistics().handler_errors == 2
    assert rig.happenings.count(Happening.HANDLER_FAILED) == 2
    assert caplog.text.count("a handler raised") == 2


# -- objects that cannot be read --------------------------------------------------------------------------------------

BAD = "not a number"


def test_one_unreadable_object_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    steps = [event("ADDED", raw("bad2", 11, size=BAD)), event("ADDED", raw("b", 12))]
    rig = Rig([listed(raw("bad", 1, size=BAD), raw("a", 2)), watched(*steps)])
    assert names(rig.run()) == {"a": "2", "b": "12"}
    assert rig.informer.statistics().undecodable == 2
    assert rig.informer.synced
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.__dict__["fields"]["object"] for record in warnings] == [Key("a", "bad"), Key("a", "bad2")]


def test_an_object_that_became_unreadable_stays_as_it_was_and_counts() -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("MODIFIED", raw("a", 11, size=BAD)))])
    assert names(rig.run()) == {"a": "1"}
    assert rig.informer.statistics().undecodable == 1
    assert rig.informer.statistics().resource_version == "11"


def test_an_object_that_became_unreadable_survives_a_relist() -> None:
    rig = relisted([raw("a", 1)], [raw("a", 15, size=BAD)])
    assert names(rig.informer) == {"a": "1"}
    assert rig.follower.told() == ["ADDED a"]


@pytest.mark.parametrize("size", [BAD, 5])
def test_an_unreadable_object_leaves_the_store_when_deleted(size: Any) -> None:
    steps = [event("MODIFIED", raw("a", 11, size=BAD)), event("DELETED", raw("a", 12, size=size))]
    rig = Rig([listed(raw("a", 1)), watched(*steps)])
    assert names(rig.run()) == {}
    assert rig.follower.told() == ["ADDED a", "DELETED a"]
    assert rig.follower.changes[1].final_state_unknown == (size == BAD)
    assert rig.informer.statistics().undecodable == 0


def test_an_unreadable_namesake_is_the_deletion_of_the_old_object() -> None:
    rig = Rig([listed(raw("a", 1)), watched(event("ADDED", raw("a", 11, uid="other", size=BAD)))])
    assert names(rig.run()) == {}
    assert rig.follower.told() == ["ADDED a", "DELETED a"]
    assert relisted([raw("a", 1)], [raw("a", 15, uid="other", size=BAD)]).follower.told() == ["ADDED a", "DELETED a"]


def test_an_object_that_is_readable_again_no_longer_counts() -> None:
    steps = [event("MODIFIED", raw("a", 11, size=BAD)), event("MODIFIED", raw("a", 12))]
    rig = Rig([listed(raw("a", 1)), watched(*steps)])
    assert names(rig.run()) == {"a": "12"}
    assert rig.informer.statistics().undecodable == 0


def test_each_version_of_an_unreadable_object_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bad, worse = raw("a", 1, size=BAD), raw("a", 12, size=BAD)
    script = [listed(bad), Answer(410), listed(bad), watched(event("MODIFIED", bad), event("MODIFIED", worse))]
    Rig(script).run(2.0)
    assert caplog.text.count("cannot be read") == 2


# -- reading our own writes -------------------------------------------------------------------------------------------


def write(version: int | str, name: str = "a", uid: str = "uid-a") -> Write:
    return Write(Thing, Key("a", name), uid, str(version))


async def seen_after(informer: Informer[Thing], awaited: Write, timeout: float = 20.0) -> tuple[bool, float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    result = await informer.wait_for(awaited, timeout)
    return result, loop.time() - began


def waited(script: list[Reply], awaited: Write, timeout: float = 20.0) -> tuple[bool, float]:
    """Waits for a write as soon as the informer is synced."""
    rig = Rig(script)

    async def scenario() -> tuple[bool, float]:
        async with rig.running() as informer:
            await informer.wait_synced()
            return await seen_after(informer, awaited, timeout)

    return run_virtual(scenario)


def test_a_write_that_the_cache_has_is_not_waited_for() -> None:
    assert waited([listed(raw("a", 9), at=10), watched()], write(9)) == (True, 0.0)


@pytest.mark.parametrize(
    "step",
    [
        event("ADDED", raw("a", 11)),
        event("MODIFIED", raw("a", 12)),
        event("DELETED", raw("a", 12)),
        event("ADDED", raw("b", 12)),
        bookmark(100),
    ],
    ids=["itself", "a later state", "a deletion", "another object", "a bookmark"],
)
def test_a_write_is_seen_with_anything_at_or_after_it(step: Json) -> None:
    assert waited([listed(), watched(Pause(3.0), bookmark(10), Pause(1.0), step)], write(11)) == (True, 4.0)


def test_versions_of_a_write_are_compared_as_numbers() -> None:
    script: list[Reply] = [listed(at=9), watched(Pause(3.0), bookmark(10))]
    assert waited(script, write(10)) == (True, 3.0)
    assert waited([listed(at=9), watched()], write(10), 2.0) == (False, 2.0)


def test_a_write_that_nothing_follows_times_out() -> None:
    assert waited([listed(), watched()], write(11), 5.0) == (False, 5.0)


def test_a_write_in_another_namespace_than_the_selected_is_not_waited_for() -> None:
    rig = Rig([listed(), watched()], selection=Selection("b"))

    async def scenario() -> None:
        async with rig.running() as informer:
            assert await seen_after(informer, write(11)) == (True, 0.0)

    virtually(scenario)


def test_a_write_is_seen_with_a_relist() -> None:
    script: list[Reply] = [listed(), Answer(410), listed(raw("a", 11), at=12), watched()]
    seen, after = waited(script, write(11))
    assert seen
    assert after == pytest.approx(0.8)


def test_a_delete_is_seen_once_the_uid_is_gone() -> None:
    script: list[Reply] = [listed(raw("a", 1)), watched(Pause(3.0), event("DELETED", raw("a", 11)))]
    assert waited(script, write("")) == (True, 3.0)


def test_a_delete_is_not_seen_while_the_object_is_only_being_deleted() -> None:
    script: list[Reply] = [listed(raw("a", 1)), watched(Pause(3.0), event("MODIFIED", raw("a", 11, deleting=True)))]
    assert waited(script, write(""), 5.0) == (False, 5.0)


def test_a_delete_is_seen_where_a_namesake_has_taken_the_place() -> None:
    assert waited([listed(raw("a", 1, uid="other")), watched()], write("")) == (True, 0.0)


def test_before_the_first_list_not_even_a_delete_counts_as_seen() -> None:
    rig = Rig([Answer(delay=3.0, body=listed().body), watched()])

    async def scenario() -> None:
        async with rig.running() as informer:
            assert await seen_after(informer, write("")) == (True, 3.0)

    virtually(scenario)


def test_opaque_versions_are_seen_exactly_or_by_the_objects_disappearance() -> None:
    exact = watched(Pause(3.0), event("MODIFIED", raw("a", "zz")))
    gone = watched(Pause(3.0), event("DELETED", raw("a", "zzz")))
    other = watched(Pause(3.0), event("MODIFIED", raw("a", "yy")))
    before = listed(raw("a", "aa"), at="ab")
    assert waited([before, exact], write("zz")) == (True, 3.0)
    assert waited([before, gone], write("zz")) == (True, 3.0)
    assert waited([before, other], write("zz"), 5.0) == (False, 5.0)
    assert waited([listed(at="ab"), watched()], write("zz"), 5.0) == (False, 5.0)
