"""Which pods wait, and in what order decisions are carried out."""

import pytest

from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.placement import Choice, Decision, reservation
from controllers.sandbox.stand_in.scheduler import chains, is_gated, is_waiting, stuck
from tests.unit.sandbox.stand_in.objects import claim, node, picture, pod

ONLY_A = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}


@pytest.mark.parametrize(
    ("candidate", "waits"),
    [
        (pod("p"), True),
        (pod("p", schedulerName="default-scheduler"), True),
        (pod("p", schedulerName="another"), False),
        (pod("p", nodeName="a"), False),
        (pod("p", schedulingGates=[{"name": "g"}]), False),
        (pod("p", status={"phase": "Failed"}), False),
        (pod("p", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}]), False),
    ],
)
def test_which_pods_are_to_be_placed(candidate: Pod, waits: bool) -> None:
    assert is_waiting(candidate) is waits


def test_gated_pod_is_told_once() -> None:
    gates = [{"name": "g"}]
    told = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
    assert is_gated(pod("p", schedulingGates=gates))
    assert not is_gated(pod("p", schedulingGates=gates, status=told))
    assert not is_gated(pod("p"))


def decision(name: str, *claims: str) -> Decision:
    return Decision(pod(name), "a", tuple(Choice(claim(one), {}) for one in claims))


def test_decisions_that_share_claims_are_carried_out_in_turn_and_others_at_once() -> None:
    decisions = [decision("p", "x"), decision("q", "y"), decision("r"), decision("s", "x", "y"), decision("t", "y")]
    found = [[one.pod.name for one in chain] for chain in chains(decisions)]
    assert found == [["r"], ["p", "q", "s", "t"]]


def test_claim_holds_a_pod_only_where_it_is_nobody_elses_and_some_node_cannot_reach_it() -> None:
    own = pod("p", claims=["c"])
    allocation = {"devices": {"results": []}, "nodeSelector": ONLY_A}
    mine = claim("c", status={"allocation": allocation, "reservedFor": [reservation(own)]})
    shared = claim("c", status={"allocation": allocation, "reservedFor": [reservation(own), reservation(pod("q"))]})
    open_to_all = claim("c", status={"allocation": {"devices": {"results": []}}})
    nodes = (node("a"), node("b"))
    assert stuck(own, picture(*nodes, claims=[mine])) == [mine]
    assert stuck(own, picture(nodes[0], claims=[mine])) == []
    assert stuck(own, picture(*nodes, claims=[shared])) == []
    assert stuck(own, picture(*nodes, claims=[open_to_all])) == []
    assert stuck(own, picture(*nodes, claims=[claim("c")])) == []
