"""Which rack each node is in: decided once, for all nodes of a pool together."""

from collections.abc import Iterable, Mapping

from controllers.api.core import Node
from controllers.estate import CLIQUE, Fabric, Pool, assign_cliques


class Racks:
    """Remembers what was decided until the labels of nodes say it.

    A decision for one node is a decision for all of its pool. Without the memory a node that comes in between could be
    given a place that is taken already, but not yet labelled.
    """

    def __init__(self) -> None:
        self._fabrics: dict[str, Fabric] = {}
        self._assigned: dict[str, dict[str, str]] = {}

    def clique_of(self, node: Node, pool: Pool, members: Iterable[Node]) -> str:
        """The clique of a node, "" in a pool without a fabric; ``members`` are all nodes of the pool."""
        if pool.fabric is None:
            self._assigned.pop(pool.name, None)
            return ""
        assigned = self._assigned.get(pool.name, {})
        if node.name not in assigned or self._fabrics.get(pool.name) != pool.fabric:
            present = {member.name: _present(member, assigned) for member in members}
            assigned = assign_cliques(pool.fabric, present)
            self._assigned[pool.name], self._fabrics[pool.name] = assigned, pool.fabric
        return assigned[node.name]

    def forget(self, name: str, pool: str = "") -> None:
        """Frees the place of a node in all pools but one."""
        for each, assigned in self._assigned.items():
            if each != pool:
                assigned.pop(name, None)


def _present(node: Node, assigned: Mapping[str, str]) -> str:
    return assigned.get(node.name) or node.labels.get(CLIQUE, "")
