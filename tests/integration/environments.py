"""The environments that scenarios run in: the sandbox, which needs nothing but Python, and a real control plane."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.localcluster import LOCAL, SANDBOX, ControlPlane, Environment, SandboxEnvironment

BOTH = (SANDBOX, LOCAL)


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
