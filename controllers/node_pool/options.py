"""What the node-pool controller can be told."""

import argparse
from dataclasses import dataclass, field

from controllers import topology
from controllers.topology import TopologyOptions


@dataclass(frozen=True, slots=True)
class NodePoolOptions:
    """Where the ConfigMaps of nodes go, and whether nodes are labelled."""

    topology: TopologyOptions = field(default_factory=TopologyOptions)  # nodes' ConfigMaps are beside this one
    label_nodes: bool = True  # off where something else labels nodes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of this controller, those of the topology among them."""
    topology.add_arguments(parser)
    parser.add_argument(
        "--no-node-labels", action="store_true", help="write no labels on nodes, and take back those that were written"
    )


def node_pool_options(arguments: argparse.Namespace) -> NodePoolOptions:
    """The options that parsed flags give."""
    return NodePoolOptions(topology.topology_options(arguments), label_nodes=not arguments.no_node_labels)
