"""The thinnest path: one synchronous loop over raw HTTP that takes ComputeDomains to Ready.

It proves the flow (domain, template, scheduler, claim, member, Ready) on a real API server and is replaced by a
controller on the framework.
"""

import base64
import contextlib
import json
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

GROUP = "resource.nvidia.com"
FINALIZER = f"{GROUP}/computeDomain"
DRIVER = "compute-domain.nvidia.com"


class Api:
    """GET and apply, with the client certificates of an admin kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=ca)
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
            pair.write(base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._context.load_cert_chain(pair.name)

    def get(self, path: str) -> Any:
        return self._send("GET", path, None, "application/json")

    def apply(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PATCH", f"{path}?fieldManager=spike&force=true", body, "application/apply-patch+yaml")

    def _send(self, method: str, path: str, body: Any, content_type: str) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self._server + path, data=data, method=method, headers={"Content-Type": content_type}
        )
        with urllib.request.urlopen(request, context=self._context) as response:
            return json.load(response)


def reconcile(api: Api, domain: dict[str, Any]) -> None:
    """One pass over one domain: finalizer, template, node labels, status."""
    meta, spec = domain["metadata"], domain["spec"]
    namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
    path = f"/apis/{GROUP}/v1beta1/namespaces/{namespace}/computedomains/{name}"
    kind = {"apiVersion": f"{GROUP}/v1beta1", "kind": "ComputeDomain"}
    api.apply(path, {**kind, "metadata": {"name": name, "uid": uid, "finalizers": [FINALIZER]}})
    api.apply(
        f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/"
        + spec["channel"]["resourceClaimTemplate"]["name"],
        template(domain),
    )
    members = [member(api, uid, node) for node in claimed_nodes(api, namespace, uid)]
    ready = len(members) >= max(1, spec["numNodes"]) and all(m["status"] == "Ready" for m in members)
    status = {"status": "Ready" if ready else "NotReady", "nodes": members}
    api.apply(f"{path}/status", {**kind, "metadata": {"name": name, "uid": uid}, "status": status})


def template(domain: dict[str, Any]) -> dict[str, Any]:
    meta, channel = domain["metadata"], domain["spec"]["channel"]
    parameters = {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": meta["uid"],
        "allocationMode": channel["allocationMode"],
    }
    request = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
    config = {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": channel["resourceClaimTemplate"]["name"], "labels": {FINALIZER: meta["uid"]}},
        "spec": {"spec": {"devices": {"requests": [request], "config": [config]}}},
    }


def claimed_nodes(api: Api, namespace: str, uid: str) -> list[str]:
    nodes = set()
    for claim in api.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims")["items"]:
        devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
        ids = {c.get("opaque", {}).get("parameters", {}).get("domainID") for c in devices.get("config", [])}
        if uid in ids:
            nodes |= {r["pool"] for r in devices["results"] if r["driver"] == DRIVER}
    return sorted(nodes)


def member(api: Api, uid: str, name: str) -> dict[str, Any]:
    node = api.get(f"/api/v1/nodes/{name}")
    labels = {"metadata": {"name": name, "uid": node["metadata"]["uid"], "labels": {FINALIZER: uid}}}
    api.apply(f"/api/v1/nodes/{name}", {"apiVersion": "v1", "kind": "Node", **labels})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
    clique = node["metadata"]["labels"].get("nvidia.com/gpu.clique", "")
    return {"name": name, "ipAddress": "", "cliqueID": clique, "status": "Ready" if ready else "NotReady"}


def run(kubeconfig: str, until: float) -> None:
    """Reconciles every domain once a second until the monotonic time ``until``."""
    api = Api(kubeconfig)
    while time.monotonic() < until:
        # A fresh CRD answers 429 for a moment, and a namespace that is going refuses what is new in it.
        with contextlib.suppress(urllib.error.HTTPError):
            for domain in api.get(f"/apis/{GROUP}/v1beta1/computedomains")["items"]:
                if "deletionTimestamp" not in domain["metadata"]:
                    reconcile(api, domain)
        time.sleep(1.0)
