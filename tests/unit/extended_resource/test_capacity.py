"""What a node should offer, and the step from its status to that."""

from collections.abc import Mapping

import pytest

from controllers.api.core import KWOK_ANNOTATION, POOL_LABEL, Node, NodeStatus
from controllers.estate import DRA, MOCK, Pool
from controllers.extended_resource.capacity import (
    Holding,
    Plan,
    extended,
    fields,
    is_initialized,
    is_settled,
    plan,
    removal,
    wanted,
)
from controllers.runtime import ObjectMeta

GPU = "nvidia.com/gpu"
POOL = Pool("p", gpu_count=8, resources={"rdma/hca": 2})


def node(*, label: bool = True, annotation: bool = True) -> Node:
    labels = {POOL_LABEL: "p"} if label else {}
    annotations = {KWOK_ANNOTATION: "fake"} if annotation else {}
    return Node(metadata=ObjectMeta(name="n", labels=labels, annotations=annotations))


def status(resources: Mapping[str, str], allocatable: Mapping[str, str] | None = None) -> NodeStatus:
    return NodeStatus(capacity=resources, allocatable=resources if allocatable is None else allocatable)


def test_a_simulated_node_offers_its_gpus_and_the_other_resources_of_its_pool() -> None:
    assert wanted(node(), POOL, POOL_LABEL) == {GPU: 8, "rdma/hca": 2}
    assert wanted(node(), Pool("p"), POOL_LABEL) == {GPU: 0}


@pytest.mark.parametrize(
    ("found", "pool"),
    [
        (node(), None),
        (node(label=False), POOL),
        (node(annotation=False), POOL),
        (node(), Pool("p", gpu_count=8, offered=DRA)),
        (node(), Pool("p", gpu_count=8, backend=MOCK)),
    ],
    ids=["no pool", "no label", "not simulated", "dra", "mock"],
)
def test_any_other_node_offers_nothing(found: Node, pool: Pool | None) -> None:
    assert wanted(found, pool, POOL_LABEL) == {}


@pytest.mark.parametrize(
    ("allocatable", "initialized"),
    [({}, False), ({"cpu": "1"}, False), ({"pods": "1"}, False), ({"cpu": "1", "pods": "1"}, True)],
)
def test_a_node_is_initialized_once_it_has_cores_and_pods(allocatable: dict[str, str], initialized: bool) -> None:
    assert is_initialized(status({"cpu": "1", "pods": "1"}, allocatable)) is initialized


def test_only_resources_of_a_domain_are_extended_ones() -> None:
    assert extended(status({"cpu": "1", "hugepages-2Mi": "0", GPU: "1"}, {"a/b": "1"})) == {GPU, "a/b"}


@pytest.mark.parametrize(
    ("found", "resources", "settled"),
    [
        (status({"cpu": "1"}), {}, True),
        (status({GPU: "8"}), {GPU: 8}, True),
        (status({GPU: "1k"}), {GPU: 1000}, True),
        (status({GPU: "0"}), {GPU: 0}, True),
        (status({GPU: "7"}), {GPU: 8}, False),
        (status({}), {GPU: 0}, False),
        (status({GPU: "8"}, {}), {GPU: 8}, False),
        (status({GPU: "8"}, {GPU: "7"}), {GPU: 8}, False),
        (status({GPU: "8", "a/b": "1"}), {GPU: 8}, False),
        (status({GPU: "?"}), {GPU: 8}, False),
    ],
)
def test_a_status_is_settled_where_both_places_have_exactly_the_numbers(
    found: NodeStatus, resources: dict[str, int], settled: bool
) -> None:
    assert is_settled(found, resources) is settled


def ours(*names: str) -> Holding:
    return Holding(frozenset(names))


NOBODY = Holding()
BOTH = (("allocatable", GPU), ("capacity", GPU))


def test_what_is_not_there_is_written() -> None:
    assert plan(status({"cpu": "1"}), {GPU: 8}, NOBODY) == Plan({GPU: 8})


def test_what_is_ours_is_changed_and_what_is_no_longer_wanted_is_left_out() -> None:
    found = status({GPU: "8", "rdma/hca": "2"})
    assert plan(found, {GPU: 4}, ours(GPU, "rdma/hca")) == Plan({GPU: 4})
    assert plan(found, {GPU: 8}, ours(GPU, "rdma/hca")) == Plan({GPU: 8})


def test_the_last_ones_are_removed_one_by_one() -> None:
    assert plan(status({"cpu": "1", GPU: "8"}), {}, ours(GPU)) == Plan(remove=BOTH)
    assert plan(status({GPU: "8"}, {}), {}, ours(GPU)) == Plan(remove=(("capacity", GPU),))
    assert plan(status({}), {}, ours(GPU)) == Plan()


def test_what_others_wrote_is_neither_changed_nor_taken_over_nor_taken_away() -> None:
    found = status({GPU: "8", "a/b": "1"})
    assert plan(found, {GPU: 4}, NOBODY) == Plan(refused=(GPU,))
    assert plan(found, {GPU: 8}, NOBODY) == Plan()
    assert plan(found, {GPU: 8, "rdma/hca": 2}, NOBODY) == Plan({"rdma/hca": 2})
    assert plan(found, {}, NOBODY) == Plan()


def test_the_rest_of_what_others_took_is_given_up() -> None:
    rest = Holding(rest=frozenset({("allocatable", GPU)}))
    assert plan(status({GPU: "2"}), {GPU: 8}, rest) == Plan(remove=(("allocatable", GPU),), refused=(GPU,))
    assert plan(status({GPU: "2"}), {GPU: 8, "a/b": 1}, rest) == Plan({"a/b": 1}, refused=(GPU,))


def test_what_kwok_brought_back_is_removed_before_it_is_written_anew() -> None:
    found, copied = status({GPU: "8", "a/b": "1"}), Holding(frozenset({"a/b"}), copied=frozenset({GPU}))
    assert plan(found, {GPU: 4, "a/b": 1}, copied) == Plan(remove=BOTH)
    assert plan(found, {"a/b": 1}, copied) == Plan(remove=BOTH)
    assert len(plan(found, {}, copied).remove) == 4


def test_what_is_as_it_should_be_needs_no_write() -> None:
    assert plan(status({GPU: "8"}), {GPU: 8}, ours(GPU)) == Plan()


def test_a_removal_names_the_fields_as_json_pointers() -> None:
    assert removal(BOTH[:1]) == [{"op": "remove", "path": "/status/allocatable/nvidia.com~1gpu"}]


def test_an_apply_names_the_same_numbers_in_both_places() -> None:
    assert fields({GPU: 8}) == {"status": {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}}}
