"""What the load generator puts into the cluster."""

from typing import Any

from controllers.api import nvidia
from controllers.api.dra import dra_api
from controllers.api.nvidia import ComputeDomain
from hack.localcluster.nodes import node_manifest

Manifest = dict[str, Any]

DRA = dra_api("v1")
UNKNOWN_UID = "00000000-0000-4000-8000-000000000000"


def domain(namespace: str, name: str, workers: int = 1) -> Manifest:
    """A ComputeDomain whose template has the domain's own name."""
    channel = {"resourceClaimTemplate": {"name": name}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"numNodes": workers, "channel": channel}}


def bare_template(namespace: str, name: str) -> Manifest:
    """A template as large as a generated one, for the API server's own figure; no controller looks at its labels."""
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": UNKNOWN_UID, "controller": False}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"bench.example.com/computeDomain": UNKNOWN_UID, "bench.example.com/target": "Workload"},
            "annotations": {"bench.example.com/owner": str(reference)},
        },
        "spec": {"spec": _claim_spec(UNKNOWN_UID)},
    }


def claim(owner: ComputeDomain, name: str) -> Manifest:
    """A claim as the domain's template would make it."""
    return {"metadata": {"name": name, "namespace": owner.namespace}, "spec": _claim_spec(owner.uid)}


def unowned_claim(namespace: str, name: str) -> Manifest:
    """A claim of a domain that does not exist."""
    return {"metadata": {"name": name, "namespace": namespace}, "spec": _claim_spec(UNKNOWN_UID)}


def allocation(owner: ComputeDomain, node: str) -> Manifest:
    """The status that the scheduler would write for a claim on ``node``."""
    result = {"request": nvidia.CHANNEL_REQUEST, "driver": nvidia.DRIVER, "pool": node, "device": "channel-0"}
    config = [{"source": "FromClaim", **entry} for entry in _config(owner.uid)]
    return {"status": {"allocation": {"devices": {"results": [result], "config": config}}}}


def plain_node(name: str) -> Manifest:
    """A node that nobody simulates."""
    manifest = node_manifest(name)
    manifest["metadata"]["annotations"] = {}
    del manifest["metadata"]["labels"]["run.ai/simulated-gpu-node-pool"]
    return manifest


def _claim_spec(domain_uid: str) -> Manifest:
    requests = [DRA.request(nvidia.CHANNEL_REQUEST, nvidia.CHANNEL_CLASS)]
    return {"devices": {"requests": requests, "config": _config(domain_uid)}}


def _config(domain_uid: str) -> list[Manifest]:
    parameters = dict(nvidia.channel_parameters(domain_uid, "Single"))
    return [{"requests": [nvidia.CHANNEL_REQUEST], "opaque": {"driver": nvidia.DRIVER, "parameters": parameters}}]
