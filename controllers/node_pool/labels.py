"""The labels of a node: ours are kept as they should be, those of others are left alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from controllers.api.core import Node
from controllers.estate import label_keys
from controllers.runtime import Client
from controllers.runtime.client import LiveOwnership
from controllers.runtime.patch import removal

REMEMBERED = 20_000
"""Nodes whose foreign labels are remembered: beyond any estate that one controller serves."""

KEYS = label_keys()


@dataclass(frozen=True, slots=True)
class Difference:
    """Labels that are not as they should be, and labels of the kinds that we write which should not be there."""

    wrong: frozenset[str]
    stale: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.wrong or self.stale)


def difference(present: Mapping[str, str], desired: Mapping[str, str], foreign: Mapping[str, str]) -> Difference:
    """What of a node's labels is to be put right; ``foreign`` are labels of others, with the values they had."""
    settled = {key for key, value in foreign.items() if present.get(key) == value}
    wrong = {key for key, value in desired.items() if present.get(key) != value}
    stale = KEYS & present.keys() - desired.keys()
    return Difference(frozenset(wrong - settled), frozenset(stale - settled))


class NodeLabels:
    """Writes the labels of nodes with the field manager of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._foreign: LRUCache[str, dict[str, str]] = LRUCache(REMEMBERED)

    async def ensure(self, node: Node, desired: Mapping[str, str]) -> frozenset[str]:
        """Makes the labels of a node as desired; those that another manager has stay.

        Returns the keys that others hold with another value, where that was found out by this call. Raises ObjectGone,
        and FieldConflict where somebody writes such a label at the same moment.
        """
        if not difference(node.labels, desired, self._foreign.get(node.uid, {})):
            return frozenset()
        if KEYS.isdisjoint(node.labels):
            # There is none that anybody could hold, as on every new node.
            await self._write(node, desired, ())
            return frozenset()
        live = await self._client.get_ownership(Node, node.name)
        if live is None or live.uid != node.uid:
            return frozenset()
        foreign = {key: node.labels[key] for key in KEYS & node.labels.keys() if self._others(live, key)}
        self._foreign[node.uid] = foreign
        if difference(node.labels, desired, foreign):
            # An equal value would make us an owner of somebody else's label, so those are left out, too.
            await self._write(node, {k: v for k, v in desired.items() if k not in foreign}, self._written(live, node))
        return frozenset(key for key in foreign if key in desired and foreign[key] != desired[key])

    async def _write(self, node: Node, desired: Mapping[str, str], written: Sequence[str]) -> None:
        if desired:
            await self._client.apply(node, {"metadata": {"labels": desired}})
        elif written:
            # An apply that names no label takes all of them with it where nobody owns any, not just ours.
            await self._client.json_patch(node, [removal("metadata", "labels", key) for key in written])

    def _written(self, live: LiveOwnership, node: Node) -> list[str]:
        """The labels that we alone wrote."""
        ours = frozenset({self._client.field_manager})
        present = sorted(KEYS & node.labels.keys())
        return [key for key in present if live.managers_of("f:metadata", "f:labels", f"f:{key}") == ours]

    def _others(self, live: LiveOwnership, key: str) -> bool:
        return bool(live.managers_of("f:metadata", "f:labels", f"f:{key}") - {self._client.field_manager})
