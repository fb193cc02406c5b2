"""What a controller is asked to do and what it answers."""

import math
from dataclasses import dataclass
from typing import Protocol

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Key

Request = Key
"""Which object to look at. Never why: a reconcile compares what is with what should be."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended, and when the object is looked at again though nothing changes.

    A change before that causes a look at once, which takes the place of this one: it sees the newest state, and its own
    result says what follows. Raises ConfigurationError for two answers at once, and for a time that never comes.
    """

    requeue_after: float | None = None  # seconds until another look, at the latest; 0 is at once
    requeue: bool = False  # another look with growing delay, as after a failure, though it was none
    priority: int | None = None  # of that look; None: the priority that this one had

    def __post_init__(self) -> None:
        if self.requeue and self.requeue_after is not None:
            raise ConfigurationError("Result: requeue and requeue_after exclude each other; give one of them")
        if self.requeue_after is not None and not 0.0 <= self.requeue_after < math.inf:
            raise ConfigurationError(f"Result: requeue_after is {self.requeue_after} s; give a finite number >= 0")


DONE = Result()
"""Nothing more to do until something changes."""


class Reconciler(Protocol):
    """Brings one object's world to the desired state.

    An exception means: try again later, with growing delay. TerminalError means: not before something changes.
    """

    async def reconcile(self, request: Request) -> Result: ...
