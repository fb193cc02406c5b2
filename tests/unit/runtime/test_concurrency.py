"""Several writes at once."""

import asyncio

import pytest

from controllers.runtime.concurrency import settle
from controllers.runtime.testing import run_virtual


async def after(seconds: float, outcome: str | Exception, ended: list[str]) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append(str(outcome))
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_results_come_in_the_order_asked_for_and_take_the_time_of_the_slowest() -> None:
    async def scenario() -> tuple[list[str], float]:
        results = await settle(after(3, "a", []), after(1, "b", []))
        return results, asyncio.get_running_loop().time()

    assert run_virtual(scenario) == (["a", "b"], 3.0)


def test_nothing_to_do_is_done() -> None:
    assert run_virtual(settle()) == []


def test_a_failure_is_raised_itself_and_only_once_all_others_have_ended() -> None:
    ended: list[str] = []

    async def scenario() -> float:
        with pytest.raises(ValueError, match="early"):
            await settle(after(1, ValueError("early"), ended), after(5, "late", ended), after(2, KeyError("k"), ended))
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario) == 5.0
    assert ended == ["early", "'k'", "late"]


def test_cancelling_it_cancels_every_part_and_waits_for_them() -> None:
    ended: list[str] = []

    async def scenario() -> None:
        task = asyncio.create_task(settle(after(5, "a", ended), after(6, "b", ended)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled", "cancelled"]

    run_virtual(scenario)
