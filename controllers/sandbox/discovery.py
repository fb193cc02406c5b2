"""What the server says about itself: groups, versions and resources, as documents of their own and aggregated."""

from collections.abc import Iterable, Mapping
from typing import Any

from controllers.sandbox.errors import no_such_page
from controllers.sandbox.registry import VERBS, Registry, ResourceInfo

VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.2+gpu-mirage-sandbox",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
"""The Kubernetes version whose behaviour is copied."""

_SUBRESOURCE_VERBS: Mapping[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
}
_SUBRESOURCE_KINDS: Mapping[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
REVIEWS: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("authentication.k8s.io", "tokenreviews"): ("TokenReview", False),
    ("authentication.k8s.io", "selfsubjectreviews"): ("SelfSubjectReview", False),
    ("authorization.k8s.io", "selfsubjectaccessreviews"): ("SelfSubjectAccessReview", False),
    ("authorization.k8s.io", "selfsubjectrulesreviews"): ("SelfSubjectRulesReview", False),
    ("authorization.k8s.io", "subjectaccessreviews"): ("SubjectAccessReview", False),
    ("authorization.k8s.io", "localsubjectaccessreviews"): ("LocalSubjectAccessReview", True),
}
"""Resources that are only ever asked (created), never kept: kind, and whether they live in a namespace."""


def api_versions() -> dict[str, Any]:
    """The document at /api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> dict[str, Any]:
    """The document at /apis."""
    groups = [_group(name, versions) for name, versions in _groups(registry).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> dict[str, Any]:
    """The document at /apis/GROUP. Raises StatusError 404."""
    versions = _groups(registry).get(name)
    if not versions or not name:
        raise no_such_page()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _groups(registry: Registry) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for info in registry.all():
        versions = groups.setdefault(info.group, [])
        if info.version not in versions:
            versions.append(info.version)
    for name, _ in REVIEWS:
        groups.setdefault(name, ["v1"])
    return {name: sorted(versions, key=priority, reverse=True) for name, versions in groups.items()}


def priority(version: str) -> tuple[int, int, int]:
    """A sort key for versions: v2 above v1 above v1beta2 above v1beta1 above v1alpha1 above anything else."""
    for rank, stage in ((3, ""), (2, "beta"), (1, "alpha")):
        major, found, minor = version[1:].partition(stage) if stage else (version[1:], "", "0")
        if version.startswith("v") and major.isdigit() and minor.isdigit() and (found or not stage):
            return rank, int(major), int(minor)
    return 0, 0, 0


def resource_list(registry: Registry, group_name: str, version: str) -> dict[str, Any]:
    """The document at /api/v1 or /apis/GROUP/VERSION. Raises StatusError 404."""
    infos = _served(registry, group_name, version)
    reviews = _reviews(group_name, version)
    if not infos and not reviews:
        raise no_such_page()
    resources = [entry for info in infos for entry in (_resource(info), *_subresources(info))]
    resources += [
        {"name": name, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": ["create"]}
        for name, kind, namespaced in reviews
    ]
    group_version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _served(registry: Registry, group_name: str, version: str) -> list[ResourceInfo]:
    infos = (info for info in registry.all() if (info.group, info.version) == (group_name, version))
    return sorted(infos, key=lambda info: info.plural)


def _reviews(group_name: str, version: str) -> list[tuple[str, str, bool]]:
    if version != "v1":
        return []
    return [(name, kind, scoped) for (owner, name), (kind, scoped) in REVIEWS.items() if owner == group_name]


def verbs_of(info: ResourceInfo) -> tuple[str, ...]:
    """What can be done with a resource; namespaces are only deleted one by one."""
    return tuple(verb for verb in VERBS if verb != "deletecollection" or info.collection != "namespaces")


def singular(info: ResourceInfo) -> str:
    return info.singular or info.kind.lower()


def _resource(info: ResourceInfo) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": info.plural,
        "singularName": singular(info),
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": list(verbs_of(info)),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    return entry


def _subresources(info: ResourceInfo) -> Iterable[dict[str, Any]]:
    for name in sorted(info.subresources):
        group_name, version, kind = _SUBRESOURCE_KINDS.get(name, (info.group, info.version, info.kind))
        entry = {
            "name": f"{info.plural}/{name}",
            "singularName": "",
            "namespaced": info.namespaced,
            "kind": kind,
            "verbs": list(_SUBRESOURCE_VERBS[name]),
        }
        yield entry | ({"group": group_name, "version": version} if name in _SUBRESOURCE_KINDS else {})


def aggregated(registry: Registry, *, core: bool) -> dict[str, Any]:
    """All groups in one document, for /api (``core``) and /apis."""
    groups = {name: found for name, found in _groups(registry).items() if (not name) is core}
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [_aggregated_version(registry, name, each) for each in versions],
        }
        for name, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(registry: Registry, group_name: str, version: str) -> dict[str, Any]:
    resources = [_aggregated_resource(info) for info in _served(registry, group_name, version)]
    resources += [
        {
            "resource": name,
            "responseKind": {"group": "", "version": "", "kind": kind},
            "scope": "Namespaced" if namespaced else "Cluster",
            "singularResource": kind.lower(),
            "verbs": ["create"],
        }
        for name, kind, namespaced in _reviews(group_name, version)
    ]
    return {"version": version, "resources": resources, "freshness": "Current"}


def _aggregated_resource(info: ResourceInfo) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": info.plural,
        "responseKind": _own_kind(info),
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": singular(info),
        "verbs": list(verbs_of(info)),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    if info.subresources:
        entry["subresources"] = [_aggregated_subresource(info, name) for name in sorted(info.subresources)]
    return entry


def _own_kind(info: ResourceInfo) -> dict[str, str]:
    """The kind of a resource's objects; where it is of the resource's own group, built-in ones do not repeat that."""
    if info.custom:
        return {"group": info.group, "version": info.version, "kind": info.kind}
    return {"group": "", "version": "", "kind": info.kind}


def _aggregated_subresource(info: ResourceInfo, name: str) -> dict[str, Any]:
    shown = _own_kind(info)
    if name in _SUBRESOURCE_KINDS:
        shown = dict(zip(("group", "version", "kind"), _SUBRESOURCE_KINDS[name], strict=True))
    if shown["group"] == "":
        shown["version"] = ""
    return {
        "subresource": name,
        "responseKind": shown,
        "verbs": list(_SUBRESOURCE_VERBS[name]),
    }
