"""A list of conditions through any sequence of changes."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controllers.runtime import conditions
from controllers.runtime.clock import rfc3339
from controllers.runtime.conditions import Condition

START = datetime(2030, 1, 1, tzinfo=UTC)
CONDITIONS = st.builds(
    Condition,
    type=st.sampled_from(["Ready", "Progressing", "Degraded"]),
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=st.sampled_from(["One", "Two"]),
    message=st.sampled_from(["", "text"]),
)
ACTIONS = st.lists(st.one_of(CONDITIONS, st.sampled_from(["Ready", "Progressing"])), max_size=30)


@given(actions=ACTIONS)
def test_each_type_is_there_once_with_the_time_of_its_last_change_of_status(actions: list[Condition | str]) -> None:
    present: tuple[Condition, ...] = ()
    expected: dict[str, Condition] = {}
    since: dict[str, str] = {}
    for second, action in enumerate(actions):
        now = START + timedelta(seconds=second)
        if isinstance(action, str):
            present = conditions.remove(present, action)
            expected.pop(action, None)
            continue
        old = expected.get(action.type)
        if old is None or old.status != action.status:
            since[action.type] = rfc3339(now)
        before, present = present, conditions.put(present, action, now)
        assert (before == present) == (old == action)
        expected[action.type] = action
    assert [condition.type for condition in present] == list(expected)
    for condition in present:
        wanted = expected[condition.type]
        assert condition.last_transition_time == since[condition.type]
        assert (condition.status, condition.reason, condition.message) == (wanted.status, wanted.reason, wanted.message)
