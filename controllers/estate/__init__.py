"""The simulated estate as pure data: pools of GPU nodes, what their GPUs are, and where these sit.

`load` reads the topology document and the profiles that it names. Nothing here talks to a cluster: every controller
derives what it publishes from this model, so that each works when it is deployed alone.
"""

from controllers.estate.estate import Estate, load
from controllers.estate.fabric import Fabric, assign_cliques, place_node
from controllers.estate.gpu import Gpu, gpu_id, gpus_of
from controllers.estate.labels import CLIQUE, label_keys, node_labels
from controllers.estate.mig import DYNAMIC_MIG, NO_MIG, MigProfile, device_part, slices_of
from controllers.estate.node_topology import GpuStatus, Usage, config_map_labels, statuses_of, topology_text
from controllers.estate.numa import Numa, Zone, zones_of
from controllers.estate.pool import DRA, EXTENDED_RESOURCE, FAKE, MOCK, Pool
from controllers.estate.problem import Problem
from controllers.estate.profile import BUILT_IN, GpuModel, merged

__all__ = [
    "BUILT_IN",
    "CLIQUE",
    "DRA",
    "DYNAMIC_MIG",
    "EXTENDED_RESOURCE",
    "FAKE",
    "MOCK",
    "NO_MIG",
    "Estate",
    "Fabric",
    "Gpu",
    "GpuModel",
    "GpuStatus",
    "MigProfile",
    "Numa",
    "Pool",
    "Problem",
    "Usage",
    "Zone",
    "assign_cliques",
    "config_map_labels",
    "device_part",
    "gpu_id",
    "gpus_of",
    "label_keys",
    "load",
    "merged",
    "node_labels",
    "place_node",
    "slices_of",
    "statuses_of",
    "topology_text",
    "zones_of",
]
