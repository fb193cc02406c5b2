"""The load generator: creates and deletes at a pace or as fast as allowed, and says when each began."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from controllers.runtime import Client, KubeObject

T = TypeVar("T", bound=KubeObject)
A = TypeVar("A")
B = TypeVar("B")

Manifest = dict[str, Any]


async def paced(calls: Sequence[Callable[[], Awaitable[B]]], rate: float) -> tuple[list[float], list[B]]:
    """Begins ``rate`` calls per second, whether or not earlier ones have ended; returns begins and results."""
    loop = asyncio.get_running_loop()
    first = loop.time()
    tasks: list[asyncio.Task[tuple[float, B]]] = []
    for number, call in enumerate(calls):
        await asyncio.sleep(first + number / rate - loop.time())
        tasks.append(asyncio.create_task(_timed(call)))
    ended = await asyncio.gather(*tasks)
    return [began for began, _ in ended], [result for _, result in ended]


async def crowded(function: Callable[[A], Awaitable[B]], items: Iterable[A], in_flight: int) -> list[B]:
    """Calls ``function`` for each item with at most ``in_flight`` calls at the same time; results in order."""
    waiting = list(enumerate(items))[::-1]
    results: dict[int, B] = {}

    async def work() -> None:
        while waiting:
            number, item = waiting.pop()
            results[number] = await function(item)

    async with asyncio.TaskGroup() as workers:
        for _ in range(in_flight):
            workers.create_task(work())
    return [results[number] for number in sorted(results)]


async def create_all(client: Client, kind: type[T], bodies: Iterable[Manifest], in_flight: int) -> list[T]:
    """Creates objects as fast as ``in_flight`` allows."""
    return await crowded(lambda body: client.create(kind, body), bodies, in_flight)


async def delete_all(client: Client, objects: Iterable[KubeObject], in_flight: int) -> None:
    """Deletes objects as fast as ``in_flight`` allows; those that are gone already do not matter."""
    await crowded(client.delete, objects, in_flight)


async def _timed(call: Callable[[], Awaitable[B]]) -> tuple[float, B]:
    began = time.perf_counter()
    return began, await call()
