"""Clusters that serve only older versions of dynamic resource allocation, or none of it."""

import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from hack.localcluster import Binaries, ControllerProcess, ControlPlane, Environment, Options, make_nodes, wait_ready
from hack.localcluster.controllers import REPOSITORY
from hack.localcluster.polling import wait_until
from tests.integration.scenario import EAST, Cluster, Manifest, channel_claim, channel_parameters, domain

VERSIONS = ("v1", "v1beta2", "v1beta1")
NAMESPACE = "default"


def options(*served: str) -> Options:
    """A cluster that serves these versions only."""
    switches = ",".join(f"resource.k8s.io/{version}={str(version in served).lower()}" for version in VERSIONS)
    return Options(
        extra_flags={"kube-apiserver": [f"--runtime-config={switches}"]},
        # The server's own watch of v1 never comes about.
        ready_exclusions=["informer-sync"],
    )


@dataclass
class OldCluster:
    """One control plane; its API server is started anew for each set of versions."""

    control_plane: ControlPlane
    served: tuple[str, ...]

    def serve(self, *versions: str) -> Cluster:
        if versions != self.served:
            plan = dataclasses.replace(self.control_plane._plan, options=options(*versions))
            self.control_plane._plan = plan
            self.control_plane.kill_component("kube-apiserver")
            self.control_plane.start_component("kube-apiserver")
            self.served = versions
            # kubectl must not believe in what the server offered before.
            wait_until(lambda: self._kubectl_knows(versions), 15.0, f"kubectl to know {versions}")
        return Cluster(self.control_plane, NAMESPACE)

    def _kubectl_knows(self, versions: tuple[str, ...]) -> bool:
        found = self.control_plane.kubectl("api-versions").split()
        return {version for version in VERSIONS if f"resource.k8s.io/{version}" in found} == set(versions)


@pytest.fixture(scope="module")
def old_cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldCluster]:
    served = ("v1beta2", "v1beta1")
    control_plane = ControlPlane(tmp_path_factory.mktemp("versions"), options(*served))
    with control_plane:
        install_without_device_classes(control_plane)
        make_nodes(control_plane, {EAST: 2}, "node")
        wait_ready(control_plane, ["node-0-0", "node-0-1"])
        yield OldCluster(control_plane, served)
    control_plane.remove_state()


@pytest.fixture
def controller(old_cluster: OldCluster) -> Iterator[ControllerProcess]:
    """A controller that is not started yet."""
    process = ControllerProcess(old_cluster.control_plane)
    yield process
    process.stop()


def install_without_device_classes(control_plane: ControlPlane) -> None:
    """What config/default has, as far as every cluster can take it: its DeviceClasses are v1."""
    rendered = control_plane.kubectl("kustomize", str(REPOSITORY / "config/default"))
    left_out = {"DeviceClass", "Deployment"}
    manifests = [manifest for manifest in yaml.safe_load_all(rendered) if manifest["kind"] not in left_out]
    listing = {"apiVersion": "v1", "kind": "List", "items": manifests}
    control_plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listing))
    control_plane.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")


def readiness(controller: ControllerProcess) -> str:
    """What ``/readyz?verbose`` says, "" while nobody answers."""
    try:
        with urllib.request.urlopen(f"{controller.health}/readyz?verbose", timeout=2.0) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        return ""


def request_of(template: Manifest, version: str) -> Manifest:
    """The request in a template, in the form of its version."""
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    wanted: Manifest = request if version == "v1beta1" else request["exactly"]
    return {key: wanted[key] for key in ("deviceClassName", "allocationMode", "count")}


@pytest.mark.parametrize(
    ("served", "version"), [(("v1beta2", "v1beta1"), "v1beta2"), (("v1beta1",), "v1beta1")], ids=["v1beta2", "v1beta1"]
)
def test_the_best_served_version_is_used_from_slice_to_ready(
    served: tuple[str, ...], version: str, old_cluster: OldCluster, controller: ControllerProcess
) -> None:
    cluster = old_cluster.serve(*served)
    name = f"domain-{version}"
    controller.start()

    cluster.apply(domain(NAMESPACE, name, nodes=2))
    cluster.wait_status("NotReady", name)
    template = cluster.get("resourceclaimtemplates", f"{name}-channel")
    assert template is not None
    assert template["apiVersion"] == f"resource.k8s.io/{version}"
    assert {entry["apiVersion"] for entry in template["metadata"]["ownerReferences"]} == {"resource.nvidia.com/v1beta1"}
    assert request_of(template, version) == {
        "deviceClassName": "compute-domain-default-channel.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 1,
    }

    uid = cluster.uid("computedomains", name)
    for node in ("node-0-0", "node-0-1"):
        claim = channel_claim(NAMESPACE, f"{name}-{node}", channel_parameters(uid), version=version)
        cluster.allocate(claim, node)
    status = cluster.wait_status("Ready", name, members=2)
    assert [(entry["name"], entry["cliqueID"]) for entry in status["nodes"]] == [("node-0-0", EAST), ("node-0-1", EAST)]

    slices = cluster.list("resourceslices")
    assert {entry["spec"]["nodeName"] for entry in slices} == {"node-0-0", "node-0-1"}
    assert [[device["name"] for device in entry["spec"]["devices"]] for entry in slices] == [
        ["channel-0", "daemon-0"]
    ] * 2
    assert versions_written(cluster.environment, f"{name}-channel") == {version}

    cluster.delete("computedomains", name)
    cluster.wait(lambda: not cluster.leftovers(name, uid) or None, lambda: f"the end of {cluster.leftovers(name, uid)}")


def versions_written(environment: Environment, template: str) -> set[str]:
    """The versions in which our account wrote a template."""
    return {
        event["objectRef"]["apiVersion"]
        for event in environment.audit_events()
        if event["user"]["username"] == "system:serviceaccount:gpu-mirage:gpu-mirage-compute-domain"
        and event.get("objectRef", {}).get("resource") == "resourceclaimtemplates"
        and event["objectRef"].get("name") == template
        and event["verb"] in ("create", "patch", "delete")
    }


def test_without_any_version_the_controller_says_so_and_waits_and_begins_when_there_is_one(
    old_cluster: OldCluster, controller: ControllerProcess
) -> None:
    old_cluster.serve()
    controller.start(wait=False)
    reason = "[-]dra failed: the cluster serves none of v1, v1beta2, v1beta1 of resource.k8s.io: switch DRA on"
    wait_until(lambda: reason in readiness(controller), 15.0, "a readiness that names what is missing")
    assert not controller.ready()
    assert controller.environment.processes.exit_code(controller.name) is None

    cluster = old_cluster.serve("v1beta1")
    wait_until(controller.ready, 30.0, "the controller's start once a version is served")
    cluster.apply(domain(NAMESPACE, "late", nodes=1))
    cluster.wait_status("NotReady", "late")
    assert cluster.get("resourceclaimtemplates", "late-channel") is not None
