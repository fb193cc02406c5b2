"""Which devices of a node a pod's claims get: the first that answer all of their requests together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from controllers.sandbox.cel import RuleError
from controllers.sandbox.stand_in.devices import Counter, Device, DeviceId, Reach
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass
from controllers.sandbox.stand_in.matching import tolerates_all
from controllers.sandbox.stand_in.refusal import SCHEDULER_ERROR, Refusal, Unplaceable

MAX_TRIES = 20_000
"""Devices tried on one node for one pod before the search is given up; what is asked for can be a hard puzzle."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to satisfy a request."""

    name: str  # as results have it: request, or request/subrequest
    spec: Mapping[str, Any]
    device_class: DeviceClass

    @property
    def every(self) -> bool:
        return bool(self.spec.get("allocationMode") == "All")

    @property
    def count(self) -> int:
        return int(self.spec.get("count", 1))

    @property
    def admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))

    @property
    def tolerations(self) -> Sequence[Mapping[str, Any]]:
        tolerations: Sequence[Mapping[str, Any]] = self.spec.get("tolerations", ())
        return tolerations

    def fits(self, device: Device) -> bool:
        """Raises Unplaceable where a selector cannot be evaluated: that is a mistake, not a device that differs."""
        if not tolerates_all(self.tolerations, device.taints):
            return False
        sources = ((f"class {self.device_class.name}", self.device_class.spec), (f"request {self.name}", self.spec))
        return all(
            _answers(device, selector, f"{where}: selector #{number}")
            for where, spec in sources
            for number, selector in enumerate(spec.get("selectors", ()))
        )


def _answers(device: Device, selector: Mapping[str, Any], where: str) -> bool:
    try:
        return device.answers(selector.get("cel", {}).get("expression", ""))
    except RuleError as error:
        raise Unplaceable(f"{where} on device {device}: {error}", SCHEDULER_ERROR) from None


@dataclass(frozen=True, slots=True)
class Want:
    """One request of a claim: the first of its options that there are devices for."""

    claim: Claim
    options: Sequence[Option]


@dataclass(frozen=True, slots=True)
class Grant:
    """A device for a request."""

    want: Want
    option: Option
    device: Device


@dataclass(frozen=True, slots=True)
class Supply:
    """What can be had on a node."""

    devices: Sequence[Device]
    held: set[DeviceId] | frozenset[DeviceId] = frozenset()
    counters: Mapping[Counter, Decimal] = field(default_factory=dict)  # what is left of them


def wants_of(claims: Iterable[Claim], classes: Mapping[str, DeviceClass]) -> list[Want]:
    """The requests of claims. Raises Unplaceable for what no node can satisfy."""
    return [_want(claim, request, classes) for claim in claims for request in _spec(claim).get("requests", ())]


def _spec(claim: Claim) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = claim.spec.get("devices", {})
    return spec


def _want(claim: Claim, request: Mapping[str, Any], classes: Mapping[str, DeviceClass]) -> Want:
    name = request["name"]
    alternatives = request.get("firstAvailable")
    if alternatives:
        return Want(claim, [_option(f"{name}/{sub['name']}", sub, claim, classes) for sub in alternatives])
    return Want(claim, [_option(name, request.get("exactly", {}), claim, classes)])


def _option(name: str, spec: Mapping[str, Any], claim: Claim, classes: Mapping[str, DeviceClass]) -> Option:
    device_class = classes.get(spec.get("deviceClassName", ""))
    if device_class is None:
        raise Unplaceable(f"request {name}: device class {spec.get('deviceClassName')} does not exist")
    if spec.get("capacity"):
        raise Unplaceable(f"claim {claim.name}: request {name}: the stand-in does not share out capacity of devices")
    if any("matchAttribute" not in constraint for constraint in _spec(claim).get("constraints", ())):
        raise Unplaceable(f"claim {claim.name}: the stand-in knows no constraint but matchAttribute")
    return Option(name, spec, device_class)


def allocate(wants: Sequence[Want], supply: Supply) -> list[Grant]:
    """Devices for all wants. Raises Refusal where there are none, Unplaceable for selectors that fail."""
    search = _Search(wants, supply)
    if not search.fill(0):
        raise Refusal("cannot allocate all claims")
    return search.grants


