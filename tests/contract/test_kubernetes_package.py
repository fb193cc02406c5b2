"""The small surface of the official ``kubernetes`` package that the transport relies on.

Everything else of the package may change without harm. Where one of these tests fails after an upgrade, the transport
has to follow.
"""

import asyncio
import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import config as package
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.testing import FakeClock
from controllers.runtime.transport import TOKEN_MAX_AGE, Credentials

Json = dict[str, Any]


def written(folder: Path, user: Json, cluster: Json | None = None, server: str = "https://10.0.0.1:6443") -> Path:
    """A kubeconfig with one context ``c``."""
    path = folder / "config"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "cl", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "us", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "cl", "user": "us"}}],
    }
    path.write_text(json.dumps(content))
    return path


def read(path: Path, context: str | None = None) -> Configuration:
    return asyncio.run(Credentials(str(path), context).load())


def plugin(folder: Path, script: str) -> Json:
    """An exec credential plugin that runs a shell script."""
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def credential(status: Json) -> str:
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


def test_a_fresh_configuration_has_the_fields_that_are_read() -> None:
    configuration = Configuration()
    assert configuration.api_key == {}
    assert configuration.verify_ssl is True
    for unset in ("ssl_ca_cert", "cert_file", "key_file", "tls_server_name", "proxy"):
        assert getattr(configuration, unset) is None, unset


def test_loading_into_one_configuration_leaves_new_ones_alone(tmp_path: Path) -> None:
    read(written(tmp_path, {"token": "secret"}))
    assert Configuration().api_key == {}


def test_a_token(tmp_path: Path) -> None:
    configuration = read(written(tmp_path, {"token": "secret"}))
    assert configuration.host == "https://10.0.0.1:6443"
    assert configuration.api_key["BearerToken"] == "Bearer secret"


def test_a_password(tmp_path: Path) -> None:
    configuration = read(written(tmp_path, {"username": "me", "password": "pw"}))
    assert configuration.api_key["BearerToken"] == "Basic " + base64.b64encode(b"me:pw").decode()


def test_a_trailing_slash_of_the_server_is_dropped(tmp_path: Path) -> None:
    assert read(written(tmp_path, {"token": "t"}, server="https://h/prefix/")).host == "https://h/prefix"


def test_a_token_file_is_read_again_once_it_is_old(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    path = written(tmp_path, {"tokenFile": str(token)})

    async def scenario() -> list[str]:
        clock = FakeClock()
        credentials = Credentials(str(path), clock=clock)
        seen = [(await credentials.load()).api_key["BearerToken"]]
        token.write_text("second")
        for seconds in (TOKEN_MAX_AGE - 1, 1):
            clock.advance(seconds)
            seen.append((await credentials.load()).api_key["BearerToken"])
        return seen

    assert asyncio.run(scenario()) == ["Bearer first", "Bearer first", "Bearer second"]


def test_a_relative_token_file_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("beside")
    assert read(written(tmp_path, {"tokenFile": "token"})).api_key["BearerToken"] == "Bearer beside"


def test_an_exec_plugin_gives_a_token(tmp_path: Path) -> None:
    script = f"test -n \"$KUBERNETES_EXEC_INFO\" && echo '{credential({'token': 'made'})}'"
    assert read(written(tmp_path, plugin(tmp_path, script))).api_key["BearerToken"] == "Bearer made"


def test_an_exec_plugin_gives_certificates(tmp_path: Path) -> None:
    status = {"clientCertificateData": "CERT", "clientKeyData": "KEY"}
    configuration = read(written(tmp_path, plugin(tmp_path, f"echo '{credential(status)}'")))
    assert Path(configuration.cert_file).read_text() == "CERT"
    assert Path(configuration.key_file).read_text() == "KEY"


def test_an_exec_plugin_that_fails_leaves_no_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    configuration = read(written(tmp_path, plugin(tmp_path, "echo no luck >&2; exit 3")))
    assert "BearerToken" not in configuration.api_key
    assert "process returned 3" in caplog.text
    assert "no luck" in caplog.text


def test_certificates_as_data_become_files(tmp_path: Path) -> None:
    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    configuration = read(
        written(
            tmp_path,
            {"client-certificate-data": encoded("CERT"), "client-key-data": encoded("KEY")},
            {"certificate-authority-data": encoded("CA")},
        )
    )
    found = [Path(f).read_text() for f in (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert)]
    assert found == ["CERT", "KEY", "CA"]


def test_certificates_as_files_are_used_in_place(tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text(name)
    user = {"client-certificate": "cert", "client-key": str(tmp_path / "key")}
    configuration = read(written(tmp_path, user, {"certificate-authority": "ca"}))
    found = [configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert]
    assert found == [str(tmp_path / name) for name in ("cert", "key", "ca")]


def test_a_certificate_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.pem"):
        read(written(tmp_path, {"client-certificate": "absent.pem", "client-key": "absent.pem"}))


def test_skipping_verification(tmp_path: Path) -> None:
    assert read(written(tmp_path, {"token": "t"})).verify_ssl is True
    assert read(written(tmp_path, {"token": "t"}, {"insecure-skip-tls-verify": True})).verify_ssl is False


def test_another_name_for_tls_and_a_proxy(tmp_path: Path) -> None:
    configuration = read(written(tmp_path, {"token": "t"}, {"tls-server-name": "api", "proxy-url": "http://p:3128"}))
    assert (configuration.tls_server_name, configuration.proxy) == ("api", "http://p:3128")


def test_a_context_may_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, {"token": "t"})
    content = json.loads(path.read_text())
    content["users"].append({"name": "other", "user": {"token": "o"}})
    content["contexts"].append({"name": "o", "context": {"cluster": "cl", "user": "other"}})
    path.write_text(json.dumps(content))
    assert read(path).api_key["BearerToken"] == "Bearer t"
    assert read(path, "o").api_key["BearerToken"] == "Bearer o"
    with pytest.raises(ConfigurationError, match="nowhere"):
        read(path, "nowhere")


def test_reading_does_not_write_the_kubeconfig(tmp_path: Path) -> None:
    path = written(tmp_path, {"token": "t"})
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    read(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files and variables that a pod has; no kubeconfig."""
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("CA")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(package, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def test_in_a_pod_the_service_account_is_used(pod: Path) -> None:
    configuration = asyncio.run(Credentials().load())
    assert configuration.host == "https://[fd00::1]:443"
    assert configuration.ssl_ca_cert == str(pod / "ca.crt")
    assert configuration.api_key["BearerToken"].lower() == "bearer first"


def test_in_a_pod_the_token_is_read_again_once_it_is_old(pod: Path) -> None:
    async def scenario() -> list[str]:
        clock = FakeClock()
        credentials = Credentials(clock=clock)
        seen = [(await credentials.load()).api_key["BearerToken"]]
        (pod / "token").write_text("second")
        clock.advance(TOKEN_MAX_AGE)
        seen.append((await credentials.load()).api_key["BearerToken"])
        return seen

    assert asyncio.run(scenario()) == ["bearer first", "bearer second"]


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_in_a_pod_a_missing_file_is_an_error(pod: Path, missing: str) -> None:
    (pod / missing).unlink()
    with pytest.raises(ConfigurationError, match="cannot read the pod's service account"):
        asyncio.run(Credentials().load())


def test_a_kubeconfig_goes_before_the_pods_account(pod: Path) -> None:
    assert read(written(pod, {"token": "mine"})).api_key["BearerToken"] == "Bearer mine"
