"""How long a key that failed waits before it is tried again."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

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
