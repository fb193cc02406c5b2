"""Where the topology is."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The ConfigMap with the topology document; profiles are in the same namespace."""

    namespace: str = "gpu-mirage"
    name: str = "topology"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say where the topology is."""
    default = TopologyOptions()
    parser.add_argument(
        "--topology-namespace",
        metavar="NAMESPACE",
        default=default.namespace,
        help="where the ConfigMaps with topology and profiles are (default: %(default)s)",
    )
    parser.add_argument(
        "--topology-name",
        metavar="NAME",
        default=default.name,
        help="the ConfigMap with the topology document (default: %(default)s)",
    )


def topology_options(arguments: argparse.Namespace) -> TopologyOptions:
    """The options that parsed flags give."""
    return TopologyOptions(namespace=arguments.topology_namespace, name=arguments.topology_name)
