"""How long a key that failed waits before it is tried again.

The limiters are client-go's. A controller uses ``ExponentialLimiter`` alone, as controller-runtime does with its
priority queue; the others are there to be combined, as in ``classic_limiter``.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

_LARGEST_EXPONENT = 1023
"""The largest n for which 2.0**n is a float; beyond it Python raises OverflowError."""


class Limiter(Protocol[K_contra]):
    """Counts the failures of each key and turns them into a delay."""

    def when(self, key: K_contra) -> float:
        """Counts one more failure of ``key`` and returns the seconds it has to wait."""
        ...

    def forget(self, key: K_contra) -> None:
        """Starts over for ``key``; harmless where nothing is known of it."""
        ...

    def failures(self, key: K_contra) -> int:
        """Failures of ``key`` since it was last forgotten."""
        ...


@dataclass(frozen=True)
class ExponentialLimiter(Generic[K]):
    """Doubles the delay with each failure of a key; the defaults are client-go's.

    A key takes memory from its first failure until it is forgotten, so success has to forget it.
    Raises ConfigurationError unless 0 <= base <= cap.
    """

    base: float = 0.005  # seconds after the first failure
    cap: float = 1000.0  # seconds that no delay exceeds
    _failures: dict[K, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.base <= self.cap:
            raise ConfigurationError(
                f"ExponentialLimiter: base is {self.base} s and cap {self.cap} s; use 0 <= base <= cap"
            )

    def when(self, key: K) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return min(self.cap, self.base * 2.0 ** min(failures, _LARGEST_EXPONENT))

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)


class BucketLimiter(Generic[K]):
    """One rate for all keys together: ``burst`` at once, then ``rate`` each second; the defaults are client-go's.

    Every call takes a token, one of the future where none is left, so that waits add up. Nothing is known of single
    keys, and so nothing is forgotten. Raises ConfigurationError unless ``rate`` is above 0 and ``burst`` at least 1.
    """

    def __init__(self, rate: float = 10.0, burst: int = 100, *, clock: Clock | None = None) -> None:
        if not 0.0 < rate < math.inf or burst < 1:
            raise ConfigurationError(
                f"BucketLimiter: rate is {rate}/s and burst {burst}; use a finite rate > 0 and burst >= 1"
            )
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock or SystemClock()
        self._tokens = self._burst
        self._counted_at: float | None = None

    def when(self, key: K) -> float:  # noqa: ARG002 - all keys share the bucket
        now = self._clock.monotonic()
        earned = 0.0 if self._counted_at is None else (now - self._counted_at) * self._rate
        self._counted_at = now
        self._tokens = min(self._burst, self._tokens + earned) - 1.0
        return max(0.0, -self._tokens / self._rate)

    def forget(self, key: K) -> None:
        pass

    def failures(self, key: K) -> int:  # noqa: ARG002 - no key is counted
        return 0


@dataclass(frozen=True)
class FastSlowLimiter(Generic[K]):
    """A short delay for the first failures of a key and a long one for all later ones.

    Raises ConfigurationError unless 0 <= fast <= slow.
    """

    fast: float  # seconds after each of the first failures
    slow: float  # seconds after all others
    fast_failures: int  # how many are the first
    _failures: dict[K, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.fast <= self.slow:
            raise ConfigurationError(
                f"FastSlowLimiter: fast is {self.fast} s and slow {self.slow} s; use 0 <= fast <= slow"
            )

    def when(self, key: K) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return self.fast if failures <= self.fast_failures else self.slow

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)


class SlowestLimiter(Generic[K]):
    """The longest delay that any of several limiters asks for; each of them is asked every time."""

    def __init__(self, *limiters: Limiter[K]) -> None:
        self._limiters = limiters

    def when(self, key: K) -> float:
        # All of them count this failure, also those whose answer does not matter.
        return max([limiter.when(key) for limiter in self._limiters], default=0.0)

    def forget(self, key: K) -> None:
        for limiter in self._limiters:
            limiter.forget(key)

    def failures(self, key: K) -> int:
        return max((limiter.failures(key) for limiter in self._limiters), default=0)


class CappedLimiter(Generic[K]):
    """What another limiter says, but at most ``cap`` seconds."""

    def __init__(self, limiter: Limiter[K], cap: float) -> None:
        self._limiter = limiter
        self._cap = cap

    def when(self, key: K) -> float:
        return min(self._cap, self._limiter.when(key))

    def forget(self, key: K) -> None:
        self._limiter.forget(key)

    def failures(self, key: K) -> int:
        return self._limiter.failures(key)


def classic_limiter(clock: Clock | None = None) -> SlowestLimiter[K]:
    """The default of client-go's own queue: exponential for each key, and 10 a second for all of them together."""
    return SlowestLimiter(ExponentialLimiter[K](), BucketLimiter[K](clock=clock))
