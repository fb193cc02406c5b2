"""Which rack each node is in: decided once, for all nodes of a pool together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from controllers.api.core import Node
from controllers.estate import CLIQUE, Fabric, Pool, assign_cliques, place_node


@dataclass(slots=True)
class _Decided:
    """The places of a pool's nodes, and how many nodes each clique has."""

    fabric: Fabric
    cliques: dict[str, str]
    places: Counter[str]

    def add(self, node: Node) -> None:
        clique = place_node(self.fabric, node.labels.get(CLIQUE, ""), self.places)
        self.cliques[node.name] = clique
        self.places[clique] += 1

    def forget(self, name: str) -> None:
        clique = self.cliques.pop(name, None)
        if clique is not None:
            self.places[clique] -= 1


class Racks:
    """Remembers what was decided until the labels of nodes say it.

    The first decision is one for all nodes of a pool, as after a restart labels alone say who is where. Those that come
    later get places beside them: without the memory one could be given a place that is taken already, but not yet
    labelled.
    """

    def __init__(self) -> None:
        self._pools: dict[str, _Decided] = {}

    def clique_of(self, node: Node, pool: Pool, members: Iterable[Node]) -> str:
        """The clique of a node, "" in a pool without a fabric; ``members`` are all nodes of the pool."""
        if pool.fabric is None:
            self._pools.pop(pool.name, None)
            return ""
        decided = self._pools.get(pool.name)
        if decided is None or decided.fabric != pool.fabric:
            decided = self._pools[pool.name] = _decide(pool.fabric, decided, members)
        if node.name not in decided.cliques:
            decided.add(node)
        return decided.cliques[node.name]

    def forget(self, name: str, pool: str = "") -> None:
        """Frees the place of a node in all pools but one."""
        for each, decided in self._pools.items():
            if each != pool:
                decided.forget(name)


def _decide(fabric: Fabric, before: _Decided | None, members: Iterable[Node]) -> _Decided:
    known = before.cliques if before else {}
    present = {member.name: known.get(member.name) or member.labels.get(CLIQUE, "") for member in members}
    cliques = assign_cliques(fabric, present)
    return _Decided(fabric, cliques, Counter(cliques.values()))
