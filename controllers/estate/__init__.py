"""The simulated estate as pure data: pools of GPU nodes, what their GPUs are, and where these sit.

`load` reads the topology document and the profiles that it names. Nothing here talks to a cluster: every controller
derives what it publishes from this model, so that each works when it is deployed alone.
"""

from controllers.estate.estate import Estate, load
from controllers.estate.fabric import Fabric, assign_cliques
from controllers.estate.gpu import Gpu, gpu_id, gpus_of
from controllers.estate.numa import Numa, Zone, zones_of
from controllers.estate.pool import DRA, EXTENDED_RESOURCE, FAKE, MOCK, Pool
from controllers.estate.problem import Problem
from controllers.estate.profile import BUILT_IN, GpuModel, merged

__all__ = [
    "BUILT_IN",
    "DRA",
    "EXTENDED_RESOURCE",
    "FAKE",
    "MOCK",
    "Estate",
    "Fabric",
    "Gpu",
    "GpuModel",
    "Numa",
    "Pool",
    "Problem",
    "Zone",
    "assign_cliques",
    "gpu_id",
    "gpus_of",
    "load",
    "merged",
    "zones_of",
]
