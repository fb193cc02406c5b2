"""Results of a reconcile."""

from typing import Any

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.reconcile import DONE, Result


def test_done_asks_for_nothing() -> None:
    assert (DONE.requeue_after, DONE.requeue, DONE.priority) == (None, False, None)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_never_comes_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=r"Result: requeue_after is .* give a finite number >= 0"):
        Result(requeue_after=seconds)


@pytest.mark.parametrize("answers", [{"requeue_after": 0.0}, {"requeue_after": 5.0}])
def test_two_answers_at_once_are_refused(answers: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Result: requeue and requeue_after exclude each other"):
        Result(requeue=True, **answers)


def test_at_once_and_with_another_priority_are_answers() -> None:
    assert Result(requeue_after=0.0).requeue_after == 0.0
    assert Result(requeue=True, priority=-5).priority == -5
