"""GPU slices on a cluster: published, kept, changed and taken away, and allocated by the scheduler."""

import json
import time
from collections.abc import Iterator

import pytest

from controllers.estate import gpu_id
from hack.localcluster import ControllerProcess, Environment, delete_nodes, node_manifest
from hack.localcluster.controllers import NAMESPACE
from tests.integration.conftest import PoolNodes, unique
from tests.integration.estate import estate_controller, write_topology
from tests.integration.scenario import EAST, Cluster, Manifest, gpu_pod

DRIVER = "gpu.nvidia.com"
REST = 2.0  # seconds in which a loop of writes would show
POOLS: Manifest = {
    "slices": {"gpu": {"profile": "h100", "offered": "dra"}},
    "slices-small": {"gpu": {"profile": "t4", "offered": "dra", "overrides": {"device_count": 1}}},
    "slices-many": {"gpu": {"profile": "a100", "offered": "dra", "overrides": {"device_count": 130}}},
    "slices-odd": {
        "gpu": {
            "profile": "h100",
            "offered": "dra",
            "overrides": {"device_count": 1, "device_defaults": {"memory": {"total_bytes": 24_564_000_000}}},
        }
    },
    "slices-none": {"gpu": {"profile": "h100", "offered": "extended-resource"}},
}


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "gpu-slices", POOLS, "config/deviceclasses/gpu") as process:
        yield process


