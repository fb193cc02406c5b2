"""Simulated nodes: manifests that KWOK brings to life, as members of a GPU node pool and of NVLink cliques."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hack.localcluster.environment import Environment
from hack.localcluster.polling import wait_until

POOL_LABEL = "run.ai/simulated-gpu-node-pool"
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
DEFAULT_POOL = "default"
READY_TIMEOUT = 30.0  # seconds
# A clique is named `<cluster UUID>.<clique id>` by NVIDIA's GPU feature discovery; this cluster's UUID is arbitrary.
CLUSTER_UUID = "5b6d3c1e-9a0f-4a53-8f1d-2f6f6f0c7a11"
RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "250"}

Manifest = dict[str, Any]


def clique(number: int) -> str:
    """The clique label's value for rack `number`."""
    return f"{CLUSTER_UUID}.{number}"


def node_manifest(name: str, *, clique: str | None = None, pool: str = DEFAULT_POOL) -> Manifest:
    """A Node that KWOK manages, in a GPU node pool, with no taint; without a clique it is on no NVLink fabric."""
    labels = {
        POOL_LABEL: pool,
        "type": "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    if clique is not None:
        labels[CLIQUE_LABEL] = clique
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {KWOK_ANNOTATION: "fake"}},
        "status": {"allocatable": RESOURCES, "capacity": RESOURCES},
    }


def rack_manifests(racks: Mapping[str, int], prefix: str, pool: str = DEFAULT_POOL) -> list[Manifest]:
    """Manifests of `racks[clique]` nodes per clique, named `<prefix>-<rack>-<node>`, both counted from 0."""
    return [
        node_manifest(f"{prefix}-{rack}-{node}", clique=clique, pool=pool)
        for rack, (clique, count) in enumerate(racks.items())
        for node in range(count)
    ]


def make_nodes(environment: Environment, racks: Mapping[str, int], prefix: str, pool: str = DEFAULT_POOL) -> list[str]:
    """Create the nodes of `racks` (clique to number of nodes) and return their names, rack by rack; see `wait_ready`.

    A node that exists keeps its status and gets the labels that it should have.
    """
    return apply_nodes(environment, rack_manifests(racks, prefix, pool))


def apply_nodes(environment: Environment, manifests: Sequence[Manifest]) -> list[str]:
    """Create the nodes of `manifests`, or change their labels, and return their names."""
    if manifests:
        listing = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        environment.kubectl(
            "apply", "--server-side", "--field-manager=local-cluster", "--filename=-", input=json.dumps(listing)
        )
    return [manifest["metadata"]["name"] for manifest in manifests]


def wait_ready(environment: Environment, names: Sequence[str], timeout: float = READY_TIMEOUT) -> None:
    """Wait until pods can be scheduled on all the nodes. Raises TimeoutError after `timeout` seconds."""
    wanted = set(names)

    def all_ready() -> bool:
        nodes = environment.kubectl_json("get", "nodes")["items"]
        return wanted <= {node["metadata"]["name"] for node in nodes if is_schedulable(node)}

    wait_until(all_ready, timeout, f"readiness of the nodes {', '.join(names)}", interval=0.1)


def is_schedulable(node: Manifest) -> bool:
    """Whether a node is Ready and free of the taint that it has from its creation until shortly after that."""
    conditions = node["status"].get("conditions", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and not node["spec"].get("taints")


def set_ready(environment: Environment, name: str, *, ready: bool) -> None:
    """Make a node not Ready, as if its kubelet said so, or hand it back to KWOK, which makes it Ready again.

    Pods on a node that is not Ready get no further than they are.
    """
    if ready:
        environment.kubectl("annotate", "node", name, "--overwrite", f"{KWOK_ANNOTATION}=fake")
        return
    # KWOK would set the condition back at once. Without the annotation it only goes on renewing the node's lease, which
    # keeps the controller manager from replacing the condition by Unknown.
    environment.kubectl("annotate", "node", name, f"{KWOK_ANNOTATION}-")
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "set by the local cluster"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    environment.kubectl("patch", "node", name, "--subresource=status", "--type=strategic", f"--patch={patch}")


def delete_nodes(environment: Environment, names: Sequence[str]) -> None:
    """Delete nodes; those that are gone already do not matter."""
    if names:
        environment.kubectl("delete", "node", "--ignore-not-found", *names)
