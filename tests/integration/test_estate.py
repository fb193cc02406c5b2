"""An estate as a whole: four pools, all controllers in one process, pods of all sorts, changes, and kills meanwhile."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from controllers.all_in_one import PARTS
from controllers.api.dra import dra_api
from controllers.estate import DRA, EXTENDED_RESOURCE, FAKE, Pool, gpus_of, label_keys, load, node_labels, topology_text
from controllers.gpu_fractioning.condition import READY
from controllers.gpu_slices.devices import devices
from hack.localcluster import ControllerProcess, delete_nodes, node_manifest, wait_ready
from hack.localcluster.controllers import NAMESPACE, REPOSITORY
from hack.localcluster.nodes import CLIQUE_LABEL, CLUSTER_UUID, POOL_LABEL, apply_nodes, clique
from hack.localcluster.polling import wait_until
from tests.integration.environments import BOTH, started
from tests.integration.estate import write_topology
from tests.integration.scenario import Cluster, Manifest, domain, gpu_pod, worker

SEED_VARIABLE = "GPU_MIRAGE_CHAOS_SEED"
ACCOUNT = "gpu-mirage-all-in-one"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
GPU = "nvidia.com/gpu"
CHANNELS, GPUS = "compute-domain.nvidia.com", "gpu.nvidia.com"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
QUIET = 5.0  # seconds in which a write would have come
AFTER_START = 2.0  # seconds from readiness in which it would have come
FLUSH = 0.5  # seconds until writes that are answered are in the audit log
LONGEST_LIFE = 1.5  # seconds from a start to its kill; the process needs about 0.7 to begin its work

SIZES = {"racks": 8, "hall": 6, "old": 4, "mocked": 2}
POOLS: Manifest = {
    "racks": {
        "gpu": {"profile": "gb200", "offered": DRA, "overrides": {"device_count": 4}},
        "fabric": {"clusterUUID": CLUSTER_UUID, "nodesPerClique": 4},
        "numa": {"zones": 2},
    },
    "hall": {"gpu": {"profile": "h100", "offered": EXTENDED_RESOURCE}, "numa": {"zones": 2}},
    "old": {"gpuProduct": "Tesla-K80", "gpuCount": 2, "gpuMemory": 11441},
    "mocked": {"gpu": {"backend": "mock", "profile": "h100"}},
}
NODES = {f"{pool}-{number}": pool for pool, size in SIZES.items() for number in range(size)}


@dataclass
class Estate:
    """The cluster, the process, and what the estate should be now: pools, and the pool of each node."""

    cluster: Cluster
    process: ControllerProcess
    pools: Manifest
    nodes: dict[str, str]

    def make(self, nodes: Mapping[str, str]) -> None:
        apply_nodes(self.cluster.environment, [node_manifest(name, pool=pool) for name, pool in nodes.items()])
        self.nodes.update(nodes)

    def wait_published(self) -> None:
        """Waits until all of the estate is as the model has it, and nothing is there that should not be."""
        expected = {name: model(name, pool) for name, pool in self._pools().items()}
        self.cluster.wait(
            lambda: self._seen() == expected or None,
            lambda: f"the estate, of which these differ: {differences(self._seen(), expected)}",
        )
        racks = Counter(node["metadata"]["labels"].get(CLIQUE_LABEL) for node in self.cluster.list("nodes"))
        del racks[None]
        assert set(racks) <= {clique(0), clique(1), clique(2)}
        assert max(racks.values()) <= 4

    def writes(self) -> list[tuple[str, str]]:
        """Everything that the process ever wrote."""
        return [
            (event["verb"], event["requestURI"])
            for event in self.cluster.environment.audit_events()
            if event["user"]["username"] == USER and event["verb"] in WRITES
        ]

    def demand_rest(self) -> None:
        """Demands that nothing is written while nothing happens."""
        time.sleep(FLUSH)
        before = self.writes()
        time.sleep(QUIET)
        assert self.writes()[len(before) :] == []

    def demand_rest_after_restart(self) -> None:
        """Demands that a fresh process finds everything as it would publish it itself."""
        time.sleep(FLUSH)
        self.process.stop()
        before = self.writes()
        self.process.start()
        time.sleep(AFTER_START)
        assert self.writes()[len(before) :] == []

    def kill(self, chance: random.Random) -> None:
        """Lets the process live for a random time, kills it and starts it again at once."""
        time.sleep(chance.uniform(0.0, LONGEST_LIFE))
        processes = self.cluster.environment.processes
        processes.signal(self.process.name, signal.SIGKILL)
        wait_until(lambda: self.process.name not in processes.running(), 5.0, "the end of the process", interval=0.01)
        self.process.start(wait=False)

    def _pools(self) -> dict[str, Pool]:
        pools = load(json.dumps({"nodePools": self.pools}), {}).pools
        return {name: pools[pool] for name, pool in self.nodes.items()}

    def _seen(self) -> dict[str, Manifest]:
        kinds = "nodes,resourceslices,noderesourcetopologies,configmaps"
        found = self.cluster.environment.kubectl_json("get", kinds, "--namespace", NAMESPACE)["items"]
        return seen(found)


def model(name: str, pool: Pool) -> Manifest:
    """What should be published for a node of a pool; which clique it is in is another question."""
    labels = node_labels(pool)
    gpus = pool.gpu_count if pool.offered == EXTENDED_RESOURCE and pool.backend == FAKE else 0
    offered = devices(dra_api("v1"), pool.gpu, gpus_of(name, pool)) if pool.offered == DRA else []
    return {
        "labels": labels,
        "in a rack": pool.fabric is not None,
        "topology": topology_text(name, pool),
        "gpus": str(gpus) if gpus else None,
        "condition": "True" if gpus else None,
        "devices": {CHANNELS: 2, **({GPUS: offered} if offered else {})},
        "zones": (["4", "4"] if gpus else [None, None]) if pool.numa else None,
    }


def seen(objects: list[Manifest]) -> dict[str, Manifest]:
    """The same of what there is; of things without a node, under the name that their node would have."""
    found: dict[str, Manifest] = {}

    def of(name: str) -> Manifest:
        empty = {"labels": {}, "in a rack": False, "topology": None, "gpus": None, "condition": None, "zones": None}
        return found.setdefault(name, {**empty, "devices": {}})

    for entry in objects:
        kind, name = entry["kind"], entry["metadata"]["name"]
        if kind == "Node":
            of(name).update(of_node(entry))
        elif kind == "ResourceSlice":
            spec = entry["spec"]
            few = len(spec["devices"]) if spec["driver"] == CHANNELS else spec["devices"]
            of(spec["nodeName"])["devices"][spec["driver"]] = few
        elif kind == "NodeResourceTopology":
            of(name)["zones"] = [zone_gpus(zone) for zone in entry["zones"]]
        elif name.startswith("topology-"):
            of(name.removeprefix("topology-"))["topology"] = entry["data"]["topology.yml"]
    return found


def of_node(node: Manifest) -> Manifest:
    labels, status = node["metadata"]["labels"], node["status"]
    conditions = [entry["status"] for entry in status["conditions"] if entry["type"] == READY]
    assert status["capacity"].get(GPU) == status["allocatable"].get(GPU)
    return {
        "labels": {key: value for key, value in labels.items() if key in label_keys() - {CLIQUE_LABEL}},
        "in a rack": CLIQUE_LABEL in labels,
        "gpus": status["allocatable"].get(GPU),
        "condition": conditions[0] if conditions else None,
    }


def zone_gpus(zone: Manifest) -> str | None:
    return next((resource["allocatable"] for resource in zone["resources"] if resource["name"] == GPU), None)


def differences(found: Mapping[str, Manifest], expected: Mapping[str, Manifest]) -> dict[str, Any]:
    """What is found and what is expected, of everything that differs."""
    return {
        f"{name} {key}": (found.get(name, {}).get(key), expected.get(name, {}).get(key))
        for name in sorted(found.keys() | expected.keys())
        for key in sorted(found.get(name, {}).keys() | expected.get(name, {}).keys())
        if found.get(name, {}).get(key) != expected.get(name, {}).get(key)
    }


@pytest.fixture(scope="module", params=BOTH)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """A cluster of its own, since a second compute-domain controller must not run beside this one."""
    with started(request.param, tmp_path_factory.mktemp("estate")) as environment:
        for part in ("config/overlays/all-in-one", "crds/noderesourcetopology"):
            environment.kubectl("apply", "--server-side", "-k", str(REPOSITORY / part))
        environment.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
        environment.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")
        controllers = f"--controllers={','.join(PARTS)}"
        process = ControllerProcess(
            environment, package="all_in_one", account=ACCOUNT, name="all-in-one", arguments=(controllers,)
        )
        estate = Estate(Cluster(environment, "default"), process, dict(POOLS), {})
        write_topology(environment, estate.pools)
        process.start(wait=False)
        estate.make(NODES)
        wait_ready(environment, list(NODES))
        yield estate
        process.stop()


@pytest.fixture
def estate(running: Estate) -> Iterator[Estate]:
    """The estate as the pools and nodes above say, without pods and domains."""
    running.wait_published()
    yield running
    kubectl = running.cluster.environment.kubectl
    kubectl("delete", "pods,resourceclaimtemplates,computedomains", "--all", "-n", running.cluster.namespace, "--now")


def counted_pod(name: str, gpus: int, pool: str | None = None) -> Manifest:
    """A pod that asks for GPUs by their number."""
    container = {"name": "main", "image": "worker", "resources": {"limits": {GPU: str(gpus)}}}
    spec: Manifest = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if pool is not None:
        spec["nodeSelector"] = {POOL_LABEL: pool}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def wait_pool(cluster: Cluster, pod: str, pool: str) -> None:
    """Waits until a pod runs, and demands that it does so on a node of a pool."""
    assert NODES[cluster.wait_phase(pod, "Running")["spec"]["nodeName"]] == pool


def test_pods_run_where_their_gpus_are_and_nowhere_else(estate: Estate) -> None:
    cluster = estate.cluster
    product = f'device.attributes["{GPUS}"].productName == "NVIDIA GB200 NVL"'
    architecture = f'device.attributes["{GPUS}"].architecture'
    capability = f'device.attributes["{GPUS}"].cudaComputeCapability.compareTo(semver("10.0.0")) >= 0'
    cluster.apply(
        counted_pod("eight", 8),
        counted_pod("two", 2, "old"),
        counted_pod("three", 3, "old"),
        counted_pod("nine", 9),
        counted_pod("mocked", 1, "mocked"),
        counted_pod("racked", 1, "racks"),
        *gpu_pod("default", "four", 4, cel=f"{product} && {capability}"),
        *gpu_pod("default", "five", 5),
        *gpu_pod("default", "hopper", 1, cel=f'{architecture} == "Hopper"'),
    )

    wait_pool(cluster, "eight", "hall")
    wait_pool(cluster, "two", "old")
    wait_pool(cluster, "four", "racks")
    for refused in ("three", "nine", "mocked", "racked", "five", "hopper"):
        cluster.wait_unschedulable(refused)


def test_a_compute_domain_spans_two_racks_and_then_costs_no_writes(estate: Estate) -> None:
    cluster = estate.cluster
    racks: dict[str, list[str]] = {}
    for node in cluster.list("nodes", selector=f"{POOL_LABEL}=racks"):
        racks.setdefault(node["metadata"]["labels"][CLIQUE_LABEL], []).append(node["metadata"]["name"])
    first, second = racks.values()
    members = [*first[:2], *second[:2]]

    uid = cluster.bring_up(members)

    nodes = cluster.status()["nodes"]
    assert {entry["name"]: entry["cliqueID"] for entry in nodes} == {
        name: rack for rack, names in racks.items() for name in names if name in members
    }
    assert set(cluster.clique_daemons(uid)) == {f"{uid}.{rack}" for rack in racks}
    cluster.apply(
        domain("default", "other", nodes=1), worker("default", "late", template="other-channel", node=first[0])
    )
    cluster.wait(lambda: cluster.get("resourceclaimtemplates", "other-channel"), lambda: "the other domain's template")
    cluster.wait_unschedulable("late")
    estate.demand_rest()


def test_whatever_changes_while_the_process_is_killed_is_published_in_the_end(
    estate: Estate, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\nto repeat it: {SEED_VARIABLE}={seed}")
    chance = random.Random(seed)
    cluster = estate.cluster

    def move() -> None:
        moved = {"racks-1": "hall", "hall-1": "racks", "old-1": "mocked", "mocked-1": "old"}
        for name, pool in moved.items():
            cluster.patch("nodes", name, {"metadata": {"labels": {POOL_LABEL: pool}}})
        estate.nodes.update(moved)

    def reconfigure() -> None:
        smaller = {"profile": "b200", "offered": DRA, "overrides": {"device_count": 2}}
        estate.pools = {**POOLS, "racks": {**POOLS["racks"], "gpu": smaller}, "old": {"gpuCount": 3}}
        write_topology(cluster.environment, estate.pools)

    def delete() -> None:
        gone = ["racks-2", "hall-2", "old-2"]
        delete_nodes(cluster.environment, gone)
        for name in gone:
            del estate.nodes[name]

    def add() -> None:
        estate.make({"racks-new": "racks", "hall-new": "hall"})

    changes = [move, reconfigure, delete, add]
    chance.shuffle(changes)
    for change in changes:
        estate.kill(chance)
        change()
    estate.kill(chance)

    estate.wait_published()
    estate.demand_rest()
    estate.demand_rest_after_restart()
    assert {node["metadata"]["name"] for node in cluster.list("nodes")} == set(estate.nodes)


def test_no_call_of_the_process_is_denied(running: Estate) -> None:
    calls = [event for event in running.cluster.environment.audit_events() if event["user"]["username"] == USER]
    assert len(calls) > 5 * len(NODES)
    denied = [event for event in calls if event["responseStatus"]["code"] in (401, 403)]
    assert [(event["verb"], event["requestURI"]) for event in denied] == []
