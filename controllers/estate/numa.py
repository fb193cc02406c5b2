"""NUMA zones of a node: how many GPUs, cores and bytes each has, and how far they are from each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from controllers.estate import quantity
from controllers.estate.reading import Attempts, Node, shown

MAX_GPUS = 1024  # of one node

MAX_ZONES = 64
"""Zones that schedulers read: scheduler-plugins keeps them in a 64-bit mask."""

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
SELF_DISTANCE, REMOTE_DISTANCE = 10, 21  # as firmware tables have them; the smallest that means anything is 10
MAX_DISTANCE = 254
FIELDS = (
    "zones",
    "gpusPerZone",
    "topologyManagerPolicy",
    "topologyManagerScope",
    "cpuPerZone",
    "memPerZone",
    "distances",
)


@dataclass(frozen=True, slots=True)
class Numa:
    """The NUMA block of a pool."""

    zones: int
    explicit: tuple[int, ...] = ()  # GPUs of each zone, where they are not split evenly
    policy: str = "single-numa-node"
    scope: str = "container"
    cpu_per_zone: Fraction | None = None  # cores; None: the node's, divided
    memory_per_zone: Fraction | None = None  # bytes; None: the node's, divided
    self_distance: int = SELF_DISTANCE
    remote_distance: int = REMOTE_DISTANCE

    def gpus_per_zone(self, count: int) -> tuple[int, ...]:
        """GPUs of each zone; what an even split leaves over goes to the lowest zones."""
        return self.explicit or split(count, self.zones)


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone of a node; every quantity sums up to the node's own unless the pool says how much a zone has."""

    index: int
    gpus: int
    cpu: int  # thousandths of a core
    memory: int  # bytes


def zones_of(numa: Numa, gpus: int, cpu: Fraction, memory: Fraction) -> tuple[Zone, ...]:
    """The zones of a node with so many GPUs, allocatable cores and allocatable bytes."""
    counts = numa.gpus_per_zone(gpus)
    cores = _shares(numa.cpu_per_zone, cpu, numa.zones, 1000)
    sizes = _shares(numa.memory_per_zone, memory, numa.zones, 1)
    return tuple(Zone(index, *place) for index, place in enumerate(zip(counts, cores, sizes, strict=True)))


def _shares(each: Fraction | None, total: Fraction, zones: int, scale: int) -> tuple[int, ...]:
    return split(int(total * scale), zones) if each is None else (int(each * scale),) * zones


def split(total: int, parts: int) -> tuple[int, ...]:
    """A whole number in parts that differ by one at most, the larger ones first."""
    share, left = divmod(total, parts)
    return tuple(share + (index < left) for index in range(parts))


def read_numa(node: Node, gpus: int | None) -> Numa:
    """A pool's NUMA block for nodes with so many GPUs, None where that cannot be told.

    Raises Mistake with everything that is wrong with it.
    """
    attempt = Attempts()
    attempt(lambda: node.refuse_unknown(FIELDS), None)
    zones = attempt(lambda: node.get("zones").whole_number(1, MAX_ZONES), 0)
    distances = node.get("distances")
    attempt(lambda: distances.refuse_unknown(("self", "remote")), None)
    numa = Numa(
        zones=zones,
        explicit=attempt(lambda: _explicit(node.get("gpusPerZone"), zones, gpus), ()),
        policy=attempt(lambda: node.get("topologyManagerPolicy").choice(POLICIES, "single-numa-node"), ""),
        scope=attempt(lambda: node.get("topologyManagerScope").choice(SCOPES, "container"), ""),
        cpu_per_zone=attempt(lambda: _quantity(node.get("cpuPerZone")), None),
        memory_per_zone=attempt(lambda: _quantity(node.get("memPerZone")), None),
        self_distance=attempt(lambda: _distance(distances.get("self"), SELF_DISTANCE), 0),
        remote_distance=attempt(lambda: _distance(distances.get("remote"), REMOTE_DISTANCE), 0),
    )
    attempt.finish()
    return numa


def _distance(node: Node, default: int) -> int:
    return node.whole_number(SELF_DISTANCE, MAX_DISTANCE, default)


def _explicit(node: Node, zones: int, gpus: int | None) -> tuple[int, ...]:
    """``zones`` is 0 where their number is wrong."""
    if node.absent:
        return ()
    attempt = Attempts()
    most = MAX_GPUS if gpus is None else gpus
    counts = tuple(attempt(partial(entry.whole_number, 0, most), 0) for entry in node.list())
    attempt.finish()
    if zones and len(counts) != zones:
        raise node.mistake(f"it has {len(counts)} entries for {zones} zones", "give one number for each zone")
    if zones and gpus is not None and sum(counts) != gpus:
        raise node.mistake(f"the numbers sum up to {sum(counts)}, and a node has {gpus} GPUs", f"make the sum {gpus}")
    return counts


def _quantity(node: Node) -> Fraction | None:
    """A quantity, or None where the node's own is divided; 0 is none, as a zone without cores is no place to run."""
    if node.value in (None, ""):
        return None
    plain = isinstance(node.value, int | float) and not isinstance(node.value, bool)
    text = str(node.value) if plain else node.text()
    try:
        number = quantity.parse(text)
    except ValueError:
        raise node.mistake(f"{shown(text)} is not a quantity", "write it as 16, 500m or 64Gi") from None
    if not 0 < number < 2**63:
        raise node.mistake(f"{text} is not more than 0 and less than 8Ei", "correct the number")
    return number


def policy_name(numa: Numa) -> str:
    """Policy and scope in the one word of the deprecated list ``topologyPolicies``."""
    words: Mapping[str, str] = {
        "single-numa-node": "SingleNUMANode",
        "restricted": "Restricted",
        "best-effort": "BestEffort",
    }
    word = words.get(numa.policy)
    return "None" if word is None else f"{word}{'Pod' if numa.scope == 'pod' else 'Container'}Level"
