"""On which node a pod goes."""

import pytest

from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.placement import Decision, Picture, decide, reservation
from controllers.sandbox.stand_in.refusal import Unplaceable
from tests.unit.sandbox.stand_in.objects import claim, devices, node, picture, pod, slice_of

NODES = (node("a"), node("b"))


def refusal(wanting: Pod, seen: Picture) -> str:
    with pytest.raises(Unplaceable) as why:
        decide(wanting, seen)
    return why.value.message


def test_first_node_that_fits_is_taken_until_it_is_full() -> None:
    seen = picture(*NODES)
    placed = []
    for number in range(4):
        decision = decide(pod(f"p-{number}", requests={"cpu": "3"}), seen)
        seen.take(decision)
        placed.append(decision.node)
    assert placed == ["a", "a", "b", "b"]
    assert refusal(pod("p", requests={"cpu": "3"}), seen) == "0/2 nodes are available: 2 Insufficient cpu."


def test_reasons_are_counted_over_all_nodes() -> None:
    tainted = node("c", taints=[{"key": "k", "effect": "NoSchedule"}])
    seen = picture(*NODES, tainted, node("d", unschedulable=True), node("e", ready="False"))
    assert refusal(pod("p", nodeSelector={"no": "where"}), seen) == (
        "0/5 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector, "
        "2 node(s) had untolerated taint(s)."
    )
    assert refusal(pod("p"), picture()) == "no nodes available to schedule pods"


def test_toleration_opens_nodes_that_are_cordoned_or_not_ready() -> None:
    everything = [{"operator": "Exists"}]
    assert decide(pod("p", tolerations=everything), picture(node("a", unschedulable=True))).node == "a"
    assert decide(pod("p", tolerations=everything), picture(node("a", ready="False"))).node == "a"


def test_node_that_cannot_be_read_is_passed_by() -> None:
    odd = node("a", allocatable={"cpu": "plenty"})
    assert decide(pod("p", requests={"cpu": "1"}), picture(odd, node("b"))).node == "b"
    assert "cannot judge: ValueError(\"resource cpu: 'plenty'" in refusal(pod("p", requests={"cpu": "1"}), picture(odd))


def test_pod_that_cannot_be_read_is_told_so() -> None:
    with pytest.raises(Unplaceable) as why:
        decide(pod("p", requests={"cpu": "much"}), picture(*NODES))
    assert why.value.reason == "SchedulerError"
    assert "resource cpu: 'much' is not a quantity" in why.value.message


def test_pod_that_got_past_every_scheduler_with_nonsense_harms_no_other() -> None:
    seen = picture(*NODES)
    seen.add(pod("odd", requests={"cpu": "much"}), "a")
    assert decide(pod("p", requests={"cpu": "8"}), seen).node == "a"


def test_claim_goes_where_its_devices_are_and_is_shared_there() -> None:
    seen = picture(*NODES, slices=[slice_of("s", devices(1), nodeName="b")], claims=[claim("c"), claim("d")])
    first, second = pod("p", claims=["c"]), pod("q", claims=["c"])
    for wanting in (first, second):
        decision = decide(wanting, seen)
        assert decision.node == "b"
        seen.take(decision)
    assert seen.claims[claim("c").key].consumers == [reservation(first), reservation(second)]
    assert refusal(pod("r", claims=["d"]), seen) == "0/2 nodes are available: 2 cannot allocate all claims."
    assert refusal(pod("r", claims=["c"], nodeSelector={"name": "a"}), seen) == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 resourceclaim not available on the node."
    )


def test_devices_of_claims_that_were_there_before_are_taken() -> None:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "s", "device": "gpu-0"}
    old = claim("old", status={"allocation": {"devices": {"results": [result]}}})
    seen = picture(*NODES, slices=[slice_of("s", devices(2), nodeName="b")], claims=[old, claim("new")])
    (choice,) = decide(pod("p", claims=["new"]), seen).claims
    assert choice.allocation["devices"] == {"results": [{**result, "device": "gpu-1"}]}


def test_claim_that_is_absent_or_going_keeps_its_pod_waiting() -> None:
    going = claim("c")
    gone = type(going)(
        metadata=type(going.metadata)(name="c", namespace="ns", deletion_timestamp="now"), spec=going.spec
    )
    assert "resourceclaim c is being deleted" in refusal(pod("p", claims=["c"]), picture(*NODES, claims=[gone]))
    assert "waiting for the ResourceClaim x" in refusal(pod("p", claims=["x"]), picture(*NODES))


def test_claim_has_room_for_as_many_pods_as_the_api_allows() -> None:
    consumers = [reservation(pod(f"p-{number}")) for number in range(256)]
    full = claim("c", status={"allocation": {"devices": {"results": []}}, "reservedFor": consumers})
    seen = picture(*NODES, claims=[full])
    assert decide(pod("p-7", claims=["c"]), seen).node == "a"
    assert "resourceclaim c is reserved for 256 pods" in refusal(pod("p", claims=["c"]), seen)


def test_missing_class_is_the_fault_of_no_node() -> None:
    seen = picture(*NODES, claims=[claim("c")], classes=[])
    seen.classes = {}
    assert refusal(pod("p", claims=["c"]), seen) == (
        "0/2 nodes are available: request gpu: device class gpu does not exist."
    )


def test_decision_without_claims_is_only_a_node() -> None:
    wanting = pod("p")
    assert decide(wanting, picture(*NODES)) == Decision(wanting, "a")
