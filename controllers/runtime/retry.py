"""Repeating a change of an object that others change, too.

A reconciler seldom needs this: it lets Conflict through and is called again with what the cache says by then. It is for
code outside of a reconciler, and for a change that must not wait.
"""

import random as chance
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import AlreadyExists, ConfigurationError, Conflict, FieldConflict

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often something is tried, and the pauses between; the defaults are client-go's ``DefaultRetry``.

    Raises ConfigurationError for less than one try, or for a negative number.
    """

    tries: int = 5  # calls at most, the first included
    delay: float = 0.01  # seconds before the second call
    factor: float = 1.0  # of each pause to the one before
    jitter: float = 0.1  # share of a pause that chance adds at most

    def __post_init__(self) -> None:
        if self.tries < 1 or min(self.delay, self.factor, self.jitter) < 0.0:
            raise ConfigurationError(f"{self}: use tries >= 1 and numbers >= 0")


DEFAULT_RETRY = Backoff()
"""For an object that some others write now and then."""

DEFAULT_BACKOFF = Backoff(tries=4, factor=5.0)
"""For an object that controllers write all the time; client-go's ``DefaultBackoff``."""


async def retry_on_conflict(
    change: Callable[[], Awaitable[T]],
    backoff: Backoff = DEFAULT_RETRY,
    *,
    clock: Clock | None = None,
    random: Callable[[], float] = chance.random,
) -> T:
    """Calls ``change``, which has to read the object anew each time, until it meets no Conflict; its last is raised.

    A name that is taken (AlreadyExists) and a field that another manager holds (FieldConflict) are no matter of time,
    and raised at once like everything else. ``random`` gives numbers in [0, 1).
    """

    def pause(state: RetryCallState) -> float:
        return backoff.delay * backoff.factor ** (state.attempt_number - 1) * (1.0 + backoff.jitter * random())

    retrying = AsyncRetrying(
        stop=stop_after_attempt(backoff.tries),
        retry=retry_if_exception(_may_pass),
        wait=pause,
        sleep=(clock or SystemClock()).sleep,
        reraise=True,
    )
    return cast(T, await retrying(change))


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Conflict) and not isinstance(error, AlreadyExists | FieldConflict)
