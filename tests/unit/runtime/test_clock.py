"""Which time the clock of the machine shows."""

import asyncio
import time

import uvloop

from controllers.runtime.clock import SystemClock
from controllers.runtime.testing import run_virtual


async def readings() -> list[float]:
    """A thousand readings in a row."""
    return [SystemClock().monotonic() for _ in range(1000)]


def test_inside_a_virtual_loop_it_shows_virtual_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return SystemClock().monotonic()

    assert run_virtual(main) == 3600.0


def test_it_tells_moments_apart_that_uvloop_does_not() -> None:
    # A whole number of milliseconds, such as uvloop's own time is, is next to never read.
    whole = [reading for reading in uvloop.run(readings()) if (reading * 1000).is_integer()]
    assert len(whole) < 100


def test_with_and_without_a_loop_it_is_one_clock() -> None:
    before = time.monotonic()
    shown = [SystemClock().monotonic(), *asyncio.run(readings()), *uvloop.run(readings()), SystemClock().monotonic()]
    assert before <= shown[0]
    assert shown == sorted(shown)
