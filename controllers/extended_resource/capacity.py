"""The extended resources of a node: what its pool gives it, and what has to be written for its status to say so."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controllers.api.core import Node, NodeStatus, is_simulated
from controllers.estate import EXTENDED_RESOURCE, FAKE, Pool, quantity
from controllers.estate.estate import GPU_RESOURCE
from controllers.runtime import patch

PLACES = ("capacity", "allocatable")

Resources = Mapping[str, int]
Field = tuple[str, str]
"""One of the places, and the name of a resource."""

Managers = frozenset[str]


@dataclass(frozen=True, slots=True)
class Holding:
    """The extended resources of one node, by who wrote them."""

    ours: frozenset[str] = frozenset()  # those that we alone wrote
    foreign: Mapping[str, Managers] = field(default_factory=dict)  # with those who wrote them, us left out
    rest: frozenset[Field] = frozenset()  # of foreign ones, the fields that nobody else has taken from us yet
    copied: frozenset[str] = frozenset()  # once ours, and brought back by KWOK
    live: bool = False  # whether it has just been looked up


@dataclass(frozen=True, slots=True)
class Plan:
    """The next write to the status of a node, if it needs one, and what cannot be as it should."""

    apply: Resources = field(default_factory=dict)
    """All that are ours afterwards: an apply takes away those of ours that it does not name."""

    remove: tuple[Field, ...] = ()
    """Fields to take away, one by one.

    An apply that names nothing more in a map takes the whole map with it, cores and memory included, unless somebody
    owns a part of that: and nobody owns what a node was made with.
    """

    refused: tuple[str, ...] = ()  # resources that others wrote with another value


def wanted(node: Node, pool: Pool | None, pool_label: str) -> Resources:
    """What a node should offer; nothing where it is not simulated, or where its pool offers GPUs in another way."""
    if pool is None or pool.backend != FAKE or pool.offered != EXTENDED_RESOURCE:
        return {}
    if not is_simulated(node, pool_label):
        return {}
    return {**pool.resources, GPU_RESOURCE: pool.gpu_count}


def is_initialized(status: NodeStatus) -> bool:
    """Whether a node has what it is given first.

    KWOK fills in cores, memory and pods only where it finds no resource at all: one that comes earlier costs the node
    all of these.
    """
    return {"cpu", "pods"} <= status.allocatable.keys()


def extended(status: NodeStatus) -> set[str]:
    """The extended resources that a status names; only their names have a domain."""
    return {name for name in (*status.capacity, *status.allocatable) if "/" in name}


def is_settled(status: NodeStatus, resources: Resources) -> bool:
    """Whether a status offers exactly these extended resources."""
    return extended(status) == resources.keys() and all(_offers(status, *item) for item in resources.items())


def plan(status: NodeStatus, resources: Resources, holding: Holding) -> Plan:
    """The step from a status to these resources. One that is there and not ours stays as it is, whatever its value."""
    present = extended(status)
    body = {name: count for name, count in resources.items() if name in holding.ours or name not in present}
    surplus = _fields(status, (present & holding.ours) - resources.keys()) | holding.rest
    if holding.copied or not body:
        copied = _fields(status, holding.copied)
        refused = _refused(status, resources, body.keys() | holding.copied)
        return Plan(remove=tuple(sorted(surplus | copied)), refused=refused)
    missing = not all(_offers(status, *item) for item in body.items())
    return Plan(apply=body if missing or surplus else {}, refused=_refused(status, resources, body.keys()))


def fields(resources: Resources) -> dict[str, Any]:
    """The body of an apply."""
    quantities = {name: str(count) for name, count in resources.items()}
    return {"status": dict.fromkeys(PLACES, quantities)}


def removal(remove: Iterable[Field]) -> list[dict[str, Any]]:
    """The operations of a JSON patch."""
    return [patch.removal("status", place, name) for place, name in remove]


def _fields(status: NodeStatus, names: Iterable[str]) -> frozenset[Field]:
    """The places in which a status has resources."""
    found = {"capacity": status.capacity, "allocatable": status.allocatable}
    return frozenset((place, name) for place in PLACES for name in names if name in found[place])


def _refused(status: NodeStatus, resources: Resources, fine: Collection[str]) -> tuple[str, ...]:
    left = resources.keys() - fine
    return tuple(sorted(name for name in left if not _offers(status, name, resources[name])))


def _offers(status: NodeStatus, name: str, count: int) -> bool:
    return all(_number(place.get(name)) == count for place in (status.capacity, status.allocatable))


def _number(text: str | None) -> object:
    """The number that a quantity means: the server spells some of them in its own way."""
    try:
        return None if text is None else quantity.parse(text)
    except ValueError:
        return None
