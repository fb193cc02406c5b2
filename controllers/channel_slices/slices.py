"""The ResourceSlice of a simulated node: what it should be, and whether it is."""

from collections.abc import Mapping
from typing import Any

from controllers.api import dra, nvidia
from controllers.api.core import Node
from controllers.api.dra import DraApi, ResourceSlice
from controllers.runtime import owner_reference


def slice_name(node: str) -> str:
    """The name of a node's slice."""
    return dra.slice_name(node, nvidia.DRIVER)


def desired_devices(api: DraApi) -> list[dict[str, Any]]:
    """One channel and one daemon: so a node takes part in one domain at a time."""
    return [api.device(f"{kind}-0", {"type": {"string": kind}, "id": {"int": 0}}) for kind in ("channel", "daemon")]


def desired_slice(node: Node, api: DraApi, generation: int) -> Mapping[str, Any]:
    """The slice for the API, in a pool that is named after the node and holds just this slice."""
    return {
        "metadata": {"name": slice_name(node.name), "ownerReferences": [owner_reference(node)]},
        "spec": {
            "driver": nvidia.DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": generation, "resourceSliceCount": 1},
            "devices": desired_devices(api),
        },
    }


def next_generation(present: ResourceSlice | None, node: Node, api: DraApi) -> int | None:
    """The pool generation to publish, or None where the slice is as it should be.

    Schedulers ignore slices of an older generation, so a change of the devices raises it; a new owner does not.
    """
    if present is None:
        return 1
    desired = desired_slice(node, api, present.pool_generation)
    if present.spec != desired["spec"]:
        return present.pool_generation + 1
    owners = {(owner.kind, owner.uid) for owner in present.metadata.owner_references}
    return None if ("Node", node.uid) in owners else present.pool_generation
