"""Racks: which nodes share an NVLink fabric."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from controllers.estate.reading import Attempts, Node, shown

MAX_NODES_PER_CLIQUE = 18
"""Compute trays of the largest rack on the market."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")  # in the one spelling that names have
NIL = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The fabric of a pool: cliques of so many nodes each, named ``<cluster UUID>.<number>`` from ``first`` on."""

    cluster_uuid: str
    nodes_per_clique: int
    first: int = 0

    def clique(self, number: int) -> str:
        """The name of the pool's rack, as ``nvidia.com/gpu.clique`` has it."""
        return f"{self.cluster_uuid}.{self.first + number}"


def read_fabric(node: Node) -> Fabric:
    """A pool's fabric block. Raises Mistake with everything that is wrong with it."""
    attempt = Attempts()
    attempt(lambda: node.refuse_unknown(("clusterUUID", "nodesPerClique", "firstClique")), None)
    fabric = Fabric(
        attempt(lambda: _cluster(node.get("clusterUUID")), ""),
        attempt(lambda: node.get("nodesPerClique").whole_number(1, MAX_NODES_PER_CLIQUE), 1),
        attempt(lambda: node.get("firstClique").whole_number(0, 2**31, default=0), 0),
    )
    attempt.finish()
    return fabric


def _cluster(node: Node) -> str:
    text = node.text().lower()
    if not _UUID.fullmatch(text) or text == NIL:
        raise node.mistake(f"{shown(text)} is not the UUID of a fabric", "use a UUID that is not all zeros")
    return text


def assign_cliques(fabric: Fabric, present: Mapping[str, str]) -> dict[str, str]:
    """A clique for each node of a pool; ``present`` has the nodes by name with the cliques that they are in now, or "".

    A node stays in its clique while that has room, so that nodes which come and go move nobody; others get the first
    place that is free.
    """
    places: Counter[str] = Counter()
    assigned: dict[str, str] = {}
    for node in sorted(present):
        clique = present[node]
        if _belongs(fabric, clique) and places[clique] < fabric.nodes_per_clique:
            places[clique] += 1
            assigned[node] = clique
    number = 0
    for node in sorted(set(present) - set(assigned)):
        number = _first_free(fabric, places, number)
        assigned[node] = fabric.clique(number)
        places[assigned[node]] += 1
    return assigned


def place_node(fabric: Fabric, present: str, places: Mapping[str, int]) -> str:
    """A clique for one more node: the one that it is in while that has room, else the first that has.

    ``places`` are how many nodes each clique has.
    """
    if _belongs(fabric, present) and places.get(present, 0) < fabric.nodes_per_clique:
        return present
    return fabric.clique(_first_free(fabric, places, 0))


def _first_free(fabric: Fabric, places: Mapping[str, int], number: int) -> int:
    """The number of the first clique that has room, from a number on."""
    while places.get(fabric.clique(number), 0) >= fabric.nodes_per_clique:
        number += 1
    return number


def _belongs(fabric: Fabric, clique: str) -> bool:
    cluster, _, number = clique.rpartition(".")
    if cluster != fabric.cluster_uuid or not _NUMBER.fullmatch(number):
        return False
    return int(number) >= fabric.first
