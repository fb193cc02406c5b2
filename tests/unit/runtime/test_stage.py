"""Stages: what starts, what ends, and what is told of tasks that end in any other way."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from controllers.runtime.errors import RuntimeFault
from controllers.runtime.stage import Entry, Stage
from controllers.runtime.testing import run_virtual


class Recorded:
    """A stage with a log of what its tasks do, and of what it is told about them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stage = Stage("stage", self._failed)

    def _failed(self, error: Exception) -> None:
        self.log.append(f"{type(error).__name__}: {error}")

    def add(self, name: str, *, seconds: float = 1e9, cleanup: float = 0.0, **entry: Any) -> None:
        async def run() -> None:
            self.log.append(f"{name} starts")
            try:
                await asyncio.sleep(seconds)
            finally:
                await asyncio.sleep(cleanup)
                self.log.append(f"{name} ends")

        self.stage.add(Entry(name, run, **entry))


def play(scenario: Callable[[Recorded, asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> list[str]:
    recorded = Recorded()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await scenario(recorded, group)
            await recorded.stage.stop()

    run_virtual(run)
    return recorded.log


def test_nothing_starts_before_its_stage_and_late_additions_start_at_once() -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.add("early")
        await asyncio.sleep(1)
        assert recorded.log == []
        recorded.stage.start(group)
        recorded.add("late")
        await asyncio.sleep(1)

    assert play(scenario) == ["early starts", "late starts", "early ends", "late ends"]


def test_a_stage_that_was_stopped_starts_nothing() -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.add("early")
        await recorded.stage.stop()
        recorded.stage.start(group)
        recorded.add("late")
        await asyncio.sleep(1)

    assert play(scenario) == []


def test_a_task_that_ends_by_itself_is_named() -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.add("short", seconds=5)
        recorded.stage.start(group)
        await asyncio.sleep(10)

    ended = "RuntimeFault: short has ended, but must run for as long as the manager does"
    assert play(scenario) == ["short starts", "short ends", ended]


def test_a_failure_is_told_and_ends_nobody_else() -> None:
    async def fails() -> None:
        raise RuntimeFault("broken")

    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.stage.add(Entry("bad", fails))
        recorded.add("good")
        recorded.stage.start(group)
        await asyncio.sleep(10)
        assert recorded.log == ["RuntimeFault: broken", "good starts"]

    play(scenario)


def test_a_task_may_end_by_itself_once_its_stage_is_closed() -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.add("short", seconds=5)
        recorded.stage.start(group)
        await asyncio.sleep(1)
        recorded.stage.close()
        await asyncio.sleep(10)

    assert play(scenario) == ["short starts", "short ends"]


@pytest.mark.parametrize(("grace", "end"), [(0.0, 0.0), (3.0, 3.0), (30.0, 5.0), (None, 5.0)])
def test_who_can_be_asked_to_end_gets_the_grace_period_and_is_cut_after_it(grace: float | None, end: float) -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        asked: list[str] = []
        recorded.add("slow", seconds=5, stop=lambda: asked.append("?"))
        recorded.stage.start(group)
        await asyncio.sleep(0)
        await recorded.stage.stop(grace)
        assert asked == ["?"]
        assert asyncio.get_running_loop().time() == end

    assert play(scenario) == ["slow starts", "slow ends"]


def test_who_cannot_be_asked_is_cut_at_once_and_waited_for() -> None:
    async def scenario(recorded: Recorded, group: asyncio.TaskGroup) -> None:
        recorded.add("task", cleanup=4)
        recorded.stage.start(group)
        await asyncio.sleep(0)
        await recorded.stage.stop(30.0)
        assert asyncio.get_running_loop().time() == 4.0

    assert play(scenario) == ["task starts", "task ends"]


def test_cancelling_from_outside_is_an_ordered_end() -> None:
    recorded = Recorded()

    async def run() -> None:
        async def group_of_all() -> None:
            async with asyncio.TaskGroup() as group:
                recorded.add("task")
                recorded.stage.start(group)
                await asyncio.Event().wait()

        task = asyncio.create_task(group_of_all())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})

    run_virtual(run)
    assert recorded.log == ["task starts", "task ends"]
