"""The binary gpu-mirage-node-resource-topology."""

import sys
from collections.abc import Sequence

from controllers import node_resource_topology
from controllers.api.topology import wait_for_topology
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for
from controllers.topology import TopologySource, add_arguments, topology_options

BINARY = "gpu-mirage-node-resource-topology"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Publishes the NUMA zones of simulated nodes as NodeResourceTopologies.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    async def prepare(manager: Manager) -> None:
        await wait_for_topology(manager)
        node_resource_topology.setup(manager, TopologySource(manager, topology_options(parsed)))

    return run(BINARY, lambda manager: manager.prepare(prepare), manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
