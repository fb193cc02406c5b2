"""Extended resources of nodes on a cluster: published, followed, taken away, and used by the scheduler."""

import signal
import time
from collections.abc import Iterator

import pytest

from controllers.estate import quantity
from hack.localcluster import LOCAL, ControllerProcess, Environment, delete_nodes, node_manifest, wait_ready
from hack.localcluster.nodes import KWOK_ANNOTATION, POOL_LABEL
from tests.integration.conftest import PoolNodes, unique
from tests.integration.estate import NodeStatus, estate_controller, write_topology
from tests.integration.scenario import EAST, Cluster, Manifest

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
FIRST = {"cpu": "64", "memory": "512Gi", "pods": "250"}
POOLS: Manifest = {
    "capacity": {"gpu": {"profile": "h100"}, "resources": [{NIC: 1000}]},
    "capacity-small": {"gpu": {"profile": "t4", "overrides": {"device_count": 1}}},
    "capacity-dra": {"gpu": {"profile": "h100", "offered": "dra"}},
    "capacity-mock": {"gpu": {"profile": "h100", "backend": "mock"}},
}
IDLE = 1.0  # seconds in which a controller that had something to write would have written it


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "extended-resource", POOLS) as process:
        yield process


class Nodes(NodeStatus):
    def extended(self, node: str) -> dict[str, int]:
        """The extended resources of a node, which must be the same in both places."""
        status = self.of(node)
        assert status["capacity"].keys() == status["allocatable"].keys()
        assert status["capacity"] == status["allocatable"]
        return {name: int(quantity.parse(text)) for name, text in status["capacity"].items() if "/" in name}

    def wait(self, node: str, wanted: dict[str, int]) -> None:
        self.cluster.wait(
            lambda: self.extended(node) == wanted or None, lambda: f"{wanted} on {node}: {self.extended(node)}"
        )

    def first(self, node: str) -> dict[str, str]:
        """What a node has beside extended resources."""
        return {name: text for name, text in self.of(node)["allocatable"].items() if "/" not in name}


@pytest.fixture
def cluster(running: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(running.environment, namespace)


@pytest.fixture
def nodes(running: ControllerProcess, cluster: Cluster) -> Iterator[Nodes]:
    yield Nodes(cluster, running.account)
    write_topology(running.environment, POOLS)


def test_nodes_get_what_their_pool_offers_in_one_write_and_no_more(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (large,) = pool_nodes({EAST: 1}, "capacity")
    (small,) = pool_nodes({EAST: 1}, "capacity-small")
    others = [*pool_nodes({EAST: 1}, "capacity-dra"), *pool_nodes({EAST: 1}, "capacity-mock")]

    nodes.wait(large, {GPU: 8, NIC: 1000})
    nodes.wait(small, {GPU: 1})

    time.sleep(IDLE)
    assert [nodes.writes(node) for node in (large, small, *others)] == [["patch status"], ["patch status"], [], []]
    assert [nodes.extended(node) for node in others] == [{}, {}]
    assert nodes.first(large) == FIRST


def test_changes_of_the_pool_are_followed(running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity")
    nodes.wait(node, {GPU: 8, NIC: 1000})

    changed = {"gpu": {"profile": "h100", "overrides": {"device_count": 2}}, "resources": [{"example.com/fpga": 3}]}
    write_topology(running.environment, {**POOLS, "capacity": changed})

    nodes.wait(node, {GPU: 2, "example.com/fpga": 3})
    assert nodes.first(node) == FIRST
    assert nodes.writes(node) == ["patch status"] * 2


@pytest.mark.parametrize("reason", ["label", "annotation", "dra", "pool"])
def test_everything_goes_but_what_the_node_was_made_with(
    reason: str, running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes
) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity")
    nodes.wait(node, {GPU: 8, NIC: 1000})
    before = nodes.of(node)

    match reason:
        case "label":
            nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})
        case "annotation":
            nodes.cluster.patch("nodes", node, {"metadata": {"annotations": {KWOK_ANNOTATION: None}}})
        case "dra":
            nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: "capacity-dra"}}})
        case "pool":
            write_topology(running.environment, {name: pool for name, pool in POOLS.items() if name != "capacity"})

    nodes.wait(node, {})
    after = nodes.of(node)
    assert after["capacity"] == after["allocatable"] == FIRST
    assert {**before, "capacity": None, "allocatable": None} == {**after, "capacity": None, "allocatable": None}


def test_a_broken_topology_changes_nothing(running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity")
    (witness,) = pool_nodes({EAST: 1}, "capacity-small")
    nodes.wait(node, {GPU: 8, NIC: 1000})

    small = {"gpu": {"profile": "t4", "overrides": {"device_count": 2}}}
    write_topology(running.environment, {**POOLS, "capacity": {"gpu": {"profile": "none"}}, "capacity-small": small})

    nodes.wait(witness, {GPU: 2})
    assert nodes.extended(node) == {GPU: 8, NIC: 1000}


def test_what_a_device_plugin_gives_is_left_alone_and_reported(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity")
    nodes.wait(node, {GPU: 8, NIC: 1000})

    nodes.give(node, {GPU: "3", "example.com/other": "1"}, by="kubelet")

    event = nodes.cluster.wait_event("ForeignCapacity", node, "default")
    assert event["note"].startswith(f"{GPU} is 3 in the node's status, written by kubelet, and is left alone")
    nodes.wait(node, {GPU: 3, "example.com/other": 1, NIC: 1000})

    nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})
    nodes.wait(node, {GPU: 3, "example.com/other": 1})
    assert nodes.first(node) == FIRST


