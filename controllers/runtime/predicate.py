"""Filters on changes: plain callables that say whether a change is worth waking a controller."""

from collections.abc import Callable
from typing import Any, TypeVar

from controllers.runtime.cache import Change
from controllers.runtime.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

Predicate = Callable[[Change[T]], bool]


def changed(aspect: Callable[[T], Any]) -> Predicate[T]:
    """Lets creations and deletions pass, and those updates after which ``aspect`` of the object differs.

    An object replaced by a namesake always passes, since everything may differ about it.
    """

    def passes(change: Change[T]) -> bool:
        if change.old is None or change.new is None:
            return True
        return change.old.uid != change.new.uid or bool(aspect(change.old) != aspect(change.new))

    return passes
