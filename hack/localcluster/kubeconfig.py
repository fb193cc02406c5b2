"""Kubeconfig files, with every credential embedded so that a file can be moved."""

import base64
from pathlib import Path

import yaml

from hack.localcluster.layout import Layout

CLUSTER = "gpu-mirage-local"


def write_client_kubeconfig(layout: Layout, name: str, server: str) -> Path:
    """Write the kubeconfig of the client certificate `name` and return its path."""
    user = {
        "client-certificate-data": _embedded(layout.certificate(name)),
        "client-key-data": _embedded(layout.key(name)),
    }
    return _write(layout, layout.kubeconfig(name), server, name, user)


def write_token_kubeconfig(layout: Layout, namespace: str, service_account: str, server: str, token: str) -> Path:
    """Write the kubeconfig of a service account and return its path."""
    name = f"{namespace}.{service_account}"
    return _write(layout, layout.kubeconfig(name), server, name, {"token": token}, namespace)


def _write(
    layout: Layout, path: Path, server: str, user: str, credentials: dict[str, str], namespace: str = "default"
) -> Path:
    context = {"cluster": CLUSTER, "user": user, "namespace": namespace}
    cluster = {"server": server, "certificate-authority-data": _embedded(layout.ca)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": CLUSTER, "context": context}],
        "current-context": CLUSTER,
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
