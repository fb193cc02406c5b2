"""The binary gpu-mirage-compute-domain: the compute-domain controller, and channel-slices beside it."""

import sys
from collections.abc import Sequence

from controllers import channel_slices, compute_domain
from controllers.api.dra import wait_for_dra
from controllers.channel_slices.options import channel_slices_options
from controllers.compute_domain.options import add_arguments, compute_domain_options
from controllers.runtime.entrypoint import run
from controllers.runtime.manager import Manager
from controllers.runtime.options import manager_options, parser_for

BINARY = "gpu-mirage-compute-domain"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Serves ComputeDomains and publishes the channel slices of simulated nodes.")
    add_arguments(parser)
    parser.add_argument(
        "--no-channel-slices",
        action="store_true",
        help="leave the channel slices to a channel-slices controller of its own",
    )
    parsed = parser.parse_args(arguments)

    async def prepare(manager: Manager) -> None:
        dra = await wait_for_dra(manager)
        compute_domain.setup(manager, dra, compute_domain_options(parsed))
        if not parsed.no_channel_slices:
            channel_slices.setup(manager, dra, channel_slices_options(parsed))

    return run(BINARY, lambda manager: manager.prepare(prepare), manager_options(parsed))


if __name__ == "__main__":
    sys.exit(main())