class _Search:
    """Tries devices in order, and goes back where the rest cannot be had."""

    def __init__(self, wants: Sequence[Want], supply: Supply) -> None:
        self._wants = wants
        self._supply = supply
        self._usable = [device for device in supply.devices if not device.unusable]
        self._left = dict(supply.counters)
        self._taken: set[DeviceId] = set()
        self._tries = 0
        self.grants: list[Grant] = []

    def fill(self, number: int) -> bool:
        """Whether there are devices for the wants from one on."""
        if number == len(self._wants):
            return True
        want = self._wants[number]
        return any(
            self._all(want, option, number) if option.every else self._some(want, option, number, 0, option.count)
            for option in want.options
        )

    def _some(self, want: Want, option: Option, number: int, start: int, missing: int) -> bool:
        if not missing:
            return self.fill(number + 1)
        for at in range(start, len(self._usable) - missing + 1):
            if not self._take(Grant(want, option, self._usable[at])):
                continue
            if self._some(want, option, number, at + 1, missing - 1):
                return True
            self._give_back()
        return False

    def _all(self, want: Want, option: Option, number: int) -> bool:
        before = len(self.grants)
        fitting = [device for device in self._usable if option.fits(device)]
        if fitting and all(self._take(Grant(want, option, device)) for device in fitting) and self.fill(number + 1):
            return True
        while len(self.grants) > before:
            self._give_back()
        return False

    def _take(self, grant: Grant) -> bool:
        self._tries += 1
        if self._tries > MAX_TRIES:
            raise Refusal(f"devices were not found in {MAX_TRIES} tries")
        device = grant.device
        if not self._is_free(grant) or not grant.option.fits(device) or not self._agrees(grant):
            return False
        if not grant.option.admin:
            self._taken.add(device.id)
            self._use(device, 1)
        self.grants.append(grant)
        return True

    def _give_back(self) -> None:
        grant = self.grants.pop()
        if not grant.option.admin:
            self._taken.remove(grant.device.id)
            self._use(grant.device, -1)

    def _use(self, device: Device, sign: int) -> None:
        for counter, number in device.consumes.items():
            self._left[counter] = self._left.get(counter, Decimal()) - sign * number

    def _is_free(self, grant: Grant) -> bool:
        if grant.option.admin:
            return True
        device = grant.device
        if device.id in self._supply.held or device.id in self._taken:
            return False
        return all(self._left.get(counter, Decimal()) >= number for counter, number in device.consumes.items())

    def _agrees(self, grant: Grant) -> bool:
        """Whether a device has what the constraints of its claim want to be the same for several."""
        for constraint in _spec(grant.want.claim).get("constraints", ()):
            if not covers(constraint, grant.option.name):
                continue
            value = grant.device.attributes.get(constraint["matchAttribute"])
            others = (
                other.device.attributes.get(constraint["matchAttribute"])
                for other in self.grants
                if other.want.claim is grant.want.claim and covers(constraint, other.option.name)
            )
            if value is None or any(type(other) is not type(value) or other != value for other in others):
                return False
        return True


def covers(entry: Mapping[str, Any], name: str) -> bool:
    """Whether a constraint or a configuration is about a request; one that names none is about all of a claim."""
    requests = entry.get("requests")
    return not requests or name in requests or name.partition("/")[0] in requests


# -- as the API has it ------------------------------------------------------------------------------------------------


def allocation_of(claim: Claim, grants: Iterable[Grant], node: str, now: str) -> Body:
    """The allocation of a claim, as a scheduler writes it."""
    own = [grant for grant in grants if grant.want.claim is claim]
    config = [*_from_classes(own), *_from_claim(claim, own)]
    devices = {"results": [_result(grant) for grant in own], **({"config": config} if config else {})}
    selector = _node_selector([grant.device.reach for grant in own], node)
    return {"devices": devices, "allocationTimestamp": now, **({"nodeSelector": selector} if selector else {})}


def _result(grant: Grant) -> Body:
    driver, pool, name = grant.device.id
    result: Body = {"request": grant.option.name, "driver": driver, "pool": pool, "device": name}
    if grant.option.admin:
        result["adminAccess"] = True
    if grant.option.tolerations:
        result["tolerations"] = list(grant.option.tolerations)
    return result


def _from_classes(grants: Sequence[Grant]) -> Iterator[Body]:
    """Each class's configuration once, with the requests that it is for unless those are all."""
    options = {grant.option.name: grant.option for grant in grants}
    classes = {option.device_class.name: option.device_class for option in options.values()}
    for device_class in classes.values():
        names = [name for name, option in options.items() if option.device_class is device_class]
        for entry in device_class.spec.get("config", ()):
            yield {"source": "FromClass", **({} if len(names) == len(options) else {"requests": names}), **entry}


def _from_claim(claim: Claim, grants: Sequence[Grant]) -> Iterator[Body]:
    """The claim's own configuration, without that for alternatives that were not chosen."""
    for entry in _spec(claim).get("config", ()):
        covered = [covers(entry, grant.option.name) for grant in grants]
        if any(covered):
            own = {key: value for key, value in entry.items() if key != "requests" or not all(covered)}
            yield {"source": "FromClaim", **own}


def _node_selector(reaches: Sequence[Reach], node: str) -> Body | None:
    """The nodes from which all devices can be used; None for every node."""
    if any(reach.node for reach in reaches):
        return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
    terms = [term for reach in reaches if reach.selector for term in reach.selector.get("nodeSelectorTerms", ())]
    merged: Body = {}
    for part in ("matchExpressions", "matchFields"):
        found: list[Any] = []
        for entry in (entry for term in terms for entry in term.get(part, ())):
            found += [] if entry in found else [entry]
        merged |= {part: found} if found else {}
    return {"nodeSelectorTerms": [merged]} if merged else None
