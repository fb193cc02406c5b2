"""The devices that slices offer."""

import pytest

from controllers.api.dra import ResourceSlice
from controllers.sandbox.cel import RuleError
from controllers.sandbox.stand_in import devices as module
from controllers.sandbox.stand_in.devices import Catalogue, Device, held
from tests.unit.sandbox.stand_in.objects import DRIVER, claim, device, devices, needs_cel, node, slice_of


def names(*slices: ResourceSlice) -> list[str]:
    return [device.id[2] for device in Catalogue().offer(slices).devices]


def test_pool_counts_in_its_newest_generation_only_when_that_is_complete() -> None:
    old = slice_of("old", devices(1), pool="p", nodeName="n")
    new = slice_of("new", [device("gpu-1")], pool="p", generation=2, count=2, nodeName="n")
    rest = slice_of("rest", [device("gpu-2")], pool="p", generation=2, count=2, nodeName="n")
    assert names(old) == ["gpu-0"]
    assert names(old, new) == []
    assert names(old, new, rest) == ["gpu-1", "gpu-2"]


def test_slice_that_cannot_be_read_offers_nothing_and_others_do() -> None:
    bad = slice_of("bad", [device("gpu-0", capacity={"memory": {"value": "much"}})], nodeName="n")
    nowhere = slice_of("nowhere", devices(1))
    assert names(bad, nowhere, slice_of("good", devices(1), nodeName="n")) == ["gpu-0"]


def test_version_of_a_slice_is_read_once() -> None:
    catalogue, entry = Catalogue(), slice_of("s", devices(1), nodeName="n")
    (first,), (second,) = (catalogue.offer([entry]).devices for _ in range(2))
    assert first is second


def test_reach_of_a_device() -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "name", "operator": "In", "values": ["a"]}]}]}
    odd = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "name", "operator": "Like", "values": ["a"]}]}]}
    slices = [
        slice_of("s1", [device("gpu-1")], nodeName="a"),
        slice_of("s2", [device("gpu-2")], allNodes=True),
        slice_of("s3", [device("gpu-3")], nodeSelector=selector),
        slice_of("s4", [device("gpu-4", nodeName="b"), device("gpu-5", allNodes=True)], perDeviceNodeSelection=True),
        slice_of("s6", [device("gpu-6")], nodeSelector=odd),
    ]
    offered = Catalogue().offer(slices).devices
    near = {name: [d.id[2] for d in offered if d.reach.includes(node(name))] for name in ("a", "b")}
    assert near == {"a": ["gpu-1", "gpu-2", "gpu-3", "gpu-5"], "b": ["gpu-2", "gpu-4", "gpu-5"]}


@needs_cel
@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (f"device.driver == '{DRIVER}'", True),
        (f"device.attributes['{DRIVER}'].index == 3", True),
        (f'device.attributes["{DRIVER}"].index > 3', False),
        ("device.attributes['example.com'].numa == 1", True),
        ("has(device.attributes['other.io'].x)", False),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) > 0", True),
        (f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('80Gi'))", False),
    ],
)
def test_selector_sees_driver_attributes_and_capacity(expression: str, answer: bool) -> None:
    (only,) = Catalogue().offer([slice_of("s", [device("gpu-3")], nodeName="n")]).devices
    assert only.answers(expression) is answer
    assert only.answers(expression) is answer


@needs_cel
def test_absent_attribute_is_an_error_each_time() -> None:
    (only,) = Catalogue().offer([slice_of("s", devices(1), nodeName="n")]).devices
    for _ in range(2):
        with pytest.raises(RuleError, match="CEL runtime error: no such key: missing"):
            only.answers(f"device.attributes['{DRIVER}'].missing == 1")


def test_without_the_library_a_selector_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controllers.sandbox.cel.cel", None)
    module._condition.cache_clear()
    with pytest.raises(RuleError, match="the package cel-expr-python is not installed"):
        Device((DRIVER, "pool", "gpu-0")).answers("true")


def test_administrators_hold_nothing() -> None:
    result = {"request": "gpu", "driver": DRIVER, "pool": "p", "device": "gpu-0"}
    watching = {**result, "device": "gpu-1", "adminAccess": True}
    taken = claim("c", status={"allocation": {"devices": {"results": [result, watching]}}})
    assert held([taken, claim("free")]) == {(DRIVER, "p", "gpu-0")}
