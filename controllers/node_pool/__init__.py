"""The node-pool controller: what a node of a pool says of its GPUs, in labels and in a ConfigMap of its own."""

from controllers.node_pool.options import NodePoolOptions
from controllers.node_pool.setup import DECLARATION, setup

__all__ = ["DECLARATION", "NodePoolOptions", "setup"]
