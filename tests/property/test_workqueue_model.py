"""The work queue behaves like a model that is too slow to be wrong: a list, searched from end to end."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from controllers.runtime.limiter import ExponentialLimiter
from controllers.runtime.workqueue import AGEING, WorkQueue

KEYS = st.sampled_from("abcdef")
PRIORITIES = st.sampled_from([-100, -2, 0, 0, 0, 1, 5])
# Multiples of 1/4 add up without rounding, so that equal times are common and compare as equal.
DELAYS = st.sampled_from([-1.0, 0.0, 0.0, 0.25, 1.0, 3.0, 50.0])
STEPS = st.sampled_from([0.25, 0.5, 1.0, 4.0, 120.0])


@dataclass
class Waiting:
    """A key that somebody wants a run of: due at ``due``, pending since ``since``, behind all of lower ``rank``."""

    key: str
    priority: int
    due: float
    since: float | None = None
    rank: float | None = None


class Model:
    """``waiting`` is ordered by the last change of place, which decides between equal ranks or due times."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.processing: dict[str, float] = {}
        self.failures: Counter[str] = Counter()
        self.closed = False

    def find(self, key: str) -> Waiting | None:
        return next((entry for entry in self.waiting if entry.key == key), None)

    def ready(self) -> list[Waiting]:
        return [entry for entry in self.waiting if entry.rank is not None]

    def delayed(self) -> list[Waiting]:
        return [entry for entry in self.waiting if entry.since is None]

    def dirty(self) -> list[Waiting]:
        return [entry for entry in self.waiting if entry.since is not None and entry.rank is None]

    def to_the_end(self, entry: Waiting) -> None:
        self.waiting.remove(entry)
        self.waiting.append(entry)

    def arrive(self, entry: Waiting, now: float) -> None:
        entry.since = now
        if entry.key not in self.processing:
            entry.rank = now - entry.priority * AGEING
        self.to_the_end(entry)

    def pass_time(self, now: float) -> None:
        for entry in sorted(self.delayed(), key=lambda entry: entry.due):
            if entry.due <= now:
                self.arrive(entry, entry.due)

    def add(self, key: str, now: float, priority: int, after: float) -> None:
        if self.closed:
            return
        self.pass_time(now)
        entry = self.find(key)
        due = now + max(0.0, after)
        if entry is None:
            entry = Waiting(key, priority, due)
            self.waiting.append(entry)
        else:
            if due < entry.due or priority > entry.priority:
                self.to_the_end(entry)
            lifted = priority > entry.priority
            entry.due, entry.priority = min(entry.due, due), max(entry.priority, priority)
            if lifted and entry.rank is not None:
                entry.rank = min(entry.rank, now - priority * AGEING)
        if entry.since is None and entry.due <= now:
            self.arrive(entry, now)

    def pop(self, now: float) -> tuple[str, int, float] | None:
        self.pass_time(now)
        first = min(self.ready(), key=lambda entry: entry.rank or 0.0, default=None)
        if first is None:
            return None
        assert first.since is not None
        self.waiting.remove(first)
        self.processing[first.key] = now
        return first.key, first.priority, now - first.since

    def done(self, key: str, now: float) -> None:
        self.pass_time(now)
        if self.processing.pop(key, None) is None:
            return
        entry = self.find(key)
        if entry is not None and entry.since is not None:
            entry.rank = now - entry.priority * AGEING
            self.to_the_end(entry)

    def shut_down(self) -> None:
        self.closed = True
        self.waiting = [entry for entry in self.waiting if entry.since is not None]


class Depths:
    def __init__(self) -> None:
        self.depth: Counter[int] = Counter()
        self.works = 0
        self.retries = 0

    def added(self, priority: int) -> None:
        self.depth[priority] += 1

    def lifted(self, old: int, new: int) -> None:
        self.depth[old] -= 1
        self.depth[new] += 1

    def popped(self, priority: int, waited: float) -> None:
        assert waited >= 0.0
        self.depth[priority] -= 1

    def done(self, worked: float) -> None:
        assert worked >= 0.0
        self.works += 1

    def retried(self) -> None:
        self.retries += 1


class WorkQueueComparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.depths = Depths()
        self.queue = WorkQueue[str](limiter=ExponentialLimiter(base=0.25, cap=8.0), observer=self.depths)
        self.model = Model()
        self.now = 0.0

    @rule(key=KEYS, priority=PRIORITIES, after=DELAYS)
    def add(self, key: str, priority: int, after: float) -> None:
        self.queue.add(key, self.now, priority=priority, after=after)
        self.model.add(key, self.now, priority, after)

    @rule(key=KEYS, priority=PRIORITIES)
    def add_rate_limited(self, key: str, priority: int) -> None:
        self.queue.add_rate_limited(key, self.now, priority=priority)
        self.model.add(key, self.now, priority, min(8.0, 0.25 * 2 ** self.model.failures[key]))
        self.model.failures[key] += 1

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        del self.model.failures[key]

    @rule(seconds=STEPS)
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pop(self) -> None:
        held = set(self.model.processing)
        item = self.queue.pop(self.now)
        assert (item and (item.key, item.priority, item.waited)) == self.model.pop(self.now)
        assert item is None or item.key not in held

    @rule(key=KEYS)
    def done(self, key: str) -> None:
        self.queue.done(key, self.now)
        self.model.done(key, self.now)

    @rule()
    def next_deadline(self) -> None:
        deadline = self.queue.next_deadline(self.now)
        self.model.pass_time(self.now)
        assert deadline == min((entry.due for entry in self.model.delayed()), default=None)

    @precondition(lambda self: self.now > 100.0)
    @rule()
    def shut_down(self) -> None:
        self.queue.shut_down()
        self.model.shut_down()

    @invariant()
    def holds_the_same_keys(self) -> None:
        statistics = self.queue.statistics(self.now)
        assert len(self.queue) == statistics.ready == len(self.model.ready())
        assert statistics.delayed == len(self.model.delayed())
        assert statistics.dirty_while_processing == len(self.model.dirty())
        assert statistics.processing == len(self.model.processing)
        ages = [self.now - started for started in self.model.processing.values()]
        assert statistics.oldest_processing_seconds == max(ages, default=0.0)
        assert statistics.unfinished_work_seconds == sum(ages)

    @invariant()
    def depth_is_what_is_pending_at_each_priority(self) -> None:
        pending = Counter(entry.priority for entry in (*self.model.ready(), *self.model.dirty()))
        assert min(self.depths.depth.values(), default=0) >= 0
        assert +self.depths.depth == pending

    def teardown(self) -> None:
        """Whatever happened, everything that is wanted is handed out once the workers finish."""
        self.queue.shut_down()
        self.model.shut_down()
        wanted = {entry.key for entry in self.model.waiting}
        for key in list(self.model.processing):
            self.queue.done(key, self.now)
        served = []
        while (item := self.queue.pop(self.now)) is not None:
            served.append(item.key)
        assert sorted(served) == sorted(wanted)


def test_every_call_does_what_a_search_through_a_list_would() -> None:
    run_state_machine_as_test(
        WorkQueueComparison, settings=settings(max_examples=200, stateful_step_count=50, deadline=None)
    )
