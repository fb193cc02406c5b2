"""What becomes of pods, claims, Deployments and Jobs, on the sandbox's stand-in as on a real control plane."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from hack.localcluster import LOCAL, SANDBOX, Environment, SandboxEnvironment
from tests.contract.api_server import ApiServer
from tests.contract.conftest import connect
from tests.integration.worlds import Manifest, World, gpu, scheduled

NOT_READY = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
ACCOUNT_TIMEOUT = 30.0  # seconds until a new namespace must have its service account


@pytest.fixture(scope="module")
def api(environment: Environment) -> Iterator[ApiServer]:
    name = SANDBOX if isinstance(environment, SandboxEnvironment) else LOCAL
    found = connect(name, environment.admin_kubeconfig)
    yield found
    found.close()


@pytest.fixture
def world(api: ApiServer) -> Iterator[World]:
    world = World(api, f"w{uuid.uuid4().hex[:8]}")
    world.create("namespaces", {"metadata": {"name": world.name}})
    # Pods are refused before their account exists.
    end = time.monotonic() + ACCOUNT_TIMEOUT
    while api.get(f"/api/v1/namespaces/{world.name}/serviceaccounts/default").code != 200:
        assert time.monotonic() < end, f"namespace {world.name} got no service account"
        time.sleep(0.02)
    yield world
    # Nobody waits for it to go; its nodes stay so that its pods can.
    world.delete("namespaces", world.name)


def only_on(node: str) -> Manifest:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def opaque(world: World, value: str) -> Manifest:
    return {"opaque": {"driver": world.driver, "parameters": {"value": value}}}


def result(world: World, request: str, device: str, pool: str, **fields: Any) -> Manifest:
    return {"request": request, "driver": world.driver, "pool": pool, "device": device, **fields}


# -- pods -------------------------------------------------------------------------------------------------------------


def test_pod_runs_with_the_conditions_and_containers_of_a_pod_on_kwok(world: World) -> None:
    world.add_nodes(1)
    world.add_pod("plain", initContainers=[{"name": "first", "image": "setup"}])

    world.wait_running("plain")
    status = world.pod("plain")["status"]

    assert [entry["type"] for entry in status["conditions"]] == [
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    assert {entry["status"] for entry in status["conditions"]} == {"True"}
    (container,), (first,) = status["containerStatuses"], status["initContainerStatuses"]
    assert (container["name"], container["ready"], *container["state"]) == ("main", True, "running")
    assert (first["name"], first["ready"], first["state"]["terminated"]["reason"]) == ("first", True, "Completed")
    assert status["podIP"] == status["podIPs"][0]["ip"]
    assert status["hostIP"] == status["hostIPs"][0]["ip"]


def test_pod_with_a_node_runs_there_past_the_scheduler_and_others_are_left_alone(world: World) -> None:
    (node,) = world.add_nodes(1)
    world.add_pod("preset", nodeName=node)
    world.add_pod("foreign", schedulerName="another")
    world.add_pod("gated", schedulingGates=[{"name": "example.com/gate"}])
    world.add_pod("last")

    world.wait_running("preset", "last")
    gated = world.wait(lambda: scheduled(world.pod("gated")), "the gated pod to know it")

    assert scheduled(world.pod("preset")) == {}
    assert scheduled(world.pod("foreign")) == {}
    assert gated["reason"] == "SchedulingGated"
    world.patch("pods", "gated", {"spec": {"schedulingGates": None}})
    world.wait_running("gated")


def test_reasons_of_all_nodes_are_counted_in_condition_and_event(world: World) -> None:
    world.add_nodes(2, allocatable={"example.com/gpu": "1"})
    world.add_pod("one", limits={"example.com/gpu": "1"})
    world.wait_running("one")
    world.add_pod("large", limits={"example.com/gpu": "2"})
    world.add_pod("wide", limits={"cpu": "9"})

    refused = world.wait_refused("large", "2 Insufficient example.com/gpu")
    world.wait_refused("wide", "2 Insufficient cpu")

    assert (refused["status"], refused["reason"]) == ("False", "Unschedulable")
    event = world.wait(
        lambda: next((e for e in world.items("events") if e["involvedObject"]["name"] == "large"), None), "an Event"
    )
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "FailedScheduling", "Scheduling")
    assert "2 Insufficient example.com/gpu" in event["message"]
    world.delete("pods", "one")
    world.add_pod("two", limits={"example.com/gpu": "1"})
    world.add_pod("three", limits={"example.com/gpu": "1"})
    assert len(set(world.wait_running("two", "three"))) == 2


def test_nothing_new_comes_to_a_node_that_is_cordoned_tainted_or_not_ready(world: World) -> None:
    first, second, third = world.add_nodes(3)
    world.add_pod("there", nodeName=third)
    world.wait_running("there")
    world.patch("nodes", first, {"spec": {"unschedulable": True}})
    world.patch("nodes", second, {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}})
    world.patch("nodes", third, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
    world.patch("nodes", third, {"status": {"conditions": [NOT_READY]}}, subresource="status")
    world.wait(lambda: taints(world, first) == {"node.kubernetes.io/unschedulable"}, "the taint of a cordoned node")
    world.wait(lambda: "node.kubernetes.io/not-ready" in taints(world, third), "the taint of a node that is not ready")

    world.add_pod("waits")
    message = world.wait_refused("waits", "untolerated taint")["message"]
    world.add_pod("bears", tolerations=[{"key": "k", "operator": "Exists"}])

    assert "1 node(s) were unschedulable" in message
    assert "2 node(s) had untolerated taint(s)" in message
    assert world.wait_running("bears") == [second]
    world.patch("nodes", first, {"spec": {"unschedulable": None}})
    assert world.wait_running("waits") == [first]
    world.wait(lambda: not taints(world, first), "the taint to go")


def taints(world: World, node: str) -> set[str]:
    found = world.get("nodes", node)
    assert found is not None
    return {taint["key"] for taint in found["spec"].get("taints", []) if taint["effect"] == "NoSchedule"}


def test_pod_that_waits_goes_at_once_when_it_is_deleted(world: World) -> None:
    world.add_pod("never")
    world.wait_refused("never", "nodes")

    world.delete("pods", "never")

    world.wait_gone("pods", "never")


def test_anti_affinity_and_spreading_keep_pods_apart(world: World) -> None:
    world.add_nodes(2)
    term = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "kubernetes.io/hostname"}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for number in range(3):
        world.add_pod(f"apart-{number}", labels={"app": "apart"}, affinity=alone)
        if number < 2:
            world.wait_running(f"apart-{number}")

    world.wait_refused("apart-2", "didn't match pod anti-affinity rules")

    assert len(set(world.wait_running("apart-0", "apart-1"))) == 2


# -- claims -----------------------------------------------------------------------------------------------------------


def test_claim_from_a_template_is_made_allocated_and_goes_with_its_pod(world: World) -> None:
    world.add_nodes(1)
    world.add_gpus(1, nodes=1)
    world.add_pod("worker", template="late")
    world.add_pod("other", template="late")
    world.add_template("late")

    (running,) = world.wait(
        lambda: [p for p in world.items("pods") if p["status"]["phase"] == "Running"], "a pod to run"
    )
    (waiting,) = (pod for pod in world.items("pods") if pod["status"]["phase"] == "Pending")
    world.wait_refused(waiting["metadata"]["name"], "1 cannot allocate all claims")
    (entry,) = running["status"]["resourceClaimStatuses"]
    claim = world.get("resourceclaims", entry["resourceClaimName"])
    assert claim is not None
    metadata = claim["metadata"]
    assert entry["name"] == "gpu"
    assert metadata["name"].startswith(f"{running['metadata']['name']}-gpu-")
    assert metadata["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert metadata["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", running["metadata"]["uid"], True)
    consumer = {"resource": "pods", "name": running["metadata"]["name"], "uid": running["metadata"]["uid"]}
    assert claim["status"]["reservedFor"] == [consumer]
    world.delete("pods", running["metadata"]["name"])
    world.wait_running(waiting["metadata"]["name"])
    world.wait_gone("resourceclaims", metadata["name"])


def in_phase(world: World, phase: str) -> list[Manifest]:
    return [pod for pod in world.items("pods") if pod["status"]["phase"] == phase]


def test_allocation_has_the_shape_that_drivers_read(world: World) -> None:
    (node,) = world.add_nodes(1)
    world.add_class(config=[opaque(world, "class")])
    plain = world.add_class("plain", "device.attributes['numa.example.com'].node == 1")
    world.add_slice(node, [gpu(index) for index in range(6)], nodeName=node)
    alternatives = [
        {"name": "many", "deviceClassName": world.name, "count": 9},
        {"name": "some", "deviceClassName": world.name, "count": 2, "tolerations": [{"operator": "Exists"}]},
    ]
    config = [
        {"requests": ["a"], **opaque(world, "a")},
        {"requests": ["a/many"], **opaque(world, "many")},
        opaque(world, "all"),
        {"requests": ["b", "a"], **opaque(world, "both")},
    ]
    world.add_claim("rich", {"name": "a", "firstAvailable": alternatives}, world.request("b", plain), config=config)
    world.add_claim("simple", config=[{"requests": ["gpu"], **opaque(world, "own")}])
    world.add_pod("rich", claim="rich")
    world.wait_running("rich")
    world.add_pod("simple", claim="simple")

    rich, simple = world.wait_allocated("rich"), world.wait_allocated("simple")

    bears = {"tolerations": [{"operator": "Exists"}]}
    assert rich["devices"]["results"] == [
        result(world, "a/some", "gpu-0", node, **bears),
        result(world, "a/some", "gpu-1", node, **bears),
        result(world, "b", "gpu-2", node),
    ]
    assert rich["devices"]["config"] == [
        {"source": "FromClass", "requests": ["a/some"], **opaque(world, "class")},
        {"source": "FromClaim", "requests": ["a"], **opaque(world, "a")},
        {"source": "FromClaim", **opaque(world, "all")},
        {"source": "FromClaim", **opaque(world, "both")},
    ]
    assert rich["nodeSelector"] == only_on(node)
    assert simple == {
        "devices": {
            "results": [result(world, "gpu", "gpu-3", node)],
            "config": [
                {"source": "FromClass", **opaque(world, "class")},
                {"source": "FromClaim", **opaque(world, "own")},
            ],
        },
        "nodeSelector": only_on(node),
    }


def test_devices_that_several_nodes_reach_leave_that_choice_open(world: World) -> None:
    _, second = world.add_nodes(2)
    here = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "world", "operator": "In", "values": [world.name]}]}]}
    world.add_class()
    world.add_slice("all", [{"name": "any"}], allNodes=True)
    world.add_claim("all")
    world.add_pod("all", claim="all")
    everywhere = world.wait_allocated("all")
    world.add_slice("some", [{"name": "some"}], nodeSelector=here)
    world.add_claim("some")
    world.add_pod("some", claim="some")
    selected = world.wait_allocated("some")
    own: Manifest = {"name": "own", "nodeName": second}
    world.add_slice("mixed", [own, {"name": "open", "nodeSelector": here}], perDeviceNodeSelection=True)
    world.add_claim("mixed", world.request(count=2))
    world.add_pod("mixed", claim="mixed")
    mixed = world.wait_allocated("mixed")

    assert everywhere == {"devices": {"results": [result(world, "gpu", "any", "all")]}}
    assert selected["nodeSelector"] == here
    assert mixed["nodeSelector"] == only_on(second)
    assert world.wait_running("mixed") == [second]
    world.wait_running("all", "some")


def test_shared_claim_draws_its_pods_to_one_node_and_is_given_back_by_the_last(world: World) -> None:
    world.add_nodes(2)
    world.add_gpus(1)
    world.add_claim("shared")
    for name in ("one", "two", "three"):
        world.add_pod(name, claim="shared")
    nodes = world.wait_running("one", "two", "three")
    (elsewhere,) = {world.node(0), world.node(1)} - set(nodes)
    world.add_pod("elsewhere", claim="shared", nodeSelector={"kubernetes.io/hostname": elsewhere})
    world.wait_refused("elsewhere", "resourceclaim not available on the node")
    world.delete("pods", "elsewhere")

    assert len(set(nodes)) == 1
    consumers = world.claim_status("shared")["reservedFor"]
    assert {consumer["name"] for consumer in consumers} == {"one", "two", "three"}
    for name in ("one", "two"):
        world.delete("pods", name)
    world.wait(lambda: len(world.claim_status("shared")["reservedFor"]) == 1, "two consumers to go")
    assert world.claim_status("shared")["allocation"]
    world.delete("resourceclaims", "shared")
    world.delete("pods", "three")
    world.wait_gone("resourceclaims", "shared")


def test_constraints_selectors_and_modes_decide_which_devices_are_taken(world: World) -> None:
    (node,) = world.add_nodes(1)
    world.add_class()
    tainted = gpu(4, taints=[{"key": "sick", "effect": "NoSchedule"}])
    world.add_slice(node, [*(gpu(index) for index in range(4)), tainted], nodeName=node)
    d = world.driver
    first = [{"cel": {"expression": f"device.attributes['{d}'].index == 0"}}]
    able = (
        f"device.capacity['{d}'].memory.compareTo(quantity('64Gi')) > 0 && "
        f"device.attributes['{d}'].version.isGreaterThan(semver('500.0.0')) && device.attributes['{d}'].index == 1"
    )
    world.add_claim("first", world.request(selectors=first))
    world.add_pod("first", claim="first")
    world.wait_running("first")
    constraint = {"requests": ["gpu"], "matchAttribute": "numa.example.com/node"}
    world.add_claim("pair", world.request(count=2), constraints=[constraint])
    world.add_pod("pair", claim="pair")
    world.wait_running("pair")
    world.add_claim("able", world.request(selectors=[{"cel": {"expression": able}}]))
    world.add_pod("able", claim="able")
    world.wait_running("able")
    world.add_claim("sick", world.request())
    world.add_pod("sick", claim="sick")
    world.wait_refused("sick", "cannot allocate all claims")

    assert devices(world, "first") == ["gpu-0"]
    assert devices(world, "pair") == ["gpu-2", "gpu-3"]
    assert devices(world, "able") == ["gpu-1"]
    world.add_claim("all", world.request(allocationMode="All", tolerations=[{"key": "sick", "operator": "Exists"}]))
    world.add_pod("all", claim="all")
    world.wait_refused("all", "cannot allocate all claims")
    # Were it the last, it could still get what the others give back.
    for name in ("sick", "first", "pair", "able"):
        world.delete("pods", name)
    world.wait_running("all")
    assert devices(world, "all") == [f"gpu-{index}" for index in range(5)]


def devices(world: World, claim: str) -> list[str]:
    return [entry["device"] for entry in world.wait_allocated(claim)["devices"]["results"]]


def test_pool_offers_its_newest_generation_once_that_is_complete(world: World) -> None:
    (node,) = world.add_nodes(1)
    world.add_class()
    world.add_claim("claim")
    old = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    new = {"name": "pool", "generation": 2, "resourceSliceCount": 2}
    # The older one last: who sees that, has seen the newer one, too.
    world.add_slice("new", [{"name": "new"}], nodeName=node, pool=new)
    world.add_slice("old", [{"name": "old"}], nodeName=node, pool=old)
    world.add_pod("worker", claim="claim")
    world.wait_refused("worker", "cannot allocate all claims")
    world.add_slice("rest", [{"name": "rest"}], nodeName=node, pool=new)

    assert devices(world, "claim") in (["new"], ["rest"])


def test_selector_that_fails_stops_only_its_own_pod_and_says_why(world: World) -> None:
    world.add_nodes(1)
    world.add_gpus(1, nodes=1)
    broken = world.add_class("broken", f"device.attributes['{world.driver}'].nothing == 1")
    world.add_claim("broken", world.request(device_class=broken))
    world.add_claim("missing", world.request(device_class="no-such-class"))
    world.add_pod("broken", claim="broken")
    world.add_pod("missing", claim="missing")
    world.add_claim("good")

    failed = world.wait_refused("broken", "CEL runtime error: no such key: nothing")
    missing = world.wait_refused("missing", "device class no-such-class does not exist")
    world.add_pod("good", claim="good")

    assert failed["reason"] == "SchedulerError"
    assert f"class {broken}: selector #0 on device {world.driver}/{world.node(0)}/gpu-0" in failed["message"]
    assert missing["reason"] == "Unschedulable"
    world.wait_running("good")


# -- Deployments and Jobs ---------------------------------------------------------------------------------------------


def deployment(world: World, image: str = "one", replicas: int = 4, template: str = "", **spec: Any) -> Manifest:
    """The part of a Deployment that tests change."""
    pod = world.pod_spec(template=template)
    pod["containers"][0]["image"] = image
    labels = {"app": "web"}
    whole = {"metadata": {"labels": labels}, "spec": pod}
    return {"replicas": replicas, "selector": {"matchLabels": labels}, "template": whole, **spec}


def wait_rolled_out(world: World, replicas: int) -> Manifest:
    """Waits until a Deployment has only pods of its present template, all of them available."""

    def done() -> Manifest | None:
        found = world.get("deployments", "web")
        assert found is not None
        status = found["status"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")]
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return found if current and counts == [replicas] * 4 else None

    return world.wait(done, f"{replicas} replicas")


def test_deployment_grows_shrinks_and_rolls_over_with_devices_for_no_more_pods(world: World) -> None:
    world.add_nodes(2)
    world.add_gpus(2)
    world.add_template("gpu")
    world.create("deployments", {"metadata": {"name": "web"}, "spec": deployment(world, template="gpu")})
    first = wait_rolled_out(world, 4)
    world.patch("deployments", "web", {"spec": deployment(world, "two", template="gpu")})
    second = wait_rolled_out(world, 4)

    assert [set(found["status"]) for found in (first, second)] == [
        {
            *("availableReplicas", "conditions", "observedGeneration", "readyReplicas", "replicas"),
            *("terminatingReplicas", "updatedReplicas"),
        }
    ] * 2
    conditions = {entry["type"]: (entry["status"], entry["reason"]) for entry in second["status"]["conditions"]}
    assert conditions == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert second["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    sizes = world.wait(lambda: rolled_over(world), "the old ReplicaSet to be empty")
    assert sizes == {"1": 0, "2": 4}
    assert {pod["spec"]["containers"][0]["image"] for pod in alive(world)} == {"two"}
    for replicas in (1, 3, 0):
        world.patch("deployments", "web", {"spec": {"replicas": replicas}})
        world.wait(lambda: len(alive(world)) == replicas, f"{replicas} pods")  # noqa: B023
        world.wait(lambda: len(world.items("resourceclaims")) == replicas, f"{replicas} claims")  # noqa: B023
    world.delete("deployments", "web")
    world.wait(lambda: not world.items("replicasets"), "the ReplicaSets to go")


def rolled_over(world: World) -> dict[str, int] | None:
    sets = world.items("replicasets")
    sizes = {s["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: s["status"]["replicas"] for s in sets}
    return sizes if sizes.get("1") == 0 else None


def alive(world: World) -> list[Manifest]:
    return [pod for pod in world.items("pods") if "deletionTimestamp" not in pod["metadata"]]


def test_recreated_and_paused_deployments(world: World) -> None:
    world.add_nodes(1)
    spec = deployment(world, replicas=2, strategy={"type": "Recreate", "rollingUpdate": None})
    world.create("deployments", {"metadata": {"name": "web"}, "spec": spec})
    wait_rolled_out(world, 2)
    world.patch("deployments", "web", {"spec": {"paused": True, "template": deployment(world, "two")["template"]}})
    world.patch("deployments", "web", {"spec": {"replicas": 3}})
    world.wait(lambda: len(alive(world)) == 3, "a paused Deployment to grow")
    paused = world.get("deployments", "web")
    assert paused is not None
    conditions = {entry["type"]: (entry["status"], entry["reason"]) for entry in paused["status"]["conditions"]}
    assert conditions["Progressing"] == ("Unknown", "DeploymentPaused")
    assert {pod["spec"]["containers"][0]["image"] for pod in alive(world)} == {"one"}

    world.patch("deployments", "web", {"spec": {"paused": None}})

    wait_rolled_out(world, 3)
    assert {pod["spec"]["containers"][0]["image"] for pod in alive(world)} == {"two"}


def job(world: World, **spec: Any) -> Manifest:
    template = {"metadata": {}, "spec": world.pod_spec(restartPolicy="Never", template=spec.pop("template", ""))}
    return {"template": template, **spec}


def test_jobs_end_as_their_kind_does_and_give_back_what_they_had(world: World) -> None:
    world.add_nodes(1)
    world.add_gpus(2, nodes=1)
    world.add_template("gpu")
    jobs = {
        "indexed": job(world, completions=3, parallelism=2, completionMode="Indexed", template="gpu"),
        "queue": job(world, parallelism=2),
        "suspended": job(world, suspend=True),
        "brief": job(world, ttlSecondsAfterFinished=0),
    }
    for name, spec in jobs.items():
        world.create("jobs", {"metadata": {"name": name}, "spec": spec})

    indexed, queue = wait_complete(world, "indexed"), wait_complete(world, "queue")
    suspended = world.get("jobs", "suspended")

    assert suspended is not None
    assert [(c["type"], c["status"], c["reason"]) for c in suspended["status"]["conditions"]] == [
        ("Suspended", "True", "JobSuspended")
    ]
    assert "startTime" not in suspended["status"]
    assert (indexed["succeeded"], indexed["completedIndexes"]) == (3, "0-2")
    assert queue["succeeded"] == 2
    assert {key for key in queue if key != "conditions"} == {
        *("completionTime", "ready", "startTime", "succeeded", "terminating", "uncountedTerminatedPods"),
    }
    (pod,) = world.items("pods", labelSelector="job-name=indexed,batch.kubernetes.io/job-completion-index=2")
    assert pod["metadata"]["name"].startswith("indexed-2-")
    assert pod["spec"]["hostname"] == "indexed-2"
    assert pod["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    assert pod["status"]["phase"] == "Succeeded"
    world.wait(lambda: not world.items("resourceclaims"), "the claims of pods that are done to go")
    world.wait_gone("jobs", "brief")
    world.patch("jobs", "suspended", {"spec": {"suspend": False}})
    wait_complete(world, "suspended")


def wait_complete(world: World, name: str) -> Manifest:
    def status() -> Manifest | None:
        found = world.get("jobs", name)
        assert found is not None
        done = {c["type"]: c for c in found["status"].get("conditions", [])}
        return found["status"] if {"SuccessCriteriaMet", "Complete"} <= set(done) else None

    return world.wait(status, f"Job {name} to be complete")
