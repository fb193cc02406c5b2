"""The binary gpu-mirage-gpu-fractioning."""

import sys
from collections.abc import Sequence

from controllers import gpu_fractioning
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for
from controllers.topology import TopologySource, add_arguments, topology_options

BINARY = "gpu-mirage-gpu-fractioning"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Says by a condition which nodes are ready for fractions of GPUs.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    def setup(manager: Manager) -> None:
        gpu_fractioning.setup(manager, TopologySource(manager, topology_options(parsed)))

    return run(BINARY, setup, manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
