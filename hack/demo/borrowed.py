"""A cluster that somebody else runs, as far as the demo needs a control plane."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.localcluster import ClusterError, Environment, KubectlError
from hack.localcluster.process import ProcessGroup

OLDEST_MINOR = 32
"""Kubernetes 1.32 is the first version whose resource.k8s.io the controllers understand."""


class Unfit(ClusterError):
    """The cluster lacks something; the message names it and the fix."""


class BorrowedCluster(Environment):
    """The cluster of a kubeconfig with kubectl, accounts and processes of our own; its components are not ours.

    `start` looks whether the cluster is fit, `stop` ends our processes; the cluster itself is never stopped.
    """

    def __init__(self, kubeconfig: Path, data_dir: Path) -> None:
        """Raises Unfit where there is no such kubeconfig."""
        super().__init__(data_dir)
        if not kubeconfig.is_file():
            raise Unfit(f"there is no kubeconfig {kubeconfig}")
        self._kubeconfig = kubeconfig.resolve()

    @property
    def admin_kubeconfig(self) -> Path:
        return self._kubeconfig

    def start(self) -> None:
        """Raises Unfit where the cluster does not answer, is too old or has no dynamic resource allocation."""
        self._check()
        self._processes = ProcessGroup(self.data_dir)

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
