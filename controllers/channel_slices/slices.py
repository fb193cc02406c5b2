"""The ResourceSlice of a simulated node: what it should be, and whether it is."""

import hashlib
from collections.abc import Mapping
from typing import Any

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import DraApi, ResourceSlice
from controllers.runtime import owner_reference

KWOK_ANNOTATION = "kwok.x-k8s.io/node"
"""Set on nodes that KWOK plays. A real kubelet deletes slices that are not its drivers', and its pods would wait."""

MAX_NAME = 253
"""Characters in an object's name at most."""


def is_simulated(node: Node, pool_label: str) -> bool:
    """Whether a node is in a pool and played by KWOK; only such nodes get slices."""
    return pool_label in node.labels and KWOK_ANNOTATION in node.metadata.annotations


def slice_name(node: str) -> str:
    """The slice's name: ``<node>-<driver>``, or cut and with a hash of the node's name where that is too long."""
    name = f"{node}-{nvidia.DRIVER}"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    suffix = f"-{digest}-{nvidia.DRIVER}"
    return node[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def desired_devices(dra: DraApi) -> list[dict[str, Any]]:
    """One channel and one daemon: so a node takes part in one domain at a time."""
    return [dra.device(f"{kind}-0", {"type": {"string": kind}, "id": {"int": 0}}) for kind in ("channel", "daemon")]


def desired_slice(node: Node, dra: DraApi, generation: int) -> Mapping[str, Any]:
    """The slice for the API, in a pool that is named after the node and holds just this slice."""
    return {
        "metadata": {"name": slice_name(node.name), "ownerReferences": [owner_reference(node)]},
        "spec": {
            "driver": nvidia.DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": generation, "resourceSliceCount": 1},
            "devices": desired_devices(dra),
        },
    }


def next_generation(present: ResourceSlice | None, node: Node, dra: DraApi) -> int | None:
    """The pool generation to publish, or None where the slice is as it should be.

    Schedulers ignore slices of an older generation, so a change of the devices raises it; a new owner does not.
    """
    if present is None:
        return 1
    desired = desired_slice(node, dra, present.pool_generation)
    if present.spec != desired["spec"]:
        return present.pool_generation + 1
    owners = {(owner.kind, owner.uid) for owner in present.metadata.owner_references}
    return None if ("Node", node.uid) in owners else present.pool_generation
