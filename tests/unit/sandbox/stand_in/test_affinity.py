"""What pods want of the pods beside them."""

from typing import Any

import pytest

from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.placement import Picture, decide
from controllers.sandbox.stand_in.refusal import Unplaceable
from tests.unit.sandbox.stand_in.objects import node, picture, pod

ZONES = {"a": "east", "b": "east", "c": "west"}


def cluster(**placed: str) -> Picture:
    """Nodes a and b in the east and c in the west; the pods given by name are on nodes and have the label app=web."""
    seen = picture(*(node(name, labels={"zone": zone}) for name, zone in ZONES.items()))
    for name, where in placed.items():
        seen.add(pod(name, labels={"app": "web"}), where)
    return seen


def term(**labels: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": "zone"}


def wishing(kind: str, *terms: dict[str, Any], **labels: str) -> Pod:
    affinity = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}
    return pod("new", labels=labels, affinity=affinity)


def test_affinity_goes_where_the_others_are() -> None:
    assert decide(wishing("podAffinity", term(app="web")), cluster(one="c")).node == "c"
    with pytest.raises(Unplaceable, match="3 node\\(s\\) didn't match pod affinity rules"):
        decide(wishing("podAffinity", term(app="web")), cluster())


def test_first_of_those_that_belong_together_may_go_anywhere() -> None:
    assert decide(wishing("podAffinity", term(app="web"), app="web"), cluster()).node == "a"


def test_anti_affinity_keeps_away_in_both_directions() -> None:
    assert decide(wishing("podAntiAffinity", term(app="web")), cluster(one="a")).node == "c"
    seen = cluster()
    seen.add(wishing("podAntiAffinity", term(app="web")), "a")
    assert decide(pod("web", labels={"app": "web"}), seen).node == "c"
    assert decide(pod("other", labels={"app": "db"}), seen).node == "a"


def test_wish_that_cannot_be_read_is_nothing_to_others() -> None:
    seen = cluster()
    odd = {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}, "topologyKey": "zone"}
    seen.add(wishing("podAntiAffinity", odd), "a")
    assert decide(pod("web", labels={"app": "web"}), seen).node == "a"


@pytest.mark.parametrize(("placed", "where"), [({}, "a"), ({"x": "a"}, "c"), ({"x": "a", "y": "c"}, "a")])
def test_spreading_evens_out_domains(placed: dict[str, str], where: str) -> None:
    constraint = {**term(app="web"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    new = pod("new", labels={"app": "web"}, topologySpreadConstraints=[constraint])
    assert decide(new, cluster(**placed)).node == where


def test_spreading_that_only_prefers_forbids_nothing() -> None:
    constraint = {**term(app="web"), "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    assert decide(pod("new", topologySpreadConstraints=[constraint]), cluster(x="a", y="b")).node == "a"


def test_label_keys_narrow_a_selector_to_pods_of_the_same_kind() -> None:
    constraint = {**term(app="web"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["hash"]}
    new = pod("new", labels={"app": "web", "hash": "2"}, topologySpreadConstraints=[constraint])
    assert decide(new, cluster(x="a", y="b")).node == "a"
