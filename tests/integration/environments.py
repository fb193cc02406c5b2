"""The environments that scenarios run in: the sandbox, which needs nothing but Python, and a real control plane."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.localcluster import ControlPlane, Environment, SandboxEnvironment

SANDBOX, CONTROL_PLANE = "sandbox", "control-plane"
BOTH = (SANDBOX, CONTROL_PLANE)


@contextmanager
def started(name: str, data_dir: Path) -> Iterator[Environment]:
    """Starts one of them; its logs stay."""
    if name == SANDBOX:
        with SandboxEnvironment(data_dir) as sandbox:
            yield sandbox
        return
    plane = ControlPlane(data_dir)
    with plane:
        yield plane
    plane.remove_state()
