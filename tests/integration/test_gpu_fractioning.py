"""The condition for fractions of GPUs on nodes of a cluster, beside whatever else writes their status."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hack.localcluster import LOCAL, ControllerProcess, Environment, wait_ready
from hack.localcluster.nodes import KWOK_ANNOTATION, POOL_LABEL
from tests.integration.conftest import PoolNodes
from tests.integration.estate import NodeStatus, estate_controller, write_topology
from tests.integration.scenario import EAST, Cluster, Manifest

GPU = "nvidia.com/gpu"
READY = "gpu-fractioning.nvidia.com/Ready"
POOLS: Manifest = {
    "fractions": {"gpu": {"profile": "h100"}},
    "fractions-dra": {"gpu": {"profile": "h100", "offered": "dra"}},
    "fractions-mock": {"gpu": {"profile": "h100", "backend": "mock"}},
}
IDLE = 1.0  # seconds in which a controller that had something to write would have written it


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "gpu-fractioning", POOLS) as process:
        yield process


class Nodes(NodeStatus):
    def conditions(self, node: str) -> dict[str, Any]:
        return {condition["type"]: condition for condition in self.of(node).get("conditions", ())}

    def condition(self, node: str) -> Any:
        return self.conditions(node).get(READY)

    def wait(self, node: str, *, there: bool) -> Any:
        """Waits until the condition is or is not there, and returns it."""
        self.cluster.wait(
            lambda: (self.condition(node) is not None) is there or None,
            lambda: f"the condition of {node} to be {'there' if there else 'gone'}: {self.conditions(node)}",
        )
        return self.condition(node)


@pytest.fixture
def nodes(running: ControllerProcess, namespace: str) -> Iterator[Nodes]:
    yield Nodes(Cluster(running.environment, namespace), running.account)
    write_topology(running.environment, POOLS)


def test_the_condition_comes_with_the_gpus_and_goes_with_them(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    nodes.give(node, {GPU: "0"}, by="plugin")
    time.sleep(IDLE)
    assert nodes.condition(node) is None

    nodes.give(node, {GPU: "8"}, by="plugin")
    condition = nodes.wait(node, there=True)
    assert (condition["status"], condition["reason"]) == ("True", "GPUsAllocatable")
    before = nodes.of(node)

    nodes.give(node, {GPU: None}, by="plugin")
    nodes.wait(node, there=False)
    after = nodes.of(node)
    assert [c for c in before["conditions"] if c["type"] != READY] == after["conditions"]
    assert nodes.writes(node) == ["patch status"] * 2


def test_it_survives_what_a_kubelet_writes_and_needs_one_write(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    nodes.give(node, {GPU: "8"}, by="plugin")
    first = nodes.wait(node, there=True)

    for beat in range(3):
        moment = f"2030-01-01T00:00:0{beat}Z"
        pressure = {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": moment}
        nodes.patch(node, {"conditions": [pressure], "phase": "Running"}, by="kubelet")
    nodes.give(node, {GPU: "4"}, by="plugin")
    time.sleep(IDLE)

    assert nodes.condition(node) == first
    assert nodes.conditions(node)["DiskPressure"]["lastHeartbeatTime"] == "2030-01-01T00:00:02Z"
    assert nodes.writes(node) == ["patch status"]


@pytest.mark.parametrize("environment", [LOCAL], indirect=True)
def test_it_survives_what_kwok_writes_and_needs_one_write(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    nodes.give(node, {GPU: "8"}, by="plugin")
    first = nodes.wait(node, there=True)

    for _ in range(3):
        nodes.patch(node, {"conditions": [{"type": "Ready", "status": "False"}]}, by="kubelet")
        wait_ready(nodes.cluster.environment, [node])
    time.sleep(IDLE)

    assert nodes.condition(node) == first
    assert nodes.writes(node) == ["patch status"]


@pytest.mark.parametrize("pool", ["fractions-dra", "fractions-mock", "fractions-unknown"])
def test_nodes_of_other_pools_get_none(pool: str, nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, pool)
    (witness,) = pool_nodes({EAST: 1}, "fractions")

    for name in (node, witness):
        nodes.give(name, {GPU: "8"}, by="plugin")

    nodes.wait(witness, there=True)
    assert nodes.condition(node) is None
    assert nodes.writes(node) == []


def test_nodes_that_kwok_does_not_play_have_it_too(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    nodes.cluster.patch("nodes", node, {"metadata": {"annotations": {KWOK_ANNOTATION: None}}})

    nodes.give(node, {GPU: "8"}, by="plugin")

    nodes.wait(node, there=True)


@pytest.mark.parametrize("reason", ["label", "mock", "pool"])
def test_it_goes_with_the_pool_and_takes_nothing_along(
    reason: str, running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes
) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    nodes.give(node, {GPU: "8"}, by="plugin")
    nodes.wait(node, there=True)
    before = nodes.of(node)

    match reason:
        case "label":
            nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})
        case "mock":
            nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: "fractions-mock"}}})
        case "pool":
            write_topology(running.environment, {name: pool for name, pool in POOLS.items() if name != "fractions"})

    nodes.wait(node, there=False)
    assert nodes.of(node) == {**before, "conditions": [c for c in before["conditions"] if c["type"] != READY]}


def test_somebody_elses_condition_is_left_alone_and_reported(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "fractions")
    foreign = {"type": READY, "status": "False", "reason": "Broken", "message": "by another"}
    nodes.patch(node, {"conditions": [foreign]}, by="operator")

    nodes.give(node, {GPU: "8"}, by="plugin")

    event = nodes.cluster.wait_event("ForeignCondition", node, "default")
    assert f"the condition {READY} is False, written by operator, and is left alone" in event["note"]
    nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})
    time.sleep(IDLE)
    assert foreign.items() <= nodes.condition(node).items()
    assert nodes.writes(node) == []


def test_a_restarted_controller_takes_off_what_it_set_and_writes_nothing_else(
    running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes
) -> None:
    stays, leaves = pool_nodes({EAST: 2}, "fractions")
    for node in (stays, leaves):
        nodes.give(node, {GPU: "8"}, by="plugin")
        nodes.wait(node, there=True)
    first = nodes.condition(stays)

    running.stop()
    nodes.give(leaves, {GPU: None}, by="plugin")
    running.start()

    nodes.wait(leaves, there=False)
    assert nodes.condition(stays) == first
    assert nodes.writes(stays) == ["patch status"]
