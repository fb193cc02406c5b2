"""Which devices there are: those that the ResourceSlices of complete pools offer."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from controllers.api.dra import ResourceSlice
from controllers.api.quantity import parse_quantity
from controllers.runtime import logs
from controllers.sandbox.cel import Condition, RuleError
from controllers.sandbox.stand_in.kinds import Body, Claim, Node
from controllers.sandbox.stand_in.matching import matches_node
from controllers.sandbox.stand_in.refusal import UNREADABLE

DeviceId = tuple[str, str, str]
"""Driver, pool and name."""

Counter = tuple[str, str, str, str]
"""Driver, pool, counter set and name of what devices of a pool share."""

logger = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reach:
    """From which nodes a device can be used; all of them where nothing is said."""

    node: str = ""
    selector: Mapping[str, Any] | None = None

    def includes(self, node: Node) -> bool:
        if self.node:
            return self.node == node.name
        try:
            return self.selector is None or matches_node(self.selector, node)
        except UNREADABLE:
            return False


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device of a slice."""

    id: DeviceId
    reach: Reach = Reach()
    attributes: Mapping[str, Any] = field(default_factory=dict)  # values by domain/name
    capacity: Mapping[str, Decimal] = field(default_factory=dict)  # by domain/name
    taints: Sequence[Mapping[str, Any]] = ()
    consumes: Mapping[Counter, Decimal] = field(default_factory=dict)
    unusable: str = ""  # why the stand-in leaves it alone, "" where it does not
    verdicts: dict[str, bool | str] = field(default_factory=dict)  # by expression; text says why there is none

    def __str__(self) -> str:
        return "/".join(self.id)

    def answers(self, expression: str) -> bool:
        """Whether a selector's expression is true of the device. Raises RuleError where it cannot be evaluated."""
        verdict = self.verdicts.get(expression)
        if verdict is None:
            verdict = self.verdicts[expression] = self._verdict(expression)
        if isinstance(verdict, str):
            raise RuleError(verdict)
        return verdict

    def _verdict(self, expression: str) -> bool | str:
        try:
            return _condition(expression).holds(self._view(expression))
        except RuleError as error:
            return str(error)

    def _view(self, expression: str) -> Body:
        """What an expression sees; a domain of which the device has nothing is empty and not absent."""
        named = _DOMAIN.findall(expression)
        capacity = {name: float(number) for name, number in self.capacity.items()}
        return {
            "driver": self.id[0],
            "attributes": {**{name: {} for name in named}, **_by_domain(self.attributes)},
            "capacity": {**{name: {} for name in named}, **_by_domain(capacity)},
        }


_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*["']([^"']+)["']\s*\]""")


@functools.lru_cache(maxsize=1024)
def _condition(expression: str) -> Condition:
    return Condition(expression, "device")


def _by_domain(values: Mapping[str, Any]) -> dict[str, Body]:
    found: dict[str, Body] = defaultdict(dict)
    for name, value in values.items():
        domain, _, own = name.rpartition("/")
        found[domain][own] = value
    return dict(found)


@dataclass(frozen=True, slots=True)
class Offer:
    """All devices that there are, and how much there is of what they share."""

    devices: Sequence[Device] = ()
    counters: Mapping[Counter, Decimal] = field(default_factory=dict)


class Catalogue:
    """Reads slices, each version of one once."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], Offer] = {}

    def offer(self, slices: Iterable[ResourceSlice]) -> Offer:
        """What all pools offer, each in its newest generation; a pool that is not complete offers nothing."""
        newest = _newest(slices)
        versions = {(entry.uid, entry.metadata.resource_version): entry for entry in newest}
        self._read = {version: self._read.get(version) or _read(entry) for version, entry in versions.items()}
        parts = self._read.values()
        counters = {counter: number for part in parts for counter, number in part.counters.items()}
        return Offer([device for part in parts for device in part.devices], counters)


def _newest(slices: Iterable[ResourceSlice]) -> Iterator[ResourceSlice]:
    pools: dict[tuple[str, str], list[ResourceSlice]] = defaultdict(list)
    for entry in sorted(slices, key=lambda entry: entry.name):
        pool = entry.spec.get("pool", {})
        pools[entry.spec.get("driver", ""), pool.get("name", "")].append(entry)
    for entries in pools.values():
        generation = max(_of_pool(entry, "generation") for entry in entries)
        newest = [entry for entry in entries if _of_pool(entry, "generation") == generation]
        if len(newest) == _of_pool(newest[0], "resourceSliceCount"):
            yield from newest


def _of_pool(entry: ResourceSlice, name: str) -> int:
    number = entry.spec.get("pool", {}).get(name, 0)
    return number if isinstance(number, int) else 0


def _read(entry: ResourceSlice) -> Offer:
    """What one slice offers: nothing where it cannot be read, since others must not suffer for that."""
    try:
        counters = {
            _counter(entry, shared["name"], name): parse_quantity(amount["value"])
            for shared in entry.spec.get("sharedCounters", ())
            for name, amount in shared["counters"].items()
        }
        return Offer([_device(entry, device) for device in entry.spec.get("devices", ())], counters)
    except (*UNREADABLE, StopIteration) as error:
        logger.warning("a ResourceSlice cannot be read and offers nothing", slice=entry.name, reason=repr(error))
        return Offer()


def _device(entry: ResourceSlice, device: Mapping[str, Any]) -> Device:
    driver = entry.spec["driver"]
    return Device(
        id=(driver, entry.spec["pool"]["name"], device["name"]),
        reach=_reach(device if entry.spec.get("perDeviceNodeSelection") else entry.spec),
        attributes={
            _qualified(driver, name): next(iter(value.values())) for name, value in device.get("attributes", {}).items()
        },
        capacity={
            _qualified(driver, name): parse_quantity(value["value"])
            for name, value in device.get("capacity", {}).items()
        },
        taints=device.get("taints", ()),
        consumes={
            _counter(entry, use["counterSet"], name): parse_quantity(amount["value"])
            for use in device.get("consumesCounters", ())
            for name, amount in use["counters"].items()
        },
        unusable=next((f"has {name}" for name in _NOT_PLAYED if device.get(name)), ""),
    )


_NOT_PLAYED = ("allowMultipleAllocations", "bindingConditions", "bindsToNode")


def _qualified(driver: str, name: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _counter(entry: ResourceSlice, counter_set: str, name: str) -> Counter:
    return entry.spec["driver"], entry.spec["pool"]["name"], counter_set, name


def _reach(spec: Mapping[str, Any]) -> Reach:
    if spec.get("nodeName"):
        return Reach(node=spec["nodeName"])
    if spec.get("allNodes"):
        return Reach()
    return Reach(selector=spec["nodeSelector"])


def held(claims: Iterable[Claim]) -> set[DeviceId]:
    """The devices that claims have to themselves."""
    return {device for claim in claims for device in devices_of(claim.allocation)}


def devices_of(allocation: Mapping[str, Any] | None) -> Iterator[DeviceId]:
    """The devices that an allocation takes; administrators only look at theirs."""
    for result in (allocation or {}).get("devices", {}).get("results", ()):
        if not result.get("adminAccess"):
            yield result["driver"], result["pool"], result["device"]
