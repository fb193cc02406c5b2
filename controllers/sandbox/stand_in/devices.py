"""Which devices there are, and which of them a claim gets."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controllers.sandbox.cel import Condition, RuleError
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass, Slice

DeviceId = tuple[str, str, str]
"""Driver, pool and name."""


class Refusal(Exception):
    """No devices for a claim on a node; the message says why, as the pod's condition will."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice; ``node`` is "" where every node can reach it."""

    id: DeviceId
    node: str = ""
    view: Mapping[str, Any] = field(default_factory=dict)  # what selectors see of it

    @property
    def driver(self) -> str:
        return self.id[0]


def offered(slices: Iterable[Slice]) -> list[Device]:
    """The devices of all pools, each in its newest generation; a pool that is not complete offers nothing."""
    pools: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for entry in slices:
        pools[entry.spec["driver"], entry.spec["pool"]["name"]].append(entry)
    return [device for pool in pools.values() for entry in _newest(pool) for device in _devices(entry)]


def _newest(pool: Sequence[Slice]) -> list[Slice]:
    generation = max(entry.spec["pool"]["generation"] for entry in pool)
    newest = [entry for entry in pool if entry.spec["pool"]["generation"] == generation]
    return newest if len(newest) == newest[0].spec["pool"]["resourceSliceCount"] else []


def _devices(entry: Slice) -> Iterable[Device]:
    spec = entry.spec
    if not spec.get("nodeName") and not spec.get("allNodes"):
        return
    for device in spec.get("devices", ()):
        name = (spec["driver"], spec["pool"]["name"], device["name"])
        yield Device(name, spec.get("nodeName", ""), _view(spec["driver"], device))


def _view(driver: str, device: Mapping[str, Any]) -> Body:
    """A device as selectors see it: attributes by domain and name, where the driver's own need no domain."""
    attributes: dict[str, Body] = defaultdict(dict)
    for name, value in device.get("attributes", {}).items():
        domain, _, own = name.rpartition("/")
        attributes[domain or driver][own] = next(iter(value.values()))
    return {"driver": driver, "attributes": dict(attributes)}


def held(claims: Iterable[Claim]) -> set[DeviceId]:
    """The devices that claims have."""
    return {
        (result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in (claim.allocation or {}).get("devices", {}).get("results", ())
    }


def allocation(claim: Claim, node: str, free: Sequence[Device], classes: Mapping[str, DeviceClass]) -> Body:
    """The first free devices on a node that answer a claim's requests. Raises Refusal where there are too few."""
    wanted = claim.spec.get("devices", {})
    if wanted.get("constraints"):
        raise Refusal("the stand-in does not understand constraints of claims")
    left, results, config = list(free), [], []
    for request in wanted.get("requests", ()):
        device_class = _class_of(request, classes)
        chosen = _choose(request, device_class, left)
        left = [device for device in left if device not in chosen]
        results += [_result(request["name"], device) for device in chosen]
        config += [
            {"source": "FromClass", "requests": [request["name"]], **entry}
            for entry in device_class.spec.get("config", ())
        ]
    config += [{"source": "FromClaim", **entry} for entry in wanted.get("config", ())]
    devices = {"results": results, **({"config": config} if config else {})}
    return {"devices": devices, "nodeSelector": _only_on(node)}


def _class_of(request: Mapping[str, Any], classes: Mapping[str, DeviceClass]) -> DeviceClass:
    exactly = request.get("exactly")
    if exactly is None or exactly.get("allocationMode", "ExactCount") != "ExactCount" or exactly.get("adminAccess"):
        raise Refusal(f"the stand-in understands only requests for an exact count of devices, unlike {request['name']}")
    found = classes.get(exactly["deviceClassName"])
    if found is None:
        raise Refusal(f"device class {exactly['deviceClassName']} does not exist")
    return found


def _choose(request: Mapping[str, Any], device_class: DeviceClass, free: Sequence[Device]) -> list[Device]:
    exactly = request["exactly"]
    selectors = [*device_class.spec.get("selectors", ()), *exactly.get("selectors", ())]
    conditions = [_condition(selector["cel"]["expression"]) for selector in selectors]
    fitting = [device for device in free if all(condition.holds(device.view) for condition in conditions)]
    count = exactly.get("count", 1)
    if len(fitting) < count:
        raise Refusal("cannot allocate all claims")
    return fitting[:count]


@functools.lru_cache(maxsize=1024)
def _condition(expression: str) -> Condition:
    try:
        return Condition(expression, "device")
    except RuleError as error:
        raise Refusal(f"a selector of devices is not understood: {error}") from error


def _result(request: str, device: Device) -> Body:
    driver, pool, name = device.id
    return {"request": request, "driver": driver, "pool": pool, "device": name}


def _only_on(node: str) -> Body:
    field_of_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field_of_node]}]}
