"""The single GPU: who it is and where it sits."""

import functools
import uuid
from dataclasses import dataclass

from controllers.estate.pool import Pool

BUSES = 0x100  # in one PCI domain
FIRST_BUS = 0x0A  # the bus numbers below are those of a host's own devices
DOMAINS = 64
"""PCI domains of one round of bus numbers: as many as a node can have zones."""


RECENT = 4096
"""Ids that are remembered: all controllers of a process ask for those of a node at about the same time."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node."""

    index: int  # from 0
    uuid: str  # GPU-<UUID>
    pci_bus_id: str  # dddd:bb:dd.f
    pcie_root: str  # pcidddd:bb
    numa_node: int


@functools.lru_cache(maxsize=RECENT)
def gpu_id(node: str, index: int) -> str:
    """The id of a node's GPU, by the rule of fake-gpu-operator: a version 5 UUID of ``<node>-<index>``.

    It depends on nothing else, so that a node that is made again has the GPUs that it had.
    """
    return f"GPU-{uuid.uuid5(uuid.UUID(int=0), f'{node}-{index}')}"


def gpus_of(node: str, pool: Pool) -> tuple[Gpu, ...]:
    """All GPUs of a node of a pool, zone by zone."""
    return tuple(
        Gpu(index, gpu_id(node, index), *_place(index, zone), numa_node=zone) for index, zone in enumerate(_zones(pool))
    )


def _zones(pool: Pool) -> list[int]:
    """The NUMA zone of each GPU."""
    if pool.numa is None:
        return [0] * pool.gpu_count
    return [zone for zone, count in enumerate(pool.numa.gpus_per_zone(pool.gpu_count)) for _ in range(count)]


def _place(index: int, zone: int) -> tuple[str, str]:
    """Bus id and root of a GPU; each zone is a PCI domain of its own, in which a bus has one GPU."""
    bus = (FIRST_BUS + index) % BUSES
    domain = zone + (FIRST_BUS + index) // BUSES * DOMAINS
    return f"{domain:04x}:{bus:02x}:00.0", f"pci{domain:04x}:00"
