"""What must be on the machine: the control plane's executables, which are built, and a package for the sandbox."""

import importlib.util
import os
import shutil
import signal
import subprocess

from hack.demo.borrowed import Unfit
from hack.demo.progress import Progress
from hack.localcluster import BinariesMissing, find_binaries
from hack.localcluster.binaries import ASSETS_VARIABLE, BUILD_SCRIPT


def ensure_executables(progress: Progress) -> None:
    """Return when a control plane can be started. Raises BinariesMissing where the executables cannot be built."""
    try:
        find_binaries()
    except BinariesMissing:
        # Somebody who names a directory wants that one: building another would hide the mistake.
        if ASSETS_VARIABLE in os.environ:
            raise
        _build(progress)
        find_binaries()


def ensure_rules_can_be_evaluated() -> None:
    """Raises Unfit where the sandbox would refuse the CRDs, which have rules in CEL."""
    if importlib.util.find_spec("cel_expr_python") is None:
        raise Unfit(
            "the sandbox needs the package cel-expr-python to evaluate the rules of the CRDs, and it is not installed "
            "(there is no build of it for Linux on ARM): use CLUSTER=local, which needs Go, or CLUSTER=<kubeconfig>"
        )


def _build(progress: Progress) -> None:
    if shutil.which("go") is None:
        raise BinariesMissing(
            "the control plane's executables must be built first, and go is not on the PATH: install Go "
            f"(https://go.dev/dl), or set {ASSETS_VARIABLE} to a directory that has them, or use a cluster of yours "
            "with CLUSTER=<kubeconfig>, or the sandbox, which needs neither: leave CLUSTER out"
        )
    progress.say("building the control plane's executables: about ten minutes, the first time only")
    build = subprocess.Popen(
        [BUILD_SCRIPT], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = build.wait()
    except BaseException:
        os.killpg(build.pid, signal.SIGTERM)
        build.wait()
        raise
    if code != 0:
        raise BinariesMissing(f"{BUILD_SCRIPT.name} ended with exit code {code}; what it printed is above")
