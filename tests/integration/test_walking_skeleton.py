"""The whole path once: a ComputeDomain and its pods go from apply to Ready on a real control plane."""

import json
import threading
import time
from typing import Any

from controllers.compute_domain import spike
from hack.localcluster import ControlPlane
from tests.integration.conftest import PoolNodes

EAST = "11111111-2222-3333-4444-555555555555.1"
WEST = "11111111-2222-3333-4444-555555555555.2"


def test_four_workers_take_their_domain_to_ready(
    control_plane: ControlPlane, pool_nodes: PoolNodes, namespace: str
) -> None:
    for folder in ("crds", "config/deviceclasses"):
        control_plane.kubectl("apply", "-k", folder)
    control_plane.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")
    nodes = pool_nodes({EAST: 2, WEST: 2})
    apply(control_plane, *(channel_slice(node) for node in nodes))
    threading.Thread(
        target=spike.run, args=(str(control_plane.admin_kubeconfig), time.monotonic() + 40), daemon=True
    ).start()

    apply(control_plane, domain(namespace), *(worker(namespace, number) for number in range(4)))
    control_plane.kubectl(
        "wait", "-n", namespace, "computedomain/pair", "--for=jsonpath={.status.status}=Ready", "--timeout=40s"
    )

    status = control_plane.kubectl_json("get", "-n", namespace, "computedomain/pair")["status"]
    control_plane.kubectl("patch", "-n", namespace, "computedomain/pair", "--type=merge", '-p={"metadata":{"finalizers":[]}}')
    assert sorted(node["name"] for node in status["nodes"]) == sorted(nodes)
    assert sorted(node["cliqueID"] for node in status["nodes"]) == [EAST, EAST, WEST, WEST]


def apply(control_plane: ControlPlane, *objects: dict[str, Any]) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(listing))


def domain(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "pair", "namespace": namespace},
        "spec": {"numNodes": 4, "channel": {"resourceClaimTemplate": {"name": "pair-channel"}}},
    }


def worker(namespace: str, number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"worker-{number}", "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "worker", "resources": {"claims": [{"name": "channel"}]}}],
            "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "pair-channel"}],
        },
    }


def channel_slice(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-channels"},
        "spec": {
            "driver": "compute-domain.nvidia.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
                for kind in ("channel", "daemon")
            ],
        },
    }
