"""Changes: what an informer tells its handlers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from controllers.runtime.meta import Key, KubeObject

T = TypeVar("T", bound=KubeObject)


class ChangeType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of one object; when a handler hears of it the store already shows it.

    ``old`` is None for ADDED and ``new`` for DELETED. An UPDATED between two uids is a deletion and a new object of
    the same name. ``initial`` marks what was there before the handler was. ``final_state_unknown`` marks a deletion
    that nobody saw: ``old`` is then the last state that was known, not the one at the end.
    """

    type: ChangeType
    old: T | None
    new: T | None
    initial: bool = False
    final_state_unknown: bool = False

    @property
    def subject(self) -> T:
        """The object that the change is about, in its newest known state."""
        subject = self.new if self.new is not None else self.old
        assert subject is not None
        return subject

    @property
    def resync(self) -> bool:
        """Whether it only repeats a state, for a handler that asked to be reminded."""
        return self.old is not None and self.old is self.new


ChangeHandler = Callable[[Change[T]], None]


def change_between(old: T | None, new: T, *, initial: bool = False) -> Change[T] | None:
    """None where the server only repeats itself."""
    if old is None:
        return Change(ChangeType.ADDED, None, new, initial=initial)
    # A restored backup gives versions out a second time, so one version and uid may stand for two states.
    if new.metadata.resource_version and new == old:
        return None
    return Change(ChangeType.UPDATED, old, new)


def changes_of_list(before: Mapping[Key, T], after: Mapping[Key, T], *, initial: bool) -> Iterator[Change[T]]:
    """From one state of a namespace, or of everything, to the next; made as they are asked for.

    Deletions come first, so that nothing is ever there twice under two names.
    """
    for key, old in before.items():
        if key not in after:
            yield Change(ChangeType.DELETED, old, None, final_state_unknown=True)
    for key, new in after.items():
        change = change_between(before.get(key), new, initial=initial)
        if change is not None:
            yield change


def merged(before: Change[T], after: Change[T]) -> Change[T] | None:
    """Two changes of one object that follow each other as one; None where together they are nothing."""
    if before.old is None:
        return None if after.new is None else Change(ChangeType.ADDED, None, after.new, initial=before.initial)
    if after.new is None:
        return after
    return replace(after, type=ChangeType.UPDATED, old=before.old)
