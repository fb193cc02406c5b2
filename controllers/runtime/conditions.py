"""The conditions of a status (``metav1.Condition``): looking one up, and the list with one put in or left out.

Nothing here changes what it is given. ``put`` returns an equal list where nothing differs, so comparing the two tells
whether there is anything to write.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from controllers.runtime.clock import rfc3339
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Projection

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""The API's pattern of a reason, which it requires."""

_MAX_REASON = 1024
_MAX_MESSAGE = 32768


class Condition(Projection, frozen=True, kw_only=True, omit_defaults=False):
    """One condition, with all its fields written, since the API requires also those that are empty."""

    type: str
    status: str = UNKNOWN
    reason: str = ""  # one word in CamelCase, for programs
    message: str = ""  # for people
    last_transition_time: str = ""  # when ``status`` changed last
    observed_generation: int = 0  # the generation that it speaks of; 0: it does not say


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition of a type is there and "True"."""
    found = find(conditions, type_)
    return found is not None and found.status == TRUE


def put(conditions: Iterable[Condition], condition: Condition, now: datetime) -> tuple[Condition, ...]:
    """The list with ``condition`` in the place of the one of its type, or at the end.

    ``last_transition_time`` stays what it was unless ``status`` differs; then it is the one given, or else ``now``.
    Raises ConfigurationError for a condition that the API would refuse.
    """
    _check(condition)
    conditions = tuple(conditions)
    old = find(conditions, condition.type)
    if old is not None and old.status == condition.status:
        at = old.last_transition_time or rfc3339(now)
    else:
        at = condition.last_transition_time or rfc3339(now)
    new = msgspec.structs.replace(condition, last_transition_time=at)
    if old is None:
        return (*conditions, new)
    return tuple(new if each is old else each for each in conditions)


def remove(conditions: Iterable[Condition], type_: str) -> tuple[Condition, ...]:
    """The list without the condition of a type."""
    return tuple(condition for condition in conditions if condition.type != type_)


def _check(condition: Condition) -> None:
    problem = ""
    if condition.status not in (TRUE, FALSE, UNKNOWN):
        problem = f'status is {condition.status!r}; use "True", "False" or "Unknown"'
    elif not _REASON.fullmatch(condition.reason) or len(condition.reason) > _MAX_REASON:
        problem = f"reason is {condition.reason!r}; use one word in CamelCase of at most {_MAX_REASON} characters"
    elif len(condition.message) > _MAX_MESSAGE:
        problem = f"message has {len(condition.message)} characters; use at most {_MAX_MESSAGE}"
    if problem:
        raise ConfigurationError(f"condition {condition.type}: {problem}")
