"""Uninstalling removes from a cluster what the project put there, and nothing of anybody else.

The objects are written here as the controllers write them, under their field managers, so that no controller need run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.localcluster import Environment, make_nodes, wait_ready
from tests.integration.environments import BOTH, started

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = "gpu-mirage/compute-domain"
SLICES = "gpu-mirage/channel-slices"
TOPOLOGIES = "gpu-mirage/node-resource-topology"
STRANGER = "stranger"
KEY = "resource.nvidia.com/computeDomain"
GROUP = "resource.nvidia.com/v1beta1"
UID = "0b5c8a52-6a0e-4c39-9d77-3f2f5d9b7e10"
CLIQUE_A, CLIQUE_B = "5b6d3c1e.0", "5b6d3c1e.1"

Manifest = dict[str, Any]


@pytest.fixture(params=BOTH)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    """A cluster of the test's own, since CRDs go, with everything installed."""
    with started(request.param, tmp_path) as environment:
        environment.kubectl("apply", "--server-side", f"--kustomize={ROOT / 'config' / 'default'}")
        wait_ready(environment, make_nodes(environment, {CLIQUE_A: 3}, prefix="node"))
        yield environment


def write(cluster: Environment, manager: str, manifest: Manifest, *flags: str) -> None:
    arguments = ("apply", "--server-side", f"--field-manager={manager}", "--filename=-", *flags)
    cluster.kubectl(*arguments, input=json.dumps(manifest))


def write_domain(cluster: Environment, name: str, manager: str) -> None:
    """A user's domain that ``manager`` serves."""
    base: Manifest = {"apiVersion": GROUP, "kind": "ComputeDomain", "metadata": {"name": name, "namespace": "default"}}
    spec = {"channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
    write(cluster, "user", {**base, "spec": spec})
    write(cluster, manager, {**base, "metadata": {**base["metadata"], "finalizers": [KEY]}})
    write(cluster, manager, {**base, "status": {"status": "Ready"}}, "--subresource=status")


def write_template(cluster: Environment, name: str, manager: str) -> None:
    request = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
    metadata = {"name": name, "namespace": "default", "labels": {KEY: UID}, "finalizers": [KEY]}
    spec = {"spec": {"devices": {"requests": [request]}}}
    write(
        cluster,
        manager,
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec},
    )


def write_clique(cluster: Environment, clique: str, manager: str) -> None:
    metadata = {"name": f"{UID}.{clique}", "namespace": "gpu-mirage", "labels": {KEY: UID}}
    write(cluster, manager, {"apiVersion": GROUP, "kind": "ComputeDomainClique", "metadata": metadata, "daemons": []})


def write_slice(cluster: Environment, name: str, manager: str) -> None:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "compute-domain.nvidia.com", "nodeName": "node-0-0", "pool": pool, "devices": [{"name": "d"}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    write(cluster, manager, body)


def install_topologies(cluster: Environment) -> None:
    cluster.kubectl("apply", "--server-side", f"--kustomize={ROOT / 'crds' / 'noderesourcetopology'}")
    cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")


def write_topology(cluster: Environment, name: str, manager: str) -> None:
    body = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name}}
    write(cluster, manager, {**body, "zones": [{"name": "node-0", "type": "Node"}]})


def write_lease(cluster: Environment, name: str, manager: str) -> None:
    metadata = {"name": name, "namespace": "gpu-mirage"}
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    write(
        cluster, manager, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    )


def label_node(cluster: Environment, name: str, manager: str) -> None:
    write(cluster, manager, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {KEY: UID}}})


def write_status(cluster: Environment, name: str, manager: str, status: Manifest) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    write(cluster, manager, node, "--subresource=status")


