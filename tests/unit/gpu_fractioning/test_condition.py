"""When a node should have the condition, and what is written then."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from controllers.api.core import Node, NodeCondition, NodeStatus
from controllers.estate import DRA, MOCK, Pool
from controllers.gpu_fractioning.condition import READY, fields, has_gpus, is_due, removal
from controllers.runtime import ObjectMeta

GPU = "nvidia.com/gpu"


def node(gpus: str | None = "8", *conditions: str) -> Node:
    allocatable = {"cpu": "1"} if gpus is None else {"cpu": "1", GPU: gpus}
    found = tuple(NodeCondition(type=type_, status="True") for type_ in conditions)
    return Node(metadata=ObjectMeta(name="n"), status=NodeStatus(allocatable=allocatable, conditions=found))


@pytest.mark.parametrize(
    ("gpus", "some"),
    [("8", True), ("1k", True), ("1", True), ("0", False), (None, False), ("-1", False), ("x", False), ("", False)],
)
def test_a_node_has_gpus_where_some_are_allocatable(gpus: str | None, some: bool) -> None:
    assert has_gpus(node(gpus)) is some


def test_gpus_that_are_only_in_the_capacity_do_not_count() -> None:
    assert not has_gpus(Node(metadata=ObjectMeta(name="n"), status=NodeStatus(capacity={GPU: "8"})))


@pytest.mark.parametrize(
    ("pool", "gpus", "due"),
    [
        (Pool("p"), "8", True),
        (Pool("p"), "0", False),
        (Pool("p", gpu_count=8), None, False),
        (Pool("p", backend=MOCK), "8", False),
        (Pool("p", offered=DRA), "8", False),
        (None, "8", False),
    ],
    ids=["fake", "no gpus left", "not yet", "mock", "dra", "no pool"],
)
def test_the_condition_is_for_allocatable_gpus_of_pools_that_are_made_up(
    pool: Pool | None, gpus: str | None, due: bool
) -> None:
    assert is_due(node(gpus), pool) is due


def test_the_condition_is_true_since_the_moment_of_its_write() -> None:
    moment = datetime(2030, 1, 1, 2, 3, 4, 999_999, tzinfo=timezone(timedelta(hours=1)))
    (condition,) = fields(moment)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (READY, "True")
    assert condition["lastTransitionTime"] == condition["lastHeartbeatTime"] == "2030-01-01T01:03:04Z"
    assert fields(moment.astimezone(UTC)) == fields(moment)


def test_a_removal_names_the_place_of_the_condition() -> None:
    assert removal(node("8", "Ready", READY, "x")) == [{"op": "remove", "path": "/status/conditions/1"}]
