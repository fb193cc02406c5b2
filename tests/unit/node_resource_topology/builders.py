"""Nodes and pods for tests, in few words."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from controllers.api.core import Node, NodeStatus, Pod
from controllers.estate import Numa, load
from controllers.runtime import ObjectMeta

GIB = 1024**3
POOL_LABEL = "run.ai/simulated-gpu-node-pool"
BIG = {"nvidia.com/gpu": "8", "cpu": "32", "memory": "128Gi"}


def numa(**fields: Any) -> Numa:
    """The NUMA block of a pool of nodes with 8 GPUs, two zones unless they are given."""
    document = {"nodePools": {"p": {"gpu": {"profile": "h100"}, "numa": {"zones": 2, **fields}}}}
    estate = load(yaml.safe_dump(document))
    assert estate.problems == ()
    found = estate.pools["p"].numa
    assert found is not None
    return found


def node(
    allocatable: Mapping[str, str] = BIG, capacity: Mapping[str, str] | None = None, *, pool: str = "p", uid: str = "u1"
) -> Node:
    return Node(
        metadata=ObjectMeta(name="n1", uid=uid, labels={POOL_LABEL: pool} if pool else {}),
        status=NodeStatus(allocatable=allocatable, capacity=allocatable if capacity is None else capacity),
    )


def requests(gpus: int = 0, cpu: str = "", memory: str = "") -> dict[str, str]:
    found = {"nvidia.com/gpu": str(gpus) if gpus else "", "cpu": cpu, "memory": memory}
    return {name: text for name, text in found.items() if text}


def guaranteed(gpus: int = 0, cpu: str = "1", memory: str = "1Gi", *, sidecar: bool = False) -> dict[str, Any]:
    """A container that has what it may use at most reserved."""
    wanted = requests(gpus, cpu, memory)
    restart = {"restartPolicy": "Always"} if sidecar else {}
    return {"resources": {"requests": wanted, "limits": wanted}, **restart}


def burstable(gpus: int = 0, cpu: str = "1", memory: str = "1Gi") -> dict[str, Any]:
    """A container that may use more cores than it has reserved."""
    gpu = requests(gpus)
    return {"resources": {"requests": requests(gpus, cpu, memory), "limits": gpu}}


def pod(
    name: str,
    *containers: Mapping[str, Any],
    init: Sequence[Mapping[str, Any]] = (),
    age: int = 0,
    phase: str = "Running",
    whole: Mapping[str, Any] | None = None,
) -> Pod:
    """A pod on the node; a greater ``age`` is older, at most 59."""
    created = f"2026-01-01T00:00:{59 - age:02}Z"
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": created}
    spec = {
        "nodeName": "n1",
        "containers": list(containers),
        "initContainers": list(init),
        **({"resources": whole} if whole else {}),
    }
    return Pod.decode(msgspec.json.encode({"metadata": metadata, "spec": spec, "status": {"phase": phase}}))