def test_what_kwok_brings_back_goes_again(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity-small")
    nodes.wait(node, {GPU: 1})
    nodes.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: "capacity-dra"}}})
    nodes.wait(node, {})

    nodes.give(node, {GPU: "1"}, by="kwok")

    nodes.wait(node, {})


def test_a_node_that_is_made_ready_again_keeps_everything(nodes: Nodes, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "capacity")
    nodes.wait(node, {GPU: 8, NIC: 1000})

    nodes.patch(node, {"conditions": [{"type": "Ready", "status": "False"}]}, by="kubelet")

    wait_ready(nodes.cluster.environment, [node])
    time.sleep(IDLE)
    assert nodes.extended(node) == {GPU: 8, NIC: 1000}
    assert nodes.writes(node) == ["patch status"]


def test_nodes_that_say_nothing_of_themselves_get_their_own_resources_first(nodes: Nodes) -> None:
    names = [f"bare-{unique()}-{number}" for number in range(20)]
    manifests = [node_manifest(name, pool="capacity") for name in names]
    for manifest in manifests:
        del manifest["status"]
    try:
        nodes.cluster.apply(*manifests)

        def allocatable() -> dict[str, set[str]]:
            found = {n["metadata"]["name"]: n["status"].get("allocatable", {}) for n in nodes.cluster.list("nodes")}
            return {name: set(found[name]) for name in names}

        nodes.cluster.wait(
            lambda: all(GPU in found for found in allocatable().values()) or None, lambda: f"GPUs: {allocatable()}"
        )
        assert all(found == {"cpu", "memory", "pods", GPU, NIC} for found in allocatable().values()), allocatable()
    finally:
        delete_nodes(nodes.cluster.environment, names)


def test_a_node_with_the_longest_name_gets_its_resources(nodes: Nodes) -> None:
    name = "long-" + 248 * "n"
    manifest = node_manifest(name, pool="capacity")
    manifest["metadata"]["labels"]["kubernetes.io/hostname"] = "long"  # a label's value has 63 characters at most
    try:
        nodes.cluster.apply(manifest)
        nodes.wait(name, {GPU: 8, NIC: 1000})
    finally:
        delete_nodes(nodes.cluster.environment, [name])


def test_what_changes_while_it_is_dead_is_followed_after_its_restart(
    running: ControllerProcess, nodes: Nodes, pool_nodes: PoolNodes
) -> None:
    stays, leaves = pool_nodes({EAST: 2}, "capacity")
    for node in (stays, leaves):
        nodes.wait(node, {GPU: 8, NIC: 1000})

    running.environment.processes.signal(running.name, signal.SIGKILL)
    nodes.cluster.wait(lambda: running.name not in running.environment.processes.running() or None, lambda: "its end")
    nodes.cluster.patch("nodes", leaves, {"metadata": {"labels": {POOL_LABEL: None}}})
    write_topology(running.environment, {**POOLS, "capacity": {"gpu": {"profile": "t4"}}})
    running.start()

    nodes.wait(stays, {GPU: 4})
    nodes.wait(leaves, {})
    assert nodes.first(stays) == nodes.first(leaves) == FIRST


def gpu_pod(namespace: str, name: str, count: int, nodes: list[str]) -> Manifest:
    """A pod for one of some nodes."""
    resources = {"limits": {GPU: str(count)}}
    hostnames = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [hostnames]}]}
    spec = {
        "containers": [{"name": "main", "image": "worker", "resources": resources}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize("environment", [LOCAL], indirect=True)
def test_pods_run_where_enough_is_allocatable_and_wait_where_it_is_not(
    cluster: Cluster, nodes: Nodes, pool_nodes: PoolNodes
) -> None:
    (large,) = pool_nodes({EAST: 1}, "capacity")
    (small,) = pool_nodes({EAST: 1}, "capacity-small")
    (none,) = pool_nodes({EAST: 1}, "capacity-dra")
    nodes.wait(large, {GPU: 8, NIC: 1000})
    nodes.wait(small, {GPU: 1})
    everywhere = [large, small, none]

    cluster.apply(*(gpu_pod(cluster.namespace, f"two-{number}", 2, everywhere) for number in range(5)))

    def placed() -> list[str] | None:
        pods = cluster.list("pods")
        hosts = [pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"]
        return hosts if len(hosts) == 4 else None

    assert cluster.wait(placed, lambda: f"four of five pods to run: {cluster.list('pods')}") == [large] * 4
    cluster.wait(lambda: waiting(cluster), lambda: "the fifth to wait for GPUs")

    cluster.apply(gpu_pod(cluster.namespace, "one", 1, everywhere))
    cluster.wait(lambda: host(cluster, "one") == small or None, lambda: f"a pod on {small}: {cluster.list('pods')}")


def host(cluster: Cluster, pod: str) -> str | None:
    found = cluster.get("pods", pod) or {}
    node: str | None = found.get("spec", {}).get("nodeName")
    return node


def waiting(cluster: Cluster) -> bool | None:
    """Whether just one pod waits, for want of GPUs."""
    conditions = [c for pod in cluster.list("pods") for c in pod["status"].get("conditions", [])]
    messages = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return (len(messages) == 1 and f"Insufficient {GPU}" in messages[0]) or None
