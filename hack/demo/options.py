"""What the demo can be told."""

import argparse
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from hack.localcluster import LOCAL, SANDBOX

MAX_NODES_PER_RACK = 18
"""One rack is one NVLink clique, and the controller admits 18 members of a clique to a domain by default."""

MAX_RACKS = 50
"""Racks of a demo, which is for looking at; `python -m hack.localcluster up` makes more nodes."""

MAX_PREFIX = 40
"""Characters; the names of nodes and of claims are longer."""

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Where the demo runs and how large it is."""

    prefix: str = "demo"  # name of namespace and node pool, beginning of the nodes' names
    racks: int = 2  # NVLink cliques
    nodes_per_rack: int = 2  # nodes in each clique
    once: bool = False  # end after the tables
    cluster: str = SANDBOX  # SANDBOX, LOCAL, or the path of a kubeconfig
    data_dir: Path | None = None  # where all files are kept; None: a temporary directory

    @property
    def nodes(self) -> int:
        """Nodes of all racks."""
        return self.racks * self.nodes_per_rack

    @property
    def kubeconfig(self) -> Path | None:
        """Of a cluster that is somebody's; None where the demo has one of its own."""
        return None if self.cluster in (SANDBOX, LOCAL) else Path(self.cluster)


def demo_options(arguments: list[str] | None) -> DemoOptions:
    """The options that a command line gives. Exits with a usage message where it is wrong."""
    default = DemoOptions()
    parser = argparse.ArgumentParser(prog="python -m hack.demo", description="See a ComputeDomain become Ready.")
    parser.add_argument("--once", action="store_true", help="end after the tables instead of waiting for Ctrl-C")
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        default=default.cluster,
        help=f"{SANDBOX}: the API server and the scheduler's stand-in that come with the project; {LOCAL}: a control "
        "plane of real components, which Go builds; else the kubeconfig of a cluster in which KWOK runs "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--racks",
        metavar="N",
        type=_racks,
        default=default.racks,
        help=f"1 to {MAX_RACKS} (default: %(default)s)",
    )
    parser.add_argument(
        "--nodes-per-rack",
        metavar="N",
        type=_rack_size,
        default=default.nodes_per_rack,
        help=f"1 to {MAX_NODES_PER_RACK} (default: %(default)s)",
    )
    parser.add_argument(
        "--prefix",
        type=_prefix,
        help="name of the namespace and the node pool, and beginning of the nodes' names "
        f"(default: {default.prefix}; on a cluster of yours {default.prefix}-<random>)",
    )
    parser.add_argument("--data-dir", metavar="DIR", type=Path, help="keep files here (default: a temporary directory)")
    parsed = parser.parse_args(arguments)
    shared = parsed.cluster not in (SANDBOX, LOCAL)
    return DemoOptions(
        prefix=parsed.prefix or _default_prefix(default.prefix, shared=shared),
        racks=parsed.racks,
        nodes_per_rack=parsed.nodes_per_rack,
        once=parsed.once,
        cluster=parsed.cluster,
        data_dir=parsed.data_dir,
    )


def _default_prefix(prefix: str, *, shared: bool) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:6]}" if shared else prefix


def _at_least_one(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


def _racks(text: str) -> int:
    number = _at_least_one(text)
    if number > MAX_RACKS:
        raise argparse.ArgumentTypeError(f"{text} is more than the {MAX_RACKS} racks that a demo can show")
    return number


def _rack_size(text: str) -> int:
    number = _at_least_one(text)
    if number > MAX_NODES_PER_RACK:
        raise argparse.ArgumentTypeError(
            f"{text} is more than the {MAX_NODES_PER_RACK} members that one clique can have"
        )
    return number


def _prefix(text: str) -> str:
    if len(text) > MAX_PREFIX or not _DNS_LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot begin a name: use at most {MAX_PREFIX} characters of a-z, 0-9 and '-', the first a letter"
        )
    return text
