"""The binary gpu-mirage-extended-resource."""

import sys
from collections.abc import Sequence

from controllers import extended_resource
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for
from controllers.topology import TopologySource, add_arguments, topology_options

BINARY = "gpu-mirage-extended-resource"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Publishes the GPUs of simulated nodes as extended resources.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    def setup(manager: Manager) -> None:
        extended_resource.setup(manager, TopologySource(manager, topology_options(parsed)))

    return run(BINARY, setup, manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
