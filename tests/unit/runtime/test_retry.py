"""Repeating a change that met a conflict."""

import pytest

from controllers.runtime.errors import AlreadyExists, ConfigurationError, Conflict, FieldConflict, NotFound
from controllers.runtime.retry import DEFAULT_BACKOFF, DEFAULT_RETRY, Backoff, retry_on_conflict
from controllers.runtime.testing import FakeClock, run_virtual

CONFLICT = Conflict("changed", code=409)


class Change:
    """Raises what it is told to, in turn, and then answers; remembers when it was called."""

    def __init__(self, clock: FakeClock, *errors: Exception) -> None:
        self._clock = clock
        self._errors = list(errors)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(round(self._clock.monotonic(), 6))
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def outcome(backoff: Backoff, *errors: Exception, chance: float = 0.0) -> tuple[str, list[float]]:
    clock = FakeClock()
    change = Change(clock, *errors)
    result = run_virtual(retry_on_conflict(change, backoff, clock=clock, random=lambda: chance))
    return result, change.times


def test_what_succeeds_is_called_once() -> None:
    assert outcome(DEFAULT_RETRY) == ("done", [0.0])


def test_a_conflict_is_tried_again_after_10_ms_up_to_five_times() -> None:
    assert outcome(DEFAULT_RETRY, *[CONFLICT] * 4) == ("done", [0.0, 0.01, 0.02, 0.03, 0.04])


def test_the_last_conflict_is_raised() -> None:
    clock = FakeClock()
    errors = [Conflict(str(number), code=409) for number in range(9)]
    change = Change(clock, *errors)
    with pytest.raises(Conflict) as raised:
        run_virtual(retry_on_conflict(change, clock=clock))
    assert raised.value is errors[4]
    assert len(change.times) == 5


def test_for_a_busy_object_the_pauses_grow_fivefold() -> None:
    assert outcome(DEFAULT_BACKOFF, *[CONFLICT] * 3) == ("done", [0.0, 0.01, 0.06, 0.31])


def test_chance_adds_up_to_a_tenth_of_a_pause() -> None:
    assert outcome(DEFAULT_RETRY, CONFLICT, CONFLICT, chance=0.5) == ("done", [0.0, 0.0105, 0.021])


@pytest.mark.parametrize(
    "error", [NotFound("x", code=404), AlreadyExists("x", code=409), FieldConflict("x", code=409), ValueError("x")]
)
def test_what_time_does_not_mend_is_raised_at_once(error: Exception) -> None:
    clock = FakeClock()
    change = Change(clock, error)
    with pytest.raises(type(error)):
        run_virtual(retry_on_conflict(change, clock=clock))
    assert len(change.times) == 1


@pytest.mark.parametrize("numbers", [{"tries": 0}, {"delay": -1.0}, {"factor": -1.0}, {"jitter": -0.1}])
def test_impossible_numbers_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="use tries >= 1 and numbers >= 0"):
        Backoff(**numbers)  # type: ignore[arg-type]
