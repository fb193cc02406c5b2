"""Handlers: direct and buffered ones, late, removed, failing and lagging ones."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controllers.runtime.cache import Change, Happening, Registration
from controllers.runtime.clock import SystemClock
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.testing import Answer, Pause
from tests.unit.runtime.cache.rig import Follower, Rig, Thing, event, listed, raw, virtually, watched


class Slow:
    """A buffered handler that takes a while for each change, and keeps a diary."""

    def __init__(self, seconds: float, fails_on: str = "") -> None:
        self.seconds = seconds
        self.fails_on = fails_on
        self.follower = Follower()
        self.times: list[float] = []
        self.registration: Registration[Thing] | None = None

    async def __call__(self, change: Change[Thing]) -> None:
        await asyncio.sleep(self.seconds)
        self.follower(change)
        self.times.append(asyncio.get_running_loop().time())
        if change.subject.name == self.fails_on:
            raise ValueError("bad handler")


def nothing() -> None:
    """Lets time pass."""


def happens(rig: Rig, seconds: float, *then: Callable[[], Any]) -> None:
    """Runs an informer, and does something after each so many seconds."""

    async def scenario() -> None:
        async with rig.running():
            for each in (*then, nothing):
                await asyncio.sleep(seconds)
                done = each()
                if isinstance(done, Awaitable):
                    await done

    virtually(scenario)


def updates(name: str, first: int, count: int) -> list[Any]:
    return [event("MODIFIED", raw(name, version, size=version)) for version in range(first, first + count)]


# -- late and early ---------------------------------------------------------------------------------------------------


def test_an_early_direct_handler_has_synced_with_the_informer() -> None:
    rig = Rig([listed(raw("a", 1)), watched()])
    seen: list[bool] = []
    registration = rig.informer.add_handler(lambda _: seen.append(registration.has_synced))
    assert not registration.has_synced
    happens(rig, 1.0)
    assert seen == [False]
    assert registration.has_synced


def test_a_late_direct_handler_has_synced_at_once() -> None:
    rig = Rig([listed(raw("a", 1)), watched()])
    synced: list[bool] = []
    happens(rig, 1.0, lambda: synced.append(rig.informer.add_handler(Follower()).has_synced))
    assert synced == [True]


def test_a_buffered_handler_has_synced_once_it_returned_from_its_last_initial_change() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched(Pause(0.5), event("ADDED", raw("c", 11)))])
    slow = Slow(2.0)
    registration = rig.informer.add_buffered_handler(slow)

    async def scenario() -> None:
        async with rig.running() as informer:
            await informer.wait_synced()
            assert not registration.has_synced
            await registration.wait_synced()
            assert asyncio.get_running_loop().time() == 4.0
            assert slow.times == [2.0, 4.0]
            await asyncio.sleep(2.5)

    virtually(scenario)
    assert slow.follower.told() == ["ADDED a", "ADDED b", "ADDED c"]


def test_a_buffered_handler_of_an_empty_cache_has_synced_with_it() -> None:
    rig = Rig([listed(), watched()])
    registration = rig.informer.add_buffered_handler(Slow(2.0))
    happens(rig, 1.0)
    assert registration.has_synced


def test_a_late_buffered_handler_hears_of_everything_once() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 2)), watched(Pause(5.0), event("ADDED", raw("c", 11)))])
    slow = Slow(1.0)
    happens(rig, 4.0, lambda: rig.informer.add_buffered_handler(slow) and None, nothing)
    assert [(change.subject.name, change.initial) for change in slow.follower.changes] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]


# -- independence -----------------------------------------------------------------------------------------------------


def test_a_slow_handler_delays_nobody_and_keeps_its_order() -> None:
    steps = [event("ADDED", raw("a", 11)), event("MODIFIED", raw("a", 12, size=1)), event("DELETED", raw("a", 13))]
    rig = Rig([listed(), watched(*steps)])
    slow, other = Slow(10.0), Slow(0.0)
    rig.informer.add_buffered_handler(slow)
    rig.informer.add_buffered_handler(other)
    happens(rig, 1.0, nothing, nothing)
    assert rig.follower.told() == other.follower.told() == ["ADDED a", "UPDATED a", "DELETED a"]
    assert other.times == [0.0, 0.0, 0.0]
    assert slow.follower.told() == []
    rig = Rig([listed(), watched(*steps)])
    rig.informer.add_buffered_handler(slow)
    happens(rig, 31.0)
    assert slow.follower.told() == ["ADDED a", "UPDATED a", "DELETED a"]


def test_a_buffered_handler_that_raises_loses_that_change_only(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1), raw("c", 1)), watched()])
    rig.expected_handler_errors = 1
    slow = Slow(0.1, fails_on="b")
    registration = rig.informer.add_buffered_handler(slow)
    happens(rig, 1.0)
    assert slow.follower.told() == ["ADDED a", "ADDED b", "ADDED c"]
    assert registration.has_synced
    assert rig.happenings.count(Happening.HANDLER_FAILED) == caplog.text.count("a handler raised") == 1


def test_a_buffered_handler_whose_work_others_cancel_goes_on_with_the_next_change() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched()])
    rig.expected_handler_errors = 1
    told: list[str] = []

    async def handler(change: Change[Thing]) -> None:
        told.append(change.subject.name)
        if change.subject.name == "a":
            work = asyncio.create_task(asyncio.sleep(60.0))
            asyncio.get_running_loop().call_later(0.1, work.cancel)
            await work

    rig.informer.add_buffered_handler(handler)
    happens(rig, 1.0)
    assert told == ["a", "b"]


class HeldUp(SystemClock):
    """A clock that handlers can take on, as blocking ones do."""

    def __init__(self) -> None:
        self.blocked = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.blocked


@pytest.mark.parametrize(("seconds", "warnings"), [(0.4, 0), (0.5, 1)])
def test_a_direct_handler_that_blocks_everything_is_told(
    seconds: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HeldUp()
    rig = Rig([listed(), watched(event("ADDED", raw("a", 11)))], clock=clock)
    rig.informer.add_handler(lambda _: setattr(clock, "blocked", clock.blocked + seconds))
    happens(rig, 1.0)
    assert caplog.text.count("handlers held up the whole process") == warnings
    assert rig.happenings.count(Happening.HANDLER_LAGS) == warnings


# -- buffers ----------------------------------------------------------------------------------------------------------


def test_a_buffer_beyond_its_limit_keeps_the_last_state_of_each_object(caplog: pytest.LogCaptureFixture) -> None:
    steps = [*updates("a", 11, 200), *updates("b", 300, 200), event("DELETED", raw("c", 600))]
    rig = Rig([listed(raw("a", 1), raw("b", 1), raw("c", 1)), watched(Pause(1.0), *steps)])
    slow = Slow(0.0)
    largest: list[int] = []

    def grow(_: Change[Thing]) -> None:
        largest.append(registration.pending)

    registration = rig.informer.add_buffered_handler(slow, limit=10)
    rig.informer.add_handler(grow)
    happens(rig, 0.5, lambda: setattr(slow, "seconds", 50.0), nothing, *[nothing] * 600)
    assert max(largest) <= 10
    assert slow.follower.objects == {item.key: item for item in rig.informer.store.list()}
    assert len(slow.follower.changes) < 50
    assert rig.happenings.count(Happening.HANDLER_LAGS) == caplog.text.count("a handler lags") == 1


def test_a_handler_that_lags_again_is_told_again() -> None:
    steps = [*updates("a", 11, 9), Pause(500.0), *updates("a", 31, 9)]
    rig = Rig([listed(raw("a", 1)), watched(Pause(1.0), *steps)])
    rig.informer.add_buffered_handler(Slow(5.0), limit=2)
    happens(rig, 250.0)
    assert rig.happenings.count(Happening.HANDLER_LAGS) == 1
    rig = Rig([listed(raw("a", 1)), watched(Pause(1.0), *updates("a", 11, 9), Pause(100.0), *updates("a", 31, 9))])
    rig.informer.add_buffered_handler(Slow(5.0), limit=2)
    happens(rig, 250.0)
    assert rig.happenings.count(Happening.HANDLER_LAGS) == 2


def test_more_objects_than_the_limit_wait_each_once() -> None:
    items = [raw(f"t{n}", 1) for n in range(50)]
    again = [raw(f"t{n}", 11, size=1) for n in range(50)]
    rig = Rig([listed(*items), watched(Pause(1.0), *[event("MODIFIED", item) for item in again])])
    slow = Slow(1000.0)
    registration = rig.informer.add_buffered_handler(slow, limit=10)
    pending: list[int] = []
    happens(rig, 2.0, lambda: pending.append(registration.pending))
    assert pending[0] < 100
    slow = Slow(0.01)
    rig = Rig([listed(*items), watched(Pause(0.1), *[event("MODIFIED", item) for item in again])])
    registration = rig.informer.add_buffered_handler(slow, limit=10)
    happens(rig, 5.0)
    assert registration.has_synced
    assert slow.follower.objects == {item.key: item for item in rig.informer.store.list()}


def test_objects_that_came_and_went_while_they_waited_are_never_told_and_hold_up_nothing() -> None:
    steps = [event("DELETED", raw(name, 20)) for name in "bca"]
    rig = Rig([listed(*(raw(name, 1) for name in "abc")), watched(Pause(0.5), *steps)])
    slow = Slow(1.0)
    registration = rig.informer.add_buffered_handler(slow, limit=3)
    happens(rig, 0.9)
    assert not registration.has_synced
    rig = Rig([listed(*(raw(name, 1) for name in "abc")), watched(Pause(0.5), *steps)])
    registration = rig.informer.add_buffered_handler(slow := Slow(1.0), limit=3)
    happens(rig, 1.1)
    assert registration.has_synced
    assert slow.follower.told() == ["ADDED a"]
    assert registration.pending == 0


@pytest.mark.parametrize("options", [{"limit": 0}, {"resync": 0.5}, {"resync": -1.0}])
def test_impossible_options_of_a_handler_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="at least"):
        Rig([]).informer.add_buffered_handler(Slow(0.0), **options)


# -- removal ----------------------------------------------------------------------------------------------------------


def test_a_removed_handler_hears_nothing_more_and_removing_twice_is_harmless() -> None:
    rig = Rig([listed(raw("a", 1)), watched(Pause(2.0), event("ADDED", raw("b", 11)))])
    direct, buffered = Follower(), Slow(0.0)
    registrations = [rig.informer.add_handler(direct), rig.informer.add_buffered_handler(buffered)]

    def remove() -> None:
        for registration in registrations * 2:
            registration.remove()

    happens(rig, 1.0, remove, nothing)
    assert direct.told() == buffered.follower.told() == ["ADDED a"]
    assert rig.follower.told() == ["ADDED a", "ADDED b"]


def test_a_handler_may_remove_itself_and_others_while_changes_are_handed_out() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched(event("ADDED", raw("c", 11)))])
    told: list[str] = []
    behind = Follower()

    def leave(change: Change[Thing]) -> None:
        told.append(change.subject.name)
        own.remove()
        other.remove()

    own = rig.informer.add_handler(leave)
    other = rig.informer.add_handler(behind)
    happens(rig, 1.0)
    assert (told, behind.told()) == (["a"], [])
    assert rig.follower.told() == ["ADDED a", "ADDED b", "ADDED c"]


def test_a_buffered_handler_that_removes_itself_returns_and_its_task_ends() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched()])
    told: list[str] = []

    async def leave(change: Change[Thing]) -> None:
        registration.remove()
        await asyncio.sleep(0.1)
        told.append(change.subject.name)

    registration = rig.informer.add_buffered_handler(leave)
    tasks: list[int] = []
    happens(rig, 1.0, lambda: tasks.append(len(rig.informer.tasks)))
    assert told == ["a"]
    assert tasks == [1]


def test_a_handler_may_be_removed_by_another_thread() -> None:
    rig = Rig([listed(raw("a", 1)), watched(Pause(2.0), event("ADDED", raw("b", 11)))])
    slow = Slow(0.0)
    registration = rig.informer.add_buffered_handler(slow)

    def remove() -> None:
        thread = threading.Thread(target=registration.remove)
        thread.start()
        thread.join()

    tasks: list[int] = []
    happens(rig, 1.0, remove, lambda: tasks.append(len(rig.informer.tasks)))
    assert slow.follower.told() == ["ADDED a"]
    assert tasks == [1]


# -- resync -----------------------------------------------------------------------------------------------------------


def test_a_resync_reminds_only_those_who_asked_and_sends_no_request() -> None:
    rig = Rig([listed(raw("a", 1)), watched()])
    reminded: list[tuple[float, bool]] = []
    rig.informer.add_handler(
        lambda change: reminded.append((asyncio.get_running_loop().time(), change.resync)), resync=10.0
    )
    happens(rig, 35.0)
    assert reminded == [(0.0, False), (10.0, True), (20.0, True), (30.0, True)]
    assert rig.follower.told() == ["ADDED a"]
    assert len(rig.transport.requests) == 2


def test_a_resync_goes_on_after_a_handler_raised() -> None:
    rig = Rig([listed(raw("a", 1), raw("b", 1)), watched()])
    rig.expected_handler_errors = 8
    calls: list[str] = []

    def fail(change: Change[Thing]) -> None:
        calls.append(change.subject.name)
        raise ValueError("bad handler")

    rig.informer.add_handler(fail, resync=10.0)
    happens(rig, 35.0)
    assert calls == ["a", "b"] * 4


def test_a_resync_of_a_late_handler_ends_with_its_removal() -> None:
    rig = Rig([listed(raw("a", 1)), watched()])
    calls: list[bool] = []
    registrations: list[Registration[Thing]] = []

    def add() -> None:
        registrations.append(rig.informer.add_handler(lambda change: calls.append(change.resync), resync=1.0))

    happens(rig, 2.5, add, lambda: registrations[0].remove(), nothing)
    assert calls == [False, True, True]


def test_nobody_is_reminded_before_the_first_list() -> None:
    rig = Rig([Answer(delay=20.0, body=listed(raw("a", 1)).body), watched()])
    calls: list[bool] = []
    rig.informer.add_handler(lambda change: calls.append(change.resync), resync=8.0)
    happens(rig, 25.0)
    assert calls == [False]


def test_a_coroutine_function_is_refused_as_a_direct_handler() -> None:
    async def handler(_: Change[Thing]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"a coroutine function.*or use add_buffered_handler"):
        Rig([]).informer.add_handler(handler)  # type: ignore[arg-type]
