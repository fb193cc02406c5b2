"""A clock that is moved by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
"""The wall clock of a new ``FakeClock``."""


class FakeClock:
    """A clock that only moves when told to, for code without an event loop.

    ``sleep`` moves it too, at once. Tasks that sleep side by side need ``run_virtual`` and the ``SystemClock``.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._start = start
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def utcnow(self) -> datetime:
        return EPOCH + timedelta(seconds=self._now - self._start)

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Moves both readings on; raises ValueError for a negative number, since clocks never go back."""
        if seconds < 0.0:
            raise ValueError(f"FakeClock.advance: {seconds} s would turn the clock back; pass seconds >= 0")
        self._now += seconds
