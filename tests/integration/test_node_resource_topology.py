"""NodeResourceTopologies on a cluster: published, following the pods, left to others, and taken away."""

import json
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from controllers.node_resource_topology import DECLARATION
from hack.localcluster import ControllerProcess, Environment, delete_nodes, node_manifest, wait_ready
from hack.localcluster.controllers import NAMESPACE
from hack.localcluster.nodes import POOL_LABEL
from tests.integration.conftest import PoolNodes, unique
from tests.integration.estate import estate_controller, write_document, write_topology
from tests.integration.scenario import Cluster, Manifest

KIND = "noderesourcetopologies"
GPU = "nvidia.com/gpu"
QUIET = 1.0  # seconds in which a write would have come
POOLS: Manifest = {
    "numa": {"gpu": {"profile": "h100"}, "numa": {"zones": 2}},
    "numa-uneven": {
        "gpu": {"profile": "h100"},
        "numa": {"zones": 2, "gpusPerZone": [6, 2], "topologyManagerPolicy": "restricted"},
    },
    "numa-whole-pods": {"gpu": {"profile": "h100"}, "numa": {"zones": 2, "topologyManagerScope": "pod"}},
    "numa-dra": {"gpu": {"profile": "h100", "offered": "dra"}, "numa": {"zones": 4}},
    "numa-none": {"gpu": {"profile": "h100"}},
}


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "node-resource-topology", POOLS, "crds/noderesourcetopology") as process:
        yield process


@pytest.fixture
def cluster(running: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(running.environment, namespace)


@pytest.fixture
def made(cluster: Cluster) -> Iterator[list[str]]:
    """Names of nodes that a test makes itself, deleted after it."""
    names: list[str] = []
    yield names
    delete_nodes(cluster.environment, names)


def one_node(pool_nodes: PoolNodes, pool: str) -> str:
    (node,) = pool_nodes({"": 1}, pool=pool)
    return node


def give_gpus(cluster: Cluster, node: str, count: int = 8) -> None:
    """Writes to the status of a node what a device plugin, or a controller in its place, would."""
    resources = {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}
    cluster.patch("nodes", node, {"status": resources}, subresource="status")


def column(topology: Manifest | None, name: str, which: str = "available") -> list[str | None]:
    """One resource in all zones; None where a zone does not list it."""
    zones = (topology or {}).get("zones", [])
    return [next((r[which] for r in zone.get("resources", []) if r["name"] == name), None) for zone in zones]


def wait_column(cluster: Cluster, node: str, name: str, expected: Sequence[str | None]) -> Manifest:
    def reached() -> Manifest | None:
        found = cluster.get(KIND, node)
        return found if column(found, name) == list(expected) else None

    return cluster.wait(reached, lambda: f"{name} {expected} in the zones of {node}: {cluster.get(KIND, node)}")


def gpu_node(cluster: Cluster, pool_nodes: PoolNodes, pool: str, expected: Sequence[str] = ("4", "4")) -> str:
    """A node with eight GPUs whose zones are published."""
    node = one_node(pool_nodes, pool)
    give_gpus(cluster, node)
    wait_column(cluster, node, GPU, expected)
    return node


def pod(cluster: Cluster, node: str, name: str, *gpus: int, cpu: str = "1") -> Manifest:
    """A Guaranteed pod on a node, with a container for each number of GPUs."""
    containers = []
    for index, count in enumerate(gpus):
        wanted = {"cpu": cpu, "memory": "1Gi", **({GPU: str(count)} if count else {})}
        resources = {"requests": wanted, "limits": wanted}
        containers.append({"name": f"c{index}", "image": "worker", "resources": resources})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": containers},
    }


def attributes(topology: Manifest) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in topology["attributes"]}


def stays(cluster: Cluster, node: str) -> bool:
    """Whether nothing writes to a topology for a while."""
    before = cluster.get(KIND, node)
    time.sleep(QUIET)
    return before is not None and cluster.get(KIND, node) == before


# -- zones ------------------------------------------------------------------------------------------------------------


def test_a_node_has_its_zones_and_gets_gpus_in_them_when_they_come(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    node = one_node(pool_nodes, "numa")

    found = wait_column(cluster, node, "cpu", ["32", "32"])
    assert (column(found, "memory"), column(found, GPU)) == (["256Gi", "256Gi"], [None, None])
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": node, "uid": cluster.uid("nodes", node)}
    ]
    assert found["topologyPolicies"] == ["SingleNUMANodeContainerLevel"]

    give_gpus(cluster, node, 7)
    found = wait_column(cluster, node, GPU, ["4", "3"])
    assert column(found, GPU, "capacity") == column(found, GPU, "allocatable") == ["4", "3"]
    assert stays(cluster, node)


