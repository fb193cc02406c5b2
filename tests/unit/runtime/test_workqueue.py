"""The work queue: its decisions at given times, and tasks that wait on it on virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from controllers.runtime.limiter import ExponentialLimiter
from controllers.runtime.testing import run_virtual
from controllers.runtime.workqueue import AGEING, AsyncWorkQueue, WorkQueue


class Recorder:
    """Keeps what a metrics implementation would."""

    def __init__(self) -> None:
        self.depth: Counter[int] = Counter()
        self.adds = 0
        self.retries = 0
        self.waits: list[float] = []
        self.works: list[float] = []

    def added(self, priority: int) -> None:
        self.adds += 1
        self.depth[priority] += 1

    def lifted(self, old: int, new: int) -> None:
        self.depth[old] -= 1
        self.depth[new] += 1

    def popped(self, priority: int, waited: float) -> None:
        self.depth[priority] -= 1
        self.waits.append(waited)

    def done(self, worked: float) -> None:
        self.works.append(worked)

    def retried(self) -> None:
        self.retries += 1


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue[str](limiter=ExponentialLimiter(base=1.0, cap=60.0))


def pop_key(queue: WorkQueue[str], now: float) -> str | None:
    item = queue.pop(now)
    return item.key if item else None


def drain(queue: WorkQueue[str], now: float) -> Iterator[str]:
    while (item := queue.pop(now)) is not None:
        yield item.key


def holding(*keys: str) -> WorkQueue[str]:
    """A queue where these keys are being processed."""
    queue = WorkQueue[str]()
    for key in keys:
        queue.add(key, 0.0)
        assert pop_key(queue, 0.0) == key
    return queue


def test_key_added_twice_is_handed_out_once(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0)
    queue.add("a", 1.0)
    assert list(drain(queue, 2.0)) == ["a"]


def test_add_while_processing_is_requeued_once() -> None:
    queue = holding("a")
    for now in (1.0, 2.0, 3.0):
        queue.add("a", now)
    assert pop_key(queue, 4.0) is None
    queue.done("a", 5.0)
    assert list(drain(queue, 5.0)) == ["a"]
    queue.done("a", 6.0)
    assert pop_key(queue, 6.0) is None


def test_delayed_adds_while_processing_collapse_with_immediate_ones() -> None:
    queue = holding("a")
    queue.add("a", 1.0, after=10.0)
    queue.add("a", 2.0)
    queue.add("a", 3.0, after=0.5)
    queue.done("a", 4.0)
    assert list(drain(queue, 100.0)) == ["a"]
    assert queue.statistics(100.0).delayed == 0


def test_delay_that_ends_while_processing_waits_for_done() -> None:
    queue = holding("a")
    queue.add("a", 1.0, after=1.0)
    assert pop_key(queue, 5.0) is None
    assert queue.statistics(5.0).dirty_while_processing == 1
    queue.done("a", 6.0)
    assert pop_key(queue, 6.0) == "a"


def test_delay_that_outlasts_the_processing_stays_a_delay() -> None:
    queue = holding("a")
    queue.add("a", 1.0, after=9.0)
    queue.done("a", 2.0)
    assert pop_key(queue, 9.5) is None
    assert pop_key(queue, 10.0) == "a"


def test_rerun_goes_to_the_tail() -> None:
    queue = holding("a")
    queue.add("a", 1.0)
    queue.add("b", 2.0)
    queue.add("c", 2.0)
    queue.done("a", 3.0)
    assert list(drain(queue, 3.0)) == ["b", "c", "a"]


def test_rerun_keeps_the_highest_priority_asked_for() -> None:
    queue = holding("a")
    queue.add("a", 1.0, priority=-5)
    queue.add("a", 1.0, priority=7)
    queue.add("a", 1.0, priority=2)
    queue.done("a", 2.0)
    item = queue.pop(2.0)
    assert item is not None
    assert item.priority == 7


def test_distinct_keys_come_in_order_of_arrival(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key, 0.0)
    queue.add("z", 1.0)
    assert list(drain(queue, 1.0)) == ["c", "a", "b", "z"]


def test_key_in_processing_is_not_handed_out_to_another_worker() -> None:
    queue = holding("a")
    queue.add("a", 1.0, priority=100)
    queue.add("b", 1.0)
    assert list(drain(queue, 50.0)) == ["b"]


def test_add_after_shutdown_is_dropped() -> None:
    queue = holding("a")
    queue.shut_down()
    queue.add("a", 1.0)
    queue.add("b", 1.0)
    queue.add("c", 1.0, after=1.0)
    queue.add_rate_limited("d", 1.0)
    queue.done("a", 2.0)
    assert pop_key(queue, 1000.0) is None
    assert queue.next_deadline(1000.0) is None


def test_ready_keys_are_handed_out_after_shutdown(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0)
    queue.add("b", 0.0)
    queue.shut_down()
    assert queue.shutting_down
    assert list(drain(queue, 1.0)) == ["a", "b"]


def test_key_dirty_at_shutdown_is_delivered_after_done() -> None:
    queue = holding("a")
    queue.add("a", 1.0)
    queue.shut_down()
    assert pop_key(queue, 2.0) is None
    queue.done("a", 3.0)
    assert pop_key(queue, 3.0) == "a"


def test_delayed_keys_are_dropped_at_shutdown(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0, after=1.0)
    queue.shut_down()
    assert pop_key(queue, 2.0) is None
    assert queue.statistics(2.0).delayed == 0


def test_shutting_down_twice_is_harmless(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0)
    queue.shut_down()
    queue.shut_down()
    assert list(drain(queue, 0.0)) == ["a"]


def test_done_of_a_key_that_is_not_processed_is_harmless(queue: WorkQueue[str]) -> None:
    queue.done("unknown", 0.0)
    queue.add("waiting", 0.0)
    queue.done("waiting", 0.0)
    queue.add("later", 0.0, after=1.0)
    queue.done("later", 0.0)
    assert list(drain(queue, 2.0)) == ["waiting", "later"]


def test_second_done_does_not_enqueue_a_dirty_key_twice() -> None:
    queue = holding("a")
    queue.add("a", 1.0)
    queue.done("a", 2.0)
    queue.done("a", 2.0)
    assert list(drain(queue, 3.0)) == ["a"]


def test_length_counts_ready_keys_only() -> None:
    queue = holding("running", "dirty")
    queue.add("dirty", 0.0)
    queue.add("delayed", 0.0, after=5.0)
    assert len(queue) == 0
    queue.add("ready", 0.0)
    assert len(queue) == 1


def test_statistics_tell_where_each_key_is() -> None:
    queue = holding("running", "dirty")
    queue.add("dirty", 1.0)
    queue.add("delayed", 1.0, after=5.0)
    queue.add("ready", 1.0)
    queue.done("running", 1.0)
    queue.add("running", 1.0, priority=1)
    assert pop_key(queue, 2.0) == "running"
    statistics = queue.statistics(4.0)
    assert (statistics.ready, statistics.delayed) == (1, 1)
    assert (statistics.processing, statistics.dirty_while_processing) == (2, 1)
    assert statistics.oldest_processing_seconds == 4.0
    assert statistics.unfinished_work_seconds == 6.0
    assert not statistics.shutting_down


def test_depth_and_adds_rise_when_a_key_becomes_pending_also_while_it_is_processed() -> None:
    recorder = Recorder()
    queue = WorkQueue[str](observer=recorder)
    queue.add("a", 0.0)
    queue.add("a", 0.0)
    assert (recorder.adds, recorder.depth[0]) == (1, 1)
    queue.pop(1.0)
    assert (recorder.adds, recorder.depth[0]) == (1, 0)
    queue.add("a", 2.0)
    queue.add("a", 3.0)
    assert (recorder.adds, recorder.depth[0]) == (2, 1)
    queue.done("a", 4.0)
    assert (recorder.adds, recorder.depth[0]) == (2, 1)
    queue.pop(6.0)
    assert recorder.waits == [1.0, 4.0]


def test_delayed_key_counts_as_added_when_it_becomes_ready() -> None:
    recorder = Recorder()
    queue = WorkQueue[str](observer=recorder)
    queue.add("a", 0.0, after=2.0)
    assert (recorder.adds, recorder.depth[0]) == (0, 0)
    queue.next_deadline(5.0)
    assert (recorder.adds, recorder.depth[0]) == (1, 1)
    queue.pop(5.0)
    assert recorder.waits == [3.0]


def test_only_adds_with_a_delay_count_as_retries() -> None:
    recorder = Recorder()
    queue = WorkQueue[str](observer=recorder)
    queue.add("a", 0.0)
    queue.add("a", 0.0, after=0.0)
    assert recorder.retries == 0
    queue.add("a", 0.0, after=1.0)
    queue.add_rate_limited("a", 0.0)
    assert recorder.retries == 2


def test_work_duration_is_observed_at_done() -> None:
    recorder = Recorder()
    queue = WorkQueue[str](observer=recorder)
    queue.add("a", 0.0)
    queue.pop(1.0)
    assert recorder.works == []
    queue.done("a", 4.5)
    queue.done("a", 9.0)
    assert recorder.works == [3.5]


def test_queue_without_observer_needs_no_timer_and_no_task() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        assert len(asyncio.all_tasks()) == 1
        assert queue._timer is None

    run_virtual(scenario)


@pytest.mark.parametrize("after", [0.0, -1.0])
def test_add_without_a_positive_delay_is_ready_at_once(queue: WorkQueue[str], after: float) -> None:
    queue.add("a", 5.0, after=after)
    assert pop_key(queue, 5.0) == "a"


@pytest.mark.parametrize("delays", [(2.0, 9.0), (9.0, 2.0)])
def test_of_two_delays_the_earlier_wins(queue: WorkQueue[str], delays: tuple[float, float]) -> None:
    for delay in delays:
        queue.add("a", 0.0, after=delay)
    assert queue.next_deadline(0.0) == 2.0
    assert pop_key(queue, 1.9) is None
    assert list(drain(queue, 2.0)) == ["a"]
    queue.done("a", 2.0)
    assert pop_key(queue, 100.0) is None


def test_immediate_add_makes_a_delayed_key_ready_and_leaves_one_entry(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0, after=10.0)
    queue.add("a", 1.0)
    assert pop_key(queue, 1.0) == "a"
    queue.done("a", 2.0)
    assert queue.next_deadline(2.0) is None
    assert pop_key(queue, 100.0) is None


def test_delayed_keys_become_ready_in_order_of_due_time(queue: WorkQueue[str]) -> None:
    queue.add("late", 0.0, after=3.0)
    queue.add("early", 0.0, after=1.0)
    queue.add("middle", 0.0, after=2.0)
    assert queue.next_deadline(0.0) == 1.0
    assert list(drain(queue, 2.5)) == ["early", "middle"]
    assert queue.next_deadline(2.5) == 3.0


def test_delayed_key_is_ordered_by_when_it_became_ready(queue: WorkQueue[str]) -> None:
    queue.add("delayed", 0.0, after=2.0)
    queue.add("before", 1.0)
    queue.add("after", 3.0)
    assert list(drain(queue, 4.0)) == ["before", "delayed", "after"]


def test_forget_leaves_queued_and_delayed_keys_alone(queue: WorkQueue[str]) -> None:
    queue.add("ready", 0.0)
    queue.add_rate_limited("delayed", 0.0)
    queue.forget("ready")
    queue.forget("delayed")
    assert list(drain(queue, 1.0)) == ["ready", "delayed"]


def test_rate_limited_add_waits_for_the_limiter_until_forgotten(queue: WorkQueue[str]) -> None:
    for now, due in ((0.0, 1.0), (1.0, 3.0), (3.0, 7.0)):
        queue.add_rate_limited("a", now)
        assert queue.next_deadline(now) == due
        assert pop_key(queue, due) == "a"
        queue.done("a", due)
    queue.forget("a")
    queue.add_rate_limited("a", 10.0)
    assert queue.next_deadline(10.0) == 11.0


def test_default_limiter_starts_at_5_ms() -> None:
    queue = WorkQueue[str]()
    queue.add_rate_limited("a", 0.0)
    assert queue.next_deadline(0.0) == pytest.approx(0.005)


def test_higher_priority_comes_first_and_arrival_counts_inside_a_class(queue: WorkQueue[str]) -> None:
    for key, priority in (("n1", -1), ("z1", 0), ("p1", 1), ("n2", -1), ("z2", 0), ("p2", 1)):
        queue.add(key, 0.0, priority=priority)
    assert list(drain(queue, 0.0)) == ["p1", "p2", "z1", "z2", "n1", "n2"]


def test_higher_priority_lifts_to_the_tail_of_the_new_class(queue: WorkQueue[str]) -> None:
    queue.add("low", 0.0, priority=-100)
    queue.add("first", 0.0)
    queue.add("low", 1.0)
    queue.add("last", 1.0)
    assert list(drain(queue, 1.0)) == ["first", "low", "last"]


def test_lower_priority_changes_nothing(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0, priority=5)
    queue.add("b", 0.0, priority=5)
    queue.add("a", 1.0, priority=-5)
    item = queue.pop(1.0)
    assert item is not None
    assert (item.key, item.priority) == ("a", 5)


def test_resynced_key_jumps_ahead_when_a_real_event_comes(queue: WorkQueue[str]) -> None:
    for key in "abc":
        queue.add(key, 0.0, priority=-100)
    queue.add("c", 1.0)
    item = queue.pop(1.0)
    assert item is not None
    assert (item.key, item.priority, item.waited) == ("c", 0, 1.0)


def test_lift_never_throws_an_aged_key_back(queue: WorkQueue[str]) -> None:
    queue.add("old", 0.0, priority=-1)
    queue.add("young", 5.0)
    queue.add("old", 10.0)
    assert list(drain(queue, 10.0)) == ["old", "young"]


def test_ready_key_stays_ready_when_added_with_a_delay(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0)
    queue.add("a", 0.0, priority=3, after=60.0)
    item = queue.pop(0.0)
    assert item is not None
    assert (item.key, item.priority) == ("a", 3)
    assert queue.next_deadline(0.0) is None


def test_delayed_key_takes_the_earliest_time_and_the_highest_priority(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0, priority=9, after=50.0)
    queue.add("a", 0.0, priority=1, after=2.0)
    queue.add("a", 0.0, priority=4, after=70.0)
    item = queue.pop(2.0)
    assert item is not None
    assert (item.key, item.priority) == ("a", 9)


def test_immediate_add_keeps_the_priority_of_the_delayed_one(queue: WorkQueue[str]) -> None:
    queue.add("a", 0.0, priority=9, after=50.0)
    queue.add("a", 1.0, priority=-9)
    item = queue.pop(1.0)
    assert item is not None
    assert item.priority == 9


@pytest.mark.parametrize(("after", "due"), [(0.5, 0.5), (5.0, 1.0)])
def test_of_an_explicit_and_a_rate_limited_delay_the_smaller_wins(
    queue: WorkQueue[str], after: float, due: float
) -> None:
    queue.add_rate_limited("a", 0.0)
    queue.add("a", 0.0, after=after)
    assert queue.next_deadline(0.0) == due


def test_depth_moves_between_priorities_and_sums_to_what_is_pending() -> None:
    recorder = Recorder()
    queue = WorkQueue[str](observer=recorder)
    queue.add("a", 0.0, priority=-100)
    queue.add("b", 0.0)
    queue.add("a", 1.0)
    assert recorder.depth == {-100: 0, 0: 2}
    queue.pop(1.0)
    queue.add("b", 1.0)
    queue.add("b", 1.0, priority=4)
    assert recorder.depth == {-100: 0, 0: 1, 4: 1}
    assert recorder.depth.total() == len(queue) + queue.statistics(1.0).dirty_while_processing


def test_priority_is_zero_unless_given_and_may_be_negative() -> None:
    queue = WorkQueue[str]()
    queue.add("plain", 0.0)
    queue.add("low", 0.0, priority=-7)
    items = [queue.pop(0.0), queue.pop(0.0)]
    assert [(item.key, item.priority) for item in items if item] == [("plain", 0), ("low", -7)]


def test_low_priority_is_served_under_sustained_overload() -> None:
    queue = WorkQueue[str]()
    queue.add("resync", 0.0, priority=-100)
    backlog, served_at = 0, None
    for step in range(30_000):
        now = step * 0.01
        queue.add(f"event-{2 * step}", now)
        queue.add(f"event-{2 * step + 1}", now)
        key = pop_key(queue, now)
        assert key is not None
        queue.done(key, now)
        if key == "resync":
            served_at, backlog = now, len(queue)
            break
    assert served_at is not None
    assert backlog > 1000
    # Two come for each one served, so what became ready within 100 s is served within about 200 s.
    assert 100 * AGEING <= served_at <= 201 * AGEING


def test_low_priority_is_overtaken_for_no_longer_than_its_distance(queue: WorkQueue[str]) -> None:
    queue.add("low", 0.0, priority=-10)
    queue.add("just-in-time", 10 * AGEING - 0.1)
    queue.add("too-late", 10 * AGEING + 0.1)
    assert list(drain(queue, 20.0)) == ["just-in-time", "low", "too-late"]


def test_replaced_entries_do_not_pile_up() -> None:
    queue = WorkQueue[int]()
    for now in range(10_000):
        queue.add(0, float(now), after=10_000.0)
        queue.add(0, float(now))
        item = queue.pop(float(now))
        assert item is not None
        queue.done(0, float(now))
    for priority in range(10_000):
        queue.add(1, 10_000.0, priority=priority)
    assert len(queue._delayed_heap) < 200
    assert len(queue._ready_heap) < 200


def test_get_waits_for_a_delayed_key_no_longer_than_its_delay() -> None:
    async def scenario() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[str]()
        queue.add("late", after=20.0)
        queue.add("early", after=0.25)
        served = []
        for _ in range(2):
            item = await queue.get()
            assert item is not None
            served.append((item.key, loop.time()))
        return served

    assert run_virtual(scenario) == [("early", 0.25), ("late", 20.0)]


def test_any_number_of_delays_is_served_on_time() -> None:
    rng = random.Random(7)
    delays = {key: rng.uniform(0.0, 100.0) for key in range(500)}

    async def scenario() -> dict[int, float]:
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[int]()
        for key, delay in delays.items():
            queue.add(key, after=delay)
        served: dict[int, float] = {}
        while len(served) < len(delays):
            item = await queue.get()
            assert item is not None
            served[item.key] = loop.time()
        return served

    served = run_virtual(scenario)
    assert list(served) == sorted(delays, key=lambda key: delays[key])
    assert served == pytest.approx(delays)


def test_no_more_than_one_timer_is_armed() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[int]()
        for key in range(100):
            queue.add(key, after=1000.0 - key)
        timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        assert [timer.when() for timer in timers] == [901.0]

    run_virtual(scenario)


def test_shutdown_wakes_every_blocked_get() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        getters = [asyncio.create_task(queue.get()) for _ in range(5)]
        await asyncio.sleep(1.0)
        queue.shut_down()
        assert await asyncio.gather(*getters) == [None] * 5
        assert await queue.get() is None

    run_virtual(scenario)


def test_get_reports_shutdown_only_when_the_queue_is_empty() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        queue.shut_down()
        assert queue.shutting_down
        item = await queue.get()
        assert item is not None
        assert await queue.get() is None

    run_virtual(scenario)


def test_shutdown_leaves_no_timer_behind() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a", after=3600.0)
        queue.shut_down()
        queue.shut_down()
        assert queue._timer is None

    run_virtual(scenario)


def test_a_getter_that_leaves_at_shutdown_does_not_block_the_others() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        getters = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.shut_down()
        getters[0].cancel()
        results = await asyncio.gather(*getters, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None, None]

    run_virtual(scenario)


def test_drain_waits_for_ready_and_processed_keys_but_not_for_delayed_ones() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[str]()

        async def worker() -> None:
            while (item := await queue.get()) is not None:
                await asyncio.sleep(10.0)
                queue.done(item.key)

        task = asyncio.create_task(worker())
        queue.add("a")
        queue.add("b")
        queue.add("much-later", after=3600.0)
        await queue.drained()
        assert loop.time() == 20.0
        queue.shut_down()
        await queue.drained()
        await task

    run_virtual(scenario)


def test_drain_waits_for_a_rerun() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.shut_down()
        drain = asyncio.create_task(queue.drained())
        await asyncio.sleep(1.0)
        queue.done("a")
        await asyncio.sleep(1.0)
        assert not drain.done()
        assert await queue.get() is not None
        queue.done("a")
        await drain

    run_virtual(scenario)


def test_a_second_shutdown_releases_a_blocked_drain() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        await queue.get()
        queue.shut_down()
        drain = asyncio.create_task(queue.drained())
        await asyncio.sleep(1.0)
        assert not drain.done()
        queue.shut_down()
        assert await drain is False

    run_virtual(scenario)


def test_a_first_shutdown_leaves_a_drain_waiting_for_what_is_processed() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        await queue.get()
        drain = asyncio.create_task(queue.drained())
        await asyncio.sleep(1.0)
        queue.shut_down()
        await asyncio.sleep(1.0)
        assert not drain.done()
        queue.done("a")
        assert await drain is True

    run_virtual(scenario)


def test_a_blocked_drain_ends_with_its_timeout_and_leaves_nothing() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        queue.add("a")
        await queue.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.drained(), 5.0)
        assert not queue._drains
        queue.done("a")
        await queue.drained()

    run_virtual(scenario)


def test_cancelled_get_loses_no_key() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        queue.add("a")
        first.cancel()
        item = await asyncio.wait_for(second, 1.0)
        assert item is not None
        assert item.key == "a"
        assert first.cancelled()

    run_virtual(scenario)


def test_add_after_a_cancelled_get_reaches_the_next_getter() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[str]()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        queue.add("a")
        assert await asyncio.wait_for(second, 1.0) is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 1.0)
        assert not queue._getters
        queue.add("b")
        assert await asyncio.wait_for(queue.get(), 1.0) is not None

    run_virtual(scenario)


def test_every_key_finds_a_getter_though_getters_come_and_go() -> None:
    async def scenario() -> None:
        rng = random.Random(3)
        queue = AsyncWorkQueue[int]()
        served: set[int] = set()

        async def impatient() -> None:
            while not queue.shutting_down:
                try:
                    async with asyncio.timeout(rng.choice([0.0, 0.1, 0.2])):
                        item = await queue.get()
                except TimeoutError:
                    await asyncio.sleep(0.1)
                    continue
                if item is not None:
                    served.add(item.key)
                    queue.done(item.key)

        workers = [asyncio.create_task(impatient()) for _ in range(4)]
        for key in range(2000):
            queue.add(key, after=rng.choice([0.0, 0.0, 0.1]))
            await asyncio.sleep(rng.choice([0.0, 0.1]))
        await asyncio.sleep(1.0)
        await asyncio.wait_for(queue.drained(), 10.0)
        queue.shut_down()
        await asyncio.gather(*workers)
        assert served == set(range(2000))

    run_virtual(scenario)


def test_workers_share_the_keys_that_are_ready() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[int]()

        async def worker() -> None:
            while (item := await queue.get()) is not None:
                await asyncio.sleep(1.0)
                queue.done(item.key)

        workers = [asyncio.create_task(worker()) for _ in range(10)]
        await asyncio.sleep(0)
        for key in range(100):
            queue.add(key)
        await queue.drained()
        assert loop.time() == 10.0
        queue.shut_down()
        await asyncio.gather(*workers)

    run_virtual(scenario)


def test_keys_that_become_due_together_wake_a_getter_each() -> None:
    async def scenario() -> None:
        queue = AsyncWorkQueue[int]()
        getters = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in range(3):
            queue.add(key, after=5.0)
        items = await asyncio.wait_for(asyncio.gather(*getters), 6.0)
        assert sorted(item.key for item in items if item is not None) == [0, 1, 2]

    run_virtual(scenario)


def test_rate_limited_key_comes_back_until_forgotten() -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[str](limiter=ExponentialLimiter(base=1.0, cap=4.0))
        times = []
        queue.add("a", priority=2)
        for attempt in range(6):
            item = await queue.get()
            assert item is not None
            assert item.priority == 2
            times.append(loop.time())
            if attempt == 4:
                queue.forget("a")
            queue.add_rate_limited("a", priority=item.priority)
            queue.done("a")
        assert queue.statistics().delayed == 1
        return times

    assert run_virtual(scenario) == [0.0, 1.0, 3.0, 7.0, 11.0, 12.0]


@pytest.mark.parametrize("seed", range(3))
def test_no_key_is_ever_processed_by_two_workers_at_once_and_no_add_is_forgotten(seed: int) -> None:
    async def scenario() -> int:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        queue = AsyncWorkQueue[int]()
        running: set[int] = set()
        added: dict[int, float] = {}
        started: dict[int, float] = {}
        runs = 0

        async def worker() -> None:
            nonlocal runs
            while (item := await queue.get()) is not None:
                assert item.key not in running
                running.add(item.key)
                started[item.key] = loop.time()
                runs += 1
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))
                running.remove(item.key)
                if rng.random() < 0.1:
                    queue.add_rate_limited(item.key, priority=item.priority)
                queue.done(item.key)

        workers = [asyncio.create_task(worker()) for _ in range(8)]
        for _ in range(5000):
            key = rng.randrange(20)
            added[key] = loop.time()
            queue.add(key, priority=rng.choice([-100, 0, 10]), after=rng.choice([0.0, 0.0, 0.05, 1.0]))
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.05]))
        await asyncio.sleep(10.0)
        queue.shut_down()
        await asyncio.gather(*workers)
        assert {key for key, moment in added.items() if started[key] < moment} == set()
        return runs

    assert run_virtual(scenario) > 500
