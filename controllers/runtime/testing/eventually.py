"""Waiting for what must become true."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, T]], timeout: float = ..., interval: float = ...
) -> T: ...


@overload
async def eventually(condition: Callable[[], T], timeout: float = ..., interval: float = ...) -> T: ...


async def eventually(condition: Callable[[], T | Awaitable[T]], timeout: float = 5.0, interval: float = 0.01) -> T:
    """Calls ``condition`` every ``interval`` seconds until its result is true, and returns that result.

    An AssertionError in it counts as not yet true. Raises AssertionError after ``timeout`` seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while True:
        cause: AssertionError | None = None
        outcome: object = None
        try:
            value = condition()
            result: T = await value if inspect.isawaitable(value) else value
            if result:
                return result
            outcome = result
        except AssertionError as error:
            cause, outcome = error, error
        if loop.time() >= end:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} is not true after {timeout:g} s; it last gave {outcome!r}") from cause
        await asyncio.sleep(interval)
