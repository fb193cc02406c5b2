"""Filters on changes."""

from typing import Any

import pytest

from controllers.runtime.cache import Change, ChangeType
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject, ObjectMeta, Resource
from controllers.runtime.predicate import (
    Predicate,
    all_of,
    annotations_changed,
    any_of,
    changed,
    generation_changed,
    labels_changed,
    negated,
    resource_version_changed,
    selected_by,
)


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


def update(before: dict[str, Any], after: dict[str, Any]) -> Change[Thing]:
    """An update between two states that differ in the given metadata."""
    return Change(ChangeType.UPDATED, having(**before), having(**after))


def having(**metadata: Any) -> Thing:
    return Thing(metadata=ObjectMeta(**{"name": "x", "namespace": "a", "uid": "u1", **metadata}))


READY_MADE = {
    "generation": (generation_changed, {"generation": 1}, {"generation": 2}),
    "resource version": (resource_version_changed, {"resource_version": "1"}, {"resource_version": "2"}),
    "labels": (labels_changed, {"labels": {"a": "1"}}, {"labels": {"a": "2"}}),
    "annotations": (annotations_changed, {"annotations": {"a": "1"}}, {"annotations": {"a": "1", "b": ""}}),
}


@pytest.mark.parametrize(("predicate", "before", "after"), READY_MADE.values(), ids=READY_MADE)
def test_a_ready_made_predicate_holds_back_updates_that_leave_its_part_alone(
    predicate: Predicate[Thing], before: dict[str, Any], after: dict[str, Any]
) -> None:
    other = {"generation": 1, "resource_version": "1", "labels": {"l": "1"}, "annotations": {"a": "1"}}
    assert predicate(update({**other, **before}, {**other, **after}))
    others = {**other, "finalizers": ("f",), "deletion_timestamp": "now"}
    assert not predicate(update({**other, **before}, {**others, **before}))
    assert predicate(update(before, {**before, "uid": "u2"}))
    assert predicate(Change(ChangeType.ADDED, None, having(**before)))
    assert predicate(Change(ChangeType.DELETED, having(**before), None))


def test_kinds_that_have_no_generation_are_not_silenced() -> None:
    assert generation_changed(update({"resource_version": "1"}, {"resource_version": "2"}))


@pytest.mark.parametrize(
    ("before", "after", "passes"),
    [
        ({"tier": "gold"}, {"tier": "gold"}, True),
        ({}, {"tier": "gold"}, True),
        ({"tier": "gold"}, {}, True),
        ({"tier": "gold", "skip": ""}, {"tier": "lead"}, False),
    ],
)
def test_a_selector_lets_an_object_pass_that_matches_or_did_so_before(
    before: dict[str, str], after: dict[str, str], passes: bool
) -> None:
    predicate = selected_by("tier in (gold, silver), !skip")
    assert predicate(update({"labels": before}, {"labels": after})) is passes


def test_a_selector_goes_for_creations_and_deletions_too() -> None:
    predicate = selected_by("tier=gold")
    for labels, passes in (({"tier": "gold"}, True), ({}, False)):
        assert predicate(Change(ChangeType.ADDED, None, having(labels=labels))) is passes
        assert predicate(Change(ChangeType.DELETED, having(labels=labels), None)) is passes


def test_what_is_no_selector_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match=r"'in' .*|expected: '\('"):
        selected_by("tier in gold")


def test_predicates_combine() -> None:
    change = update({"labels": {"a": "1"}}, {"labels": {"a": "2"}})
    assert labels_changed(change)
    assert not annotations_changed(change)
    combinations: list[tuple[Predicate[Thing], bool]] = [
        (all_of(labels_changed, annotations_changed), False),
        (all_of(labels_changed, negated(annotations_changed)), True),
        (any_of(annotations_changed, labels_changed), True),
        (any_of(annotations_changed, negated(labels_changed)), False),
        (negated(any_of(annotations_changed)), True),
        (all_of(), True),
        (any_of(), False),
    ]
    for predicate, passes in combinations:
        assert predicate(change) is passes
