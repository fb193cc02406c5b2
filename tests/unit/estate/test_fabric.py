"""Racks: what a pool may say of them, and which node is in which."""

import pytest

from controllers.estate import Fabric, assign_cliques
from tests.unit.estate.documents import pool, wrong

CLUSTER = "0a1b2c3d-0000-4000-8000-000000000001"
FABRIC = Fabric(CLUSTER, 2)


def nodes(count: int) -> dict[str, str]:
    return {f"n{index}": "" for index in range(count)}


def test_new_nodes_fill_rack_by_rack() -> None:
    assigned = assign_cliques(FABRIC, nodes(5))
    assert assigned == dict(zip(nodes(5), [f"{CLUSTER}.{number}" for number in (0, 0, 1, 1, 2)], strict=True))


def test_racks_start_where_the_pool_says() -> None:
    assert assign_cliques(Fabric(CLUSTER, 1, first=7), nodes(2)) == {"n0": f"{CLUSTER}.7", "n1": f"{CLUSTER}.8"}


def test_a_node_that_goes_moves_nobody_and_leaves_a_place() -> None:
    assigned = assign_cliques(FABRIC, nodes(4))
    del assigned["n0"]
    again = assign_cliques(FABRIC, {**assigned, "new": ""})
    assert again == {**assigned, "new": f"{CLUSTER}.0"}


def test_a_rack_with_too_many_nodes_keeps_the_first() -> None:
    assigned = assign_cliques(FABRIC, dict.fromkeys(("a", "b", "c"), f"{CLUSTER}.3"))
    assert assigned == {"a": f"{CLUSTER}.3", "b": f"{CLUSTER}.3", "c": f"{CLUSTER}.0"}


@pytest.mark.parametrize(
    "clique",
    [
        "garbage",
        CLUSTER,
        f"{CLUSTER}.",
        f"{CLUSTER}.x",
        f"{CLUSTER}.-1",
        f"{CLUSTER}.01",
        f"{CLUSTER}.²",
        f"{CLUSTER}.٣",
        f"{CLUSTER}.4",
        f"{CLUSTER}." + "9" * 5000,
        f"{CLUSTER.upper()}.5",
        "00000000-0000-0000-0000-000000000000.5",
    ],
)
def test_a_node_whose_clique_is_none_of_the_pool_s_gets_one(clique: str) -> None:
    assert assign_cliques(Fabric(CLUSTER, 2, first=5), {"n": clique}) == {"n": f"{CLUSTER}.5"}


def test_a_pool_s_racks_are_read() -> None:
    block = f"{{fabric: {{clusterUUID: {CLUSTER.upper()}, nodesPerClique: 18, firstClique: 3}}}}"
    assert pool(block).fabric == Fabric(CLUSTER, 18, 3)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ("nodesPerClique: 4", "clusterUUID"),
        ("clusterUUID: x, nodesPerClique: 4", "clusterUUID"),
        ("clusterUUID: 00000000-0000-0000-0000-000000000000, nodesPerClique: 4", "clusterUUID"),
        (f"clusterUUID: {CLUSTER}", "nodesPerClique"),
        (f"clusterUUID: {CLUSTER}, nodesPerClique: 0", "nodesPerClique"),
        (f"clusterUUID: {CLUSTER}, nodesPerClique: 19", "nodesPerClique"),
        (f"clusterUUID: {CLUSTER}, nodesPerClique: 4, firstClique: -1", "firstClique"),
        (f"clusterUUID: {CLUSTER}, nodesPerClique: 4, nodesPerRack: 4", "nodesPerRack"),
    ],
)
def test_a_mistake_in_the_block_is_reported_with_its_path(fields: str, path: str) -> None:
    assert wrong(f"{{fabric: {{{fields}}}}}") == f"nodePools.p.fabric.{path}"
