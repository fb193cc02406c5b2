"""Conflicts are routine, other failures are not."""

import asyncio

import pytest

from controllers.runtime import Key
from controllers.runtime.errors import AlreadyExists, Conflict, Invalid, ObjectGone
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.patience import RETRY, Patient


class Failing:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def reconcile(self, request: Request) -> Result:
        if self._error is not None:
            raise self._error
        return DONE


def outcome(error: Exception | None) -> Result:
    return asyncio.run(Patient(Failing(error)).reconcile(Key("ns", "name")))


def test_object_that_changed_or_went_is_looked_at_again() -> None:
    assert outcome(Conflict("changed", code=409)) == outcome(ObjectGone("gone")) == Result(RETRY)
    assert outcome(None) == DONE


@pytest.mark.parametrize("error", [AlreadyExists("taken", code=409), Invalid("no", code=422), ValueError("bug")])
def test_what_does_not_pass_by_itself_is_an_error(error: Exception) -> None:
    with pytest.raises(type(error)):
        outcome(error)
