"""Several writes at once."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def settle(*awaitables: Awaitable[T]) -> list[T]:
    """Awaits all of them at the same time and returns their results in order.

    Where some fail, the first failure is raised once all have ended: unlike ``asyncio.gather`` it leaves no write
    running behind a reconcile's back, and unlike a TaskGroup it raises the error itself, not a group.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
