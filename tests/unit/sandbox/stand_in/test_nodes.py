"""Nodes that become Ready, and their taints."""

import ipaddress

from controllers.sandbox.stand_in.kinds import Node
from controllers.sandbox.stand_in.nodes import NODE_NETWORK, RESOURCES, address, internal_address, running, tainted
from tests.unit.sandbox.stand_in.objects import NOW, meta, node

OTHER = {"key": "example.com/mine", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def test_node_gets_what_it_does_not_have_and_keeps_what_it_has() -> None:
    bare = running(Node(metadata=meta("n", namespace="")), NOW)
    given = running(node("n", status={"nodeInfo": {"osImage": "mine", "architecture": ""}}), NOW)
    assert (bare["allocatable"], bare["capacity"]) == (RESOURCES, RESOURCES)
    assert given["allocatable"] == {"cpu": "8", "pods": "10"}
    assert (given["nodeInfo"]["osImage"], given["nodeInfo"]["architecture"]) == ("mine", "amd64")
    conditions = {entry["type"]: entry["status"] for entry in given["conditions"]}
    assert conditions == {
        "Ready": "True",
        **dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"), "False"),
    }


def test_conditions_that_others_write_stay() -> None:
    other = {"type": "example.com/Ready", "status": "True"}
    pressure = {"type": "DiskPressure", "status": "True"}
    conditions = running(node("n", status={"conditions": [other, pressure]}), NOW)["conditions"]
    assert other in conditions
    assert [entry["status"] for entry in conditions if entry["type"] == "DiskPressure"] == ["False"]


def test_taints_follow_the_state_and_those_of_others_stay() -> None:
    assert tainted(node("n", ready="False", taints=[OTHER])) == [OTHER, NOT_READY]
    assert tainted(node("n", taints=[NOT_READY, OTHER])) == [OTHER]


def test_taint_that_is_there_is_kept_as_it_is() -> None:
    dated = {**NOT_READY, "timeAdded": NOW}
    evicting = {**NOT_READY, "effect": "NoExecute"}
    assert tainted(node("n", ready="False", taints=[dated, evicting])) == [evicting, dated]


def test_node_that_has_said_nothing_yet_is_not_tainted() -> None:
    assert tainted(Node(metadata=meta("n"), spec={}, status={})) == []


def test_address_goes_with_the_name() -> None:
    first, second = address(NODE_NETWORK, "a"), address(NODE_NETWORK, "b")
    assert first == address(NODE_NETWORK, "a") != second
    assert ipaddress.ip_address(first) in NODE_NETWORK
    assert internal_address({"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}, "a") == "192.0.2.1"
    assert internal_address({}, "a") == first
