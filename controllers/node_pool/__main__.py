"""The binary gpu-mirage-node-pool."""

import sys
from collections.abc import Sequence

from controllers import node_pool
from controllers.node_pool.options import add_arguments, node_pool_options
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for
from controllers.topology import TopologySource, topology_options

BINARY = "gpu-mirage-node-pool"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Labels the nodes of simulated pools, and writes a ConfigMap for each of them.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    def declare(manager: Manager) -> None:
        node_pool.setup(manager, TopologySource(manager, topology_options(parsed)), node_pool_options(parsed))

    return run(BINARY, declare, manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
