"""Delays after failures."""

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.limiter import ExponentialLimiter, Limiter


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
