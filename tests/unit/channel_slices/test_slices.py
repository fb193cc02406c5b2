"""The slice of a node: what it should be, and whether it is."""

from typing import Any

import msgspec
import pytest

from controllers.api.core import KWOK_ANNOTATION, POOL_LABEL, Node, is_simulated
from controllers.api.dra import ResourceSlice, dra_api
from controllers.channel_slices.slices import desired_slice, next_generation, slice_name

V1 = dra_api("v1")


def node(name: str = "n1", *, uid: str = "u1", **metadata: Any) -> Node:
    simulated = {"labels": {POOL_LABEL: "default"}, "annotations": {KWOK_ANNOTATION: "fake"}}
    return Node.decode(msgspec.json.encode({"metadata": {"name": name, "uid": uid, **simulated, **metadata}}))


def published(owner: Node, generation: int = 1, **spec: Any) -> ResourceSlice:
    body = desired_slice(owner, V1, generation)
    raw = {"metadata": {"uid": "s1", **body["metadata"]}, "spec": {**body["spec"], **spec}}
    return ResourceSlice.decode(msgspec.json.encode(raw))


@pytest.mark.parametrize(
    ("metadata", "simulated"),
    [
        ({}, True),
        ({"labels": {POOL_LABEL: ""}}, True),
        ({"annotations": {KWOK_ANNOTATION: ""}}, True),
        ({"labels": {}}, False),
        ({"labels": {"other/label": "default"}}, False),
        ({"annotations": {}}, False),
        ({"annotations": None}, False),
    ],
)
def test_a_simulated_node_has_pool_label_and_annotation(metadata: dict[str, Any], simulated: bool) -> None:
    assert is_simulated(node(**metadata), POOL_LABEL) is simulated


def test_another_pool_label_may_be_asked_for() -> None:
    assert is_simulated(node(labels={"my/pool": "x"}), "my/pool")
    assert not is_simulated(node(), "my/pool")


def test_the_slice_in_v1() -> None:
    assert desired_slice(node(), V1, 3) == {
        "metadata": {
            "name": "n1-compute-domain.nvidia.com",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": True}],
        },
        "spec": {
            "driver": "compute-domain.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
            "devices": [
                {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}},
                {"name": "daemon-0", "attributes": {"type": {"string": "daemon"}, "id": {"int": 0}}},
            ],
        },
    }


def test_in_v1beta1_devices_are_nested() -> None:
    devices = desired_slice(node(), dra_api("v1beta1"), 1)["spec"]["devices"]
    assert [set(device) for device in devices] == [{"name", "basic"}, {"name", "basic"}]


def test_short_names_are_plain_and_long_ones_are_cut_and_stay_apart() -> None:
    assert slice_name("a.b") == "a.b-compute-domain.nvidia.com"
    long, longer = "n" * 240, "n" * 241
    for name in (long, longer, "a" * 205 + "." * 3 + "b" * 40):
        assert len(slice_name(name)) <= 253
        assert slice_name(name).endswith("-compute-domain.nvidia.com")
        assert ".-" not in slice_name(name)
    assert slice_name(long) != slice_name(longer)
    assert slice_name("n" * 227) == "n" * 227 + "-compute-domain.nvidia.com"
    assert len(slice_name("n" * 227)) == 253


def test_a_missing_slice_begins_with_generation_1() -> None:
    assert next_generation(None, node(), V1) == 1


def test_a_slice_that_is_as_it_should_be_is_not_written() -> None:
    assert next_generation(published(node(), 7), node(), V1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"devices": []},
        {"devices": [{"name": "channel-0"}]},
        {"pool": {"name": "n1", "generation": 7, "resourceSliceCount": 2}},
        {"pool": {"name": "other", "generation": 7, "resourceSliceCount": 1}},
        {"nodeName": "n2"},
        {"allNodes": True},
    ],
)
def test_any_difference_raises_the_generation(change: dict[str, Any]) -> None:
    assert next_generation(published(node(), 7, **change), node(), V1) == 8


def test_a_new_owner_is_written_under_the_same_generation() -> None:
    assert next_generation(published(node(), 7), node(uid="u2"), V1) == 7
