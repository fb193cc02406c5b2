"""The servers that every contract test runs against: the sandbox, and a real kube-apiserver.

Without the control plane's binaries the tests on kube-apiserver are skipped with the command that builds them; where
`GPU_MIRAGE_REQUIRE_CONTROL_PLANE=1` is set they fail instead.
"""

import base64
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from controllers.sandbox import Sandbox
from hack.localcluster import ControlPlane, Options
from tests.contract.api_server import ApiServer
from tests.integration.conftest import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]

SANDBOX, KUBE_APISERVER = "sandbox", "kube-apiserver"
ACCOUNT_TIMEOUT = 30.0  # seconds until a new namespace must have its service account


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        real = pytest.param(KUBE_APISERVER, marks=pytest.mark.control_plane)
        metafunc.parametrize("server", [SANDBOX, real], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Both servers, one after the other."""
    if request.param == SANDBOX:
        with Sandbox() as sandbox:
            api = connect(SANDBOX, sandbox.kubeconfig)
            yield api
            api.close()
        return
    plane = ControlPlane(tmp_path_factory.mktemp("contract"), Options(start_kwok=False))
    with plane:
        api = connect(KUBE_APISERVER, plane.admin_kubeconfig)
        yield api
        api.close()
    plane.remove_state()


@pytest.fixture
def namespace(server: ApiServer) -> Iterator[str]:
    """A namespace of its own for a test."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    server.create("/api/v1/namespaces", {"metadata": {"name": name}})
    # Pods are refused before their account exists.
    end = time.monotonic() + ACCOUNT_TIMEOUT
    while server.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").code != 200:
        assert time.monotonic() < end, f"namespace {name} got no service account"
        time.sleep(0.02)
    yield name
    server.send("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def account(server: ApiServer, namespace: str) -> Iterator[ApiServer]:
    """The server as the default account of the test's namespace sees it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    token = server.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    api = connect_with(server, token)
    yield api
    api.close()


def connect_with(server: ApiServer, token: str) -> ApiServer:
    """A client that shows a token and nothing else."""
    cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    headers = {"User-Agent": "contract/1", "Authorization": f"Bearer {token}"}
    return ApiServer(server.name, server.url, _trusting(cluster), headers, server.kubeconfig)


def _trusting(cluster: Mapping[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())


def connect(name: str, kubeconfig: Path) -> ApiServer:
    """A client with the address and the credentials of a kubeconfig."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = _trusting(cluster)
    headers = {"User-Agent": "contract/1"}
    if "token" in user:
        headers["Authorization"] = f"Bearer {user['token']}"
    else:
        files = kubeconfig.with_suffix(".pem")
        files.touch(mode=0o600)
        files.write_bytes(base64.b64decode(user["client-key-data"]) + base64.b64decode(user["client-certificate-data"]))
        tls.load_cert_chain(files)
    return ApiServer(name, cluster["server"], tls, headers, kubeconfig)
