"""Tasks that a manager starts and stops together, each of them watched.

Nothing dies silently: a task that fails is reported, and so is one that merely ends before its stage does, or that is
ended by somebody else's cancellation. Only the cancellation by its own stage, or by the one that awaits all, is an
ordered end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from controllers.runtime import logs
from controllers.runtime.errors import RuntimeFault

Runnable = Callable[[], Coroutine[Any, Any, None]]
Failed = Callable[[Exception], None]
Stuck = Callable[[list[str]], None]

STUCK_AFTER = 5.0
"""Seconds that a task gets to end after it was cancelled, before it is taken for one that never will."""

logger = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One task to be; ``stop`` asks it to end in order, where there is none it is cancelled."""

    name: str
    run: Runnable
    stop: Callable[[], None] | None = None


class Stage:
    """Tasks with one start and one stop; what is added in between starts at once, and what comes later never does."""

    def __init__(self, name: str, failed: Failed) -> None:
        self._name = name
        self._failed = failed
        self._entries: list[Entry] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], Entry] = {}
        self._stopping = False

    def add(self, entry: Entry) -> None:
        if self._stopping:
            logger.info("not started, since its manager stops", stage=self._name, name=entry.name)
        elif self._group is None:
            self._entries.append(entry)
        else:
            self._start(entry, self._group)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Starts what was added so far, unless the stage has been stopped already."""
        if self._stopping:
            return
        self._group = group
        for entry in self._entries:
            self._start(entry, group)
        self._entries.clear()

    def close(self) -> None:
        """Starts nothing more, and lets tasks end by themselves from now on."""
        self._stopping = True
        self._entries.clear()

    async def stop(
        self, grace: float | None = 0.0, *, late: Stuck = lambda _: None, stuck: Stuck = lambda _: None
    ) -> None:
        """Ends all tasks; those that can be asked to end get ``grace`` seconds, None for as long as it takes.

        ``late`` is told of those that are cancelled after that, and ``stuck`` of those that have not ended
        ``STUCK_AFTER`` seconds later, since they make something else of being cancelled. They are awaited all the same.
        """
        self.close()
        asked = [task for task, entry in self._tasks.items() if self._ask(task, entry)]
        if asked:
            _, running = await asyncio.wait(asked, timeout=grace)
            if running:
                late([task.get_name() for task in running])
        self.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=STUCK_AFTER)
            if left:
                stuck([task.get_name() for task in left])
                await asyncio.wait(left)

    def cancel(self) -> None:
        """Ends all tasks at once, without waiting for it."""
        self.close()
        for task in self._tasks:
            task.cancel()

    def _ask(self, task: "asyncio.Task[None]", entry: Entry) -> bool:
        if entry.stop is None:
            task.cancel()
            return False
        entry.stop()
        return True

    def _start(self, entry: Entry, group: asyncio.TaskGroup) -> None:
        task = group.create_task(self._supervised(entry), name=entry.name)
        self._tasks[task] = entry
        task.add_done_callback(self._tasks.pop)

    async def _supervised(self, entry: Entry) -> None:
        try:
            # Called in the task, not by its creator: one that is cancelled before its first step leaves nothing behind.
            await entry.run()
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            self._failed(RuntimeFault(f"{entry.name} was cancelled by something that it waited for"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the manager stops in order and raises it
            self._failed(error)
        else:
            if not self._stopping:
                self._failed(RuntimeFault(f"{entry.name} has ended, but must run for as long as the manager does"))


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
