"""What a controller is asked to do and what it answers."""

from dataclasses import dataclass
from typing import Protocol

from controllers.runtime.meta import Key

Request = Key
"""Which object to look at. Never why: a reconcile compares what is with what should be."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended. ``requeue_after`` (seconds) asks for another look then, whatever happens until then."""

    requeue_after: float | None = None


DONE = Result()
"""Nothing more to do until something changes."""


class Reconciler(Protocol):
    """Brings one object's world to the desired state.

    An exception means: try again later, with growing delay. TerminalError means: not before something changes.
    """

    async def reconcile(self, request: Request) -> Result: ...
