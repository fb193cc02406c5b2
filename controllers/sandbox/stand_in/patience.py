"""Looking again where an object changed meanwhile, which is routine where many parts write to the same objects."""

from controllers.runtime.errors import AlreadyExists, Conflict, FieldConflict, ObjectGone
from controllers.runtime.reconcile import Reconciler, Request, Result

RETRY = 0.05
"""Seconds after which it is looked again; mostly a change has woken the reconciler before."""


class Patient:
    """A reconciler that takes conflicts for what they are, so that the log speaks only of failures."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    async def reconcile(self, request: Request) -> Result:
        try:
            return await self._reconciler.reconcile(request)
        except (AlreadyExists, FieldConflict):
            raise
        except (Conflict, ObjectGone):
            return Result(RETRY)
