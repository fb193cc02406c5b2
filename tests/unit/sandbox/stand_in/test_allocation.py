"""Which devices claims get, and how that is written down."""

from collections.abc import Sequence
from typing import Any

import pytest

from controllers.api.dra import ResourceSlice
from controllers.sandbox.stand_in.allocation import Supply, allocate, allocation_of, wants_of
from controllers.sandbox.stand_in.devices import Catalogue, DeviceId
from controllers.sandbox.stand_in.kinds import Claim, DeviceClass
from controllers.sandbox.stand_in.refusal import Refusal, Unplaceable
from tests.unit.sandbox.stand_in.objects import (
    DRIVER,
    NOW,
    claim,
    device,
    device_class,
    devices,
    meta,
    needs_cel,
    request,
    slice_of,
)

ANY = DeviceClass(metadata=meta("gpu"))
NODE: dict[str, Any] = {"nodeName": "n"}


def given(
    *claims: Claim,
    slices: Sequence[ResourceSlice] = (slice_of("pool", devices(4), nodeName="n"),),
    classes: Sequence[DeviceClass] = (ANY,),
    held: Sequence[str] = (),
) -> list[list[str]]:
    """The names of the devices that each claim gets."""
    offer = Catalogue().offer(slices)
    taken: set[DeviceId] = {(DRIVER, "pool", name) for name in held}
    wants = wants_of(claims, {entry.name: entry for entry in classes})
    grants = allocate(wants, Supply(offer.devices, taken, offer.counters))
    return [[grant.device.id[2] for grant in grants if grant.want.claim is entry] for entry in claims]


def test_first_free_devices_are_taken() -> None:
    assert given(claim("c", request(count=2)), claim("d"), held=["gpu-1"]) == [["gpu-0", "gpu-2"], ["gpu-3"]]
    with pytest.raises(Refusal, match="cannot allocate all claims"):
        given(claim("c", request(count=4)), held=["gpu-1"])


def test_later_request_can_make_an_earlier_one_choose_anew() -> None:
    same = {"requests": ["a", "b"], "matchAttribute": "example.com/numa"}
    wanted = claim("c", request("a"), request("b"), constraints=[same])
    assert given(wanted, held=["gpu-1"]) == [["gpu-2", "gpu-3"]]


def test_constraint_of_one_claim_is_nothing_to_another() -> None:
    same = {"matchAttribute": "example.com/numa"}
    first, second = claim("c", request(count=1), constraints=[same]), claim("d", request(count=2), constraints=[same])
    assert given(first, second) == [["gpu-0"], ["gpu-2", "gpu-3"]]


def test_device_without_the_attribute_of_a_constraint_is_no_match() -> None:
    with pytest.raises(Refusal):
        given(claim("c", constraints=[{"matchAttribute": "example.com/absent"}]))


def test_all_means_each_that_fits_and_at_least_one() -> None:
    assert given(claim("c", request(allocationMode="All"))) == [[f"gpu-{index}" for index in range(4)]]
    with pytest.raises(Refusal):
        given(claim("c", request(allocationMode="All")), held=["gpu-3"])
    with pytest.raises(Refusal):
        given(claim("c", request(allocationMode="All")), slices=[])


def test_first_alternative_that_there_is_enough_for() -> None:
    alternatives = [{"name": str(n), "deviceClassName": "gpu", "count": n} for n in (8, 3, 1)]
    assert given(claim("c", {"name": "r", "firstAvailable": alternatives})) == [["gpu-0", "gpu-1", "gpu-2"]]


def test_administrator_sees_devices_that_are_taken_and_takes_none() -> None:
    watching = claim("c", request(allocationMode="All", adminAccess=True))
    assert given(watching, claim("d"), held=["gpu-0"]) == [[f"gpu-{index}" for index in range(4)], ["gpu-1"]]


def test_tainted_device_needs_a_toleration() -> None:
    sick = slice_of("pool", [device("gpu-0", taints=[{"key": "sick", "effect": "NoExecute"}])], **NODE)
    with pytest.raises(Refusal):
        given(claim("c"), slices=[sick])
    assert given(claim("c", request(tolerations=[{"key": "sick", "operator": "Exists"}])), slices=[sick]) == [["gpu-0"]]


