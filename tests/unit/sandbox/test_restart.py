"""A sandbox with a data directory that ends, kindly or not, and comes back: to its clients nothing happened."""

import base64
import contextlib
import os
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

from controllers.runtime.errors import ConfigurationError
from controllers.sandbox import Sandbox, SandboxOptions
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.database import FILE, Database
from controllers.sandbox.errors import StatusError
from controllers.sandbox.storage import Change
from tests.contract.api_server import ApiServer, Reply

START_TIMEOUT = 30.0  # seconds; it takes one, but the machine may be busy
MAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
WRITERS = 4
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"size": {"type": "integer", "default": 7, "maximum": 9}},
                            }
                        },
                    }
                },
            }
        ],
    },
}


def connect(kubeconfig: Path) -> ApiServer:
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    return ApiServer("sandbox", cluster["server"], tls, {"Authorization": f"Bearer {user['token']}"}, kubeconfig)


def options(directory: Path, port: int = 0) -> SandboxOptions:
    return SandboxOptions(port=port, data_dir=directory / "data", kubeconfig=directory / "kubeconfig")


def grant(cluster: Cluster) -> None:
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "robot"}, "subjects": [subject], "roleRef": reference}
    cluster.ensure("ClusterRoleBinding", "", binding, "rbac.authorization.k8s.io")


def eventually(get: Callable[[], Reply], code: int) -> Reply:
    end = time.monotonic() + START_TIMEOUT
    while (reply := get()).code != code:
        assert time.monotonic() < end, reply
        time.sleep(0.01)
    return reply


def test_everything_that_a_client_could_notice_is_as_before(tmp_path: Path) -> None:
    with Sandbox(options(tmp_path)) as sandbox:
        sandbox.call(grant)
        account = sandbox.kubeconfig_for("default", "default", tmp_path / "account")
        api, port = connect(sandbox.kubeconfig), int(sandbox.url.rpartition(":")[2])
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        eventually(lambda: api.get(WIDGETS), 200)
        api.create(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}})
        api.create(MAPS, {"metadata": {"name": "kept", "finalizers": ["example.com/mine"]}, "data": {"a": "b"}})
        old = api.create(MAPS, {"metadata": {"name": "gone"}})["metadata"]["resourceVersion"]
        api.send("DELETE", f"{MAPS}/kept")
        api.send("DELETE", f"{MAPS}/gone")
        paths = ["/api/v1/namespaces", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/api/v1/configmaps", WIDGETS]
        paths += ["/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/openapi/v3/apis/example.com/v1"]
        paths += ["/apis/example.com/v1", "/api/v1/serviceaccounts"]
        before = {path: api.get(path).body for path in paths}
        api.close()
    with Sandbox(options(tmp_path, port)):
        # Both clients go on with what they had read from their kubeconfigs before.
        for client in (api, connect(account)):
            after = {path: client.get(path) for path in paths}
            assert {path: reply.body for path, reply in after.items()} == before
            client.close()
        events = list(api.watch(MAPS, resourceVersion=old, timeoutSeconds="1"))
        assert [(event["type"], event["object"]["code"], event["object"]["reason"]) for event in events] == [
            ("ERROR", 410, "Expired")
        ]
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w2"}, "spec": {}}
        made = api.create(WIDGETS, widget)
        assert made["spec"] == {"size": 7}
        assert int(made["metadata"]["resourceVersion"]) > int(
            before["/api/v1/configmaps"]["metadata"]["resourceVersion"]
        )
        refused = api.send("POST", WIDGETS, {**widget, "metadata": {"name": "w3"}, "spec": {"size": 10}})
        assert (refused.code, refused.reason) == (422, "Invalid")
        api.close()


def test_system_objects_are_not_made_twice(tmp_path: Path) -> None:
    versions = []
    for _ in range(2):
        with Sandbox(options(tmp_path)) as sandbox:
            versions.append(sandbox.call(lambda cluster: cluster.store.version))
    assert versions[0] == versions[1]


def test_directory_is_free_again_after_a_start_that_failed(tmp_path: Path) -> None:
    with Sandbox(options(tmp_path)) as running:
        port = int(running.url.rpartition(":")[2])
        elsewhere = SandboxOptions(port=port, data_dir=tmp_path / "other")
        with pytest.raises(ConfigurationError, match="choose another --port"), Sandbox(elsewhere):
            pass
    with Sandbox(SandboxOptions(data_dir=tmp_path / "other")):
        pass


def test_definition_that_cannot_be_served_any_more_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox(options(tmp_path)) as sandbox:
        api = connect(sandbox.kubeconfig)
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        api.close()
    monkeypatch.setattr("controllers.sandbox.crd.TYPES", ("string",))
    invalid = pytest.raises(ConfigurationError, match=r'widgets\.example\.com" is invalid')
    with invalid as refused, Sandbox(options(tmp_path)):
        pass
    assert str(tmp_path / "data" / FILE) in str(refused.value)


def test_damaged_authority_stops_the_start(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "data")) as database:
        database.secret("authority", lambda: b"no certificate")
    with (
        pytest.raises(ConfigurationError, match=f"{tmp_path / 'data'}: the CA in it is damaged"),
        Sandbox(options(tmp_path)),
    ):
        pass


