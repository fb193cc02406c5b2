"""Patches leave the object that they are made of as it is, and answer odd ones as the real server does."""

import copy
from typing import Any

import pytest

from controllers.sandbox import patch
from controllers.sandbox.errors import StatusError
from controllers.sandbox.typeschema import builtin

POD = builtin("", "v1", "Pod")


def pod(*names: str) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": name, "image": "i"} for name in names]}}


def names(patched: dict[str, Any]) -> list[str]:
    """The names of the containers in their order."""
    return [container["name"] for container in patched["spec"]["containers"]]


def test_no_patch_changes_the_object_that_it_is_made_of() -> None:
    live = pod("a", "b")
    before = copy.deepcopy(live)
    patch.json_patch(live, [{"op": "add", "path": "/spec/containers/0/image", "value": "j"}])
    patch.merge_patch(live, {"spec": {"containers": None, "x": {"y": 1}}})
    patch.strategic_merge_patch(live, {"spec": {"containers": [{"name": "a", "image": "j"}]}}, POD)
    assert live == before


def test_a_failed_operation_undoes_those_before_it() -> None:
    live = pod("a")
    with pytest.raises(StatusError):
        patch.json_patch(
            live, [{"op": "remove", "path": "/spec"}, {"op": "test", "path": "/metadata/name", "value": 1}]
        )
    assert live == pod("a")


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/absent"},
        {"op": "replace", "path": "/spec/containers/7", "value": {}},
        {"op": "add", "path": "/spec/containers/7", "value": {}},
        {"op": "add", "path": "/metadata/name/deeper", "value": 1},
        {"op": "move", "from": "/absent", "path": "/x"},
        {"op": "test", "path": "/metadata/name", "value": "other"},
        {"op": "add", "path": "/x"},
        {"op": "add", "value": 1},
        {"path": "/x", "value": 1},
        {"op": "nonsense", "path": "/x"},
        {"op": "add", "path": "no/slash", "value": 1},
    ],
)
def test_an_operation_that_cannot_be_carried_out_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as refused:
        patch.json_patch(pod("a"), [operation])
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")


def test_too_many_operations_are_refused() -> None:
    operations = [{"op": "add", "path": "/x", "value": 1}] * (patch.MAX_OPERATIONS + 1)
    with pytest.raises(StatusError) as refused:
        patch.json_patch({}, operations)
    assert refused.value.code == 413


def test_an_absent_member_equals_null() -> None:
    assert patch.json_patch({"a": 1}, [{"op": "test", "path": "/b", "value": None}]) == {"a": 1}


def test_true_is_not_one() -> None:
    with pytest.raises(StatusError):
        patch.json_patch({"a": True}, [{"op": "test", "path": "/a", "value": 1}])


def test_an_item_that_an_order_does_not_name_stays_before_those_that_it_preceded() -> None:
    wanted = {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}}
    assert names(patch.strategic_merge_patch(pod("a", "b", "c"), wanted, POD)) == ["b", "c", "a"]


def test_a_list_without_merge_keys_is_replaced() -> None:
    live = pod("a")
    live["spec"]["tolerations"] = [{"key": "a"}]
    merged = patch.strategic_merge_patch(live, {"spec": {"tolerations": [{"key": "b"}]}}, POD)
    assert merged["spec"]["tolerations"] == [{"key": "b"}]