def test_devices_share_counters() -> None:
    def part(name: str, memory: str) -> dict[str, Any]:
        return device(name, consumesCounters=[{"counterSet": "board", "counters": {"memory": {"value": memory}}}])

    counters = [{"name": "board", "counters": {"memory": {"value": "80Gi"}}}]
    shared = slice_of("counters", [], pool="pool", count=2, sharedCounters=counters, **NODE)
    parts = slice_of("pool", [part("gpu-0", "50Gi"), part("gpu-1", "40Gi"), part("gpu-2", "30Gi")], count=2, **NODE)
    assert given(claim("c", request(count=2)), slices=[shared, parts]) == [["gpu-0", "gpu-2"]]
    with pytest.raises(Refusal):
        given(claim("c", request(count=3)), slices=[shared, parts])


def test_what_the_stand_in_does_not_play_is_refused_in_words() -> None:
    with pytest.raises(Unplaceable, match="no constraint but matchAttribute"):
        given(claim("c", constraints=[{"distinctAttribute": "x"}]))
    with pytest.raises(Unplaceable, match="does not share out capacity"):
        given(claim("c", request(capacity={"requests": {"memory": "1Gi"}})))
    with pytest.raises(Unplaceable, match="request gpu: device class gpu does not exist"):
        given(claim("c"), classes=[])


def test_puzzle_that_is_too_hard_is_given_up() -> None:
    odd = {"requests": ["b"], "matchAttribute": "example.com/absent"}
    hard = claim("c", request("a", count=8), request("b"), constraints=[odd])
    with pytest.raises(Refusal, match="not found in"):
        given(hard, slices=[slice_of("pool", devices(24), **NODE)])


@needs_cel
def test_selectors_of_class_and_request_must_both_hold_and_failures_say_where() -> None:
    late = device_class("late", f"device.attributes['{DRIVER}'].index > 0")
    odd = [{"cel": {"expression": f"device.attributes['{DRIVER}'].index % 2 == 1"}}]
    assert given(claim("c", request(device_class="late", selectors=odd, count=2)), classes=[late]) == [
        ["gpu-1", "gpu-3"]
    ]
    broken = device_class("late", f"device.attributes['{DRIVER}'].absent > 0")
    with pytest.raises(Unplaceable, match=f"class late: selector #0 on device {DRIVER}/pool/gpu-0: CEL runtime") as why:
        given(claim("c", request(device_class="late")), classes=[broken])
    assert why.value.reason == "SchedulerError"


# -- as the API has it ------------------------------------------------------------------------------------------------


def written(entry: Claim, classes: Sequence[DeviceClass], slices: Sequence[ResourceSlice]) -> dict[str, Any]:
    offer = Catalogue().offer(slices)
    grants = allocate(wants_of([entry], {one.name: one for one in classes}), Supply(offer.devices))
    return allocation_of(entry, grants, "n", NOW)


def config(value: str, *requests: str) -> dict[str, Any]:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"value": value}}}
    return {**({"requests": list(requests)} if requests else {}), **opaque}


def test_configuration_names_requests_only_where_it_is_not_for_all_of_them() -> None:
    gpu = DeviceClass(metadata=meta("gpu"), spec={"config": [config("class")]})
    other = DeviceClass(metadata=meta("other"), spec={"config": [config("x"), config("y")]})
    alternatives = [{"name": "many", "deviceClassName": "gpu", "count": 9}, {"name": "one", "deviceClassName": "gpu"}]
    own = [config("abc", "a", "b", "c"), config("many", "a/many"), config("cb", "c", "b"), config("all")]
    requests = [{"name": "a", "firstAvailable": alternatives}, request("b"), request("c", "other")]
    found = written(claim("c", *requests, config=own), [gpu, other], [slice_of("pool", devices(4), **NODE)])
    assert found["devices"]["config"] == [
        {"source": "FromClass", **config("class", "a/one", "b")},
        {"source": "FromClass", **config("x", "c")},
        {"source": "FromClass", **config("y", "c")},
        {"source": "FromClaim", **config("abc")},
        {"source": "FromClaim", **config("cb", "c", "b")},
        {"source": "FromClaim", **config("all")},
    ]
    assert found["allocationTimestamp"] == NOW


def test_node_selector_says_where_the_devices_can_be_used() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    zone = slice_of("zone", [device("gpu-1")], nodeSelector={"nodeSelectorTerms": [term]})
    everywhere, local = slice_of("all", [device("gpu-0")], allNodes=True), slice_of("own", [device("gpu-2")], **NODE)
    two = claim("c", request(count=2))
    name = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert "nodeSelector" not in written(claim("c"), [ANY], [everywhere])
    assert written(two, [ANY], [everywhere, zone])["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert written(two, [ANY], [zone, local])["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [name]}]}
