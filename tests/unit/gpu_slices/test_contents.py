"""What the slices of a node hold, one by one."""

from controllers.api.dra import dra_api
from controllers.estate import gpus_of, load
from controllers.gpu_slices.contents import Content, contents

V1 = dra_api("v1")


def of(gpu: str) -> list[Content]:
    pool = load(f"nodePools: {{p: {{gpu: {gpu}}}}}").pools["p"]
    return contents(V1, pool, gpus_of("n", pool))


def sizes(found: list[Content]) -> list[tuple[str, int]]:
    return [(name, len(items)) for content in found for name, items in content.items()]


def test_devices_are_split_where_a_slice_is_full() -> None:
    assert sizes(of("{profile: a100, overrides: {device_count: 128}}")) == [("devices", 128)]
    assert sizes(of("{profile: a100, overrides: {device_count: 129}}")) == [("devices", 128), ("devices", 1)]


def test_a_node_without_gpus_has_no_slices() -> None:
    assert of("{overrides: {}}") == []


def test_partitioned_gpus_have_their_counters_first_and_then_a_slice_each() -> None:
    found = of("{profile: a100, offered: dra, mig: dynamic}")

    assert sizes(found) == [("sharedCounters", 8)] + [("devices", 25)] * 8
    names = [counters["name"] for counters in found[0]["sharedCounters"]]
    drawn = [{device["consumesCounters"][0]["counterSet"] for device in content["devices"]} for content in found[1:]]
    assert drawn == [{name} for name in names]


def test_counters_of_more_gpus_than_a_slice_can_have_are_split() -> None:
    found = of("{profile: h100, offered: dra, mig: dynamic, overrides: {device_count: 10}}")

    assert sizes(found)[:2] == [("sharedCounters", 8), ("sharedCounters", 2)]
    assert len(found) == 12
