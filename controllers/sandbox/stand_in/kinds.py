"""The kinds that the stand-in looks at. Specs and statuses stay as they come, since most of them is passed on."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from controllers.api.core import KWOK_ANNOTATION
from controllers.api.dra import GROUP
from controllers.runtime import KubeObject, Resource

Body = dict[str, Any]


class Node(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "nodes", "Node", namespaced=False)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}

    @property
    def simulated(self) -> bool:
        """Whether a node is one that nobody runs; KWOK, too, goes by this annotation."""
        return KWOK_ANNOTATION in self.metadata.annotations

    @property
    def ready(self) -> bool:
        return condition(self.status, "Ready").get("status") == "True"


class Pod(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "pods", "Pod", namespaced=True)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}

    @property
    def node(self) -> str:
        """The name of the node that it is bound to, "" before that."""
        return str(self.spec.get("nodeName", ""))

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def finished(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def ready(self) -> bool:
        return condition(self.status, "Ready").get("status") == "True"

    @property
    def controller_uid(self) -> str:
        """The uid of what made the pod and looks after it, "" where nothing does."""
        return controller_uid(self)

    @property
    def templates(self) -> Iterator[tuple[str, str]]:
        """The names of its claims that are made for it, each with the name of its template."""
        for entry in self.spec.get("resourceClaims", ()):
            if "resourceClaimTemplateName" in entry:
                yield entry["name"], entry["resourceClaimTemplateName"]

    @property
    def claims(self) -> Iterator[tuple[str, str | None]]:
        """The names that a pod has for its claims, each with the name of the claim, None before that is made."""
        made = {entry["name"]: entry.get("resourceClaimName") for entry in self.status.get("resourceClaimStatuses", ())}
        for entry in self.spec.get("resourceClaims", ()):
            yield entry["name"], entry.get("resourceClaimName") or made.get(entry["name"])


class Deployment(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}


class ReplicaSet(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}


class Job(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("batch", "v1", "jobs", "Job", namespaced=True)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}


class Claim(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceclaims", "ResourceClaim", namespaced=True)

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}

    @property
    def allocation(self) -> Mapping[str, Any] | None:
        return self.status.get("allocation")

    @property
    def consumers(self) -> list[Mapping[str, Any]]:
        """For whom it is reserved."""
        return list(self.status.get("reservedFor", ()))


class DeviceClass(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False)

    spec: Mapping[str, Any] = {}


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of a type in a status; {} where there is none."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


def controller_uid(obj: KubeObject) -> str:
    """The uid of an object's controlling owner, "" where it has none."""
    return next((owner.uid for owner in obj.metadata.owner_references if owner.controller), "")


def owned_by(owner: KubeObject) -> Body:
    """An owner reference as the controllers of a real cluster write it."""
    resource = owner.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def replaced(status: Mapping[str, Any]) -> list[Body]:
    """The JSON patch that makes this the status of an object."""
    return [{"op": "add", "path": "/status", "value": status}]
