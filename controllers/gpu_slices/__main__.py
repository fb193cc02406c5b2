"""The binary gpu-mirage-gpu-slices."""

import sys
from collections.abc import Sequence

from controllers import gpu_slices
from controllers.api.dra import wait_for_dra
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for
from controllers.topology import TopologySource, add_arguments, topology_options

BINARY = "gpu-mirage-gpu-slices"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Publishes the GPUs of simulated nodes as ResourceSlices.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    async def prepare(manager: Manager) -> None:
        topology = TopologySource(manager, topology_options(parsed))
        gpu_slices.setup(manager, await wait_for_dra(manager), topology)

    return run(BINARY, lambda manager: manager.prepare(prepare), manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
