"""The node-resource-topology controller: the NUMA zones of simulated nodes, with what pods have left of each."""

from controllers.node_resource_topology.setup import DECLARATION, setup

__all__ = ["DECLARATION", "setup"]
