"""What the limiters promise for every sequence of failures."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.runtime.limiter import BucketLimiter, ExponentialLimiter, SlowestLimiter, classic_limiter
from controllers.runtime.testing import FakeClock

GAPS = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3, 2.0, 60.0]), max_size=80)


@given(gaps=GAPS, rate=st.sampled_from([0.5, 2.0, 10.0]), burst=st.integers(1, 10))
def test_the_bucket_lets_everyone_through_as_soon_as_burst_and_rate_allow(
    gaps: list[float], rate: float, burst: int
) -> None:
    """In every stretch of time at most the burst and what the rate adds go through; nobody waits longer than that."""
    clock = FakeClock()
    limiter = BucketLimiter[int](rate, burst, clock=clock)
    through: list[float] = []
    for number, gap in enumerate(gaps):
        clock.advance(gap)
        due = [start + (number - first + 1 - burst) / rate for first, start in enumerate(through)]
        at = clock.monotonic() + limiter.when(number)
        assert at == pytest.approx(max([clock.monotonic(), *through[-1:], *due]))
        through.append(at)


@given(failures=st.integers(1, 2000), base=st.floats(0.001, 10.0), times=st.floats(1.0, 1e6))
def test_the_exponential_delay_doubles_up_to_its_cap(failures: int, base: float, times: float) -> None:
    limiter = ExponentialLimiter[str](base, base * times)
    delays = [limiter.when("a") for _ in range(failures)]
    assert delays[0] == base
    assert all(later in (2 * earlier, base * times) for earlier, later in pairwise(delays))


@given(keys=st.lists(st.sampled_from("abc"), max_size=200))
def test_the_classic_default_is_the_longer_of_both_delays(keys: list[str]) -> None:
    both: SlowestLimiter[str] = classic_limiter(FakeClock())
    bucket = BucketLimiter[str](clock=FakeClock())
    exponential = ExponentialLimiter[str]()
    for key in keys:
        assert both.when(key) == max(exponential.when(key), bucket.when(key))
