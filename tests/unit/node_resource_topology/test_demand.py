"""What a pod takes from the zones of its node for itself alone."""

from typing import Any

import pytest

from controllers.node_resource_topology.demand import Amount, amounts_of, demands, has_exclusive_resources
from tests.unit.node_resource_topology.builders import GIB, burstable, guaranteed, pod

Json = dict[str, Any]


def test_a_guaranteed_container_takes_gpus_whole_cores_and_memory() -> None:
    assert list(amounts_of(pod("a", guaranteed(2, "4", "8Gi")))) == [Amount(2, 4000, 8 * GIB)]


def test_a_fraction_of_a_core_runs_on_what_all_share() -> None:
    assert list(amounts_of(pod("a", guaranteed(1, "1500m", "1Gi")))) == [Amount(1, 0, GIB)]
    assert list(amounts_of(pod("a", guaranteed(1, "2000m", "1Gi")))) == [Amount(1, 2000, GIB)]


def test_a_pod_of_another_class_takes_its_gpus_alone() -> None:
    assert list(amounts_of(pod("a", burstable(3, "4", "8Gi")))) == [Amount(gpus=3)]
    assert list(amounts_of(pod("a", {"resources": {"limits": {}}}))) == [Amount()]


def test_one_container_without_limits_makes_the_pod_one_of_another_class() -> None:
    found = list(amounts_of(pod("a", guaranteed(1, "4", "8Gi"), burstable(0, "1"))))
    assert found == [Amount(gpus=1), Amount()]


def test_init_containers_count_for_the_class_and_only_those_that_restart_take_something() -> None:
    sidecar = guaranteed(1, "1", "1Gi", sidecar=True)

    assert list(amounts_of(pod("a", guaranteed(2), init=[guaranteed(8), sidecar]))) == [
        Amount(1, 1000, GIB),
        Amount(2, 1000, GIB),
    ]
    assert list(amounts_of(pod("a", guaranteed(2), init=[burstable()]))) == [Amount(gpus=2)]


@pytest.mark.parametrize(
    ("requests", "limits", "taken"),
    [
        ({"cpu": "4", "memory": "8Gi"}, {"cpu": "4", "memory": "8Gi"}, Amount(1, 4000, 8 * GIB)),
        ({"cpu": "4", "memory": "8Gi"}, {"cpu": "8", "memory": "8Gi"}, Amount(gpus=1)),
        ({"cpu": "4", "memory": "8Gi"}, {"memory": "8Gi"}, Amount(gpus=1)),
    ],
)
def test_what_the_pod_says_as_a_whole_decides_its_class(requests: Json, limits: Json, taken: Amount) -> None:
    whole = {"requests": requests, "limits": limits}
    assert list(amounts_of(pod("a", burstable(1, "4", "8Gi"), whole=whole))) == [taken]


def test_limits_that_mean_the_same_as_the_requests_are_the_same() -> None:
    resources = {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert list(amounts_of(pod("a", {"resources": resources}))) == [Amount(0, 1000, GIB)]


@pytest.mark.parametrize("text", ["many", "", "-1", "1" * 41])
def test_a_quantity_that_makes_no_sense_counts_as_none(text: str) -> None:
    assert list(amounts_of(pod("a", {"resources": {"requests": {"nvidia.com/gpu": text}}}))) == [Amount()]


def test_the_oldest_pod_comes_first_and_pods_that_take_nothing_do_not_count() -> None:
    pods = [pod("b", guaranteed(), age=1), pod("a", guaranteed(), age=1), pod("c", guaranteed(), age=2)]

    assert [demand.uid for demand in demands([*pods, pod("d", burstable(), age=3)])] == ["uid-c", "uid-a", "uid-b"]


@pytest.mark.parametrize(
    ("body", "exclusive"),
    [
        (guaranteed(), True),
        (guaranteed(0, "500m"), True),
        (burstable(1), True),
        ({"resources": {"requests": {"nvidia.com/gpu": "0"}}}, True),
        (burstable(0), False),
        ({}, False),
    ],
    ids=["guaranteed", "fraction of a core", "a GPU", "no GPU, but named", "burstable", "best effort"],
)
def test_pods_are_exclusive_as_schedulers_count_them(body: Json, exclusive: bool) -> None:
    assert has_exclusive_resources(pod("a", body)) is exclusive