def test_pools_differ_in_zones_and_policy(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    uneven = cluster.get(KIND, gpu_node(cluster, pool_nodes, "numa-uneven", ["6", "2"]))
    assert uneven is not None
    assert uneven["topologyPolicies"] == ["RestrictedContainerLevel"]
    assert attributes(uneven)["topologyManagerPolicy"] == "restricted"

    four = wait_column(cluster, one_node(pool_nodes, "numa-dra"), "cpu", ["16"] * 4)
    assert column(four, GPU) == [None] * 4


def test_a_node_with_the_longest_name_has_its_zones(cluster: Cluster, made: list[str]) -> None:
    name = f"{unique()}-" + 244 * "n"
    made.append(name)
    manifest = node_manifest(name, pool="numa")
    manifest["metadata"]["labels"]["kubernetes.io/hostname"] = "long"  # a label's value has 63 characters at most
    cluster.apply(manifest)

    wait_column(cluster, name, "cpu", ["32", "32"])


# -- pods -------------------------------------------------------------------------------------------------------------


def test_pods_lower_what_their_zone_has_and_give_it_back(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    node = gpu_node(cluster, pool_nodes, "numa")
    cluster.apply(pod(cluster, node, "a", 3, cpu="8"))
    wait_column(cluster, node, GPU, ["1", "4"])
    cluster.apply(pod(cluster, node, "b", 3), pod(cluster, node, "c", 1, cpu="500m"))
    found = wait_column(cluster, node, GPU, ["0", "1"])
    assert (column(found, "cpu"), column(found, "memory")) == (["24", "31"], ["254Gi", "255Gi"])
    assert column(found, "cpu", "allocatable") == ["32", "32"]

    cluster.delete("pods", "a")
    found = wait_column(cluster, node, GPU, ["3", "1"])  # and b stays in the other zone
    assert (column(found, "cpu"), column(found, "memory")) == (["32", "31"], ["255Gi", "255Gi"])

    cluster.patch("pods", "b", {"status": {"phase": "Succeeded"}}, subresource="status")
    wait_column(cluster, node, GPU, ["3", "4"])


def test_containers_are_aligned_one_by_one_or_together(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    one_by_one = gpu_node(cluster, pool_nodes, "numa")
    together = gpu_node(cluster, pool_nodes, "numa-whole-pods")

    for node in (one_by_one, together):
        cluster.apply(pod(cluster, node, f"first-{node}", 1))
        wait_column(cluster, node, GPU, ["3", "4"])
        cluster.apply(pod(cluster, node, f"second-{node}", 2, 2))

    wait_column(cluster, one_by_one, GPU, ["1", "2"])
    wait_column(cluster, together, GPU, ["3", "0"])


def test_what_fits_into_no_zone_takes_from_several(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    node = gpu_node(cluster, pool_nodes, "numa-uneven", ["6", "2"])

    cluster.apply(pod(cluster, node, "large", 7))

    wait_column(cluster, node, GPU, ["0", "1"])


def test_a_burst_of_pods_costs_few_writes(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    node = gpu_node(cluster, pool_nodes, "numa")
    before = cluster.get(KIND, node)
    assert before is not None

    cluster.apply(*(pod(cluster, node, f"p{number}", 0) for number in range(40)))
    after = wait_column(cluster, node, "cpu", ["0", "24"])

    # The generation counts the writes that changed something.
    assert after["metadata"]["generation"] - before["metadata"]["generation"] <= 12


def test_a_restart_moves_nobody_and_writes_nothing(
    running: ControllerProcess, cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    node = gpu_node(cluster, pool_nodes, "numa")
    cluster.apply(pod(cluster, node, "a", 4))
    wait_column(cluster, node, GPU, ["0", "4"])
    cluster.apply(pod(cluster, node, "b", 4))
    wait_column(cluster, node, GPU, ["0", "0"])
    cluster.delete("pods", "a")
    before = wait_column(cluster, node, GPU, ["4", "0"])

    running.stop()
    running.start()

    time.sleep(QUIET)
    assert cluster.get(KIND, node) == before


# -- objects of others ------------------------------------------------------------------------------------------------


def foreign(node: str) -> Manifest:
    """A topology as another publisher might write it."""
    resources = [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": 3}]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "zones": [{"name": "node-0", "type": "Node", "resources": resources}],
    }


def test_somebody_elses_topology_is_left_alone_until_it_goes(
    cluster: Cluster, pool_nodes: PoolNodes, made: list[str]
) -> None:
    node = f"node-{unique()}"
    made.append(node)
    cluster.apply(foreign(node))
    before = cluster.get(KIND, node)

    cluster.apply(node_manifest(node, pool="numa"))
    event = cluster.wait_event("ForeignNodeResourceTopology", node, "default")

    assert event["type"] == "Warning"
    assert event["note"].startswith(f"NodeResourceTopology {node} is written by somebody else and is left alone")
    assert cluster.get(KIND, node) == before

    cluster.delete(KIND, node)
    wait_column(cluster, node, "cpu", ["32", "32"])


def test_a_topology_that_somebody_takes_over_is_left_to_them(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    node = one_node(pool_nodes, "numa")
    wait_column(cluster, node, "cpu", ["32", "32"])
    text = json.dumps(foreign(node))

    cluster.environment.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=nfd", "-f", "-", input=text
    )
    cluster.wait_event("ForeignNodeResourceTopology", node, "default")
    cluster.apply(pod(cluster, node, "a", 0))

    assert stays(cluster, node)
    assert column(cluster.get(KIND, node), "cpu", "allocatable") == ["4"]


# -- withdrawal -------------------------------------------------------------------------------------------------------


def leave_pool(cluster: Cluster, node: str) -> None:
    cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})


def go_to_a_pool_without_zones(cluster: Cluster, node: str) -> None:
    cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: "numa-none"}}})


