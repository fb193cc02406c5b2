"""Nodes get places in racks, and keep them."""

from controllers.api.core import Node
from controllers.estate import CLIQUE, Fabric, Pool
from controllers.node_pool.racks import Racks
from controllers.runtime import ObjectMeta

CLUSTER = "5b6d3c1e-9a0f-4a53-8f1d-2f6f6f0c7a11"
RACKED = Pool("racked", fabric=Fabric(CLUSTER, 2))


def node(name: str, clique: str | None = None) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={} if clique is None else {CLIQUE: f"{CLUSTER}.{clique}"}))


def numbers(racks: Racks, nodes: list[Node], pool: Pool = RACKED) -> dict[str, str]:
    return {each.name: racks.clique_of(each, pool, nodes).removeprefix(f"{CLUSTER}.") for each in nodes}


def test_a_pool_without_a_fabric_has_no_racks() -> None:
    assert numbers(Racks(), [node("a"), node("b")], Pool("loose")) == {"a": "", "b": ""}


def test_racks_are_filled_one_after_the_other() -> None:
    assert numbers(Racks(), [node(name) for name in "abcde"]) == {"a": "0", "b": "0", "c": "1", "d": "1", "e": "2"}


def test_what_labels_say_holds_after_a_restart() -> None:
    assert numbers(Racks(), [node("a", "1"), node("b"), node("c", "0")]) == {"a": "1", "b": "0", "c": "0"}


def test_a_node_that_comes_in_between_takes_no_place_that_was_given_but_is_not_labelled_yet() -> None:
    racks = Racks()
    assert numbers(racks, [node("b"), node("c")]) == {"b": "0", "c": "0"}

    assert numbers(racks, [node("a"), node("b"), node("c")]) == {"a": "1", "b": "0", "c": "0"}


def test_the_place_of_a_node_that_left_is_given_to_the_next() -> None:
    racks = Racks()
    assert numbers(racks, [node("a"), node("b"), node("c")]) == {"a": "0", "b": "0", "c": "1"}

    racks.forget("a")

    assert numbers(racks, [node("b"), node("c"), node("d")]) == {"b": "0", "c": "1", "d": "0"}


def test_a_changed_fabric_places_everybody_anew_where_racks_have_become_too_small() -> None:
    racks, nodes = Racks(), [node("a"), node("b"), node("c")]
    numbers(racks, nodes)

    assert numbers(racks, nodes, Pool("racked", fabric=Fabric(CLUSTER, 1))) == {"a": "0", "b": "2", "c": "1"}
