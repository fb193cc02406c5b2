"""The demo as a person runs it, looked at from outside through kubectl."""

import importlib.util
import json
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.demo.borrowed import Unfit, unfit
from hack.demo.executables import ensure_rules_can_be_evaluated
from hack.demo.manifests import samples_for
from hack.localcluster import LOCAL, SANDBOX
from hack.localcluster.environment import kubectl_path
from hack.localcluster.polling import wait_until
from tests.integration.test_local_cluster import processes_of

REPOSITORY = Path(__file__).resolve().parents[2]
READY_TIMEOUT = 120.0  # seconds, for a machine on which other tests run, too
STOP_TIMEOUT = 30.0  # seconds
ORPHAN_TIMEOUT = 5.0  # seconds

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Observer:
    """kubectl on a cluster that another process starts."""

    kubeconfig: Path
    namespace: str

    def items(self, kind: str, *arguments: str) -> list[Manifest]:
        """Objects of a kind, none while the cluster does not answer or does not know the kind."""
        command = [str(kubectl_path()), f"--kubeconfig={self.kubeconfig}", "get", kind, "--output=json"]
        done = subprocess.run(
            [*command, f"--namespace={self.namespace}", *arguments], capture_output=True, text=True, check=False
        )
        found: list[Manifest] = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return found

    def ready_domains(self) -> list[Manifest]:
        domains = self.items("computedomains")
        return [domain for domain in domains if domain.get("status", {}).get("status") == "Ready"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hack.demo", *arguments]


@contextmanager
def running_demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    demo = subprocess.Popen(
        command(*arguments), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with demo:
        try:
            yield demo
        finally:
            demo.kill()


def wait_for_ready_domain(demo: subprocess.Popen[str], observer: Observer) -> Manifest:
    """The demo's domain once it is Ready; fails with what the demo printed where it ends before that."""

    def ready() -> bool:
        if demo.poll() is not None:
            assert demo.stdout is not None
            raise AssertionError(f"the demo ended with {demo.returncode}: {demo.stdout.read()}")
        return observer.kubeconfig.is_file() and bool(observer.ready_domains())

    wait_until(ready, READY_TIMEOUT, "readiness of the demo's domain", interval=0.3)
    (domain,) = observer.ready_domains()
    return domain


def claimed_node(claim: Manifest) -> str:
    (device,) = claim["status"]["allocation"]["devices"]["results"]
    node: str = device["pool"]
    return node


def writers(audit_log: Path, resource: str) -> set[str]:
    """Who has created, changed or deleted objects of a resource."""
    events = [json.loads(line) for line in audit_log.read_text().splitlines()]
    return {
        event["user"]["username"]
        for event in events
        if event.get("objectRef", {}).get("resource") == resource and event["verb"] in ("create", "patch", "delete")
    }


on_both = pytest.mark.parametrize("cluster", [SANDBOX, LOCAL])


@on_both
def test_demo_of_any_size_becomes_ready_and_ends_cleanly_on_sigint(cluster: str, tmp_path: Path) -> None:
    racks, nodes_per_rack = random.randint(1, 3), random.randint(1, 3)
    prefix = f"demo-{uuid.uuid4().hex[:8]}"
    data_dir = tmp_path / "cluster"
    observer = Observer(data_dir / "kubeconfigs" / "admin.yaml", prefix)
    size = (f"--racks={racks}", f"--nodes-per-rack={nodes_per_rack}")

    with running_demo(*size, f"--cluster={cluster}", f"--prefix={prefix}", f"--data-dir={data_dir}") as demo:
        domain = wait_for_ready_domain(demo, observer)
        nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in observer.items("nodes")}
        claims = observer.items("resourceclaims")
        slices = observer.items("resourceslices")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(STOP_TIMEOUT) == 0

    wait_until(lambda: not processes_of(data_dir), ORPHAN_TIMEOUT, "the end of the demo's processes")
    names = {f"{prefix}-rack-{rack}-{node}" for rack in range(racks) for node in range(nodes_per_rack)}
    hall = {f"{prefix}-hall-{node}" for node in range(2)}
    assert set(nodes) == names | hall
    assert {nodes[name]["nvidia.com/gpu.product"] for name in hall} == {"NVIDIA-H100-80GB-HBM3"}
    assert domain["spec"]["numNodes"] == racks * nodes_per_rack
    members = {member["name"]: member for member in domain["status"]["nodes"]}
    assert set(members) == names
    for rack in range(racks):
        in_rack = [members[f"{prefix}-rack-{rack}-{node}"] for node in range(nodes_per_rack)]
        (clique,) = {member["cliqueID"] for member in in_rack}
        assert clique.endswith(f".{rack}")
        assert sorted(member["index"] for member in in_rack) == list(range(nodes_per_rack))
        assert {nodes[member["name"]]["nvidia.com/gpu.clique"] for member in in_rack} == {clique}
    assert sorted(claimed_node(claim) for claim in claims) == sorted(names)
    assert {(item["spec"]["driver"], item["spec"]["nodeName"]) for item in slices} == {
        *(("compute-domain.nvidia.com", name) for name in names | hall),
        *(("gpu.nvidia.com", name) for name in names),
    }
    account = "system:serviceaccount:gpu-mirage:gpu-mirage-all-in-one"
    for resource in ("resourceslices", "computedomaincliques", "noderesourcetopologies"):
        assert writers(data_dir / "audit.log", resource) == {account}


@on_both
def test_demo_with_once_exits_0_and_leaves_no_process(cluster: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "cluster"
    arguments = ("--once", f"--cluster={cluster}", "--racks=1", "--nodes-per-rack=1", f"--data-dir={data_dir}")

    done = subprocess.run(command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=READY_TIMEOUT)

    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not processes_of(data_dir), ORPHAN_TIMEOUT, "the end of the demo's processes")


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [("KUBEBUILDER_ASSETS", "has no etcd"), ("GPU_MIRAGE_CACHE", "go is not on the PATH: install Go")],
)
def test_demo_that_finds_no_executables_and_no_go_names_the_fix(tmp_path: Path, variable: str, complaint: str) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), variable: str(tmp_path)}

    done = subprocess.run(
        command("--once", "--cluster=local"), cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_on_a_machine_that_cannot_evaluate_rules_names_the_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(Unfit, match=r"cel-expr-python.*CLUSTER=local.*CLUSTER=<kubeconfig>"):
        ensure_rules_can_be_evaluated()


def test_demo_refuses_a_missing_kubeconfig(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"

    done = subprocess.run(command("--once", f"--cluster={missing}"), cwd=REPOSITORY, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (1, f"error: there is no kubeconfig {missing}\n")


@pytest.mark.parametrize(
    ("minor", "versions", "complaint"),
    [
        ("31", ["v1alpha3"], "the cluster runs Kubernetes v1.31.0: 1.32 or newer is needed"),
        ("33+", ["v1beta1", "v1beta2"], "does not serve resource.k8s.io/v1"),
        ("34", [], "it serves no version of resource.k8s.io"),
    ],
)
def test_a_cluster_that_cannot_run_the_demo_is_told_what_it_lacks(
    minor: str, versions: list[str], complaint: str
) -> None:
    groups = [{"name": "resource.k8s.io", "versions": [{"version": version} for version in versions]}]

    assert complaint in (unfit({"major": "1", "minor": minor, "gitVersion": "v1.31.0"}, groups) or "")


def test_a_current_cluster_with_dynamic_resource_allocation_is_fit() -> None:
    groups = [{"name": "resource.k8s.io", "versions": [{"version": "v1"}]}]

    assert unfit({"major": "1", "minor": "34", "gitVersion": "v1.34.0"}, groups) is None


def test_samples_follow_the_number_of_nodes_and_leave_the_given_manifests_alone() -> None:
    given: list[Manifest] = [
        {
            "kind": "ComputeDomain",
            "metadata": {"name": "pair"},
            "spec": {"numNodes": 4, "channel": {"resourceClaimTemplate": {"name": "pair-channel"}}},
        },
        {
            "kind": "Deployment",
            "metadata": {"name": "workers"},
            "spec": {"replicas": 4, "template": {"spec": {"containers": []}}},
        },
    ]

    samples = samples_for(given, "somewhere", 6)

    domain, workers = samples.documents
    assert (domain["metadata"]["namespace"], domain["spec"]["numNodes"]) == ("somewhere", 6)
    assert (workers["metadata"]["namespace"], workers["spec"]["replicas"]) == ("somewhere", 6)
    assert (samples.domain, samples.template, samples.workers) == ("pair", "pair-channel", "workers")
    assert given[0]["spec"]["numNodes"] == given[1]["spec"]["replicas"] == 4
