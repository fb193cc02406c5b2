"""Filters on changes."""

import pytest

from controllers.runtime.cache import Change, ChangeType
from controllers.runtime.meta import KubeObject, ObjectMeta, Resource
from controllers.runtime.predicate import Predicate, changed


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)

    size: int = 0
    colour: str = ""


def thing(size: int = 0, colour: str = "", uid: str = "u1") -> Thing:
    return Thing(metadata=ObjectMeta(name="x", namespace="a", uid=uid), size=size, colour=colour)


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        (None, thing(), True),
        (thing(), None, True),
        (thing(1), thing(2), True),
        (thing(1), thing(1), False),
        (thing(1, "red"), thing(1, "blue"), False),
        (thing(1, uid="u1"), thing(1, uid="u2"), True),
    ],
)
def test_only_updates_that_leave_the_aspect_alone_are_held_back(
    old: Thing | None, new: Thing | None, passes: bool
) -> None:
    kind = ChangeType.ADDED if old is None else ChangeType.DELETED if new is None else ChangeType.UPDATED
    by_size: Predicate[Thing] = changed(lambda item: item.size)
    assert by_size(Change(kind, old, new)) is passes
