"""The local cluster itself: it starts fast, enforces RBAC, runs pods on simulated nodes and never leaves a process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hack.localcluster import (
    LOCAL,
    SANDBOX,
    Binaries,
    ControlPlane,
    ControlPlaneError,
    Environment,
    KubectlError,
    Options,
    set_ready,
    wait_ready,
)
from hack.localcluster.binaries import BinariesMissing, find_binaries
from hack.localcluster.environment import kubectl_path
from hack.localcluster.polling import wait_until
from hack.localcluster.process import ProcessError, ProcessGroup
from tests.integration.conftest import PoolNodes

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT = 15.0  # seconds
ORPHAN_LIMIT = 5.0  # seconds
COMPONENTS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}

# The data directory comes by stdin: in its arguments it would make the parent a process of that directory, too. The
# start is done by a thread that ends, and a forked child inherits every file descriptor of the parent and survives it.
PARENT_OF_CONTROL_PLANE = """
import sys, threading, time
from pathlib import Path
from hack.localcluster import ControlPlane
control_plane = ControlPlane(Path(sys.stdin.readline().strip()))
print("starting", flush=True)
thread = threading.Thread(target=control_plane.start)
thread.start()
thread.join()
print("started", flush=True)
time.sleep(600)
"""
PARENT_WITH_FORKED_CHILD = """
import os, sys, time
from pathlib import Path
from hack.localcluster.process import ProcessGroup
directory = Path(sys.stdin.readline().strip())
group = ProcessGroup(directory)
group.start("tail", ["tail", "-f", str(directory / "lock")], directory / "tail.log")
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


def processes_of(directory: Path) -> list[str]:
    """Command lines of all live processes that name the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def wait_for_no_process_of(directory: Path) -> None:
    wait_until(lambda: not processes_of(directory), ORPHAN_LIMIT, f"the end of the processes of {directory}")


@contextmanager
def parent_process(script: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python process that got the data directory as the first line of its input."""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdin is not None
        parent.stdin.write(f"{directory}\n")
        parent.stdin.flush()
        try:
            yield parent
        finally:
            parent.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tail(directory: Path) -> list[str]:
    """A command that runs until it is stopped and names the directory."""
    return ["tail", "-f", str(directory / "lock")]


@pytest.fixture
def own_directory(binaries: Binaries, tmp_path: Path) -> Path:
    """The data directory of a control plane that a test starts by itself."""
    return tmp_path / "cluster"


def test_start_is_healthy_within_15_seconds_and_stop_leaves_no_process(own_directory: Path) -> None:
    control_plane = ControlPlane(own_directory)
    began = time.monotonic()
    with control_plane:
        assert time.monotonic() - began < START_LIMIT
        assert set(control_plane.components()) == COMPONENTS
        assert [name for name in control_plane.components() if not control_plane.healthy(name)] == []
        assert control_plane.processes.running() == COMPONENTS
        assert len(processes_of(own_directory)) == len(COMPONENTS) + 1  # and the one that owns them
    assert processes_of(own_directory) == []


@pytest.mark.parametrize("moment", ["during the start", "after the start"])
def test_sigkill_of_the_parent_leaves_no_process_after_5_seconds(own_directory: Path, moment: str) -> None:
    with parent_process(PARENT_OF_CONTROL_PLANE, own_directory) as parent:
        assert next_line(parent) == "starting"
        if moment == "after the start":
            assert next_line(parent) == "started"
        wait_until(lambda: len(processes_of(own_directory)) > 1, START_LIMIT, "the start of a component")
        parent.kill()
        wait_for_no_process_of(own_directory)


def test_failed_start_names_the_component_and_leaves_no_process(own_directory: Path) -> None:
    options = Options(extra_flags={"kube-scheduler": ["--no-such-flag"]})
    with pytest.raises(
        ControlPlaneError, match=r"(?s)^kube-scheduler ended with exit code 1 .*unknown flag: --no-such-flag"
    ):
        ControlPlane(own_directory, options).start()
    assert processes_of(own_directory) == []


