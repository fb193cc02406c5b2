"""The NUMA block, and what each zone of a node has."""

from fractions import Fraction

import pytest

from controllers.estate import Numa, Zone, zones_of
from controllers.estate.numa import policy_name
from tests.unit.estate.documents import pool, refused, wrong

GIB = 2**30


def numa(block: str, gpus: int = 8) -> Numa:
    found = pool(f"{{gpuCount: {gpus}, numa: {block}}}").numa
    assert found is not None
    return found


def mistaken(block: str, gpus: int = 8) -> str:
    return wrong(f"{{gpuCount: {gpus}, numa: {block}}}").removeprefix("nodePools.p.numa")


def test_zones_share_a_node_evenly() -> None:
    zones = zones_of(numa("{zones: 2}"), 8, Fraction(32), Fraction(128 * GIB))
    assert zones == (Zone(0, 4, 16_000, 64 * GIB), Zone(1, 4, 16_000, 64 * GIB))


@pytest.mark.parametrize(("gpus", "zones", "split"), [(7, 2, (4, 3)), (1, 3, (1, 0, 0)), (0, 2, (0, 0)), (8, 1, (8,))])
def test_what_an_even_split_leaves_over_goes_to_the_lowest_zones(gpus: int, zones: int, split: tuple[int, ...]) -> None:
    assert numa(f"{{zones: {zones}}}", gpus).gpus_per_zone(gpus) == split


def test_nothing_of_a_node_gets_lost_by_rounding() -> None:
    zones = zones_of(numa("{zones: 3}"), 8, Fraction("31.85"), Fraction(128 * GIB - 1))
    assert [zone.cpu for zone in zones] == [10617, 10617, 10616]
    assert sum(zone.memory for zone in zones) == 128 * GIB - 1


def test_a_pool_may_say_what_each_zone_has() -> None:
    block = numa("{zones: 2, gpusPerZone: [6, 2], cpuPerZone: 1500m, memPerZone: 64Gi}")
    assert zones_of(block, 8, Fraction(32), Fraction(GIB)) == (Zone(0, 6, 1500, 64 * GIB), Zone(1, 2, 1500, 64 * GIB))


def test_there_may_be_more_zones_than_gpus() -> None:
    assert numa("{zones: 64}", 2).gpus_per_zone(2) == (1, 1, *[0] * 62)
    assert numa("{zones: 3, gpusPerZone: [0, 2, 0]}", 2).gpus_per_zone(2) == (0, 2, 0)


def test_what_the_block_leaves_out_has_defaults() -> None:
    block = numa("{zones: 2}")
    assert (block.policy, block.scope) == ("single-numa-node", "container")
    assert (block.self_distance, block.remote_distance) == (10, 21)
    assert (numa("{zones: 1, distances: {remote: 40}}")).self_distance == 10
    assert (numa("{zones: 1, distances: {self: 11}}")).remote_distance == 21
    assert numa("{zones: 1, cpuPerZone: null, memPerZone: '', gpusPerZone: null}") == Numa(1)


@pytest.mark.parametrize(
    ("policy", "scope", "word"),
    [
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("none", "container", "None"),
        ("none", "pod", "None"),
    ],
)
def test_policy_and_scope_are_one_word_in_the_deprecated_list(policy: str, scope: str, word: str) -> None:
    block = numa(f"{{zones: 1, topologyManagerPolicy: {policy}, topologyManagerScope: {scope}}}")
    assert policy_name(block) == word


@pytest.mark.parametrize("text", ["16", "'16'", "16.0", "16000m", "1.6e1"])
def test_a_quantity_may_be_a_number_or_text(text: str) -> None:
    assert numa(f"{{zones: 1, cpuPerZone: {text}}}").cpu_per_zone == 16


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("{}", ".zones"),
        ("{zones: 0}", ".zones"),
        ("{zones: -1}", ".zones"),
        ("{zones: 65}", ".zones"),
        ("{zones: two}", ".zones"),
        ("{zone: 2, zones: 2}", ".zone"),
        ("{zones: 2, gpusPerZone: [8]}", ".gpusPerZone"),
        ("{zones: 2, gpusPerZone: []}", ".gpusPerZone"),
        ("{zones: 2, gpusPerZone: [4, 3]}", ".gpusPerZone"),
        ("{zones: 2, gpusPerZone: [4, 5]}", ".gpusPerZone"),
        ("{zones: 2, gpusPerZone: [9, 0]}", ".gpusPerZone[0]"),
        ("{zones: 2, gpusPerZone: [-1, 8]}", ".gpusPerZone[0]"),
        ("{zones: 2, gpusPerZone: [4, 4, x]}", ".gpusPerZone[2]"),
        ("{zones: 2, gpusPerZone: 4}", ".gpusPerZone"),
        ("{zones: 2, topologyManagerPolicy: strict}", ".topologyManagerPolicy"),
        ("{zones: 2, topologyManagerScope: Pod}", ".topologyManagerScope"),
        ("{zones: 2, cpuPerZone: lots}", ".cpuPerZone"),
        ("{zones: 2, cpuPerZone: 0}", ".cpuPerZone"),
        ("{zones: 2, cpuPerZone: -1}", ".cpuPerZone"),
        ("{zones: 2, cpuPerZone: true}", ".cpuPerZone"),
        ("{zones: 2, cpuPerZone: .nan}", ".cpuPerZone"),
        ("{zones: 2, cpuPerZone: [1]}", ".cpuPerZone"),
        ("{zones: 2, memPerZone: 64GB}", ".memPerZone"),
        ("{zones: 2, memPerZone: 8Ei}", ".memPerZone"),
        ("{zones: 2, memPerZone: 1e999}", ".memPerZone"),
        ("{zones: 2, memPerZone: " + "9" * 200 + "}", ".memPerZone"),
        ("{zones: 2, distances: [10, 20]}", ".distances"),
        ("{zones: 2, distances: {local: 10}}", ".distances.local"),
        ("{zones: 2, distances: {self: 0}}", ".distances.self"),
        ("{zones: 2, distances: {remote: 255}}", ".distances.remote"),
    ],
)
def test_a_mistake_in_the_block_is_reported_with_its_path(block: str, path: str) -> None:
    assert mistaken(block) == path


def test_a_missing_number_of_zones_and_a_wrong_sum_are_said_plainly() -> None:
    assert refused("{numa: {}}")[1:] == ("it is missing, and has to be a whole number from 1 to 64", "add it")
    assert refused("{gpuCount: 8, numa: {zones: 2, gpusPerZone: [6, 1]}}")[1:] == (
        "the numbers sum up to 7, and a node has 8 GPUs",
        "make the sum 8",
    )
