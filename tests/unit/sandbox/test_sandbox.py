"""Starting and stopping: where it listens, what it leaves behind, who it lets in."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from controllers.runtime import Client, ClientOptions
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.transport import AiohttpTransport, Credentials, HttpRequest
from controllers.sandbox import RunningSandbox, Sandbox, SandboxOptions
from controllers.sandbox.cluster import Cluster
from controllers.sandbox.errors import StatusError

START_TIMEOUT = 30.0  # seconds; it takes one, but the machine may be busy


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com"])
def test_addresses_beyond_this_machine_need_the_flag(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--host"):
        Sandbox(SandboxOptions(host=host))


def test_taken_port_is_told_with_the_flag_to_change() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = SandboxOptions(port=taken.getsockname()[1])
        with pytest.raises(ConfigurationError, match="choose another --port"), Sandbox(options):
            pass


def test_kubeconfig_is_for_its_owner_only_and_leads_to_the_server(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kubeconfig"
    with Sandbox(SandboxOptions(kubeconfig=path)) as sandbox:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"] == sandbox.url


def test_stranger_to_the_certificate_is_not_trusted() -> None:
    with Sandbox() as sandbox, pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        urllib.request.urlopen(sandbox.url, context=ssl.create_default_context())


def test_running_in_the_loop_serves_the_frameworks_client() -> None:
    async def scenario() -> int:
        async with RunningSandbox() as sandbox:
            transport = AiohttpTransport(Credentials(str(sandbox.kubeconfig)))
            assert Client(transport, ClientOptions(field_manager="test")) is not None
            response = await transport.request(HttpRequest("GET", "/api/v1/namespaces/default"))
            await transport.close()
            return response.status

    assert asyncio.run(scenario()) == 200


def granting(verb: str, resource: str) -> Callable[[Cluster], None]:
    """Gives the default account of the namespace default a right in it."""

    def grant(cluster: Cluster) -> None:
        group = "rbac.authorization.k8s.io"
        rules = [{"verbs": [verb], "apiGroups": [""], "resources": [resource]}]
        cluster.ensure("Role", "default", {"metadata": {"name": "r"}, "rules": rules}, group)
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
        reference = {"apiGroup": group, "kind": "Role", "name": "r"}
        binding = {"metadata": {"name": "r"}, "subjects": [subject], "roleRef": reference}
        cluster.ensure("RoleBinding", "default", binding, group)

    return grant


def test_account_has_the_rights_of_its_roles_only(tmp_path: Path) -> None:
    async def codes(kubeconfig: Path) -> list[int]:
        transport = AiohttpTransport(Credentials(str(kubeconfig)))
        paths = ("/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/kube-system/configmaps", "/api/v1/nodes")
        answers = [(await transport.request(HttpRequest("GET", path))).status for path in paths]
        await transport.close()
        return answers

    with Sandbox() as sandbox:
        path = sandbox.kubeconfig_for("default", "default", tmp_path / "account")
        assert asyncio.run(codes(path)) == [403, 403, 403]
        sandbox.call(granting("list", "configmaps"))
        assert asyncio.run(codes(path)) == [200, 403, 403]
        with pytest.raises(StatusError, match="not found"):
            sandbox.kubeconfig_for("default", "nobody", tmp_path / "none")


def test_audit_log_tells_the_decision_that_was_made(tmp_path: Path) -> None:
    """Also of a namespace, in which a right to the namespace itself may be given."""
    wanted = {
        "/api/v1/namespaces/default": ("get", 200, "allow"),
        "/api/v1/namespaces/kube-system": ("get", 403, "forbid"),
        "/api/v1/namespaces": ("list", 403, "forbid"),
        "/version": ("get", 200, "allow"),
    }

    async def ask(kubeconfig: Path) -> None:
        transport = AiohttpTransport(Credentials(str(kubeconfig)))
        for path in wanted:
            await transport.request(HttpRequest("GET", path))
        await transport.close()

    log = tmp_path / "audit.log"
    with Sandbox(SandboxOptions(audit_log=log)) as sandbox:
        sandbox.call(granting("get", "namespaces"))
        asyncio.run(ask(sandbox.kubeconfig_for("default", "default", tmp_path / "account")))
    user = "system:serviceaccount:default:default"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {
        line["requestURI"]: (
            line["verb"],
            line["responseStatus"]["code"],
            line["annotations"]["authorization.k8s.io/decision"],
        )
        for line in lines
        if line["user"]["username"] == user
    } == wanted


def test_binary_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "controllers.sandbox", "--port", "0", "--kubeconfig", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + START_TIMEOUT
        while not path.exists():
            assert process.poll() is None
            assert time.monotonic() < end, "no kubeconfig was written"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        _, log = process.communicate(timeout=START_TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "nothing is scheduled or run here" in log


def test_binary_refuses_other_addresses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controllers.sandbox", "--host", "0.0.0.0", "--kubeconfig", str(tmp_path / "k")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT, check=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--allow-remote" in done.stderr
