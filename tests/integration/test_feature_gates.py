"""A cluster whose server does not take devices that share counters, before and after that is found out."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hack.localcluster import (
    Binaries,
    ControllerProcess,
    ControlPlane,
    Options,
    delete_nodes,
    install,
    make_nodes,
    wait_ready,
)
from hack.localcluster.controllers import NAMESPACE
from hack.localcluster.polling import wait_until
from tests.integration.estate import estate_controller
from tests.integration.scenario import EAST, Cluster, Manifest
from tests.integration.test_versions import readiness

DRIVER = "gpu.nvidia.com"
POOLS: Manifest = {
    "parts": {"gpu": {"profile": "h100", "offered": "dra", "mig": "dynamic", "overrides": {"device_count": 1}}},
    "whole": {"gpu": {"profile": "h100", "offered": "dra"}},
}


def options(*, counters: bool) -> Options:
    gate = f"--feature-gates=DRAPartitionableDevices={str(counters).lower()}"
    return Options(extra_flags={"kube-apiserver": [gate]})


@dataclass
class Gated:
    """A control plane whose API server is started anew with the gate on or off."""

    control_plane: ControlPlane
    process: ControllerProcess

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.control_plane, "default")

    def switch(self, *, counters: bool) -> None:
        plan = dataclasses.replace(self.control_plane._plan, options=options(counters=counters))
        self.control_plane._plan = plan
        self.control_plane.kill_component("kube-apiserver")
        self.control_plane.start_component("kube-apiserver")
        wait_until(self.process.ready, 60.0, "the controller to be ready again")

    def node(self, pool: str, prefix: str) -> str:
        (name,) = make_nodes(self.control_plane, {EAST: 1}, prefix, pool=pool)
        wait_ready(self.control_plane, [name])
        return name

    def devices(self, node: str) -> int:
        specs = [entry["spec"] for entry in self.cluster.list("resourceslices")]
        own = [spec for spec in specs if spec.get("nodeName") == node and spec["driver"] == DRIVER]
        return sum(len(spec.get("devices", ())) for spec in own)

    def wait_devices(self, node: str, count: int) -> None:
        self.cluster.wait(
            lambda: self.devices(node) == count or None, lambda: f"{count} devices of {node}: {self.devices(node)}"
        )


@pytest.fixture(scope="module")
def gated(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("gates"), options(counters=False))
    with control_plane:
        install(control_plane)
        with estate_controller(control_plane, "gpu-slices", POOLS, "config/deviceclasses/gpu") as process:
            yield Gated(control_plane, process)
    control_plane.remove_state()


def test_partitioned_gpus_are_left_out_and_told_where_the_server_takes_no_counters(gated: Gated) -> None:
    gated.switch(counters=False)
    parts, whole = gated.node("parts", "off-parts"), gated.node("whole", "off-whole")
    try:
        gated.wait_devices(whole, 8)
        event = gated.cluster.wait_event("MigNotSupported", "topology", NAMESPACE, about="nodePools.parts.gpu.mig")
        assert "DRAPartitionableDevices" in event["note"]
        assert gated.devices(parts) == 0
        assert "[+]gpu-slices ok: the server leaves out the counters of devices" in readiness(gated.process)
    finally:
        delete_nodes(gated.control_plane, [parts, whole])


def test_a_server_that_no_longer_takes_counters_is_found_out_and_nothing_is_given_away_twice(gated: Gated) -> None:
    gated.switch(counters=True)
    gated.process.stop()
    gated.process.start()
    nodes = [before := gated.node("parts", "on")]
    try:
        gated.wait_devices(before, 26)
        gated.switch(counters=False)
        nodes.append(after := gated.node("parts", "lost"))
        gated.cluster.wait_event("MigNotSupported", "topology", NAMESPACE, about="nodePools.parts.gpu.mig")
        gated.wait_devices(after, 0)
        gated.cluster.wait(
            lambda: "leaves out the counters" in readiness(gated.process) or None, lambda: readiness(gated.process)
        )
        gated.wait_devices(after, 0)
    finally:
        delete_nodes(gated.control_plane, nodes)


def test_a_class_with_an_extended_resource_as_the_driver_has_it_serves_pods_without_claims(gated: Gated) -> None:
    node = gated.node("whole", "classic")
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "nvidia.com/gpu"}
    metadata = {"name": "gpu.nvidia.com"}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    pod: Manifest = {"containers": [{"name": "main", "image": "worker", **limits}], "terminationGracePeriodSeconds": 0}
    try:
        gated.wait_devices(node, 8)
        gated.cluster.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "classic", "namespace": "default"}, "spec": pod},
        )
        gated.cluster.wait_phase("classic", "Running")
        (claim,) = gated.cluster.list("resourceclaims")
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
    finally:
        delete_nodes(gated.control_plane, [node])
