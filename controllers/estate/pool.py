"""A pool of simulated nodes: everything that its nodes have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controllers.estate.fabric import Fabric
from controllers.estate.mig import NO_MIG
from controllers.estate.numa import Numa
from controllers.estate.profile import GpuModel

FAKE, MOCK = "fake", "mock"
BACKENDS = (FAKE, MOCK)
"""Who makes the GPUs: this project, or a driver mock on the node, beside which we publish nothing for a GPU."""

EXTENDED_RESOURCE, DRA = "extended-resource", "dra"
"""How GPUs are offered to schedulers: ``nvidia.com/gpu`` in the node's capacity, or devices of ResourceSlices."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What a topology document says of one pool, with its profile resolved."""

    name: str
    backend: str = FAKE
    gpu: GpuModel = field(default_factory=GpuModel)
    gpu_count: int = 0  # of each node
    offered: str = EXTENDED_RESOURCE
    resources: Mapping[str, int] = field(default_factory=dict)  # other extended resources of each node, by name
    numa: Numa | None = None
    fabric: Fabric | None = None
    mig: str = NO_MIG  # whether GPUs are partitioned
    mig_strategy: str = "none"