def delete(cluster: Cluster, node: str) -> None:
    cluster.delete("nodes", node)


@pytest.mark.parametrize("change", [leave_pool, go_to_a_pool_without_zones, delete])
def test_the_topology_goes_with_its_reason(
    cluster: Cluster, pool_nodes: PoolNodes, change: Callable[[Cluster, str], None]
) -> None:
    node = one_node(pool_nodes, "numa")
    wait_column(cluster, node, "cpu", ["32", "32"])

    change(cluster, node)

    cluster.wait_gone(KIND, node)


def test_a_change_of_the_topology_takes_zones_from_its_nodes_and_a_mistake_does_not(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    ours, other = one_node(pool_nodes, "numa"), one_node(pool_nodes, "numa-dra")
    wait_column(cluster, ours, "cpu", ["32", "32"])
    wait_column(cluster, other, "cpu", ["16"] * 4)
    try:
        write_document(cluster.environment, "nodePools: [")
        assert stays(cluster, ours)

        write_topology(cluster.environment, {**POOLS, "numa": POOLS["numa-none"]})
        cluster.wait_gone(KIND, ours)
        assert cluster.get(KIND, other) is not None

        write_topology(cluster.environment, POOLS, nodePoolLabelKey="example.com/another-label")
        cluster.wait_gone(KIND, other)
    finally:
        write_topology(cluster.environment, POOLS)
    wait_column(cluster, ours, "cpu", ["32", "32"])


def test_what_ends_while_nobody_runs_is_swept_at_the_start(
    running: ControllerProcess, cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    node = one_node(pool_nodes, "numa")
    wait_column(cluster, node, "cpu", ["32", "32"])

    running.stop()
    leave_pool(cluster, node)
    stranger = f"node-{unique()}"
    cluster.apply(foreign(stranger))
    running.start()

    cluster.wait_gone(KIND, node)
    assert cluster.get(KIND, stranger) is not None
    cluster.delete(KIND, stranger)


def test_a_node_made_again_under_its_name_owns_its_topology(cluster: Cluster, made: list[str]) -> None:
    name = f"node-{unique()}"
    made.append(name)
    cluster.apply(node_manifest(name, pool="numa"))
    wait_ready(cluster.environment, [name])
    wait_column(cluster, name, "cpu", ["32", "32"])

    cluster.environment.kubectl("delete", "node", name)
    cluster.apply(node_manifest(name, pool="numa"))
    uid = cluster.uid("nodes", name)

    def owned() -> bool | None:
        owners = (cluster.get(KIND, name) or {}).get("metadata", {}).get("ownerReferences", [])
        return [owner["uid"] for owner in owners] == [uid] or None

    cluster.wait(owned, lambda: f"{name} to own its topology: {cluster.get(KIND, name)}")


# -- what the audit log says of all of it -----------------------------------------------------------------------------


def test_no_call_is_denied_and_every_right_is_used(running: ControllerProcess) -> None:
    account = f"system:serviceaccount:{NAMESPACE}:{running.account}"
    calls = [event for event in running.environment.audit_events() if event["user"]["username"] == account]

    assert [(event["verb"], event["requestURI"]) for event in calls if event["responseStatus"]["code"] == 403] == []
    used = {(event["objectRef"]["resource"], event["verb"]) for event in calls if "objectRef" in event}
    declared = {(permission.resource, permission.verb) for permission in DECLARATION.everything}
    # An apply that makes an object needs the right to create as well, and Events are written again only after 10 s.
    # Watches that go on need not be in the log yet, and lists stand in for watches that cannot begin with the state.
    unused = {(resource, verb) for resource, verb in declared - used if verb not in {"watch", "list"}}
    assert unused <= {(KIND, "create"), ("events", "patch")}
    assert used <= declared
