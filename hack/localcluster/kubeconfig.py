"""Kubeconfig files, with every credential embedded so that a file can be moved."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.localcluster.layout import Layout

CLUSTER = "gpu-mirage-local"


def write_client_kubeconfig(layout: Layout, name: str, server: str) -> Path:
    """Write the kubeconfig of the client certificate `name` and return its path."""
    user = {
        "client-certificate-data": _embedded(layout.certificate(name)),
        "client-key-data": _embedded(layout.key(name)),
    }
    cluster = {"server": server, "certificate-authority-data": _embedded(layout.ca)}
    return _write(layout.kubeconfig(name), {"name": CLUSTER, "cluster": cluster}, name, user, "default")


def write_token_kubeconfig(
    layout: Layout, given: Mapping[str, Any], namespace: str, service_account: str, token: str
) -> Path:
    """Write the kubeconfig of a service account for the cluster of another kubeconfig, and return its path."""
    name = f"{namespace}.{service_account}"
    (cluster,) = given["clusters"]
    return _write(layout.kubeconfig(name), cluster, name, {"token": token}, namespace)


def _write(path: Path, cluster: Mapping[str, Any], user: str, credentials: dict[str, str], namespace: str) -> Path:
    name = cluster["name"]
    context = {"cluster": name, "user": user, "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a client that reads the file while a token is renewed must not see half of it.
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(yaml.safe_dump(document, sort_keys=False))
    draft.replace(path)
    return path


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
