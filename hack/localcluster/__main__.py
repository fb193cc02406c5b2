"""`python -m hack.localcluster up`: a cluster with simulated nodes to play with, which lives until Ctrl-C."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from hack.localcluster.binaries import BinariesMissing
from hack.localcluster.control_plane import ControlPlane
from hack.localcluster.environment import LOCAL, SANDBOX, ClusterError, Environment, KubectlError
from hack.localcluster.nodes import clique, make_nodes, wait_ready
from hack.localcluster.process import ProcessError
from hack.localcluster.sandbox import SandboxEnvironment

LOOK_INTERVAL = 1.0  # seconds between two looks at the processes


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    data_dir = options.data_dir or Path(tempfile.mkdtemp(prefix="gpu-mirage-"))
    try:
        _run(_environment(options.cluster, data_dir), options.racks, options.nodes_per_rack)
    except KeyboardInterrupt:
        print("\nstopped")
        return 0
    except (BinariesMissing, ClusterError, KubectlError, ProcessError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if options.data_dir is None:
            shutil.rmtree(data_dir, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.localcluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster with simulated nodes and keep it until Ctrl-C")
    up.add_argument(
        "--cluster",
        choices=(SANDBOX, LOCAL),
        default=SANDBOX,
        help=f"{SANDBOX}: the project's own API server with its stand-in for scheduler, controller manager and "
        f"kubelets; {LOCAL}: etcd, the components of Kubernetes, and KWOK (default: %(default)s)",
    )
    up.add_argument("--data-dir", type=Path, help="keep all files here (default: a temporary directory)")
    up.add_argument("--racks", type=_count, default=2, help="NVLink cliques (default: 2)")
    up.add_argument("--nodes-per-rack", type=_count, default=4, help="nodes in each clique (default: 4)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _environment(cluster: str, data_dir: Path) -> Environment:
    return SandboxEnvironment(data_dir) if cluster == SANDBOX else ControlPlane(data_dir)


def _run(environment: Environment, racks: int, nodes_per_rack: int) -> None:
    began = time.monotonic()
    with environment:
        names = make_nodes(environment, {clique(rack): nodes_per_rack for rack in range(racks)}, prefix="node")
        wait_ready(environment, names)
        print(f"cluster and {len(names)} nodes ready after {time.monotonic() - began:.1f} s")
        print(f"logs and audit log: {environment.data_dir}\n")
        print(f"export KUBECONFIG={environment.admin_kubeconfig}")
        print(f"{environment.kubectl_path} get nodes\n")
        print("Ctrl-C stops it and ends all its processes", flush=True)
        _watch_over(environment)


def _watch_over(environment: Environment) -> None:
    """Returns never; raises ClusterError where a process of the cluster has ended."""
    expected = environment.processes.running()
    while True:
        time.sleep(LOOK_INTERVAL)
        if ended := sorted(expected - environment.processes.running()):
            log = environment.log(ended[0])
            raise ClusterError(f"{', '.join(ended)} ended by itself: see {log}, and start the cluster again")


if __name__ == "__main__":
    sys.exit(main())
