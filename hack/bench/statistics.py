"""The few statistics that a bench reports: percentiles of one repeat, median and spread over the repeats, ratios."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of what the repeats gave, in whatever unit they were in."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError where there are no values."""
        if not values:
            raise ValueError("no values to summarise")
        return cls(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed (nearest rank; 0 < share <= 1).

    Raises ValueError for another share or where there are no values.
    """
    if not values:
        raise ValueError("no values to summarise")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share {share} is not above 0 and at most 1")
    # 0.07 * 100 is a little more than 7 in binary, and its ceiling would be one rank too high.
    rank = math.ceil(round(share * len(values), 9))
    return sorted(values)[rank - 1]


def ratios(ours: Sequence[float], base: Sequence[float]) -> list[float]:
    """Repeat by repeat, since only what was measured side by side is comparable.

    Raises ValueError where the repeats do not match or a base is not above 0.
    """
    if len(ours) != len(base):
        raise ValueError(f"{len(ours)} repeats cannot be compared with {len(base)}")
    if any(value <= 0.0 for value in base):
        raise ValueError("a base of the comparison is not above 0")
    return [one / other for one, other in zip(ours, base, strict=True)]