def uninstall(cluster: Environment) -> str:
    command = [sys.executable, "-m", "hack.uninstall", "--yes", f"--kubeconfig={cluster.admin_kubeconfig}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(cluster: Environment, kind: str) -> dict[str, Manifest]:
    listed = cluster.kubectl_json("get", kind, "--all-namespaces")["items"]
    return {item["metadata"]["name"]: item for item in listed}


def essence(item: Manifest) -> Manifest:
    """All of an object but what moves by itself."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return {**item, "metadata": metadata, "status": None} if item["kind"] == "Node" else {**item, "metadata": metadata}


def installed_names(cluster: Environment) -> list[str]:
    kinds = "crd,deviceclass,clusterrole,clusterrolebinding,role,rolebinding,deployment,service,serviceaccount"
    output = cluster.kubectl(
        "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=gpu-mirage", "--output=name"
    )
    return sorted(output.split())


def test_all_that_is_ours_goes_and_what_others_wrote_stays_as_it_was(cluster: Environment) -> None:
    for number, manager in enumerate((CONTROLLER, STRANGER)):
        write_domain(cluster, f"domain-{number}", manager)
        write_template(cluster, f"template-{number}", manager)
        label_node(cluster, f"node-0-{number}", manager)
    write_clique(cluster, CLIQUE_A, CONTROLLER)
    write_clique(cluster, CLIQUE_B, STRANGER)
    write_slice(cluster, "slice-0", SLICES)
    write_slice(cluster, "slice-1", STRANGER)
    install_topologies(cluster)
    write_topology(cluster, "node-0-0", TOPOLOGIES)
    write_topology(cluster, "node-0-1", STRANGER)
    label_node(cluster, "node-0-2", CONTROLLER)
    label_node(cluster, "node-0-2", STRANGER)  # now both own it
    foreign = {
        "computedomain": "domain-1",
        "resourceclaimtemplate": "template-1",
        "computedomainclique": f"{UID}.{CLIQUE_B}",
        "resourceslice": "slice-1",
        "noderesourcetopology": "node-0-1",
        "node": "node-0-1",
    }
    before = {kind: essence(objects(cluster, kind)[name]) for kind, name in foreign.items()}

    printed = uninstall(cluster)

    assert {kind: essence(objects(cluster, kind)[name]) for kind, name in foreign.items()} == before
    assert objects(cluster, "resourceclaimtemplate").keys() == {"template-1"}
    assert objects(cluster, "computedomainclique").keys() == {f"{UID}.{CLIQUE_B}"}
    assert objects(cluster, "resourceslice").keys() == {"slice-1"}
    assert objects(cluster, "noderesourcetopology").keys() == {"node-0-1"}
    ours = objects(cluster, "computedomain")["domain-0"]
    assert ours["spec"]["channel"]["resourceClaimTemplate"] == {"name": "domain-0-channel"}
    assert "status" not in ours
    assert "finalizers" not in ours["metadata"]
    labelled = {name for name, node in objects(cluster, "node").items() if KEY in node["metadata"]["labels"]}
    assert labelled == {"node-0-1", "node-0-2"}
    assert installed_names(cluster) == [
        "customresourcedefinition.apiextensions.k8s.io/computedomaincliques.resource.nvidia.com",
        "customresourcedefinition.apiextensions.k8s.io/computedomains.resource.nvidia.com",
        "customresourcedefinition.apiextensions.k8s.io/noderesourcetopologies.topology.node.k8s.io",
    ]
    left = [line for line in printed.splitlines() if line.startswith("left ")]
    assert left == [
        f"left label {KEY} of Node node-0-2: {STRANGER} owns it too",
        (
            "left CustomResourceDefinition computedomaincliques.resource.nvidia.com: it has objects of others: "
            f"gpu-mirage/{UID}.{CLIQUE_B}; delete them first"
        ),
        (
            "left CustomResourceDefinition computedomains.resource.nvidia.com: it has objects of others: "
            "default/domain-0, default/domain-1; delete them first"
        ),
        (
            "left CustomResourceDefinition noderesourcetopologies.topology.node.k8s.io: it has objects of others: "
            "node-0-1; delete them first"
        ),
        f"left Namespace gpu-mirage: it holds objects of others: ComputeDomainClique gpu-mirage/{UID}.{CLIQUE_B}",
    ]


def test_nodes_lose_the_resources_and_the_condition_that_are_ours_and_no_more(cluster: Environment) -> None:
    before = {name: node["status"] for name, node in objects(cluster, "node").items()}
    resources = {"nvidia.com/gpu": "8", "rdma/hca": "2"}
    given = {"capacity": resources, "allocatable": resources}
    set_condition = {"conditions": [{"type": "gpu-fractioning.nvidia.com/Ready", "status": "True"}]}
    write_status(cluster, "node-0-0", "gpu-mirage/extended-resource", given)
    write_status(cluster, "node-0-0", "gpu-mirage/gpu-fractioning", set_condition)
    write_status(cluster, "node-0-1", STRANGER, {**given, **set_condition})
    theirs = objects(cluster, "node")["node-0-1"]["status"]

    printed = uninstall(cluster)

    after = {name: node["status"] for name, node in objects(cluster, "node").items()}
    assert after == {**before, "node-0-1": theirs}
    assert [line for line in printed.splitlines() if "Node" in line] == [
        "removed condition gpu-fractioning.nvidia.com/Ready from Node node-0-0",
        "removed resource nvidia.com/gpu from Node node-0-0",
        "removed resource rdma/hca from Node node-0-0",
    ]


def test_a_cluster_without_objects_of_users_is_left_with_nothing_of_ours(cluster: Environment) -> None:
    write_clique(cluster, CLIQUE_A, CONTROLLER)
    install_topologies(cluster)
    write_topology(cluster, "node-0-0", TOPOLOGIES)
    write_lease(cluster, "gpu-mirage-all-in-one-shard-1", "gpu-mirage-all-in-one")
    printed = uninstall(cluster)
    assert "left " not in printed
    assert installed_names(cluster) == []
    cluster.kubectl("wait", "--for=delete", "namespace/gpu-mirage", "--timeout=60s")
    assert uninstall(cluster) == ""


def test_objects_of_others_keep_the_namespace_and_crds_that_others_installed_stay(cluster: Environment) -> None:
    cluster.kubectl("create", "configmap", "theirs", "--namespace=gpu-mirage")
    write_lease(cluster, "gpu-mirage-all-in-one", "somebody")
    crd = "crd/computedomains.resource.nvidia.com"
    cluster.kubectl("label", crd, "app.kubernetes.io/managed-by=Helm", "--overwrite")
    printed = uninstall(cluster)
    assert (
        "left Namespace gpu-mirage: it holds objects of others: ConfigMap gpu-mirage/theirs, Lease gpu-mirage/"
        in printed
    )
    assert cluster.kubectl("get", crd, "--output=name").strip().endswith("/computedomains.resource.nvidia.com")
    assert cluster.kubectl("get", "namespace/gpu-mirage", "--output=jsonpath={.status.phase}") == "Active"
