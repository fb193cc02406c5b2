"""What an event recorder may write: alike events together, and no more about one object than a server should take.

Pure state, told the time (seconds on a clock that never goes back) by its caller. Both forget the least recently used
first, so that their memory is bounded whatever comes; what is forgotten starts afresh.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from cachetools import LRUCache


@dataclass(slots=True)
class _Group:
    """The notes that were told apart within a group, as hashes: each of them may be a kilobyte long."""

    last_at: float
    told_apart: set[int] = field(default_factory=set)


class SimilarNotes:
    """Tells whether a note is one too many of its group."""

    def __init__(self, allowed: int, window: float, remembered: int) -> None:
        self._allowed = allowed
        self._window = window
        self._groups: LRUCache[Hashable, _Group] = LRUCache(remembered)

    def too_many(self, group: Hashable, note: str, now: float) -> bool:
        """Whether ``allowed`` others are known already; a group that was silent for ``window`` starts afresh.

        A note that is known stays told apart from the others.
        """
        known = self._groups.get(group)
        if known is None or now - known.last_at > self._window:
            known = self._groups[group] = _Group(now)
        known.last_at = now
        if hash(note) in known.told_apart:
            return False
        if len(known.told_apart) >= self._allowed:
            return True
        known.told_apart.add(hash(note))
        return False


_ROUNDING = 1e-3
"""Seconds by which a token may come early: sums of times are rounded, and a burst must not lose its last for that."""


class TokenBuckets:
    """A bucket of ``burst`` tokens for each key: full at first, and one more token every ``refill`` seconds."""

    def __init__(self, burst: int, refill: float, remembered: int) -> None:
        self._refill = refill
        self._time_to_full = (burst - 1) * refill
        # One number says all of a bucket: when it is full again.
        self._full_at: LRUCache[Hashable, float] = LRUCache(remembered)

    def take(self, key: Hashable, now: float) -> bool:
        """Takes a token where there is one."""
        if now < self.next_at(key, now):
            return False
        self._full_at[key] = max(now, self._full_at.get(key, now)) + self._refill
        return True

    def next_at(self, key: Hashable, now: float) -> float:
        """When ``take`` succeeds, ``now`` or later."""
        due = self._full_at.get(key, now) - self._time_to_full
        return due if due > now + _ROUNDING else now
