"""Labels and ConfigMaps of the nodes of pools, on a cluster."""

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from controllers.estate import gpu_id
from hack.localcluster import ControllerProcess, Environment
from hack.localcluster.controllers import NAMESPACE
from hack.localcluster.nodes import POOL_LABEL
from tests.integration.conftest import PoolNodes
from tests.integration.estate import estate_controller
from tests.integration.scenario import Cluster, Manifest

CLIQUE = "nvidia.com/gpu.clique"
CLUSTER = "0c7b1d52-3f5e-4a8e-9b0d-5d3c9a1f2e44"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpu-mirage-node-pool"
POOLS: Manifest = {
    "labels-racks": {"gpu": {"profile": "gb200"}, "fabric": {"clusterUUID": CLUSTER, "nodesPerClique": 2}},
    "labels-halls": {"gpu": {"profile": "h100"}},
    "labels-mock": {"gpu": {"profile": "h100", "backend": "mock"}},
    "labels-old": {"gpuProduct": "Tesla-K80", "gpuCount": 2, "gpuMemory": 11441},
}


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "node-pool", POOLS) as process:
        yield process


@pytest.fixture
def cluster(running: ControllerProcess) -> Cluster:
    return Cluster(running.environment, NAMESPACE)


@pytest.fixture
def bare_nodes(pool_nodes: PoolNodes, cluster: Cluster) -> PoolNodes:
    """Makes nodes that nobody has put into a rack."""

    def make(racks: Mapping[str, int], pool: str = "default") -> list[str]:
        names = pool_nodes(racks, pool)
        cluster.environment.kubectl("label", "node", *names, f"{CLIQUE}-")
        return names

    return make


def labels(cluster: Cluster, node: str) -> dict[str, str]:
    found: dict[str, str] = (cluster.get("nodes", node) or {})["metadata"]["labels"]
    return found


def gpu_labels(cluster: Cluster, node: str) -> dict[str, str]:
    return {key: value for key, value in labels(cluster, node).items() if key.startswith("nvidia.com/")}


def wait_label(cluster: Cluster, node: str, key: str, value: str | None) -> None:
    cluster.wait(
        lambda: (labels(cluster, node).get(key) == value) or None,
        lambda: f"{key}={value} on {node}: {labels(cluster, node)}",
    )


def wait_rack(cluster: Cluster, node: str) -> str:
    return cluster.wait(lambda: labels(cluster, node).get(CLIQUE), lambda: f"a rack for {node}")


def topology_of(cluster: Cluster, node: str) -> str | None:
    found = cluster.get("configmaps", f"topology-{node}")
    text: str | None = found["data"]["topology.yml"] if found else None
    return text


def wait_topology(cluster: Cluster, node: str, part: str) -> str:
    return cluster.wait(
        lambda: text if part in (text := topology_of(cluster, node) or "") else None,
        lambda: f"{part!r} in the topology of {node}: {topology_of(cluster, node)}",
    )


