"""The project's own controllers on a control plane: installed from config/, run as processes under their accounts."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.localcluster.environment import Environment
from hack.localcluster.polling import wait_until
from hack.localcluster.ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "gpu-mirage"
READY_TIMEOUT = 30.0  # seconds
STOP_GRACE = 10.0  # seconds until SIGKILL


def install(environment: Environment) -> None:
    """Apply CRDs, DeviceClasses, ServiceAccounts and RBAC as a user would, without the Deployments.

    There is no image and no node to run it on here; the controllers run as processes instead.
    """
    environment.kubectl("apply", "--server-side", "-k", str(REPOSITORY / "config/default"))
    environment.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
    environment.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")


@dataclass
class ControllerProcess:
    """One controller binary as a process of the control plane's group, under its ServiceAccount."""

    environment: Environment
    package: str = "compute_domain"
    account: str = "gpu-mirage-compute-domain"
    arguments: Sequence[str] = ()
    name: str = "compute-domain"
    ports: tuple[int, ...] = field(default_factory=lambda: tuple(free_ports(2)))

    @property
    def log(self) -> Path:
        return self.environment.log(self.name)

    @property
    def health(self) -> str:
        """URL of the probes."""
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def metrics(self) -> str:
        """URL of the metrics."""
        return f"http://127.0.0.1:{self.ports[1]}/metrics"

    def command(self) -> list[str]:
        kubeconfig = self.environment.kubeconfig_for(NAMESPACE, self.account)
        return [sys.executable, "-m", f"controllers.{self.package}", *self.flags(kubeconfig)]

    def flags(self, kubeconfig: Path) -> list[str]:
        """What the binary is told."""
        return [
            f"--kubeconfig={kubeconfig}",
            f"--health-probe-bind-address=127.0.0.1:{self.ports[0]}",
            f"--metrics-bind-address=127.0.0.1:{self.ports[1]}",
            *self.arguments,
        ]

    def start(self, *, wait: bool = True) -> int:
        """Start it; return its pid once it is ready. Raises TimeoutError where it does not get ready."""
        variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        pid = self.environment.processes.start(self.name, self.command(), self.log, variables)
        if wait:
            wait_until(self.ready, READY_TIMEOUT, f"readiness of {self.name} (log: {self.log})", interval=0.05)
        return pid

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after a grace period."""
        self.environment.processes.stop([self.name], STOP_GRACE)

    def ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        try:
            with urllib.request.urlopen(f"{self.health}/readyz", timeout=2.0) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
