"""Claims in the shapes of the NVIDIA driver's quick start, MIG included, on slices that this project publishes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from controllers.estate import gpu_id
from hack.localcluster import ControllerProcess, Environment
from tests.integration.conftest import PoolNodes
from tests.integration.estate import estate_controller
from tests.integration.scenario import EAST, Cluster, Manifest

DRIVER = "gpu.nvidia.com"


def pool(profile: str, count: int, **gpu: str) -> Manifest:
    return {"gpu": {"profile": profile, "offered": "dra", "overrides": {"device_count": count}, **gpu}}


POOLS: Manifest = {
    "quick": pool("a100", 2),
    "quick-mig": pool("a100", 2, mig="dynamic"),
    "quick-mig-h100": pool("h100", 1, mig="dynamic"),
    "quick-mig-many": pool("h200", 10, mig="dynamic"),
}


@pytest.fixture(scope="module")
def running(installed: Environment) -> Iterator[ControllerProcess]:
    with estate_controller(installed, "gpu-slices", POOLS, "config/deviceclasses/gpu") as process:
        yield process


@pytest.fixture
def cluster(running: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(running.environment, namespace)


def profile(name: str) -> list[Manifest]:
    return [{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{name}'"}}]


def request(name: str, device_class: str = DRIVER, **more: Any) -> Manifest:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def instance(name: str, of: str) -> Manifest:
    return request(name, "mig.nvidia.com", selectors=profile(of))


def template(cluster: Cluster, name: str, *requests: Manifest, **devices: Any) -> Manifest:
    spec = {"devices": {"requests": list(requests), **devices}}
    metadata = {"name": name, "namespace": cluster.namespace}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": metadata, "spec": {"spec": spec}}


def pod_spec(node: str, *containers: str | None, **claim: str) -> Manifest:
    """A pod whose containers use these requests of its one claim, or all of it."""

    def container(number: int, wanted: str | None) -> Manifest:
        use = {"name": "gpus"} if wanted is None else {"name": "gpus", "request": wanted}
        return {"name": f"ctr{number}", "image": "worker", "resources": {"claims": [use]}}

    return {
        "containers": [container(*item) for item in enumerate(containers)],
        "resourceClaims": [{"name": "gpus", **claim}],
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 0,
    }


def pod(cluster: Cluster, name: str, spec: Manifest) -> Manifest:
    metadata = {"name": name, "namespace": cluster.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def results(cluster: Cluster) -> list[Manifest]:
    """Everything that claims of the namespace were given."""
    return [
        result
        for claim in cluster.list("resourceclaims")
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]


def offered(cluster: Cluster, node: str, slices: int) -> dict[str, Manifest]:
    """The devices of a node by name, once it has so many slices."""

    def complete() -> list[Manifest] | None:
        found = [s["spec"] for s in cluster.list("resourceslices") if s["spec"].get("nodeName") == node]
        own = [spec for spec in found if spec["driver"] == DRIVER]
        return own if len(own) == slices == own[0]["pool"]["resourceSliceCount"] else None

    specs = cluster.wait(complete, lambda: f"{slices} slices of {node}: {cluster.list('resourceslices')}")
    return {device["name"]: device for spec in specs for device in spec.get("devices", [])}


def test_two_containers_of_a_pod_share_a_gpu_of_their_template(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick")
    spec = pod_spec(node, None, None, resourceClaimTemplateName="single")

    cluster.apply(template(cluster, "single", request("gpu")), pod(cluster, "pod", spec))

    cluster.wait_phase("pod", "Running")
    assert len(results(cluster)) == 1


def test_two_pods_share_the_gpu_of_one_claim(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick")
    claim = template(cluster, "shared", request("gpu"))
    claim = {**claim, "kind": "ResourceClaim", "spec": claim["spec"]["spec"]}
    spec = pod_spec(node, None, resourceClaimName="shared")

    cluster.apply(claim, pod(cluster, "first", spec), pod(cluster, "second", spec))

    for name in ("first", "second"):
        cluster.wait_phase(name, "Running")
    assert len(results(cluster)) == 1


def test_configurations_of_the_driver_are_handed_on_with_each_gpu(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick")
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    sharing = {"ts-gpu": {"strategy": "TimeSlicing"}, "mps-gpu": {"strategy": "MPS"}}
    config = [
        {"requests": [name], "opaque": {"driver": DRIVER, "parameters": {**kind, "sharing": how}}}
        for name, how in sharing.items()
    ]
    requests = [request(name) for name in sharing]
    spec = pod_spec(node, *sharing, resourceClaimTemplateName="multiple")

    cluster.apply(template(cluster, "multiple", *requests, config=config), pod(cluster, "pod", spec))

    cluster.wait_phase("pod", "Running")
    (claim,) = cluster.list("resourceclaims")
    devices = claim["status"]["allocation"]["devices"]
    assert len({result["device"] for result in devices["results"]}) == 2
    given = {entry["requests"][0]: entry["opaque"]["parameters"]["sharing"] for entry in devices["config"]}
    assert given == sharing


def test_a_deployment_gets_four_instances_of_one_gpu_for_each_replica(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick-mig")
    known = offered(cluster, node, 3)
    wanted = {"mig-1g-0": "1g.5gb", "mig-1g-1": "1g.5gb", "mig-2g": "2g.10gb", "mig-3g": "3g.20gb"}
    constraint = [{"requests": [], "matchAttribute": f"{DRIVER}/parentUUID"}]
    requests = [instance(name, of) for name, of in wanted.items()]
    spec = pod_spec(node, *wanted, resourceClaimTemplateName="mig-devices")
    labels = {"app": "pod"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pod", "namespace": cluster.namespace},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }

    cluster.apply(template(cluster, "mig-devices", *requests, constraints=constraint), deployment)

    def two_run_and_one_waits() -> bool | None:
        phases = Counter(found["status"].get("phase") for found in cluster.list("pods"))
        return phases == {"Running": 2, "Pending": 1} or None

    cluster.wait(two_run_and_one_waits, lambda: f"two of three replicas to run: {cluster.list('pods')}")
    given = results(cluster)
    by_gpu = Counter(known[result["device"]]["attributes"]["parentUUID"]["string"] for result in given)
    assert by_gpu == {gpu_id(node, 0): 4, gpu_id(node, 1): 4}
    assert_no_overlap(known, [result["device"] for result in given])


def assert_no_overlap(known: dict[str, Manifest], given: list[str]) -> None:
    slices = Counter(
        (use["counterSet"], counter)
        for device in given
        for use in known[device]["consumesCounters"]
        for counter in use["counters"]
        if counter.startswith("memory-slice-")
    )
    assert slices.most_common(1)[0][1] == 1


def test_a_gpu_is_given_away_whole_or_in_parts_and_never_both(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick-mig-h100")
    offered(cluster, node, 2)
    cluster.apply(template(cluster, "whole", request("gpu")), template(cluster, "part", instance("gpu", "1g.10gb")))

    cluster.apply(pod(cluster, "part", pod_spec(node, None, resourceClaimTemplateName="part")))
    cluster.wait_phase("part", "Running")
    cluster.apply(pod(cluster, "whole", pod_spec(node, None, resourceClaimTemplateName="whole")))
    cluster.wait_unschedulable("whole")

    cluster.delete("pods", "part")
    cluster.wait_phase("whole", "Running")
    cluster.apply(pod(cluster, "again", pod_spec(node, None, resourceClaimTemplateName="part")))
    cluster.wait_unschedulable("again")


def test_seven_small_instances_fit_into_a_gpu_and_no_eighth(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick-mig-h100")
    known = offered(cluster, node, 2)
    for count in (7, 1):
        name = f"small-{count}"
        one = instance("gpus", "1g.10gb")
        one["exactly"]["count"] = count
        spec = pod_spec(node, None, resourceClaimTemplateName=name)
        cluster.apply(template(cluster, name, one), pod(cluster, name, spec))
        if count == 7:
            cluster.wait_phase(name, "Running")
    cluster.wait_unschedulable("small-1")
    assert_no_overlap(known, [result["device"] for result in results(cluster)])


def test_counters_of_many_gpus_are_in_several_slices(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick-mig-many")

    known = offered(cluster, node, 12)

    assert len(known) == 260
    cluster.apply(
        template(cluster, "last", instance("gpu", "7g.141gb")),
        pod(cluster, "last", pod_spec(node, None, resourceClaimTemplateName="last")),
    )
    cluster.wait_phase("last", "Running")


def test_an_instance_is_told_from_a_whole_gpu_by_the_class(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1}, "quick-mig")
    offered(cluster, node, 3)

    cluster.apply(
        template(cluster, "whole", request("gpu")),
        pod(cluster, "whole", pod_spec(node, None, resourceClaimTemplateName="whole")),
    )

    # Before Hopper a GPU in MIG mode is on offer in parts alone.
    cluster.wait_unschedulable("whole")
