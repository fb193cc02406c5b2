"""How what a node has is spread over its zones."""

from typing import Any

import pytest

from controllers.api.core import NodeStatus
from controllers.node_resource_topology.demand import Amount
from controllers.node_resource_topology.layout import fitted, layout
from tests.unit.node_resource_topology.builders import BIG, GIB, numa


def spread(allocatable: dict[str, str], capacity: dict[str, str] | None = None, **fields: Any) -> list[Amount]:
    found = layout(numa(**fields), NodeStatus(allocatable=allocatable, capacity=capacity or allocatable))
    return list(found.allocatable)


def test_a_node_is_split_evenly() -> None:
    assert spread(BIG) == [Amount(4, 16_000, 64 * GIB)] * 2


def test_an_odd_rest_goes_to_the_lowest_zones_and_nothing_is_lost() -> None:
    found = spread({"nvidia.com/gpu": "7", "cpu": "31999m", "memory": "100001"}, zones=3)

    assert [amount.gpus for amount in found] == [3, 2, 2]
    assert [amount.cpu for amount in found] == [10_667, 10_666, 10_666]
    assert sum(amount.memory for amount in found) == 100_001


def test_a_pool_says_how_many_gpus_each_zone_has() -> None:
    assert [amount.gpus for amount in spread(BIG, gpusPerZone=[6, 2])] == [6, 2]


def test_a_pool_says_how_much_of_a_node_each_zone_has() -> None:
    assert spread(BIG, cpuPerZone="12500m", memPerZone="10Gi") == [Amount(4, 12_500, 10 * GIB)] * 2


@pytest.mark.parametrize(
    ("counts", "gpus", "expected"),
    [
        ((6, 2), 8, (6, 2)),
        ((6, 2), 7, (6, 1)),
        ((6, 2), 5, (5, 0)),
        ((6, 2), 0, (0, 0)),
        ((0, 8), 3, (0, 3)),
        ((6, 2), 11, (8, 3)),
        ((0, 0), 3, (2, 1)),
    ],
)
def test_a_node_with_another_number_of_gpus_than_its_pool_keeps_its_own(
    counts: tuple[int, ...], gpus: int, expected: tuple[int, ...]
) -> None:
    assert fitted(counts, gpus) == expected


def test_what_the_node_does_not_have_yet_is_in_no_zone() -> None:
    assert spread({"cpu": "32"}) == [Amount(0, 16_000, 0)] * 2
    assert spread({"cpu": "32"}, gpusPerZone=[6, 2]) == [Amount(0, 16_000, 0)] * 2


def test_capacity_and_allocatable_are_spread_alike() -> None:
    status = NodeStatus(allocatable={"cpu": "30", "nvidia.com/gpu": "7"}, capacity={"cpu": "32", "nvidia.com/gpu": "8"})

    found = layout(numa(gpusPerZone=[6, 2]), status)

    assert found.capacity == (Amount(6, 16_000), Amount(2, 16_000))
    assert found.allocatable == (Amount(6, 15_000), Amount(1, 15_000))


def test_capacity_is_never_less_than_what_may_be_taken() -> None:
    status = NodeStatus(allocatable={"cpu": "32", "memory": "4"}, capacity={"cpu": "30"})

    found = layout(numa(), status)

    assert found.capacity == found.allocatable == (Amount(0, 16_000, 2),) * 2
