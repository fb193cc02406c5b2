"""Controllers of the estate as tests run them: one binary under its own account, on pools of the test module's own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from hack.localcluster import ControllerProcess, Environment
from hack.localcluster.controllers import NAMESPACE, REPOSITORY
from tests.integration.scenario import Cluster, Manifest


def write_topology(environment: Environment, pools: Manifest, **settings: str) -> None:
    """``settings`` are those beside the pools, such as ``nodePoolLabelKey``."""
    write_document(environment, yaml.safe_dump({**settings, "nodePools": pools}))


def write_document(environment: Environment, document: str) -> None:
    """Writes a topology as it is, be it readable or not."""
    metadata = {"name": "topology", "namespace": NAMESPACE}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"topology.yml": document}}
    environment.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(manifest))


@contextmanager
def estate_controller(
    environment: Environment, binary: str, pools: Manifest, *needed: str
) -> Iterator[ControllerProcess]:
    """Installs a binary as a user would, with the directories it needs, runs it as a process, and ends it."""
    for directory in (*needed, f"config/base/{binary}"):
        environment.kubectl("apply", "--server-side", "-k", str(REPOSITORY / directory))
    environment.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")
    environment.kubectl("delete", "deployment", f"gpu-mirage-{binary}", "-n", NAMESPACE)
    write_topology(environment, pools)
    package, account = binary.replace("-", "_"), f"gpu-mirage-{binary}"
    process = ControllerProcess(environment, package=package, account=account, name=binary)
    process.start()
    yield process
    process.stop()


class NodeStatus:
    """The status of nodes, as several writers share it."""

    def __init__(self, cluster: Cluster, account: str) -> None:
        self.cluster = cluster
        self._account = account

    def of(self, node: str) -> Manifest:
        found = self.cluster.get("nodes", node)
        assert found is not None, f"node {node} does not exist"
        status: Manifest = found["status"]
        return status

    def patch(self, node: str, status: Manifest, *, by: str, type_: str = "strategic") -> None:
        """Writes a part of the status as another writer does."""
        arguments = ("--subresource=status", f"--type={type_}", f"--field-manager={by}")
        patch = json.dumps({"status": status})
        self.cluster.environment.kubectl("patch", "node", node, *arguments, f"--patch={patch}")

    def give(self, node: str, resources: dict[str, str | None], *, by: str) -> None:
        """Sets resources in both places, or takes them away."""
        self.patch(node, {"capacity": resources, "allocatable": resources}, by=by)

    def writes(self, node: str) -> list[str]:
        """The verbs of all that the controller wrote to a node, as the audit log has it."""
        user = f"system:serviceaccount:{NAMESPACE}:{self._account}"
        return [
            f"{event['verb']} {event['objectRef'].get('subresource', '')}".strip()
            for event in self.cluster.environment.audit_events()
            if event["user"]["username"] == user
            and event.get("objectRef", {}).get("resource") == "nodes"
            and event["objectRef"].get("name") == node
            and event["verb"] not in {"get", "list", "watch"}
            and event["stage"] == "ResponseComplete"
            and event["responseStatus"]["code"] < 300
        ]
