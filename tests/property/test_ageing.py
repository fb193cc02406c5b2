"""Low priority is always served: whatever comes, nothing overtakes a key for longer than its distance in priority."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime.workqueue import AGEING, Item, WorkQueue

LOW = "low"
HIGHEST = 5


@dataclass(frozen=True)
class Step:
    """What happens before time moves on: adds, then as many runs as the workers manage."""

    adds: list[tuple[str, int, float]]
    runs: int
    seconds: float


# Few names, so that keys are lifted, delayed and added while they run, the one of low priority as well; fresh ones get
# their names from the number of the step. More comes than is run, and some of it close in priority.
ADDS = st.tuples(
    st.sampled_from(["a", "b", LOW, "fresh", "fresh"]),
    st.sampled_from([-100, -3, -2, -1, 0, 0, 1, HIGHEST]),
    st.sampled_from([0.0, 0.0, 0.5, 60.0]),
)
STEPS = st.lists(
    st.builds(Step, st.lists(ADDS, max_size=6), st.integers(0, 2), st.sampled_from([0.25, 1.0, 4.0])), max_size=60
)


class Workers:
    """Run keys, one for each step, so that some are added while they run; remember what ran when."""

    def __init__(self, queue: WorkQueue[str]) -> None:
        self._queue = queue
        self._running: list[str] = []
        self.ran: list[tuple[float, Item[str]]] = []

    def run(self, now: float) -> bool:
        item = self._queue.pop(now)
        if item is not None:
            self.ran.append((now, item))
            self._running.append(item.key)
        return item is not None

    def finish(self, now: float) -> None:
        while self._running:
            self._queue.done(self._running.pop(), now)


@given(steps=STEPS, before=st.integers(0, 10), priority=st.sampled_from([-20, -3, -1, HIGHEST]))
@settings(max_examples=300, deadline=None)
def test_nothing_overtakes_a_key_that_became_ready_later_than_its_distance(
    steps: list[Step], before: int, priority: int
) -> None:
    queue = WorkQueue[str]()
    workers = Workers(queue)
    now = 0.0
    queue.add(LOW, now, priority=priority)
    latest = now + (HIGHEST - priority) * AGEING
    for number, step in enumerate(steps):
        for place, (name, level, after) in enumerate(step.adds):
            key = f"fresh-{number}-{place}" if name == "fresh" else name
            queue.add(key, now, priority=level, after=after)
        for _ in range(step.runs):
            workers.run(now)
        now += step.seconds
        workers.finish(now)
    while workers.run(now):
        workers.finish(now)
    keys = [item.key for _, item in workers.ran]
    overtakers = workers.ran[: keys.index(LOW)]
    assert all(at - item.waited <= latest for at, item in overtakers)


@given(burst=st.integers(1, 8), priority=st.sampled_from([-100, -10, -1]), backlog=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_under_load_that_never_ends_a_key_is_served_when_what_came_within_its_distance_is(
    burst: int, priority: int, backlog: int
) -> None:
    """``burst`` keys of priority 0 come each second and one is served: low priority would wait for ever."""
    queue = WorkQueue[str]()
    for number in range(backlog):
        queue.add(f"backlog-{number}", 0.0)
    queue.add(LOW, 0.0, priority=priority)
    most = backlog + burst * (1 - round(priority * AGEING)) + 1
    for second in range(most):
        for number in range(burst):
            queue.add(f"{second}-{number}", float(second))
        item = queue.pop(float(second))
        assert item is not None
        queue.done(item.key, float(second))
        if item.key == LOW:
            return
    raise AssertionError(f"not among the first {most}")
