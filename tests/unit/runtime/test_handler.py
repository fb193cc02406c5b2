"""From changes to requests."""

from collections.abc import Iterable
from typing import Any

import pytest

from controllers.runtime.cache import Change, ChangeType
from controllers.runtime.handler import NoRequests, itself, mapped, owner, requests_of
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, OwnerReference, Resource


class Parent(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "parents", "Parent", namespaced=True)


class ClusterParent(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "nodes", "Node", namespaced=False)


class Child(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "children", "Child", namespaced=True)


def child(*owners: OwnerReference, name: str = "c", labels: dict[str, str] | None = None) -> Child:
    return Child(metadata=ObjectMeta(name=name, namespace="a", owner_references=owners, labels=labels or {}))


def reference(
    name: str = "p", *, api: str = "example.com/v1", kind: str = "Parent", controller: bool = True
) -> OwnerReference:
    return OwnerReference(api_version=api, kind=kind, name=name, uid=f"uid-{name}", controller=controller)


def added(item: Child) -> Change[KubeObject]:
    return Change(ChangeType.ADDED, None, item)


def test_the_changed_object_itself_is_named_whatever_the_change() -> None:
    old, new = child(name="x"), child(name="x")
    changes: list[Change[KubeObject]] = [
        Change(ChangeType.ADDED, None, new),
        Change(ChangeType.UPDATED, old, new),
        Change(ChangeType.DELETED, old, None),
    ]
    for change in changes:
        assert list(itself(change)) == [Key("a", "x")]


@pytest.mark.parametrize(
    ("ref", "names_owner"),
    [
        (reference(), True),
        (reference(api="example.com/v1alpha1"), True),
        (reference(api="other.com/v1"), False),
        (reference(api="v1"), False),
        (reference(kind="Uncle"), False),
        (reference(controller=False), False),
    ],
)
def test_an_owner_counts_by_group_and_kind_and_only_where_it_controls(ref: OwnerReference, names_owner: bool) -> None:
    assert list(owner(Parent)(added(child(ref)))) == ([Key("a", "p")] if names_owner else [])


def test_a_cluster_scoped_owner_has_no_namespace() -> None:
    assert list(owner(ClusterParent)(added(child(reference("n1", api="v1", kind="Node"))))) == [Key("", "n1")]


def test_an_update_names_the_old_and_the_new_owner() -> None:
    change: Change[KubeObject] = Change(ChangeType.UPDATED, child(reference("old")), child(reference("new")))
    assert list(owner(Parent)(change)) == [Key("a", "old"), Key("a", "new")]


def test_a_deletion_names_the_last_owner() -> None:
    assert list(owner(Parent)(Change(ChangeType.DELETED, child(reference()), None))) == [Key("a", "p")]


def test_a_map_function_is_asked_for_both_states_and_each_request_comes_once() -> None:
    asked: list[str] = []

    def by_label(item: Child) -> Iterable[Key]:
        asked.append(item.metadata.labels["to"])
        return [Key("a", "always"), Key("a", item.metadata.labels["to"]), Key("a", item.metadata.labels["to"])]

    change = Change(ChangeType.UPDATED, child(labels={"to": "x"}), child(labels={"to": "y"}))
    assert list(mapped(by_label)(change)) == [Key("a", "always"), Key("a", "x"), Key("a", "y")]
    assert asked == ["x", "y"]


def test_every_owner_counts_where_that_is_asked_for_and_each_once() -> None:
    owners = (reference("x", controller=False), reference("y"), reference("x", api="example.com/v2", controller=False))
    dependent = child(*owners, reference("z", kind="Uncle", controller=False))
    assert list(owner(Parent, every_owner=True)(added(dependent))) == [Key("a", "x"), Key("a", "y")]
    assert list(owner(Parent)(added(dependent))) == [Key("a", "y")]


async def coroutine_of(_: Child) -> list[Key]:
    return []


@pytest.mark.parametrize(
    "answer", ["", "abc", b"abc", None, 5, Key("a", "x"), {"a": "x"}, ["abc"], [("a", "x")], [Key("a", "x"), None]]
)
def test_what_are_no_requests_is_named_and_never_read_letter_by_letter(answer: Any) -> None:
    with pytest.raises(NoRequests, match=r"Key\(namespace, name\)"):
        requests_of(answer)
    with pytest.raises(NoRequests, match=r"Key\(namespace, name\)"):
        mapped(lambda _: answer)(added(child()))


def test_a_coroutine_function_is_told_to_be_a_plain_one() -> None:
    with pytest.raises(NoRequests, match=r"coroutine_of.*make it a plain function"):
        mapped(coroutine_of)(added(child()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer", [(), [Key("a", "x")], {Key("a", "x")}, iter([Key("a", "x")]), {Key("a", "x"): 1}.keys()]
)
def test_any_iterable_of_requests_will_do(answer: Iterable[Key]) -> None:
    assert set(requests_of(answer)) <= {Key("a", "x")}


def test_requests_may_be_the_keys_of_a_dictionary() -> None:
    keys = dict.fromkeys((Key("", "a"), Key("", "b")))

    assert requests_of(keys) == (Key("", "a"), Key("", "b"))
