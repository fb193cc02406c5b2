"""Synthetic pods and nodes, as large and as nested as a real server's."""

import json
from typing import Any

POD_BYTES = 4096
DUE = "example.com/due"
"""Annotation for when an event was sent, in nanoseconds of the monotonic clock."""

AT = "2026-01-01T00:00:00Z"


def pod_list(count: int) -> bytes:
    """A list as a server sends it, each pod with managed fields, probes, volumes and conditions."""
    items = [pod(number) for number in range(count)]
    document = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1000"}, "items": items}
    return encoded(document)


def encoded(document: Any) -> bytes:
    """JSON as servers write it, without spaces."""
    return json.dumps(document, separators=(",", ":")).encode()


def pod(number: int, version: str = "", due: str = "") -> dict[str, Any]:
    """One pod; its version is its number where none is given."""
    pod: dict[str, Any] = {
        "metadata": {
            "name": f"worker-{number:06}",
            "namespace": "default",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": version or str(number + 1),
            "creationTimestamp": AT,
            "labels": {"app": "worker", "rack": str(number % 20), "pod-template-hash": "6d4cf56db6"},
            "annotations": {DUE: due, "example.com/padding": ""},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "worker", "uid": "1", "controller": True}
            ],
            "managedFields": [_managed_by(manager) for manager in ("kube-controller-manager", "kubelet")],
        },
        "spec": {
            "nodeName": f"node-{number % 1000}",
            "containers": [_container(index) for index in range(2)],
            "volumes": [{"name": f"volume-{index}", "emptyDir": {}} for index in range(3)],
            "tolerations": [{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "serviceAccountName": "default",
            "restartPolicy": "Always",
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{number % 256}.{number // 256 % 256}",
            "startTime": AT,
            "conditions": [_condition(sort) for sort in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
        },
    }
    missing = POD_BYTES - len(encoded(pod))
    pod["metadata"]["annotations"]["example.com/padding"] = "x" * max(0, missing)
    return pod


def node(number: int) -> dict[str, Any]:
    """One node with GPUs: what kubelet and the cloud's controller write of it."""
    name = f"node-{number:06}"
    resources = {"cpu": "64", "memory": "527950Mi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    topology = {"topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    conditions = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "gpu-8",
        "example.com/rack": f"rack-{number // 16}",
        **topology,
    }
    images = [{"names": [f"registry.example.com/image-{i}:1.0"], "sizeBytes": 1_000_000 + i} for i in range(10)]
    return {
        "metadata": {
            "name": name,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "creationTimestamp": AT,
            "labels": labels,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            "managedFields": [_managed_by(manager) for manager in ("kubelet", "kube-controller-manager")],
        },
        "spec": {"podCIDR": f"10.{number // 256 % 256}.{number % 256}.0/24", "providerID": f"cloud://{name}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{**_condition(sort), "reason": f"Kubelet{sort}", "message": "fine"} for sort in conditions],
            "addresses": [{"type": "InternalIP", "address": f"10.0.{number // 256 % 256}.{number % 256}"}],
            "images": images,
            "nodeInfo": {"kubeletVersion": "v1.37.2", "osImage": "Linux", "architecture": "amd64"},
        },
    }


def _condition(sort: str) -> dict[str, Any]:
    return {"type": sort, "status": "True", "lastTransitionTime": AT}


def _managed_by(manager: str) -> dict[str, Any]:
    fields = {"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:rack": {}}}, "f:spec": {"f:containers": {}}}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": AT,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def _container(index: int) -> dict[str, Any]:
    return {
        "name": f"main-{index}",
        "image": "registry.example.com/worker:1.0",
        "env": [{"name": f"VARIABLE_{number}", "value": "some value"} for number in range(4)],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi"}, "requests": {"cpu": "2", "memory": "8Gi"}},
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/data/{number}"} for number in range(3)],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 10},
    }
