"""How a node's GPUs, cores and memory are spread over the zones of its pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controllers.api.core import NodeStatus
from controllers.estate import Numa, zones_of
from controllers.estate.estate import GPU_RESOURCE
from controllers.estate.numa import split
from controllers.node_resource_topology.demand import CPU, MEMORY, Amount, number


@dataclass(frozen=True, slots=True)
class Layout:
    """What each zone has, and what of it pods may take."""

    capacity: tuple[Amount, ...]
    allocatable: tuple[Amount, ...]


def layout(numa: Numa, status: NodeStatus) -> Layout:
    """The zones of a node, with sums that equal what the node has unless the pool says how much a zone has."""
    allocatable = _zones(numa, status.allocatable)
    capacity = _zones(numa, {**status.allocatable, **status.capacity})
    # Where a node promises more than it has, the promise is what counts.
    return Layout(tuple(_larger(*pair) for pair in zip(capacity, allocatable, strict=True)), allocatable)


def _zones(numa: Numa, quantities: Mapping[str, str]) -> tuple[Amount, ...]:
    gpus, cpu, memory = (number(quantities.get(name, "0")) for name in (GPU_RESOURCE, CPU, MEMORY))
    if numa.explicit:
        numa = replace(numa, explicit=fitted(numa.explicit, int(gpus)))
    return tuple(Amount(zone.gpus, zone.cpu, zone.memory) for zone in zones_of(numa, int(gpus), cpu, memory))


def fitted(counts: Sequence[int], gpus: int) -> tuple[int, ...]:
    """GPUs of each zone where the node has another number of them than its pool says.

    Those that are missing are missing in the highest zones; what is too many is split evenly.
    """
    surplus = split(max(gpus - sum(counts), 0), len(counts))
    found: list[int] = []
    for count, more in zip(counts, surplus, strict=True):
        found.append(min(count + more, gpus - sum(found)))
    return tuple(found)


def _larger(one: Amount, other: Amount) -> Amount:
    return Amount(max(one.gpus, other.gpus), max(one.cpu, other.cpu), max(one.memory, other.memory))
