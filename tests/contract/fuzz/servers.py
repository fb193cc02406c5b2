"""The two servers side by side: the sandbox in this process, and a kube-apiserver with nobody else in its cluster.

Neither has controllers, a garbage collector or admission plugins beyond the one for namespaces, so that nothing happens
that was not asked for; what these do is the matter of other tests.
"""

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controllers.sandbox.sandbox import RunningSandbox
from hack.localcluster import ControlPlane, Options
from tests.contract.fuzz.play import Client

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_TIMEOUT = 20.0  # seconds until a new definition must be served
WITHOUT_PLUGINS = (
    "ServiceAccount,DefaultTolerationSeconds,Priority,TaintNodesByCondition,LimitRanger,ResourceQuota,RuntimeClass,"
    "DefaultIngressClass,DefaultStorageClass,PodSecurity,StorageObjectInUseProtection,MutatingAdmissionWebhook,"
    "ValidatingAdmissionWebhook,MutatingAdmissionPolicy,ValidatingAdmissionPolicy,CertificateApproval,"
    "CertificateSigning,CertificateSubjectRestriction,ClusterTrustBundleAttest,NodeDeclaredFeatureValidator,"
    "PodTopologyLabels,PersistentVolumeClaimResize"
)
FIRST_VERSION = 1_000_000  # so high that no other number is mistaken for a version
MANIFESTS = (
    Path(__file__).parents[1] / "cases" / "gadgets.yaml",
    *sorted((Path(__file__).parents[3] / "crds").glob("compute*.yaml")),
)


@dataclass(frozen=True)
class Pair:
    """Clients of both servers."""

    sandbox: Client
    real: Client


@contextlib.asynccontextmanager
async def both(data_dir: Path) -> AsyncIterator[Pair]:
    """Both servers, with the custom kinds. Raises BinariesMissing where there is no control plane."""
    flags = {"kube-apiserver": [f"--disable-admission-plugins={WITHOUT_PLUGINS}"]}
    plane = ControlPlane(data_dir, Options(start_kwok=False, extra_flags=flags))  # type: ignore[arg-type]
    await asyncio.to_thread(plane.start)
    try:
        for component in ("kube-scheduler", "kube-controller-manager"):
            await asyncio.to_thread(plane.stop_component, component)
        async with sandbox() as ours, client(plane.admin_kubeconfig) as theirs:
            await define(theirs)
            yield Pair(ours, theirs)
    finally:
        await asyncio.to_thread(plane.stop)
        plane.remove_state()


@contextlib.asynccontextmanager
async def sandbox() -> AsyncIterator[Client]:
    """The sandbox alone, with the custom kinds."""
    async with RunningSandbox() as running, client(running.kubeconfig) as ours:
        running.cluster.store.version = FIRST_VERSION
        await define(ours)
        assert running._collecting is not None
        running._collecting.cancel()
        yield ours


def client(kubeconfig: Path) -> Client:
    """A client with the address and the credentials of a kubeconfig."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {}
    if "token" in user:
        headers["Authorization"] = f"Bearer {user['token']}"
    else:
        files = kubeconfig.with_suffix(".pem")
        files.touch(mode=0o600)
        files.write_bytes(base64.b64decode(user["client-key-data"]) + base64.b64decode(user["client-certificate-data"]))
        tls.load_cert_chain(files)
    return Client(cluster["server"], tls, headers)


async def define(server: Client) -> None:
    """Define the custom kinds and wait until they are served."""
    for manifest in MANIFESTS:
        body: dict[str, Any] = yaml.safe_load(manifest.read_text())
        made = await server.send("POST", DEFINITIONS, body, "application/json")
        assert made["code"] == 201, made
        spec = body["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        end = time.monotonic() + SERVED_TIMEOUT
        while (await server.send("GET", path))["code"] != 200:
            assert time.monotonic() < end, f"{path} is not served"
            await asyncio.sleep(0.05)
