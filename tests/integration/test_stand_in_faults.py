"""The sandbox's stand-in where something goes wrong: lost nodes, restarts in the middle, objects that make no sense."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from controllers.sandbox import Sandbox, SandboxOptions
from controllers.sandbox.stand_in import StandIn
from hack.localcluster import SANDBOX
from tests.contract.conftest import connect
from tests.integration.worlds import TIMEOUT, Manifest, World, running

PROTECTION = "resource.kubernetes.io/delete-protection"
GOODBYE = 0.1  # seconds in which connections that are closed get to end their TLS

T = TypeVar("T")


@pytest.fixture
def world() -> Iterator[World]:
    with running() as api:
        yield made(World(api, f"w{uuid.uuid4().hex[:8]}"))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox without anything behind it."""
    with Sandbox(SandboxOptions()) as found:
        yield found


@pytest.fixture
def alone(sandbox: Sandbox) -> Iterator[World]:
    api = connect(SANDBOX, sandbox.kubeconfig)
    yield made(World(api, f"w{uuid.uuid4().hex[:8]}"))
    api.close()


def made(world: World) -> World:
    world.create("namespaces", {"metadata": {"name": world.name}})
    account = f"/api/v1/namespaces/{world.name}/serviceaccounts/default"
    world.wait(lambda: world.api.get(account).code == 200, "the namespace's service account")
    return world


