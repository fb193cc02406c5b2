"""What wakes the controller, and what does not."""

from typing import Any

import pytest

from controllers.gpu_fractioning import setup
from controllers.gpu_fractioning.condition import READY
from tests.unit.scripted_estate import ScriptedEstate, node, run

POOL = {"gpu": {"profile": "h100"}}
Json = dict[str, Any]
GPUS: Json = {"allocatable": {"nvidia.com/gpu": "8"}}
SET: Json = {**GPUS, "conditions": [{"type": READY, "status": "True"}]}


def document(**pools: Json) -> Json:
    return {"nodePools": pools}


def test_nodes_that_are_listed_get_the_condition_and_those_that_have_it_cost_nothing() -> None:
    nodes = [node("new", **GPUS), node("right", **SET), node("early")]
    assert run(ScriptedEstate(nodes, document(p=POOL)), setup) == ["PATCH new/status"]


@pytest.mark.parametrize("pool", [{"p": {"gpu": {"backend": "mock"}}}, {"q": POOL}])
def test_a_topology_that_changes_wakes_the_nodes_of_its_pools(pool: Json) -> None:
    nodes = [node("n", **SET), node("outside", labels={}, **GPUS)]
    assert run(ScriptedEstate(nodes, document(p=POOL), later=[document(**pool)]), setup) == ["GET n"]


def test_a_pool_label_that_changes_wakes_the_nodes_that_have_only_the_former() -> None:
    later = {"nodePoolLabelKey": "a/b", **document(p=POOL)}
    assert run(ScriptedEstate([node("n", **SET)], document(p=POOL), later=[later]), setup) == ["GET n"]


@pytest.mark.parametrize(
    ("later", "requests"),
    [
        (node("n", 2, **GPUS), ["PATCH n/status"]),
        (node("n", 2, conditions=SET["conditions"]), ["GET n"]),
        (node("n", 2, labels={}, **SET), ["GET n"]),
        (node("n", 2, allocatable={"nvidia.com/gpu": "4"}, conditions=SET["conditions"]), []),
        (node("n", 2, **GPUS, conditions=[*SET["conditions"], {"type": "Ready", "status": "True"}]), []),
    ],
    ids=["condition", "gpus", "labels", "fewer gpus", "other conditions"],
)
def test_what_matters_of_a_node_wakes_it(later: Json, requests: list[str]) -> None:
    assert run(ScriptedEstate([node("n", **SET)], document(p=POOL), later_nodes=[later]), setup) == requests
