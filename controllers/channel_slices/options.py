"""What the channel-slices controller can be told."""

import argparse
from dataclasses import dataclass

from controllers.api.core import POOL_LABEL


@dataclass(frozen=True, slots=True)
class ChannelSlicesOptions:
    """Which nodes get a slice."""

    pool_label: str = POOL_LABEL  # a node needs this label and KWOK's annotation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of this controller."""
    parser.add_argument(
        "--pool-label",
        metavar="LABEL",
        default=ChannelSlicesOptions().pool_label,
        help="label of simulated nodes; no other node gets a slice (default: %(default)s)",
    )


def channel_slices_options(arguments: argparse.Namespace) -> ChannelSlicesOptions:
    """The options that parsed flags give."""
    return ChannelSlicesOptions(pool_label=arguments.pool_label)
