"""The binary gpu-mirage-channel-slices."""

import sys
from collections.abc import Sequence

from controllers import channel_slices
from controllers.api.dra import wait_for_dra
from controllers.channel_slices.options import add_arguments, channel_slices_options
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for

BINARY = "gpu-mirage-channel-slices"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Publishes the channel slices of simulated nodes.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)

    async def prepare(manager: Manager) -> None:
        channel_slices.setup(manager, await wait_for_dra(manager), channel_slices_options(parsed))

    return run(BINARY, lambda manager: manager.prepare(prepare), manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