@pytest.mark.parametrize("cluster", [SANDBOX, LOCAL])
def test_the_command_shows_a_kubeconfig_that_works_and_ends_everything_on_sigterm(cluster: str, tmp_path: Path) -> None:
    own_directory = tmp_path / "cluster"
    command = [sys.executable, "-m", "hack.localcluster", "up", "--racks=2", "--nodes-per-rack=3"]
    with subprocess.Popen(
        [*command, f"--cluster={cluster}", f"--data-dir={own_directory}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = next_line(process)
            while not line.startswith("export KUBECONFIG="):
                assert process.poll() is None
                line = next_line(process)
            environment = os.environ | {"KUBECONFIG": line.partition("=")[2]}
            get_nodes = [str(kubectl_path()), "get", "nodes", "--output=json"]
            nodes = json.loads(subprocess.check_output(get_nodes, env=environment))["items"]
            cliques = Counter(node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in nodes)
            assert sorted(cliques.values()) == [3, 3]
        finally:
            process.terminate()
        assert process.wait(ORPHAN_LIMIT * 2) == 0
    assert processes_of(own_directory) == []


def test_an_api_version_can_be_switched_off_and_kwok_left_out(own_directory: Path) -> None:
    versions = "resource.k8s.io/v1=false,resource.k8s.io/v1beta2=true,resource.k8s.io/v1beta1=true"
    options = Options(
        start_kwok=False,
        extra_flags={"kube-apiserver": [f"--runtime-config={versions}"]},
        ready_exclusions=["informer-sync"],
    )
    with ControlPlane(own_directory, options) as control_plane:
        group = json.loads(control_plane.kubectl("get", "--raw", "/apis/resource.k8s.io"))
        assert [entry["version"] for entry in group["versions"]] == ["v1beta2", "v1beta1"]
        assert control_plane.processes.running() == COMPONENTS - {"kwok"}


def test_objects_and_tokens_outlive_a_control_plane_and_serve_the_next_in_its_directory(own_directory: Path) -> None:
    with ControlPlane(own_directory) as first:
        first.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        kubeconfig = first.kubeconfig_for("default", "default")
    with ControlPlane(own_directory) as second:
        assert second.kubectl_json("get", "configmap", "kept")["data"] == {"a": "b"}
        who = second.kubectl_json("auth", "whoami", f"--server={second.server}", kubeconfig=kubeconfig)
        assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"


def test_a_fresh_service_account_is_refused_and_the_audit_log_has_it(environment: Environment, namespace: str) -> None:
    environment.kubectl("create", "serviceaccount", "nobody", f"--namespace={namespace}")
    kubeconfig = environment.kubeconfig_for(namespace, "nobody")
    user = f"system:serviceaccount:{namespace}:nobody"

    with pytest.raises(KubectlError, match=rf'nodes is forbidden: User "{user}" cannot list resource "nodes"'):
        environment.kubectl("get", "nodes", kubeconfig=kubeconfig)

    def refused() -> list[int]:
        return [
            event["responseStatus"]["code"]
            for event in environment.audit_events()
            if event["user"]["username"] == user
            and event["verb"] == "list"
            and event["objectRef"]["resource"] == "nodes"
        ]

    wait_until(lambda: bool(refused()), 5.0, "an audit event of the refused call")
    assert set(refused()) == {403}


def test_pool_nodes_are_ready_labelled_and_untainted_and_run_a_plain_pod(
    environment: Environment, namespace: str, pool_nodes: PoolNodes
) -> None:
    first, second, other = pool_nodes({"fabric.1": 2, "fabric.2": 1}, pool="blue")

    nodes = {name: environment.kubectl_json("get", "node", name) for name in (first, second, other)}
    labels = [node["metadata"]["labels"] for node in nodes.values()]
    assert [entry["nvidia.com/gpu.clique"] for entry in labels] == ["fabric.1", "fabric.1", "fabric.2"]
    assert {entry["run.ai/simulated-gpu-node-pool"] for entry in labels} == {"blue"}
    assert [node["spec"].get("taints") for node in nodes.values()] == [None, None, None]
    assert {node["status"]["allocatable"]["memory"] for node in nodes.values()} == {"512Gi"}

    selector = json.dumps({"spec": {"nodeSelector": {"kubernetes.io/hostname": second}}})
    environment.kubectl("run", "plain", "--image=none", f"--namespace={namespace}", f"--overrides={selector}")
    environment.kubectl("wait", "pod/plain", "--for=condition=Ready", "--timeout=30s", f"--namespace={namespace}")
    pod = environment.kubectl_json("get", "pod", "plain", f"--namespace={namespace}")
    assert (pod["spec"]["nodeName"], pod["status"]["phase"]) == (second, "Running")


def test_a_node_set_not_ready_is_tainted_until_it_is_handed_back(
    environment: Environment, pool_nodes: PoolNodes
) -> None:
    touched, other = pool_nodes({"fabric.1": 2})

    def taints(name: str) -> set[str]:
        node = environment.kubectl_json("get", "node", name)
        return {taint["key"] for taint in node["spec"].get("taints", [])}

    set_ready(environment, touched, ready=False)
    wait_until(
        lambda: taints(touched) == {"node.kubernetes.io/not-ready"}, 10.0, "the taint of a node that is not Ready"
    )
    assert taints(other) == set()

    set_ready(environment, touched, ready=True)
    wait_ready(environment, [touched], timeout=10.0)


@pytest.mark.parametrize("environment", [LOCAL], indirect=True)
def test_restart_of_the_api_server_keeps_objects_tokens_and_address(environment: Environment, namespace: str) -> None:
    control_plane = environment
    assert isinstance(control_plane, ControlPlane)
    kubeconfig = control_plane.kubeconfig_for(namespace, "default")
    control_plane.kill_component("kube-apiserver")
    assert not control_plane.healthy("kube-apiserver")

    control_plane.start_component("kube-apiserver")

    assert [name for name in control_plane.components() if not control_plane.healthy(name)] == []
    control_plane.kubectl("get", "serviceaccount", "default", f"--namespace={namespace}")
    who = control_plane.kubectl_json("auth", "whoami", kubeconfig=kubeconfig)
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_a_forked_child_that_outlives_the_parent_does_not_keep_processes_alive(tmp_path: Path) -> None:
    with parent_process(PARENT_WITH_FORKED_CHILD, tmp_path) as parent:
        child = int(next_line(parent))
        try:
            assert len(processes_of(tmp_path)) == 2
            parent.kill()
            wait_for_no_process_of(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_processes_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group:
        group.start("tail", tail(tmp_path), tmp_path / "tail.log")
        assert len(processes_of(tmp_path)) == 2
        group._reaper.kill()
        wait_for_no_process_of(tmp_path)
        with pytest.raises(ProcessError, match="has ended"):
            group.exit_code("tail")


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group:
        log = tmp_path / "stubborn.log"
        group.start("stubborn", ["sh", "-c", 'trap "" TERM; echo deaf; while :; do sleep 0.1; done'], log)
        wait_until(lambda: log.read_text() == "deaf\n", 5.0, "the shell's trap")
        group.stop(["stubborn"], grace=0.3)
        assert group.exit_code("stubborn") == -signal.SIGKILL


def test_a_data_directory_belongs_to_one_group_at_a_time(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path), pytest.raises(ProcessError, match="in use by another cluster"):
        ProcessGroup(tmp_path)
    ProcessGroup(tmp_path).close()


def test_a_command_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group, pytest.raises(ProcessError, match="no-such-command"):
        group.start("x", ["no-such-command"], tmp_path / "x.log")


def test_incomplete_binaries_are_named_with_the_command_that_builds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(BinariesMissing) as raised:
        find_binaries()
    message = str(raised.value)
    assert "\n" not in message
    assert f"KUBEBUILDER_ASSETS={tmp_path} has no kube-controller-manager, kube-scheduler, kwok" in message
    assert "run hack/controlplane/build.sh" in message
