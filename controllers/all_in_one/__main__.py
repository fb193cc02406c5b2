"""The binary gpu-mirage-all-in-one."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from controllers.all_in_one.parts import DEFAULT, PARTS, declare
from controllers.compute_domain.options import add_arguments as add_compute_domain_arguments
from controllers.node_pool.options import add_arguments as add_node_pool_arguments
from controllers.runtime.entrypoint import run
from controllers.runtime.options import manager_options, parser_for

BINARY = "gpu-mirage-all-in-one"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(BINARY, "Runs any of the controllers in one process.")
    parser.add_argument(
        "--controllers",
        metavar="A,B",
        type=names,
        default=DEFAULT,
        help=f"which of {', '.join(PARTS)} (default: {','.join(DEFAULT)})",
    )
    add_compute_domain_arguments(parser)
    add_node_pool_arguments(parser)
    parsed = parser.parse_args(arguments)
    step = partial(declare, names=parsed.controllers, arguments=parsed)
    return run(BINARY, lambda manager: manager.prepare(step), manager_options(parsed))


def names(text: str) -> tuple[str, ...]:
    """The controllers that a list names, each once. Raises ArgumentTypeError for one that does not exist."""
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not chosen:
        raise argparse.ArgumentTypeError("no controller is named")
    for name in chosen:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name!r} is no controller; use some of {', '.join(PARTS)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
