"""`python -m hack.demo`: the command line, signals and exit codes."""

import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from hack.demo.borrowed import BorrowedCluster
from hack.demo.demo import Demo
from hack.demo.executables import ensure_executables, ensure_rules_can_be_evaluated
from hack.demo.options import DemoOptions, demo_options
from hack.demo.progress import Progress
from hack.localcluster import (
    SANDBOX,
    BinariesMissing,
    ClusterError,
    ControlPlane,
    Environment,
    KubectlError,
    SandboxEnvironment,
)
from hack.localcluster.process import ProcessError

FAILURES = (
    BinariesMissing,
    ClusterError,
    KubectlError,
    ProcessError,
    OSError,  # a TimeoutError is one, too
    ValueError,
    subprocess.SubprocessError,
)
INTERRUPTED = 130
"""Exit code of a run with --once that a signal ended before its end: 128 + SIGINT, as shells have it."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = demo_options(arguments)
    # SIGINT, too: a shell starts background jobs with it ignored, and Python then leaves it so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    data_dir = options.data_dir or Path(tempfile.mkdtemp(prefix="gpu-mirage-demo-"))
    try:
        with ExitStack() as cleanup:
            _run(options, data_dir, cleanup)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return INTERRUPTED if options.once else 0
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        if options.data_dir is None:
            shutil.rmtree(data_dir, ignore_errors=True)
    return 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(options: DemoOptions, data_dir: Path, cleanup: ExitStack) -> None:
    progress = Progress()
    cluster = _enter_cluster(options, data_dir, progress, cleanup)
    demo = Demo(cluster, options, progress)
    try:
        demo.run(cleanup)
    except FAILURES:
        # Here, because what is left of the logs goes with the data directory.
        print(demo.log_tail(), file=sys.stderr, flush=True)
        raise
    print(f"\n{demo.report()}\n", flush=True)
    if not options.once:
        print(f"{demo.suggestions()}\n\nCtrl-C stops the demo and {_what_goes(options)}", flush=True)
        while True:
            signal.pause()


def _enter_cluster(options: DemoOptions, data_dir: Path, progress: Progress, cleanup: ExitStack) -> Environment:
    if options.kubeconfig:
        borrowed = cleanup.enter_context(BorrowedCluster(options.kubeconfig, data_dir))
        progress.say(f"the cluster of {options.kubeconfig} answers")
        return borrowed
    if options.cluster == SANDBOX:
        return _enter_sandbox(data_dir, progress, cleanup)
    return _enter_control_plane(data_dir, progress, cleanup)


def _enter_sandbox(data_dir: Path, progress: Progress, cleanup: ExitStack) -> Environment:
    ensure_rules_can_be_evaluated()
    progress.say("starting the sandbox: an API server, and a stand-in for scheduler, controller manager and kubelets")
    sandbox = cleanup.enter_context(SandboxEnvironment(data_dir))
    progress.say("the sandbox answers")
    return sandbox


def _enter_control_plane(data_dir: Path, progress: Progress, cleanup: ExitStack) -> Environment:
    ensure_executables(progress)
    progress.say("starting etcd, kube-apiserver, kube-scheduler, kube-controller-manager and KWOK")
    own = ControlPlane(data_dir)
    own.start()
    # Only after a start that succeeded: before it, the files may be those of another cluster in the same directory.
    # They go so that a directory can be used again; the logs stay.
    cleanup.callback(own.remove_state)
    cleanup.callback(own.stop)
    progress.say("the control plane is healthy")
    return own


def _what_goes(options: DemoOptions) -> str:
    if not options.kubeconfig:
        return "everything that it started"
    return (
        f"removes its nodes and the namespace {options.prefix}; CRDs, device classes and rights stay until "
        f"make uninstall CLUSTER={options.kubeconfig}"
    )


if __name__ == "__main__":
    sys.exit(main())
