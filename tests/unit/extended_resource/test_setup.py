"""What wakes the controller, and what does not."""

from typing import Any

import pytest

from controllers.extended_resource import setup
from tests.unit.scripted_estate import ScriptedEstate, node, run

FIRST = {"cpu": "64", "pods": "250"}
GPUS = {**FIRST, "nvidia.com/gpu": "8"}
POOL = {"gpu": {"profile": "h100"}}
Json = dict[str, Any]


def document(**pools: Json) -> Json:
    return {"nodePools": pools}


def with_(resources: Json, **more: Any) -> Json:
    return {"capacity": resources, "allocatable": resources, **more}


def test_nodes_that_are_listed_are_published_and_those_that_are_right_cost_nothing() -> None:
    nodes = [node("new", **with_(FIRST)), node("right", **with_(GPUS)), node("early")]
    assert run(ScriptedEstate(nodes, document(p=POOL)), setup) == ["PATCH new/status"]


def test_a_topology_that_changes_wakes_the_nodes_of_its_pools() -> None:
    nodes = [node("n", **with_(GPUS)), node("outside", labels={}, **with_(FIRST))]
    estate = ScriptedEstate(nodes, document(p=POOL), later=[document(p={"gpu": {"profile": "t4"}})])
    assert run(estate, setup) == ["GET n"]
    assert [event["regarding"]["name"] for event in estate.events] == ["n"]


def test_a_pool_label_that_changes_wakes_the_nodes_that_have_only_the_former() -> None:
    estate = ScriptedEstate(
        [node("n", **with_(GPUS))], document(p=POOL), later=[{"nodePoolLabelKey": "a/b", **document(p=POOL)}]
    )
    assert run(estate, setup) == ["GET n"]


@pytest.mark.parametrize(
    ("later", "woken"),
    [
        (node("n", 2, **with_(FIRST)), True),
        (node("n", 2, labels={}, **with_(GPUS)), True),
        (node("n", 2, **with_(GPUS, conditions=[{"type": "Ready", "status": "True"}])), False),
    ],
    ids=["resources", "labels", "conditions"],
)
def test_only_what_matters_of_a_node_wakes_it(later: Json, woken: bool) -> None:
    estate = ScriptedEstate([node("n", **with_(GPUS))], document(p=POOL), later_nodes=[later])
    assert bool(run(estate, setup)) is woken
