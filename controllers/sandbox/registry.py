"""Which resources are served: the built-in kinds, and those that CustomResourceDefinitions add."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from controllers.sandbox import typeschema
from controllers.sandbox.columns import Column, columns_of
from controllers.sandbox.typeschema import TypeSchema

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """One resource in one version and how its objects behave."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    custom: bool = False
    names: str = "subdomain"  # what names must be: subdomain, label or path
    has_generation: bool = False  # metadata.generation counts changes of everything but metadata and status
    create_on_update: bool = False  # a PUT to a name that is free creates
    unconditional_update: bool = True  # a PUT may leave out the resource version
    returns_deleted: bool = False  # a DELETE answers with the object
    field_labels: frozenset[str] = frozenset()  # for field selectors, beside metadata.name and metadata.namespace
    renames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # served field: stored field
    stored_as: str = ""  # key of the collection, where it is another resource's
    stored_version: str = ""  # apiVersion in which objects are stored, where it is not the served one
    custom_schema: TypeSchema | None = None
    custom_columns: tuple[Column, ...] = ()
    openapi: Mapping[str, Any] | None = None  # the CRD's own schema, for discovery
    deprecation_warning: str = ""  # told to everyone who uses this version

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def warnings(self) -> tuple[str, ...]:
        """What everyone who writes this version is told."""
        return (self.deprecation_warning,) if self.deprecation_warning else ()

    @property
    def collection(self) -> str:
        """The key of its collection in the store."""
        return self.stored_as or (f"{self.group}/{self.plural}" if self.group else self.plural)

    def served(self, obj: dict[str, Any]) -> dict[str, Any]:
        """A stored object in this version; the very object where it is stored so."""
        if obj["apiVersion"] == self.api_version:
            return obj
        names = {stored: served for served, stored in self.renames.items()}
        return {names.get(k, k): v for k, v in obj.items()} | {"apiVersion": self.api_version}

    def to_stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """An object of this version as it is stored; the very object where there is no difference."""
        if not self.stored_version:
            return obj
        return {self.renames.get(k, k): v for k, v in obj.items()} | {"apiVersion": self.stored_version}

    @property
    def schema(self) -> TypeSchema:
        return self.custom_schema or _builtin_schema(self.group, self.version, self.kind)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.custom_columns or columns_of(self.group, self.kind)

    @property
    def selectable(self) -> frozenset[str]:
        """The paths that field selectors may name."""
        scope = {"metadata.name", "metadata.namespace"} if self.namespaced else {"metadata.name"}
        return self.field_labels | scope


@cache
def _builtin_schema(group: str, version: str, kind: str) -> TypeSchema:
    return typeschema.builtin(group, version, kind)


_STATUS = frozenset({"status"})
_SCALED = frozenset({"status", "scale"})
_EVENT_RENAMES = MappingProxyType(
    {
        "regarding": "involvedObject",
        "note": "message",
        "deprecatedSource": "source",
        "deprecatedFirstTimestamp": "firstTimestamp",
        "deprecatedLastTimestamp": "lastTimestamp",
        "deprecatedCount": "count",
        "reportingController": "reportingComponent",
    }
)
_EVENT_FIELDS = frozenset(
    {"reason", "type", "source", "reportingComponent"}
    | {
        f"involvedObject.{name}"
        for name in ("kind", "name", "namespace", "uid", "apiVersion", "resourceVersion", "fieldPath")
    }
)
_NEW_EVENT_FIELDS = frozenset({"reason", "type", "reportingController"}) | {
    f"regarding.{name}" for name in ("kind", "name", "namespace", "uid", "apiVersion", "resourceVersion", "fieldPath")
}


def _core(plural: str, kind: str, **rest: Any) -> ResourceInfo:
    return ResourceInfo("", "v1", plural, kind, **rest)


def _apps(plural: str, kind: str, short: str, **rest: Any) -> ResourceInfo:
    more = {"short_names": (short,), "categories": ("all",), "has_generation": True, "subresources": _SCALED, **rest}
    return ResourceInfo("apps", "v1", plural, kind, **more)


def _rbac(plural: str, kind: str, *, namespaced: bool) -> ResourceInfo:
    group = "rbac.authorization.k8s.io"
    return ResourceInfo(group, "v1", plural, kind, namespaced=namespaced, names="path", create_on_update=True)


def _dra(plural: str, kind: str, **rest: Any) -> ResourceInfo:
    return ResourceInfo("resource.k8s.io", "v1", plural, kind, returns_deleted=True, **rest)


