"""When something was first seen by a watcher."""

import asyncio
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar

from controllers.runtime import Client, KubeObject, Selection
from controllers.runtime.client import WatchEvent

T = TypeVar("T", bound=KubeObject)

WATCH_TIMEOUT = 3600.0  # seconds; longer than any measurement
POLL = 0.01  # seconds between looks; the times themselves are noted as events arrive
PATIENCE = 120.0  # seconds until what does not come counts as a failure


class Milestones(Generic[T]):
    """Watches one kind in one namespace and notes by object name when ``reached`` was first true of an event."""

    def __init__(self, client: Client, kind: type[T], namespace: str, reached: Callable[[WatchEvent[T]], bool]) -> None:
        self.times: dict[str, float] = {}
        self._client = client
        self._kind = kind
        self._selection = Selection(namespace=namespace)
        self._reached = reached
        self._open = asyncio.Event()

    async def __aenter__(self) -> Self:
        page = await self._client.list_page(self._kind, self._selection)
        self._task = asyncio.create_task(self._watch(page.resource_version))
        await self._open.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def all_of(self, names: Iterable[str]) -> list[float]:
        """Waits for all of them and returns their times in order, on the clock of ``time.perf_counter``.

        Raises TimeoutError naming one that did not come, or what ended the watch.
        """
        wanted = list(names)
        deadline = time.monotonic() + PATIENCE
        while missing := [name for name in wanted if name not in self.times]:
            if self._task.done():
                self._task.result()
                raise ConnectionError(f"the watch of {self._kind.resource} ended before {missing[0]} came")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._kind.resource} {missing[0]} and {len(missing) - 1} more did not come")
            await asyncio.sleep(POLL)
        return [self.times[name] for name in wanted]

    async def _watch(self, resource_version: str) -> None:
        opened = self._client.watch(
            self._kind, self._selection, resource_version=resource_version, timeout=WATCH_TIMEOUT
        )
        async with opened as events:
            self._open.set()
            async for event in events:
                now = time.perf_counter()
                if event.object is not None and self._reached(event):
                    self.times.setdefault(event.object.name, now)