@pytest.fixture
def cluster(running: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(running.environment, namespace)


def slices_of(cluster: Cluster, node: str) -> list[Manifest]:
    found = cluster.list("resourceslices")
    own = [entry for entry in found if entry["spec"]["driver"] == DRIVER and entry["spec"].get("nodeName") == node]
    return sorted(own, key=lambda entry: str(entry["metadata"]["name"]))


def wait_devices(cluster: Cluster, node: str, count: int) -> list[Manifest]:
    """Waits until the slices of a node have so many devices in all, and are all that their pool should have."""

    def reached() -> list[Manifest] | None:
        found = slices_of(cluster, node)
        devices = sum(len(entry["spec"]["devices"]) for entry in found)
        whole = all(entry["spec"]["pool"]["resourceSliceCount"] == len(found) for entry in found)
        return found if devices == count and whole else None

    return cluster.wait(reached, lambda: f"{count} devices of {node}: {slices_of(cluster, node)}")


def allocated(cluster: Cluster) -> list[tuple[str, str]]:
    """Pool and device of everything that claims of the namespace have."""
    results = [
        result
        for claim in cluster.list("resourceclaims")
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]
    return sorted((result["pool"], result["device"]) for result in results)


def test_a_node_of_a_dra_pool_gets_its_gpus_and_no_other_node_does(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices")
    (other,) = pool_nodes({EAST: 1}, "slices-none")

    (published,) = wait_devices(cluster, node, 8)

    assert published["metadata"]["ownerReferences"][0]["name"] == node
    uuids = [device["attributes"]["uuid"]["string"] for device in published["spec"]["devices"]]
    assert uuids == [gpu_id(node, index) for index in range(8)]
    assert slices_of(cluster, other) == []


def test_more_gpus_than_a_slice_can_have_are_spread_over_several(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices-many")

    published = wait_devices(cluster, node, 130)

    assert [len(entry["spec"]["devices"]) for entry in published] == [128, 2]


def test_the_scheduler_allocates_as_many_gpus_as_there_are(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices")
    wait_devices(cluster, node, 8)

    cluster.apply(*gpu_pod(cluster.namespace, "six", 6, node))
    cluster.wait_phase("six", "Running")
    cluster.apply(*gpu_pod(cluster.namespace, "four", 4, node))
    cluster.wait_unschedulable("four")
    assert len(allocated(cluster)) == 6

    cluster.delete("pods", "six")
    cluster.wait_phase("four", "Running")
    assert len(allocated(cluster)) == 4


def test_selectors_on_the_drivers_attributes_choose_the_gpu(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (big,) = pool_nodes({EAST: 1}, "slices")
    (small,) = pool_nodes({EAST: 1}, "slices-small")
    wait_devices(cluster, big, 8)
    wait_devices(cluster, small, 1)
    here = f'device.attributes["{DRIVER}"].productName == "NVIDIA T4"'
    memory = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))'
    old = f'device.attributes["{DRIVER}"].cudaComputeCapability.isLessThan(semver("8.0.0"))'

    cluster.apply(*gpu_pod(cluster.namespace, "t4", 1, cel=f"{here} && {old}"))
    cluster.apply(*gpu_pod(cluster.namespace, "h100", 2, cel=memory))
    cluster.apply(*gpu_pod(cluster.namespace, "none", 1, cel=f"{here} && {memory}"))

    assert cluster.wait_phase("t4", "Running")["spec"]["nodeName"] == small
    assert cluster.wait_phase("h100", "Running")["spec"]["nodeName"] == big
    cluster.wait_unschedulable("none")


def test_slices_follow_the_topology_and_stay_where_it_cannot_be_read(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices")
    (before,) = wait_devices(cluster, node, 8)
    changed = {**POOLS, "slices": {"gpu": {"profile": "h100", "offered": "dra", "overrides": {"device_count": 4}}}}
    broken = {**POOLS, "slices": {"gpu": {"profile": "nothing"}}, "slices-small": POOLS["slices"]}
    (other,) = pool_nodes({EAST: 1}, "slices-small")
    wait_devices(cluster, other, 1)
    try:
        write_topology(cluster.environment, changed)
        (after,) = wait_devices(cluster, node, 4)
        assert after["spec"]["pool"]["generation"] == before["spec"]["pool"]["generation"] + 1

        write_topology(cluster.environment, broken)
        wait_devices(cluster, other, 8)
        assert slices_of(cluster, node) == [after]
        cluster.wait_event("InvalidTopology", "topology", NAMESPACE, about="nodePools.slices.gpu.profile")
    finally:
        write_topology(cluster.environment, POOLS)
    wait_devices(cluster, node, 8)


def test_a_deleted_slice_comes_back_and_one_of_a_node_that_leaves_goes(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices")
    (first,) = wait_devices(cluster, node, 8)

    cluster.delete("resourceslices", first["metadata"]["name"])
    cluster.wait(
        lambda: any(entry["metadata"]["uid"] != first["metadata"]["uid"] for entry in slices_of(cluster, node)) or None,
        lambda: f"another slice of {node}: {slices_of(cluster, node)}",
    )

    cluster.environment.kubectl("label", "node", node, "run.ai/simulated-gpu-node-pool-")
    wait_devices(cluster, node, 0)


def test_slices_that_others_made_are_left_alone_and_reported(cluster: Cluster) -> None:
    node = node_manifest(f"node-{unique()}", clique=EAST, pool="slices")
    name = node["metadata"]["name"]
    pool = {"name": name, "generation": 7, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}]}
    metadata = {"name": f"{name}-{DRIVER}"}
    foreign = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    try:
        cluster.apply(foreign)
        (before,) = slices_of(cluster, name)
        cluster.apply(node)
        cluster.wait_event("ForeignResourceSlice", name, "default")
        assert slices_of(cluster, name) == [before]
    finally:
        delete_nodes(cluster.environment, [name])
        cluster.delete("resourceslices", metadata["name"])


def test_sizes_that_the_server_spells_its_own_way_are_written_once(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices-odd")
    (published,) = wait_devices(cluster, node, 1)

    time.sleep(REST)

    assert slices_of(cluster, node) == [published]
    assert published["spec"]["devices"][0]["capacity"]["memory"] == {"value": "24564M"}


def test_one_slice_of_several_that_somebody_takes_over_stops_all_writing_until_it_is_given_back(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices-many")
    _, second = wait_devices(cluster, node, 130)
    taken = {key: second[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": f"{node}-{DRIVER}-1"}}
    taken["spec"]["devices"][0]["attributes"]["mine"] = {"bool": True}
    arguments = ("--server-side", "--force-conflicts", "--field-manager=somebody", "-f", "-")
    cluster.environment.kubectl("apply", *arguments, input=json.dumps(taken))
    cluster.wait_event("ForeignResourceSlice", node, "default")

    def versions() -> list[str]:
        return [entry["metadata"]["resourceVersion"] for entry in slices_of(cluster, node)]

    time.sleep(1.0)
    before = versions()
    time.sleep(REST)
    assert versions() == before

    cluster.delete("resourceslices", taken["metadata"]["name"])
    published = wait_devices(cluster, node, 130)
    assert len({entry["spec"]["pool"]["generation"] for entry in published}) == 1


def test_a_pool_stays_at_rest_beside_a_slice_of_somebody_else(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "slices")
    wait_devices(cluster, node, 8)
    pool = {"name": node, "generation": 5, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": "theirs"}]}
    metadata = {"name": f"{node}-theirs"}
    cluster.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    cluster.wait_event("ForeignResourceSlice", node, "default", about=f"{node}-theirs")

    def newest() -> list[str] | None:
        found = slices_of(cluster, node)
        mine = next(entry for entry in found if entry["metadata"]["name"] != f"{node}-theirs")
        return [e["metadata"]["resourceVersion"] for e in found] if mine["spec"]["pool"]["generation"] > 5 else None

    before = cluster.wait(newest, lambda: f"a newer generation than theirs: {slices_of(cluster, node)}")
    time.sleep(REST)
    assert newest() == before


def test_an_estate_at_rest_costs_no_write_and_no_call_is_denied(
    cluster: Cluster, running: ControllerProcess, pool_nodes: PoolNodes
) -> None:
    nodes = pool_nodes({EAST: 2}, "slices")
    for node in nodes:
        wait_devices(cluster, node, 8)
    account = f"system:serviceaccount:{NAMESPACE}:gpu-mirage-gpu-slices"
    before = [slices_of(cluster, node) for node in nodes]

    running.stop()
    running.start()

    calls = [event for event in running.environment.audit_events() if event["user"]["username"] == account]
    assert [e for e in calls if e["responseStatus"]["code"] == 403] == []
    assert [slices_of(cluster, node) for node in nodes] == before
    creations = [
        event["objectRef"]["name"]
        for event in calls
        if event["responseStatus"]["code"] == 201 and event["objectRef"]["resource"] == "resourceslices"
    ]
    ours = [name for name in creations if name in {f"{node}-{DRIVER}" for node in nodes}]
    assert len(ours) == len(set(ours)) == 2