def test_nodes_of_a_pool_say_what_gpus_they_have(cluster: Cluster, bare_nodes: PoolNodes) -> None:
    (node,) = bare_nodes({"": 1}, "labels-halls")
    (old,) = bare_nodes({"": 1}, "labels-old")

    text = wait_topology(cluster, node, gpu_id(node, 7))
    wait_label(cluster, node, "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
    wait_label(cluster, old, "nvidia.com/gpu.count", "2")

    assert text.startswith("gpuMemory: 81920\ngpuProduct: NVIDIA H100 80GB HBM3\n")
    assert gpu_labels(cluster, node)["nvidia.com/gpu.memory"] == "81920"
    assert CLIQUE not in labels(cluster, node)


def test_nodes_with_a_driver_mock_get_a_config_map_and_no_labels(cluster: Cluster, bare_nodes: PoolNodes) -> None:
    (node,) = bare_nodes({"": 1}, "labels-mock")
    wait_topology(cluster, node, "H100")
    assert gpu_labels(cluster, node) == {}


def test_racks_are_filled_and_a_new_node_takes_the_place_of_one_that_left(
    cluster: Cluster, bare_nodes: PoolNodes
) -> None:
    nodes = bare_nodes({"": 5}, "labels-racks")
    for node in nodes:
        wait_rack(cluster, node)
    racks = {node: labels(cluster, node)[CLIQUE] for node in nodes}
    assert sorted(Counter(racks.values()).items()) == [(f"{CLUSTER}.0", 2), (f"{CLUSTER}.1", 2), (f"{CLUSTER}.2", 1)]

    left = nodes[0]
    cluster.environment.kubectl("label", "node", left, f"{POOL_LABEL}-")
    wait_label(cluster, left, CLIQUE, None)
    (new,) = bare_nodes({"": 1}, "labels-racks")

    wait_label(cluster, new, CLIQUE, racks[left])
    assert {node: labels(cluster, node)[CLIQUE] for node in nodes[1:]} == {n: racks[n] for n in nodes[1:]}


def test_a_node_that_changes_its_pool_says_so_and_one_that_leaves_says_nothing(
    cluster: Cluster, bare_nodes: PoolNodes
) -> None:
    (node,) = bare_nodes({"": 1}, "labels-racks")
    wait_label(cluster, node, "nvidia.com/gpu.family", "blackwell")
    cluster.environment.kubectl("label", "node", node, "nvidia.com/mine=kept", "example.com/mine=kept")

    cluster.environment.kubectl("label", "node", node, "--overwrite", f"{POOL_LABEL}=labels-old")
    wait_label(cluster, node, "nvidia.com/gpu.product", "Tesla-K80")
    wait_topology(cluster, node, "Tesla-K80")
    assert "nvidia.com/gpu.family" not in labels(cluster, node)
    assert CLIQUE not in labels(cluster, node)

    cluster.environment.kubectl("label", "node", node, f"{POOL_LABEL}-")
    cluster.wait(lambda: topology_of(cluster, node) is None or None, lambda: f"the end of the topology of {node}")
    wait_label(cluster, node, "nvidia.com/gpu.product", None)
    assert gpu_labels(cluster, node) == {"nvidia.com/mine": "kept"}
    assert labels(cluster, node)["example.com/mine"] == "kept"


def test_a_label_that_names_no_pool_is_reported(cluster: Cluster, bare_nodes: PoolNodes) -> None:
    (node,) = bare_nodes({"": 1}, "labels-misspelt")
    event = cluster.wait_event("UnknownPool", node, "default")
    assert "the topology has no pool 'labels-misspelt'" in event["note"]
    assert "labels-halls" in event["note"]
    assert gpu_labels(cluster, node) == {}


def test_labels_of_others_are_left_alone_and_reported(cluster: Cluster, bare_nodes: PoolNodes) -> None:
    (node,) = bare_nodes({"": 1}, "labels-none")
    cluster.environment.kubectl("label", "node", node, "nvidia.com/gpu.product=Real", "nvidia.com/gpu.count=8")

    cluster.environment.kubectl("label", "node", node, "--overwrite", f"{POOL_LABEL}=labels-halls")
    wait_label(cluster, node, "nvidia.com/gpu.family", "hopper")
    event = cluster.wait_event("ForeignLabels", node, "default")
    assert "nvidia.com/gpu.product" in event["note"]
    assert "nvidia.com/gpu.count" not in event["note"]

    cluster.environment.kubectl("label", "node", node, f"{POOL_LABEL}-")
    wait_label(cluster, node, "nvidia.com/gpu.family", None)
    assert gpu_labels(cluster, node) == {"nvidia.com/gpu.product": "Real", "nvidia.com/gpu.count": "8"}


def test_an_estate_at_rest_costs_no_write_and_no_call_is_denied(
    cluster: Cluster, running: ControllerProcess, bare_nodes: PoolNodes
) -> None:
    nodes = bare_nodes({"": 3}, "labels-racks")
    for node in nodes:
        wait_topology(cluster, node, gpu_id(node, 0))
        wait_rack(cluster, node)
    before = [(cluster.get("nodes", n), cluster.get("configmaps", f"topology-{n}")) for n in nodes]

    running.stop()
    running.start()

    calls = [event for event in running.environment.audit_events() if event["user"]["username"] == ACCOUNT]
    assert calls
    assert [event for event in calls if event["responseStatus"]["code"] == 403] == []
    after = [(cluster.get("nodes", n), cluster.get("configmaps", f"topology-{n}")) for n in nodes]
    assert [labels_and_data(*pair) for pair in after] == [labels_and_data(*pair) for pair in before]
    writes = Counter(
        event["objectRef"]["name"]
        for event in calls
        if event["objectRef"]["resource"] == "configmaps" and event["verb"] == "patch"
    )
    assert {writes[f"topology-{node}"] for node in nodes} == {1}


def labels_and_data(node: Manifest | None, config_map: Manifest | None) -> tuple[object, object]:
    assert node is not None
    assert config_map is not None
    return node["metadata"]["labels"], config_map["metadata"]["resourceVersion"]
