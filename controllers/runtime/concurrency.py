"""Several writes at once."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


IN_FLIGHT = 20
"""Requests at the same time that one reconcile may have under way; more only queue up in the server."""


async def settle(*awaitables: Awaitable[T], in_flight: int = IN_FLIGHT) -> list[T]:
    """Awaits all of them, ``in_flight`` at the same time, and returns their results in order.

    Where some fail, the first failure is raised once all have ended: unlike ``asyncio.gather`` it leaves no write
    running behind a reconcile's back, and unlike a TaskGroup it raises the error itself, not a group.
    """
    slots = asyncio.Semaphore(in_flight)

    async def in_slot(awaitable: Awaitable[T]) -> T:
        async with slots:
            return await awaitable

    results = await asyncio.gather(*map(in_slot, awaitables), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
