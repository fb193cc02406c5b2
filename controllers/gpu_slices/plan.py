"""The ResourceSlices of a node: what they should be, and the steps that lead there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from controllers.api.core import Node
from controllers.api.dra import ResourceSlice, slice_name
from controllers.gpu_slices.contents import Content
from controllers.gpu_slices.devices import DRIVER
from controllers.runtime import owner_reference

REMEMBERED = 20_000
"""Slices whose spelling is remembered: those that come back as they were written need no memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Slices to write, in this order, and after them slices to take away."""

    write: tuple[Mapping[str, Any], ...] = ()
    withdraw: tuple[ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.write or self.withdraw)


class Spelling:
    """How the server spells what was written to it: the same content may come back in other words.

    Without it a slice that the server spells otherwise would look different for ever, and be written for ever.
    """

    def __init__(self) -> None:
        self._known: LRUCache[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = LRUCache(REMEMBERED)

    def learn(self, name: str, written: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Tells what a slice became whose spec was ``written``."""
        if written == stored:
            self._known.pop(name, None)
        else:
            self._known[name] = (written, stored)

    def is_same(self, manifest: Mapping[str, Any], present: ResourceSlice) -> bool:
        """Whether a slice is as it should be."""
        if present.spec == manifest["spec"]:
            return True
        written, stored = self._known.get(present.name, ({}, {}))
        return manifest["spec"] == written and present.spec == stored


def plan(
    node: Node,
    contents: Sequence[Content],
    present: Sequence[ResourceSlice],
    *,
    above: int = 0,
    spelling: Spelling | None = None,
) -> Plan:
    """How the slices of a node come to hold exactly this; ``present`` are ours.

    Every change of content raises the generation of the whole pool, since schedulers take only slices of the newest
    one, and only all of them together: a pool that is half written offers nothing rather than something wrong.
    Old slices go last. ``above`` is the newest generation of somebody else, which ours must be newer than.
    """
    spelling = spelling or Spelling()
    by_name = {entry.name: entry for entry in present}
    generation = max(above + 1, *(entry.pool_generation for entry in present)) if present else above + 1
    wanted = desired(node, contents, generation)
    names = {manifest["metadata"]["name"] for manifest in wanted}
    left_over = tuple(entry for entry in present if entry.name not in names)
    found = [(manifest, by_name.get(manifest["metadata"]["name"])) for manifest in wanted]
    if left_over or any(entry is not None and not spelling.is_same(manifest, entry) for manifest, entry in found):
        return Plan(tuple(desired(node, contents, generation + 1)), left_over)
    return Plan(tuple(manifest for manifest, entry in found if entry is None or not _is_owned_by(entry, node)))


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


def _is_owned_by(entry: ResourceSlice, node: Node) -> bool:
    return any(owner.uid == node.uid for owner in entry.metadata.owner_references)
