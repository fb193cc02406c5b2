"""Objects for tests of the stand-in, as its caches hold them."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from controllers.api.dra import ResourceSlice
from controllers.runtime.meta import ObjectMeta
from controllers.sandbox.stand_in.devices import Catalogue
from controllers.sandbox.stand_in.kinds import Claim, Deployment, DeviceClass, Job, Node, Pod, ReplicaSet
from controllers.sandbox.stand_in.placement import Picture

needs_cel = pytest.mark.skipif(find_spec("cel_expr_python") is None, reason="cel-expr-python is not installed")

NOW = "2030-01-01T00:00:00Z"
DRIVER = "gpu.example.com"
Body = dict[str, Any]


def meta(name: str, **fields: Any) -> ObjectMeta:
    return ObjectMeta(**{"name": name, "namespace": "ns", "uid": f"uid-{name}", "resource_version": "1", **fields})


def node(name: str, *, ready: str = "True", labels: Mapping[str, str] | None = None, **fields: Any) -> Node:
    """A node with 8 CPUs and places for 10 pods."""
    allocatable = {"cpu": "8", "pods": "10", **fields.pop("allocatable", {})}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}
    annotations = {"kwok.x-k8s.io/node": "fake"}
    metadata = meta(name, namespace="", annotations=annotations, labels={"name": name, **(labels or {})})
    return Node(metadata=metadata, spec=fields, status={**status, **fields.pop("status", {})})


def pod(name: str, *, labels: Mapping[str, str] | None = None, **fields: Any) -> Pod:
    """A pod of one container; ``requests`` and ``claims`` are the container's and the pod's."""
    container = {"name": "main", "resources": {"requests": fields.pop("requests", {})}}
    claims = [{"name": claim, "resourceClaimName": claim} for claim in fields.pop("claims", ())]
    status = {"phase": "Pending", **fields.pop("status", {})}
    annotations = fields.pop("annotations", {})
    metadata = meta(name, labels=labels or {}, annotations=annotations, generation=1)
    return Pod(metadata=metadata, spec={"containers": [container], "resourceClaims": claims, **fields}, status=status)


def request(name: str = "gpu", device_class: str = "gpu", **exactly: Any) -> Body:
    return {"name": name, "exactly": {"deviceClassName": device_class, **exactly}}


def claim(name: str, *requests: Body, status: Body | None = None, **devices: Any) -> Claim:
    spec = {"devices": {"requests": list(requests) or [request()], **devices}}
    return Claim(metadata=meta(name), spec=spec, status=status or {})


def device(name: str, **fields: Any) -> Body:
    index = int(name.rpartition("-")[2])
    attributes = {"index": {"int": index}, "example.com/numa": {"int": index // 2}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **fields}


def devices(count: int) -> list[Body]:
    return [device(f"gpu-{index}") for index in range(count)]


def slice_of(name: str, entries: Sequence[Body], *, generation: int = 1, count: int = 1, **spec: Any) -> ResourceSlice:
    pool = {"name": spec.pop("pool", name), "generation": generation, "resourceSliceCount": count}
    return ResourceSlice(metadata=meta(name), spec={"driver": DRIVER, "pool": pool, "devices": list(entries), **spec})


def device_class(name: str = "gpu", expression: str = "true", **spec: Any) -> DeviceClass:
    return DeviceClass(metadata=meta(name), spec={"selectors": [{"cel": {"expression": expression}}], **spec})


def picture(
    *nodes: Node,
    slices: Sequence[ResourceSlice] = (),
    claims: Sequence[Claim] = (),
    classes: Sequence[DeviceClass] = (),
) -> Picture:
    return Picture(
        nodes=nodes,
        claims={entry.key: entry for entry in claims},
        classes={entry.name: entry for entry in classes or [DeviceClass(metadata=meta("gpu"))]},
        offer=Catalogue().offer(slices),
        now=NOW,
    )


def deployment(name: str = "web", replicas: int = 4, image: str = "one", **spec: Any) -> Deployment:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    selector = {"matchLabels": {"app": name}}
    return Deployment(
        metadata=meta(name), spec={"replicas": replicas, "selector": selector, "template": template, **spec}
    )


def replica_set(name: str, size: int, available: int | None = None, pods: int | None = None, **more: Any) -> ReplicaSet:
    """A ReplicaSet; all of its pods are available unless it is said otherwise."""
    there = size if pods is None else pods
    ready = there if available is None else available
    status = {"replicas": there, "readyReplicas": ready, "availableReplicas": ready}
    return ReplicaSet(metadata=meta(name, **more), spec={"replicas": size, "template": {"spec": {}}}, status=status)


def job(status: Body | None = None, **spec: Any) -> Job:
    return Job(
        metadata=meta("job"),
        spec={"template": {"spec": {"containers": [{"name": "main"}]}}, **spec},
        status=status or {},
    )