def test_what_the_collector_could_not_store_is_done_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controllers.sandbox.sandbox.RETRY", 0.01)
    refused: list[str] = []
    with Sandbox(options(tmp_path)) as sandbox:
        api = connect(sandbox.kubeconfig)
        api.create("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
        eventually(lambda: api.get("/api/v1/namespaces/doomed/configmaps/kube-root-ca.crt"), 200)
        write = sandbox.call(lambda cluster: cluster.store.journal)

        def refuse_removals(collection: str, change: Change) -> None:
            if change.type == "DELETED":
                refused.append(collection)
                raise StatusError(500, "InternalError", "no space")
            write(collection, change)

        sandbox.call(lambda cluster: setattr(cluster.store, "journal", refuse_removals))
        api.send("DELETE", "/api/v1/namespaces/doomed")
        eventually(lambda: Reply(len(refused) > 2, None), True)
        assert api.get("/api/v1/namespaces/doomed").body["status"]["phase"] == "Terminating"
        sandbox.call(lambda cluster: setattr(cluster.store, "journal", write))
        eventually(lambda: api.get("/api/v1/namespaces/doomed"), 404)
        api.close()


@contextlib.contextmanager
def binary(directory: Path, *, largest_file: int = 0) -> Iterator[tuple[subprocess.Popen[str], ApiServer]]:
    """The real thing in a process of its own, killed at the end; ``largest_file`` in bytes stands for a full disk."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    command = [sys.executable, "-m", "controllers.sandbox", "--port", "0", "--log-level", "error"]
    command += ["--kubeconfig", str(kubeconfig), "--data-dir", str(directory / "data")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + START_TIMEOUT
        while not kubeconfig.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "no kubeconfig was written"
            time.sleep(0.02)
        if largest_file:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
        api = connect(kubeconfig)
        yield process, api
        api.close()
    finally:
        process.kill()
        process.communicate()


def write_until_killed(api: ApiServer, number: int, acknowledged: dict[str, int | None]) -> None:
    """Creates, changes and deletes objects, and notes the versions that the server told; None for one that is gone."""
    with contextlib.suppress(OSError, ValueError, HTTPException):
        for count in range(1_000_000):
            name = f"w{number}-{count}"
            acknowledged[name] = version(api.send("POST", MAPS, {"metadata": {"name": name}, "data": {"n": "0"}}))
            path, change = f"{MAPS}/{name}", {"data": {"n": "1"}}
            if count % 3 == 1:
                reply = api.send("PATCH", path, change, content_type="application/merge-patch+json")
                acknowledged[name] = version(reply)
            elif count % 3 == 2:
                # From here to the answer it may be there or not.
                del acknowledged[name]
                assert api.send("DELETE", path).code == 200
                acknowledged[name] = None


def version(reply: Reply) -> int:
    assert reply.code in {200, 201}, reply
    return int(reply.body["metadata"]["resourceVersion"])


@pytest.mark.parametrize("writes", [50, 1000])
def test_each_acknowledged_write_is_there_after_a_kill(tmp_path: Path, writes: int) -> None:
    acknowledged: dict[str, int | None] = {}
    with binary(tmp_path) as (process, api):
        threads = [
            threading.Thread(target=write_until_killed, args=(api, number, acknowledged)) for number in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + START_TIMEOUT
        while len(acknowledged) < writes:
            assert time.monotonic() < end
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    with binary(tmp_path) as (_, api):
        listing = api.get(MAPS).body
        found = {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in listing["items"]}
    assert len(acknowledged) >= writes
    for name, told in acknowledged.items():
        if told is None:
            assert name not in found
        else:
            assert found[name] >= told
    assert int(listing["metadata"]["resourceVersion"]) >= max(told for told in acknowledged.values() if told)


def test_write_for_which_the_disk_has_no_space_is_refused_and_not_visible(tmp_path: Path) -> None:
    stored = []
    with binary(tmp_path, largest_file=300_000) as (_, api):
        while (
            reply := api.send("POST", MAPS, {"metadata": {"generateName": "m-"}, "data": {"x": "y" * 5000}})
        ).code == 201:
            stored.append(reply.body["metadata"]["name"])
            assert len(stored) < 1000
        assert (reply.code, reply.reason) == (500, "InternalError")
        assert f"cannot be stored in {tmp_path / 'data' / FILE}: " in reply.message
        kept = [item["metadata"]["name"] for item in api.get(MAPS).body["items"]]
        assert sorted(stored) == sorted(set(kept) - {"kube-root-ca.crt"})
    assert stored
    with binary(tmp_path) as (_, api):
        assert [item["metadata"]["name"] for item in api.get(MAPS).body["items"]] == kept
        assert api.send("POST", MAPS, {"metadata": {"name": "more"}}).code == 201


@pytest.mark.parametrize("trouble", ["in use", "damaged"])
def test_binary_tells_what_is_wrong_in_one_line(tmp_path: Path, trouble: str) -> None:
    def start() -> subprocess.CompletedProcess[str]:
        command: list[Any] = [sys.executable, "-m", "controllers.sandbox", "--port", "0"]
        command += ["--kubeconfig", tmp_path / "second", "--data-dir", tmp_path / "data"]
        return subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT, check=False)

    with binary(tmp_path):
        if trouble == "in use":
            done = start()
    if trouble == "damaged":
        (tmp_path / "data" / FILE).write_bytes(b"nothing of use")
        done = start()
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(tmp_path / "data") in done.stderr
    assert "--data-dir" in done.stderr
