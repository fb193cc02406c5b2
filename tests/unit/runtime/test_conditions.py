"""Conditions of a status."""

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from controllers.runtime import conditions
from controllers.runtime.conditions import FALSE, TRUE, UNKNOWN, Condition
from controllers.runtime.errors import ConfigurationError

NOW = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
AT = "2030-01-02T03:04:05Z"
EARLIER = "2029-01-01T00:00:00Z"


def ready(status: str = TRUE, reason: str = "Up", at: str = "", message: str = "", generation: int = 0) -> Condition:
    return Condition(
        type="Ready",
        status=status,
        reason=reason,
        message=message,
        last_transition_time=at,
        observed_generation=generation,
    )


OTHER = Condition(type="Other", status=FALSE, reason="No", last_transition_time=EARLIER)


def test_a_new_condition_goes_to_the_end_with_the_time_of_now() -> None:
    assert conditions.put([OTHER], ready(), NOW) == (OTHER, ready(at=AT))


def test_the_time_is_written_in_utc_and_whole_seconds() -> None:
    (put,) = conditions.put((), ready(), NOW.astimezone(timezone(timedelta(hours=5))))
    assert put.last_transition_time == AT


def test_a_changed_status_changes_the_time_and_keeps_the_place() -> None:
    before = (ready(FALSE, at=EARLIER), OTHER)
    assert conditions.put(before, ready(TRUE), NOW) == (ready(TRUE, at=AT), OTHER)


def test_the_same_status_keeps_its_time_whatever_else_changes() -> None:
    before = (ready(at=EARLIER),)
    changed = ready(reason="StillUp", message="since long", generation=7, at=AT)
    assert conditions.put(before, changed, NOW) == (
        ready(reason="StillUp", message="since long", generation=7, at=EARLIER),
    )


def test_where_nothing_differs_the_list_is_equal_and_need_not_be_written() -> None:
    before = (OTHER, ready(at=EARLIER))
    assert conditions.put(before, ready(), NOW) == before


def test_a_given_time_counts_for_a_changed_status() -> None:
    assert conditions.put((ready(FALSE, at=EARLIER),), ready(at="2030-01-01T00:00:00Z"), NOW) == (
        ready(at="2030-01-01T00:00:00Z"),
    )


def test_a_condition_that_somebody_left_without_time_gets_one() -> None:
    assert conditions.put((ready(),), ready(), NOW) == (ready(at=AT),)


def test_nothing_that_was_given_is_changed() -> None:
    before = [ready(FALSE, at=EARLIER)]
    conditions.put(before, ready(), NOW)
    conditions.remove(before, "Ready")
    assert before == [ready(FALSE, at=EARLIER)]


def test_conditions_are_found_by_type() -> None:
    present = (OTHER, ready())
    assert conditions.find(present, "Ready") is present[1]
    assert conditions.find(present, "ready") is None
    assert conditions.is_true(present, "Ready")
    assert not conditions.is_true(present, "Other")
    assert not conditions.is_true(present, "Absent")


def test_a_removed_condition_is_left_out_and_an_absent_one_is_no_error() -> None:
    assert conditions.remove((OTHER, ready()), "Ready") == (OTHER,)
    assert conditions.remove((OTHER,), "Ready") == (OTHER,)


def test_all_fields_are_written_since_the_api_requires_them() -> None:
    assert msgspec.to_builtins(ready(at=AT)) == {
        "type": "Ready",
        "status": "True",
        "reason": "Up",
        "message": "",
        "lastTransitionTime": AT,
        "observedGeneration": 0,
    }


def test_conditions_of_others_are_read_whatever_they_leave_out() -> None:
    assert msgspec.json.decode(b'{"type":"Odd","status":"Maybe"}', type=Condition).status == "Maybe"


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (ready(status="true"), 'use "True", "False" or "Unknown"'),
        (ready(reason=""), "use one word in CamelCase"),
        (ready(reason="two words"), "use one word in CamelCase"),
        (ready(reason="R" * 1025), "at most 1024"),
        (ready(message="m" * 32769), "message has 32769 characters"),
    ],
)
def test_what_the_api_would_refuse_is_refused_with_its_name(broken: Condition, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"condition Ready: .*{problem}"):
        conditions.put((), broken, NOW)


def test_the_largest_reason_and_message_are_taken() -> None:
    largest = ready(UNKNOWN, reason="R" * 1024, message="m" * 32768)
    assert conditions.find(conditions.put((), largest, NOW), "Ready") is not None
