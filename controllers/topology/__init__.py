"""The topology of a cluster, live: the estate that its ConfigMaps describe, kept current and kept sound."""

from controllers.topology.kinds import DATA_KEY, GpuProfile, TopologyConfig
from controllers.topology.options import TopologyOptions, add_arguments, topology_options
from controllers.topology.source import PERMISSIONS, TopologySource, Undecided

__all__ = [
    "DATA_KEY",
    "PERMISSIONS",
    "GpuProfile",
    "TopologyConfig",
    "TopologyOptions",
    "TopologySource",
    "Undecided",
    "add_arguments",
    "topology_options",
]
