"""What scenarios of scheduling say to a cluster, on the sandbox with its stand-in and on a real control plane."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest

from controllers.sandbox import Sandbox, SandboxOptions
from hack.localcluster import SANDBOX
from tests.contract.api_server import ApiServer
from tests.contract.conftest import connect

TIMEOUT = 20.0  # seconds; a busy machine decides how much of it is needed

Manifest = dict[str, Any]
T = TypeVar("T")

_PATHS = {
    "nodes": "/api/v1",
    "namespaces": "/api/v1",
    "pods": "/api/v1",
    "events": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "daemonsets": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
    "resourceslices": "/apis/resource.k8s.io/v1",
    "deviceclasses": "/apis/resource.k8s.io/v1",
}
_EVERYWHERE = {"nodes", "namespaces", "resourceslices", "deviceclasses"}


class World:
    """A cluster as one test sees it: a namespace, nodes, a driver and a device class of its own."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.api = api
        self.name = name
        self.driver = f"{name}.example.com"

    def path(self, kind: str, name: str = "") -> str:
        scope = [] if kind in _EVERYWHERE else ["namespaces", self.name]
        return "/".join((_PATHS[kind], *scope, kind, *([name] if name else [])))

    def create(self, kind: str, manifest: Manifest) -> Manifest:
        made: Manifest = self.api.create(self.path(kind), manifest)
        return made

    def get(self, kind: str, name: str) -> Manifest | None:
        reply = self.api.get(self.path(kind, name))
        assert reply.code in (200, 404), reply
        return reply.body if reply.code == 200 else None

    def items(self, kind: str, **query: str) -> list[Manifest]:
        reply = self.api.get(self.path(kind), **query)
        assert reply.code == 200, reply
        found: list[Manifest] = reply.body["items"]
        return found

    def patch(self, kind: str, name: str, patch: Manifest, *, subresource: str = "") -> None:
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        reply = self.api.send("PATCH", path, patch, content_type="application/merge-patch+json")
        assert reply.code == 200, reply

    def delete(self, kind: str, name: str) -> None:
        reply = self.api.send("DELETE", self.path(kind, name), {"propagationPolicy": "Background"})
        assert reply.code in (200, 202), reply

    def wait(self, look: Callable[[], T | None], what: str, timeout: float = TIMEOUT) -> T:
        """Looks until there is an answer that is true; fails with what was seen last."""
        deadline = time.monotonic() + timeout
        while not (answer := look()):
            assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}, {self._seen()}"
            time.sleep(0.03)
        return answer

    def _seen(self) -> str:
        pods = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in self.items("pods")]
        claims = [(claim["metadata"]["name"], claim.get("status")) for claim in self.items("resourceclaims")]
        return f"pods {pods}, claims {claims}"

    # -- nodes and devices --------------------------------------------------------------------------------------------

    def node(self, number: int) -> str:
        return f"{self.name}-{number}"

    def add_nodes(self, count: int = 2, *, allocatable: Mapping[str, str] | None = None) -> list[str]:
        """Simulated nodes that pods of this test, and no others, go to; returns once they can be used."""
        resources = {"cpu": "8", "memory": "32Gi", "pods": "20", **(allocatable or {})}
        names = [self.node(number) for number in range(count)]
        for name in names:
            labels = {"world": self.name, "kubernetes.io/hostname": name}
            metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
            self.create("nodes", {"metadata": metadata, "status": {"allocatable": resources, "capacity": resources}})
        self.wait(lambda: all(is_usable(self.get("nodes", name)) for name in names), "nodes to be ready")
        return names

    def add_slice(self, name: str, devices: list[Manifest], **spec: Any) -> None:
        """A slice of the test's own driver; it is a pool of its own unless the spec says otherwise."""
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        whole = {"driver": self.driver, "pool": pool, "devices": devices, **spec}
        self.create("resourceslices", {"metadata": {"name": f"{self.name}-{name}"}, "spec": whole})

    def add_gpus(self, count: int = 2, nodes: int = 2) -> None:
        """A device class for the test's driver, and devices gpu-0 to gpu-N of it on each node."""
        self.add_class()
        for number in range(nodes):
            devices = [gpu(index) for index in range(count)]
            self.add_slice(self.node(number), devices, nodeName=self.node(number))

    def add_class(self, name: str = "", expression: str = "true", config: list[Manifest] | None = None) -> str:
        """A device class, by default of all devices of the test's driver; returns its name."""
        if self.api.name == SANDBOX and find_spec("cel_expr_python") is None:
            pytest.skip("the stand-in evaluates selectors of devices with cel-expr-python, which is not installed")
        own = f"device.driver == '{self.driver}'" + (f" && {expression}" if expression != "true" else "")
        spec: Manifest = {"selectors": [{"cel": {"expression": own}}], **({"config": config} if config else {})}
        full = f"{self.name}-{name}" if name else self.name
        self.create("deviceclasses", {"metadata": {"name": full}, "spec": spec})
        return full

    def request(self, name: str = "gpu", device_class: str = "", **exactly: Any) -> Manifest:
        return {"name": name, "exactly": {"deviceClassName": device_class or self.name, **exactly}}

    def add_claim(self, name: str, *requests: Manifest, **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests) or [self.request()], **devices}}
        self.create("resourceclaims", {"metadata": {"name": name}, "spec": spec})

    def add_template(self, name: str, *requests: Manifest, **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests) or [self.request()], **devices}}
        self.create("resourceclaimtemplates", {"metadata": {"name": name}, "spec": {"spec": spec}})

    # -- pods ---------------------------------------------------------------------------------------------------------

    def pod_spec(self, *, claim: str = "", template: str = "", **spec: Any) -> Manifest:
        """A pod's spec with one container, that goes to this test's nodes only."""
        container: Manifest = {"name": "main", "image": "worker"}
        whole: Manifest = {"terminationGracePeriodSeconds": 0, **spec}
        whole["nodeSelector"] = {"world": self.name, **spec.get("nodeSelector", {})}
        if claim or template:
            source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
            container["resources"] = {"claims": [{"name": "gpu"}]}
            whole["resourceClaims"] = [{"name": "gpu", **source}]
        if limits := spec.get("limits"):
            container["resources"] = {**container.get("resources", {}), "limits": limits}
        whole.pop("limits", None)
        return {"containers": [container], **whole}

    def add_pod(self, name: str, **spec: Any) -> Manifest:
        metadata = {"name": name, "labels": spec.pop("labels", {"app": name})}
        return self.create("pods", {"metadata": metadata, "spec": self.pod_spec(**spec)})

    def pod(self, name: str) -> Manifest:
        found = self.get("pods", name)
        assert found is not None, f"there is no pod {name}"
        return found

    def wait_running(self, *names: str) -> list[str]:
        """Waits until pods run; returns their nodes."""

        def nodes() -> list[str] | None:
            pods = [self.pod(name) for name in names]
            return (
                [p["spec"]["nodeName"] for p in pods] if all(p["status"]["phase"] == "Running" for p in pods) else None
            )

        return self.wait(nodes, f"{', '.join(names)} to run")

    def wait_refused(self, name: str, text: str) -> Manifest:
        """Waits until a pod's condition says why it waits, in words that contain a text."""

        def refused() -> Manifest | None:
            found = scheduled(self.pod(name))
            return found if text in found.get("message", "") else None

        return self.wait(refused, f"{name} to be refused with {text!r}")

    def claim_status(self, name: str) -> Manifest:
        found = self.get("resourceclaims", name)
        assert found is not None, f"there is no claim {name}"
        status: Manifest = found.get("status", {})
        return status

    def wait_allocated(self, name: str) -> Manifest:
        """Waits until a claim has devices; returns the allocation without the moment."""
        self.wait(lambda: self.claim_status(name).get("allocation"), f"claim {name} to be allocated")
        allocation: Manifest = self.claim_status(name)["allocation"]
        return {key: value for key, value in allocation.items() if key != "allocationTimestamp"}

    def wait_gone(self, kind: str, name: str) -> None:
        self.wait(lambda: self.get(kind, name) is None, f"{kind} {name} to go")


def scheduled(pod: Manifest) -> Manifest:
    """A pod's condition PodScheduled; {} without one."""
    conditions = pod["status"].get("conditions", [])
    found: Manifest = next((entry for entry in conditions if entry["type"] == "PodScheduled"), {})
    return found


def gpu(index: int, **fields: Any) -> Manifest:
    """A device with attributes and a capacity."""
    attributes = {
        "index": {"int": index},
        "model": {"string": "H100"},
        "version": {"version": "550.1.0"},
        "numa.example.com/node": {"int": index // 2},
    }
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **fields}


def is_usable(node: Manifest | None) -> bool:
    """Whether a node is Ready and has no taint."""
    conditions = (node or {}).get("status", {}).get("conditions", [])
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return ready and node is not None and not node["spec"].get("taints")


@contextmanager
def running() -> Iterator[ApiServer]:
    """A sandbox with its stand-in, as its administrator sees it."""
    with Sandbox(SandboxOptions(stand_in=True)) as sandbox:
        api = connect(SANDBOX, sandbox.kubeconfig)
        yield api
        api.close()