BUILTIN: tuple[ResourceInfo, ...] = (
    _core(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=frozenset({"status", "finalize"}),
        names="label",
        returns_deleted=True,
        field_labels=frozenset({"status.phase"}),
    ),
    _core(
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources=_STATUS,
        field_labels=frozenset({"spec.unschedulable"}),
    ),
    _core(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=frozenset({"status", "binding", "eviction"}),
        has_generation=True,
        returns_deleted=True,
        field_labels=frozenset(
            {
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "spec.hostNetwork",
                "status.phase",
                "status.podIP",
                "status.nominatedNodeName",
            }
        ),
    ),
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core("secrets", "Secret", field_labels=frozenset({"type"})),
    _core(
        "services",
        "Service",
        short_names=("svc",),
        categories=("all",),
        subresources=_STATUS,
        names="label",
        create_on_update=True,
        returns_deleted=True,
        field_labels=frozenset({"spec.clusterIP", "spec.type"}),
    ),
    _core(
        "serviceaccounts",
        "ServiceAccount",
        short_names=("sa",),
        subresources=frozenset({"token"}),
        returns_deleted=True,
    ),
    _core("events", "Event", short_names=("ev",), create_on_update=True, field_labels=_EVENT_FIELDS),
    ResourceInfo(
        "events.k8s.io",
        "v1",
        "events",
        "Event",
        short_names=("ev",),
        create_on_update=True,
        field_labels=_NEW_EVENT_FIELDS,
        renames=_EVENT_RENAMES,
        stored_as="events",
        stored_version="v1",
    ),
    _apps("deployments", "Deployment", "deploy"),
    _apps("replicasets", "ReplicaSet", "rs", field_labels=frozenset({"status.replicas"})),
    _apps("statefulsets", "StatefulSet", "sts"),
    _apps("daemonsets", "DaemonSet", "ds", subresources=_STATUS),
    ResourceInfo(
        "batch",
        "v1",
        "jobs",
        "Job",
        categories=("all",),
        subresources=_STATUS,
        has_generation=True,
        field_labels=frozenset({"status.successful"}),
    ),
    ResourceInfo(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        create_on_update=True,
        unconditional_update=False,
    ),
    _rbac("roles", "Role", namespaced=True),
    _rbac("rolebindings", "RoleBinding", namespaced=True),
    _rbac("clusterroles", "ClusterRole", namespaced=False),
    _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    ResourceInfo(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=_STATUS,
        has_generation=True,
        unconditional_update=False,
    ),
    _dra("deviceclasses", "DeviceClass", namespaced=False, has_generation=True),
    _dra(
        "resourceslices",
        "ResourceSlice",
        namespaced=False,
        has_generation=True,
        field_labels=frozenset({"spec.nodeName", "spec.driver"}),
    ),
    _dra("resourceclaims", "ResourceClaim", subresources=_STATUS),
    _dra("resourceclaimtemplates", "ResourceClaimTemplate"),
    ResourceInfo(
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        namespaced=False,
        short_names=("pc",),
        has_generation=True,
    ),
    ResourceInfo(
        "storage.k8s.io",
        "v1",
        "storageclasses",
        "StorageClass",
        namespaced=False,
        short_names=("sc",),
        returns_deleted=True,
    ),
)


class Registry:
    """The served resources by path; it grows and shrinks with CustomResourceDefinitions."""

    def __init__(self, builtin: Iterable[ResourceInfo] = BUILTIN) -> None:
        self._infos = {(info.group, info.version, info.plural): info for info in builtin}
        self.revision = 0

    def find(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        return self._infos.get((group, version, plural))

    def by_kind(self, group: str, kind: str) -> ResourceInfo | None:
        """Any version of a kind."""
        return next((info for info in self._infos.values() if (info.group, info.kind) == (group, kind)), None)

    def by_collection(self, collection: str) -> ResourceInfo | None:
        """The resource, in any version, whose objects a collection holds."""
        return next((i for i in self._infos.values() if i.collection == collection and not i.stored_as), None)

    def all(self) -> list[ResourceInfo]:
        return list(self._infos.values())

    def serves(self, group: str, version: str) -> bool:
        """Whether there is any resource in a group and version."""
        return any((info.group, info.version) == (group, version) for info in self._infos.values())

    def replace_custom(self, group: str, plural: str, infos: Iterable[ResourceInfo]) -> None:
        """Serves these versions of a custom resource and no others; none at all where ``infos`` is empty."""
        kept = {k: info for k, info in self._infos.items() if (info.group, info.plural) != (group, plural)}
        self._infos = {**kept, **{(info.group, info.version, info.plural): info for info in infos}}
        self.revision += 1