class Players:
    """Stand-ins that start and end beside a sandbox, in an event loop of their own."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @contextlib.contextmanager
    def playing(self, *, killed: bool = False) -> Iterator[None]:
        """One of them; one that is killed is cancelled wherever it is at the end."""
        stand_in = self._do(self._start())
        try:
            yield
        finally:
            self._do(self._kill(stand_in) if killed else stand_in.close())

    def close(self) -> None:
        self._do(asyncio.sleep(GOODBYE))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT)

    async def _start(self) -> StandIn:
        stand_in = StandIn(self._kubeconfig)
        stand_in.start()
        return stand_in

    async def _kill(self, stand_in: StandIn) -> None:
        assert stand_in._task is not None
        stand_in._task.cancel()
        await asyncio.gather(stand_in._task, return_exceptions=True)
        await stand_in._transport.close()


@pytest.fixture
def players(sandbox: Sandbox) -> Iterator[Players]:
    players = Players(sandbox.kubeconfig)
    yield players
    players.close()


def workers(world: World, replicas: int) -> Manifest:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": world.pod_spec(template="gpu")}
    return {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}


def available(world: World) -> int:
    found = world.get("deployments", "web")
    assert found is not None
    return int(found.get("status", {}).get("availableReplicas", 0))


def test_pods_of_a_node_that_is_deleted_are_replaced_elsewhere(world: World) -> None:
    nodes = world.add_nodes(2)
    world.add_gpus(1)
    world.add_template("gpu")
    world.create("deployments", {"metadata": {"name": "web"}, "spec": workers(world, 1)})
    world.wait(lambda: available(world) == 1, "the first pod")
    (pod,) = world.items("pods")
    lost = pod["spec"]["nodeName"]
    world.add_pod("early", nodeName="comes-later")

    world.delete("nodes", lost)

    world.wait_gone("pods", pod["metadata"]["name"])
    (other,) = set(nodes) - {lost}
    world.wait(lambda: [p for p in world.items("pods") if p["spec"].get("nodeName") == other], "a pod elsewhere")
    world.wait(lambda: len(world.items("resourceclaims")) == 1, "the claim of the lost pod to go")
    assert world.pod("early")["status"]["phase"] == "Pending"


def test_pods_on_a_node_that_is_not_ready_get_no_further_until_it_is(world: World) -> None:
    first, second = world.add_nodes(2)
    world.add_pod("runs", nodeName=first, terminationGracePeriodSeconds=30)
    world.wait_running("runs")
    world.patch("nodes", first, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    world.patch("nodes", first, {"status": {"conditions": [condition]}}, subresource="status")
    world.add_pod("waits", nodeName=first)
    world.add_pod("marker", nodeName=second)
    world.wait_running("marker")
    world.delete("pods", "runs")
    world.add_pod("marker-2", nodeName=second)
    world.wait_running("marker-2")

    assert world.pod("waits")["status"]["phase"] == "Pending"
    assert world.pod("runs")["metadata"]["deletionTimestamp"]
    world.patch("nodes", first, {"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}})
    world.wait_running("waits")
    world.wait_gone("pods", "runs")


def test_half_done_work_of_an_earlier_run_is_completed_or_undone(players: Players, alone: World) -> None:
    world = alone
    with players.playing():
        world.add_nodes(2)
    first, second = world.node(0), world.node(1)
    world.add_gpus(1)
    for name in ("reserved", "orphaned", "stranded"):
        world.add_claim(name)
    reserved = world.add_pod("reserved", claim="reserved")
    stranded = world.add_pod("stranded", claim="stranded")
    unrecorded = world.add_pod("unrecorded", template="gpu")
    world.add_template("gpu")
    world.create("resourceclaims", claim_of(world, unrecorded))
    reserve(world, "reserved", "gpu-0", first, reserved)
    reserve(world, "orphaned", "gpu-0", second, {"metadata": {"name": "gone", "uid": "gone"}})
    world.add_slice("extra", [{"name": "gpu-9"}, {"name": "gpu-8"}], nodeName=first)
    reserve(world, "stranded", "gpu-1", second, stranded)
    world.patch("nodes", second, {"spec": {"unschedulable": True}})

    with players.playing():
        nodes = world.wait_running("reserved", "stranded", "unrecorded")
        world.wait(lambda: not world.claim_status("orphaned").get("allocation"), "the orphaned claim to be released")

    assert nodes == [first] * 3
    assert [r["device"] for r in world.claim_status("reserved")["allocation"]["devices"]["results"]] == ["gpu-0"]
    (entry,) = world.pod("unrecorded")["status"]["resourceClaimStatuses"]
    assert entry["resourceClaimName"] == "made-before"
    assert len(world.items("resourceclaims")) == 4
    orphaned = world.get("resourceclaims", "orphaned")
    assert orphaned is not None
    assert "finalizers" not in orphaned["metadata"]


def claim_of(world: World, pod: Manifest) -> Manifest:
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    annotations = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    return {
        "metadata": {"name": "made-before", "annotations": annotations, "ownerReferences": [owner]},
        "spec": {"devices": {"requests": [world.request()]}},
    }


def reserve(world: World, claim: str, device: str, node: str, pod: Manifest) -> None:
    """Writes what a scheduler writes before it binds a pod."""
    world.patch("resourceclaims", claim, {"metadata": {"finalizers": [PROTECTION]}})
    results = [{"request": "gpu", "driver": world.driver, "pool": node, "device": device}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    status = {"allocation": allocation, "reservedFor": [consumer]}
    world.patch("resourceclaims", claim, {"status": status}, subresource="status")


def test_stand_in_that_is_killed_again_and_again_still_gets_everything_right(players: Players, alone: World) -> None:
    world = alone
    with players.playing():
        world.add_nodes(4)
    world.add_gpus(4, 4)
    world.add_template("gpu")
    world.create("deployments", {"metadata": {"name": "web"}, "spec": workers(world, 16)})
    steps = [0]
    while available(world) < 16 and len(steps) < 30:
        with players.playing(killed=True):
            world.wait(lambda: progress(world) > steps[-1] or available(world) == 16, "some progress")
        steps.append(progress(world))

    assert len(steps) > 2, f"it was not killed often enough to mean something: {steps}"
    with players.playing():
        world.wait(lambda: available(world) == 16, "all pods")
        claims = world.items("resourceclaims")
        devices = {
            (result["pool"], result["device"])
            for claim in claims
            for result in claim["status"]["allocation"]["devices"]["results"]
        }
        assert (len(world.items("pods")), len(claims), len(devices)) == (16, 16, 16)
        world.delete("deployments", "web")
        world.wait(lambda: not world.items("pods") and not world.items("resourceclaims"), "everything to go")


def progress(world: World) -> int:
    """A number that grows with every step of bringing pods up."""
    pods, claims = world.items("pods"), world.items("resourceclaims")
    steps = [len(pods), len(claims), sum("allocation" in claim.get("status", {}) for claim in claims)]
    steps += [sum("nodeName" in pod["spec"] for pod in pods), sum(pod["status"]["phase"] == "Running" for pod in pods)]
    return sum(steps)


def test_one_object_that_makes_no_sense_stops_no_other(world: World) -> None:
    world.add_nodes(2)
    world.add_gpus(1)
    odd = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}]}
    world.add_slice("odd-nodes", [{"name": "x"}], nodeSelector=odd)
    uncompiled = world.add_class("uncompiled", "device.(")
    world.add_claim("uncompiled", world.request(device_class=uncompiled))
    world.add_pod("uncompiled", claim="uncompiled")
    rolling: Manifest = {"rollingUpdate": {"maxSurge": "some%"}}
    world.create("deployments", {"metadata": {"name": "web"}, "spec": {**workers(world, 1), "strategy": rolling}})
    term = {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}, "topologyKey": "world"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.add_pod("misled", affinity=apart, nodeName=world.node(1))

    world.wait_refused("uncompiled", "")
    world.add_claim("good")
    world.add_pod("good", claim="good", limits={"cpu": "1"})

    assert world.wait_running("good", "misled")[1] == world.node(1)
    assert world.wait_refused("uncompiled", "")["reason"] == "SchedulerError"
    assert f"class {uncompiled}: selector #0" in world.wait_refused("uncompiled", "compilation failed")["message"]


def test_kinds_that_are_not_played_say_so(world: World) -> None:
    spec = {key: value for key, value in workers(world, 1).items() if key != "replicas"}
    for kind in ("daemonsets", "statefulsets"):
        world.create(kind, {"metadata": {"name": "web"}, "spec": spec})

    events = world.wait(lambda: found if len(found := world.items("events")) == 2 else None, "both Events")

    assert {(e["involvedObject"]["kind"], e["reason"]) for e in events} == {
        ("DaemonSet", "NotPlayed"),
        ("StatefulSet", "NotPlayed"),
    }
    assert not world.items("pods")


def test_nothing_is_written_once_everything_is_as_it_can_be(world: World) -> None:
    world.add_nodes(2)
    world.add_gpus(1)
    world.add_template("gpu")
    world.create("deployments", {"metadata": {"name": "web"}, "spec": workers(world, 3)})
    template = {"metadata": {}, "spec": world.pod_spec(restartPolicy="Never")}
    world.create("jobs", {"metadata": {"name": "job"}, "spec": {"template": template}})
    world.add_pod("gated", schedulingGates=[{"name": "example.com/gate"}])
    world.add_pod("templateless", template="no-such")
    world.wait(lambda: available(world) == 2, "those pods to run that have a device")
    world.wait(lambda: in_phase(world, "Succeeded"), "the Job's pod")

    seen = [version(world)]
    quiet = world.wait(lambda: settled(world, seen), "a second without a write")

    assert quiet


def in_phase(world: World, phase: str) -> list[Manifest]:
    return [pod for pod in world.items("pods") if pod["status"]["phase"] == phase]


def version(world: World) -> str:
    """The version of everything in the cluster together."""
    found: str = world.api.get("/api/v1/nodes").body["metadata"]["resourceVersion"]
    return found


def settled(world: World, seen: list[str]) -> bool:
    """Whether the version has stayed the same for a second."""
    time.sleep(1.0)
    seen.append(version(world))
    return seen[-1] == seen[-2]


def test_many_pods_fill_many_nodes(world: World) -> None:
    world.add_nodes(20, allocatable={"cpu": "10"})
    labels = {"app": "web"}
    template: dict[str, Any] = {"metadata": {"labels": labels}, "spec": world.pod_spec(limits={"cpu": "1"})}
    spec = {"replicas": 201, "selector": {"matchLabels": labels}, "template": template}
    world.create("deployments", {"metadata": {"name": "web"}, "spec": spec})

    world.wait(lambda: available(world) == 200, "200 pods")

    (left,) = (pod for pod in world.items("pods") if not pod["spec"].get("nodeName"))
    world.wait_refused(left["metadata"]["name"], "0/20 nodes are available: 20 Insufficient cpu.")
