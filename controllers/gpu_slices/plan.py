"""The ResourceSlices of a node: what they should be, and the steps that lead there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.api.core import Node
from controllers.api.dra import ResourceSlice, slice_name
from controllers.gpu_slices.contents import Content
from controllers.gpu_slices.devices import DRIVER
from controllers.runtime import owner_reference


@dataclass(frozen=True, slots=True)
class Plan:
    """Slices to write, in this order, and after them slices to take away."""

    write: tuple[Mapping[str, Any], ...] = ()
    withdraw: tuple[ResourceSlice, ...] = ()


def plan(node: Node, contents: Sequence[Content], present: Sequence[ResourceSlice]) -> Plan:
    """How the slices of a node come to hold exactly this.

    Every change of content raises the generation of the whole pool, since schedulers take only slices of the newest
    one, and only all of them together: a pool that is half written offers nothing rather than something wrong.
    Old slices go last.
    """
    by_name = {entry.name: entry for entry in present}
    generation = max((entry.pool_generation for entry in present), default=1)
    wanted = desired(node, contents, generation)
    names = {manifest["metadata"]["name"] for manifest in wanted}
    left_over = tuple(entry for entry in present if entry.name not in names)
    if left_over or any(_differs(manifest, by_name) for manifest in wanted):
        wanted = desired(node, contents, generation + 1)
        return Plan(tuple(wanted), left_over)
    missing = [manifest for manifest in wanted if not _is_there(manifest, by_name, node)]
    return Plan(tuple(missing))


def desired(node: Node, contents: Sequence[Content], generation: int) -> list[Mapping[str, Any]]:
    """The slices of a node, one for each content."""
    pool = {"name": node.name, "generation": generation, "resourceSliceCount": len(contents)}
    return [
        {
            "metadata": {
                "name": slice_name(node.name, DRIVER, number if number else None),
                "ownerReferences": [owner_reference(node)],
            },
            "spec": {"driver": DRIVER, "nodeName": node.name, "pool": pool, **content},
        }
        for number, content in enumerate(contents)
    ]


def _differs(manifest: Mapping[str, Any], present: Mapping[str, ResourceSlice]) -> bool:
    found = present.get(manifest["metadata"]["name"])
    return found is not None and found.spec != manifest["spec"]


def _is_there(manifest: Mapping[str, Any], present: Mapping[str, ResourceSlice], node: Node) -> bool:
    found = present.get(manifest["metadata"]["name"])
    return found is not None and any(owner.uid == node.uid for owner in found.metadata.owner_references)
