"""Which extended resources of a node are ours: what managedFields says, remembered for as long as it must hold."""

from collections.abc import Collection, Mapping, MutableMapping

from cachetools import LRUCache

from controllers.api.core import Node
from controllers.extended_resource.capacity import PLACES, Field, Holding, Managers, extended
from controllers.runtime import Client
from controllers.runtime.client import LiveOwnership

REMEMBERED = 20_000
"""Nodes that are remembered: beyond any estate that one controller serves."""

KWOK_MANAGER = "kwok"
"""The field manager of KWOK.

While it makes a node Ready it writes back the resources that it saw a moment before. Where ours changed in that moment
it thereby brings back an old one, as a field of its own.
"""


class Holdings:
    """Answers from memory where every extended resource of a node is known, else by one GET."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: MutableMapping[str, Holding] = LRUCache(REMEMBERED)
        self._once_ours: MutableMapping[str, frozenset[str]] = LRUCache(REMEMBERED)

    async def of(self, node: Node) -> Holding | None:
        """What is whose on a node; None where the node is gone."""
        known = self._known.get(node.uid, Holding())
        if extended(node.status) <= known.ours | known.foreign.keys():
            return known
        return await self.look(node)

    async def look(self, node: Node) -> Holding | None:
        """The same by a live look, whatever is remembered."""
        live = await self._client.get_ownership(Node, node.name)
        if live is None or live.uid != node.uid:
            return None
        once_ours = self._once_ours.get(node.uid, frozenset())
        found = _holding(live, extended(node.status), once_ours, self._client.field_manager)
        self._remember(node, Holding(found.ours, found.foreign))
        return found

    def wrote(self, node: Node, names: Collection[str]) -> None:
        """Notes that these are now all that is ours on a node."""
        ours = frozenset(names)
        foreign = self._known.get(node.uid, Holding()).foreign
        self._remember(node, Holding(ours, {name: foreign[name] for name in foreign.keys() - ours}))

    def forget(self, node: Node) -> None:
        """Makes the next question a live one."""
        self._known.pop(node.uid, None)

    def _remember(self, node: Node, holding: Holding) -> None:
        self._known[node.uid] = holding
        self._once_ours[node.uid] = self._once_ours.get(node.uid, frozenset()) | holding.ours


def _holding(live: LiveOwnership, present: Collection[str], once_ours: Collection[str], us: str) -> Holding:
    by_field = {(place, name): _managers(live, place, name) for place in PLACES for name in present}
    by_name = {name: Managers().union(*(by_field[place, name] for place in PLACES)) for name in present}
    ours = frozenset(name for name, managers in by_name.items() if managers == {us})
    copied = frozenset(
        name for name in by_name.keys() & once_ours if KWOK_MANAGER in by_name[name] <= {us, KWOK_MANAGER}
    )
    foreign = {name: by_name[name] - {us} for name in by_name.keys() - ours - copied}
    return Holding(ours, foreign, _rest(by_field, foreign, us), copied, live=True)


def _rest(by_field: Mapping[Field, Managers], foreign: Collection[str], us: str) -> frozenset[Field]:
    return frozenset(at for at, managers in by_field.items() if at[1] in foreign and managers == {us})


def _managers(live: LiveOwnership, place: str, name: str) -> Managers:
    return live.managers_of("f:status", f"f:{place}", f"f:{name}", subresource="status")
