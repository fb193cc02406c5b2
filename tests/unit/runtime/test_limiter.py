"""Delays after failures."""

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.limiter import (
    BucketLimiter,
    CappedLimiter,
    ExponentialLimiter,
    FastSlowLimiter,
    Limiter,
    SlowestLimiter,
    classic_limiter,
)
from controllers.runtime.testing import FakeClock
from controllers.runtime.workqueue import WorkQueue


def test_delay_doubles_from_5_ms_up_to_1000_s() -> None:
    limiter = ExponentialLimiter[str]()
    delays = [limiter.when("a") for _ in range(20)]
    assert delays[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert delays[17:] == pytest.approx([655.36, 1000.0, 1000.0])


def test_a_million_failures_do_not_overflow() -> None:
    limiter = ExponentialLimiter[str]()
    for _ in range(10**6):
        delay = limiter.when("a")
    assert delay == 1000.0
    assert limiter.failures("a") == 10**6


def test_a_large_base_does_not_overflow() -> None:
    limiter = ExponentialLimiter[str](base=1e300, cap=1e308)
    for _ in range(2000):
        delay = limiter.when("a")
    assert delay == 1e308


def test_forget_starts_over() -> None:
    limiter = ExponentialLimiter[str]()
    for _ in range(5):
        limiter.when("a")
    limiter.forget("a")
    assert limiter.failures("a") == 0
    assert limiter.when("a") == pytest.approx(0.005)


def test_keys_fail_apart_from_each_other() -> None:
    limiter: Limiter[str] = ExponentialLimiter(base=1.0, cap=60.0)
    assert [limiter.when("a"), limiter.when("a"), limiter.when("b")] == [1.0, 2.0, 1.0]
    assert (limiter.failures("a"), limiter.failures("b"), limiter.failures("c")) == (2, 1, 0)


def test_forgetting_an_unknown_key_is_harmless() -> None:
    limiter = ExponentialLimiter[str]()
    limiter.forget("a")
    assert limiter.failures("a") == 0


def test_a_forgotten_key_takes_no_memory() -> None:
    limiter = ExponentialLimiter[int]()
    for key in range(1000):
        limiter.when(key)
        limiter.forget(key)
        limiter.failures(key)
    assert not limiter._failures


@pytest.mark.parametrize(("base", "cap"), [(-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)])
def test_impossible_options_are_refused_by_name(base: float, cap: float) -> None:
    with pytest.raises(ConfigurationError, match=r"base is .* cap"):
        ExponentialLimiter[str](base=base, cap=cap)


def test_the_bucket_gives_its_burst_at_once_and_then_lets_waits_add_up() -> None:
    limiter = BucketLimiter[int](clock=FakeClock())
    assert [limiter.when(key) for key in range(100)] == [0.0] * 100
    assert [limiter.when(0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])


def test_the_bucket_fills_with_time_but_not_beyond_its_burst() -> None:
    clock = FakeClock()
    limiter = BucketLimiter[str](rate=2.0, burst=3, clock=clock)
    for _ in range(5):
        limiter.when("a")
    clock.advance(1.5)
    assert limiter.when("b") == 0.0
    assert limiter.when("b") == pytest.approx(0.5)
    clock.advance(1000.0)
    assert [limiter.when("c") for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.5])


def test_the_bucket_forgets_nothing() -> None:
    limiter = BucketLimiter[str](rate=1.0, burst=1, clock=FakeClock())
    assert limiter.when("a") == 0.0
    limiter.forget("a")
    assert limiter.when("a") == pytest.approx(1.0)
    assert limiter.failures("a") == 0


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (float("inf"), 1), (float("nan"), 1), (1.0, 0)])
def test_an_impossible_bucket_is_refused_by_name(rate: float, burst: int) -> None:
    with pytest.raises(ConfigurationError, match=r"BucketLimiter: rate is .* burst"):
        BucketLimiter[str](rate, burst)


def test_the_first_failures_are_fast_and_all_later_ones_slow() -> None:
    limiter = FastSlowLimiter[str](fast=0.1, slow=10.0, fast_failures=2)
    assert [limiter.when("a") for _ in range(4)] == [0.1, 0.1, 10.0, 10.0]
    assert (limiter.when("b"), limiter.failures("a"), limiter.failures("b")) == (0.1, 4, 1)
    limiter.forget("a")
    assert (limiter.when("a"), limiter.failures("a")) == (0.1, 1)


def test_a_fast_delay_that_is_slower_than_the_slow_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"fast is 2.0 s and slow 1.0 s"):
        FastSlowLimiter[str](fast=2.0, slow=1.0, fast_failures=1)


def test_a_cap_holds_for_whatever_limiter() -> None:
    inner = ExponentialLimiter[str](base=1.0, cap=1000.0)
    limiter = CappedLimiter(inner, 3.0)
    assert [limiter.when("a") for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    assert limiter.failures("a") == 4
    limiter.forget("a")
    assert (inner.failures("a"), limiter.when("a")) == (0, 1.0)


def test_the_slowest_of_several_decides_and_each_of_them_counts_every_time() -> None:
    quick, slow = ExponentialLimiter[str](base=1.0, cap=100.0), FastSlowLimiter[str](5.0, 6.0, 1)
    limiter = SlowestLimiter[str](quick, slow)
    assert [limiter.when("a") for _ in range(5)] == [5.0, 6.0, 6.0, 8.0, 16.0]
    assert (quick.failures("a"), slow.failures("a"), limiter.failures("a")) == (5, 5, 5)
    limiter.forget("a")
    assert (quick.failures("a"), slow.failures("a")) == (0, 0)


def test_the_classic_default_spends_tokens_also_where_the_exponential_delay_is_longer() -> None:
    clock = FakeClock()
    limiter: Limiter[str] = classic_limiter(clock)
    assert [limiter.when("a") for _ in range(100)][:3] == pytest.approx([0.005, 0.01, 0.02])
    assert limiter.when("b") == pytest.approx(0.1)


def test_the_default_of_a_queue_is_the_exponential_limiter_alone() -> None:
    queue = WorkQueue[int]()
    for key in range(1000):
        queue.add_rate_limited(key, 0.0)
    assert queue.next_deadline(0.005) is None
    assert len(queue) == 1000
