"""The clock that everything in the framework reads, so that tests can run on virtual time."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two readings of time and one way to wait for it; all durations are seconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    def utcnow(self) -> datetime:
        """The wall clock, for timestamps that people read; never used to measure a duration."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits for ``seconds``; a negative or zero value yields to the event loop once."""
        ...


class SystemClock:
    """The clock of the machine.

    Inside one of asyncio's own event loops ``monotonic`` is the loop's time. A loop with virtual time (see
    ``runtime.testing``) therefore moves this clock too, together with every ``asyncio.timeout`` and ``asyncio.sleep``.
    """

    def monotonic(self) -> float:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return time.monotonic()
        # uvloop's time is the same clock cut to milliseconds, in which most keys would seem not to wait at all.
        return loop.time() if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic()

    def utcnow(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


def rfc3339_micro(moment: datetime) -> str:
    """Kubernetes ``MicroTime``: UTC, always six digits after the second, ``Z`` at the end."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rfc3339(moment: datetime) -> str:
    """Kubernetes ``Time``: UTC, whole seconds, ``Z`` at the end."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
