"""What the server does to an object in its life: identity, generation, status isolation, finalizers and deletion.

All functions are pure: they take the objects and the moment and return new objects, or raise the refusal.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from controllers.sandbox.errors import Cause, StatusError, bad_request, conflict, invalid
from controllers.sandbox.registry import ResourceInfo

Object = dict[str, Any]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_NOT_FROM_CLIENTS = frozenset(
    {"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink"}
)
_IMMUTABLE_SPECS = frozenset({("resource.k8s.io", "ResourceClaim"), ("resource.k8s.io", "ResourceClaimTemplate")})


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What a delete demands of the object; "" demands nothing."""

    uid: str = ""
    resource_version: str = ""

    def check(self, info: ResourceInfo, live: Mapping[str, Any]) -> None:
        """Raises the 409."""
        metadata = live["metadata"]
        name = metadata["name"]
        version = metadata["resourceVersion"]
        if self.uid and self.uid != metadata["uid"]:
            why = (
                f"the UID in the precondition ({self.uid}) does not match the UID in record ({metadata['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict(info.group, info.kind, name, why)
        if self.resource_version and self.resource_version != version:
            why = (
                f"the ResourceVersion in the precondition ({self.resource_version}) does not match the ResourceVersion "
                f"in record ({version}). The object might have been modified"
            )
            raise conflict(info.group, info.kind, name, why)


@dataclass(frozen=True, slots=True)
class Deletion:
    """How an object is to be deleted; ``grace_period`` is in seconds, None for the object's own."""

    preconditions: Preconditions = Preconditions()
    propagation: str = "Background"
    grace_period: int | None = None


def check_identity(info: ResourceInfo, obj: Any, namespace: str, name: str = "") -> Object:
    """The body of a write, if it fits the path it was sent to; a missing namespace or name is filled in.

    Raises StatusError 400.
    """
    if not isinstance(obj, dict):
        raise bad_request(f"the body of the request must be a JSON object of kind {info.kind}")
    api_version, kind = obj.get("apiVersion") or info.api_version, obj.get("kind") or info.kind
    if (api_version, kind) != (info.api_version, info.kind):
        what = f"{info.kind} in version {info.version!r}".replace("'", '"')
        raise bad_request(f"the object provided is unrecognized: {what} is expected here, not {kind} ({api_version})")
    metadata = obj.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise bad_request(f"metadata of the {info.kind} must be an object")
    metadata = dict(metadata or {})
    if info.namespaced and (metadata.setdefault("namespace", namespace) or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if not info.namespaced and metadata.pop("namespace", None):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if name and (metadata.setdefault("name", name) or name) != name:
        given = metadata["name"]
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
    if name:
        metadata["name"] = name
    return {**obj, "apiVersion": info.api_version, "kind": info.kind, "metadata": metadata}


def created(info: ResourceInfo, obj: Object, *, uid: str, now: str, suffix: str) -> Object:
    """The object as it begins its life; ``suffix`` completes a ``generateName``."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _NOT_FROM_CLIENTS}
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = f"{metadata['generateName'][:58]}{suffix}"
    metadata |= {"uid": uid, "creationTimestamp": now}
    if info.has_generation:
        metadata["generation"] = 1
    return _at_birth(info, {**obj, "metadata": metadata})


def without_status(info: ResourceInfo, obj: Object) -> Object:
    """The object to be created without the status that its creator may not set; a built-in kind has an empty one."""
    # Kubelets register their nodes with a status.
    if "status" not in info.subresources or info.collection == "nodes":
        return obj
    kept = {key: value for key, value in obj.items() if key != "status"}
    return kept if info.custom else {**kept, "status": {}}


def _at_birth(info: ResourceInfo, obj: Object) -> Object:
    match info.collection:
        case "namespaces":
            labels = {**(obj["metadata"].get("labels") or {}), NAMESPACE_NAME_LABEL: obj["metadata"].get("name", "")}
            obj["metadata"] = {**obj["metadata"], "labels": labels}
            obj["spec"] = {**(obj.get("spec") or {}), "finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        case "pods":
            obj["status"] = {"phase": "Pending"}
        case "secrets":
            obj.setdefault("type", "Opaque")
            _merge_string_data(obj)
    return obj


def _merge_string_data(secret: Object) -> None:
    plain = secret.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def updated(info: ResourceInfo, old: Object, new: Object, subresource: str = "") -> Object:
    """What a write of ``new`` over ``old`` makes, with all that the client may not change taken from ``old``."""
    if subresource == "status":
        return _with_status(info, old, new)
    metadata = dict(new["metadata"])
    for name in _SERVER_FIELDS:
        metadata.pop(name, None)
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    result = {**new, "metadata": metadata}
    if "status" in info.subresources:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if info.collection == "namespaces" and "spec" in old:
        result["spec"] = old["spec"]
    if info.collection == "secrets":
        _merge_string_data(result)
    if info.has_generation and _content(info, old) != _content(info, result):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    return result


def _with_status(info: ResourceInfo, old: Object, new: Object) -> Object:
    result = {key: value for key, value in old.items() if key != "status"}
    if "status" in new:
        result["status"] = new["status"]
    metadata = dict(old["metadata"])
    taken = ("labels", "annotations", "managedFields") if info.status_writes_metadata else ("managedFields",)
    for name in taken:
        metadata.pop(name, None)
        if name in new["metadata"]:
            metadata[name] = new["metadata"][name]
    return {**result, "metadata": metadata}


def _content(info: ResourceInfo, obj: Object) -> Object:
    """The part of an object whose changes the generation counts."""
    ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if "status" in info.subresources else set())
    return {key: value for key, value in obj.items() if key not in ignored}


def check_update(info: ResourceInfo, old: Object, new: Object, *, patched: bool = False) -> None:
    """Refuses what no update, or no patch, may do. Raises StatusError 409 or 422."""
    before, after = old["metadata"], new["metadata"]
    name = before["name"]
    if after.get("uid") and after["uid"] != before["uid"] and patched:
        cause = Cause("FieldValueInvalid", f'Invalid value: "{after["uid"]}": field is immutable', "metadata.uid")
        raise invalid(info.group, info.kind, name, [cause])
    if after.get("uid") and after["uid"] != before["uid"]:
        why = f"Precondition failed: UID in precondition: {after['uid']}, UID in object meta: {before['uid']}"
        raise conflict(info.group, info.plural, name, why)
    version = after.get("resourceVersion")
    if version and version != "0" and version != before["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(info.group, info.plural, name, why)
    if "deletionTimestamp" in before:
        _check_finalizers(info, name, before, after)


def check_version_given(info: ResourceInfo, obj: Object) -> None:
    """Refuses a PUT without resource version where the resource demands one. Raises StatusError 422."""
    if not info.unconditional_update and not obj["metadata"].get("resourceVersion"):
        cause = Cause("FieldValueInvalid", "Invalid value: 0: must be specified for an update", _VERSION_PATH)
        raise invalid(info.group, info.kind, obj["metadata"]["name"], [cause])


_VERSION_PATH = "metadata.resourceVersion"


def _check_finalizers(info: ResourceInfo, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    added = [f for f in after.get("finalizers") or () if f not in (before.get("finalizers") or ())]
    if added:
        listed = "{" + ", ".join(f'"{finalizer}":{{}}' for finalizer in sorted(added)) + "}"
        text = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            f"sets.Set[string]{listed}"
        )
        raise invalid(info.group, info.kind, name, [Cause("FieldValueForbidden", text, "metadata.finalizers")])


def check_immutable(info: ResourceInfo, old: Object, new: Object) -> None:
    """Refuses changes of what stays as it was created, for the kinds that controllers here rely on."""
    causes: list[Cause] = []
    if (info.group, info.kind) in _IMMUTABLE_SPECS and old.get("spec") != new.get("spec"):
        causes.append(Cause("FieldValueInvalid", "Invalid value: field is immutable", "spec"))
    if info.collection in {"configmaps", "secrets"} and old.get("immutable") is True:
        causes += [
            Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", name)
            for name in ("data", "binaryData")
            if old.get(name) != new.get(name)
        ]
    if info.collection == "secrets" and old.get("type") != new.get("type"):
        text = f'Invalid value: "{new.get("type", "")}": field is immutable'
        causes.append(Cause("FieldValueInvalid", text, "type"))
    if causes:
        raise invalid(info.group, info.kind, old["metadata"]["name"], causes)


def same(old: Object, new: Object) -> bool:
    """Whether a write would change nothing, the times in managedFields apart."""
    if old == new:
        return True
    if _without_managed(old) != _without_managed(new):
        return False
    return _managed(old) == _managed(new)


def _without_managed(obj: Object) -> Object:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}


def _managed(obj: Object) -> list[dict[str, Any]]:
    entries = obj["metadata"].get("managedFields") or []
    return [{key: value for key, value in entry.items() if key != "time"} for entry in entries]


class _MetadataShape(msgspec.Struct):
    """The types of what the server reads of metadata."""

    name: str | None = None
    generateName: str | None = None  # noqa: N815 - the API's name
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    creationTimestamp: datetime | None = None  # noqa: N815
    deletionTimestamp: datetime | None = None  # noqa: N815
    resourceVersion: str | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    ownerReferences: list[dict[str, Any]] | None = None  # noqa: N815
    managedFields: list[dict[str, Any]] | None = None  # noqa: N815


def metadata_fault(obj: Mapping[str, Any]) -> str:
    """What in an object's metadata has a wrong type, "" where nothing has."""
    try:
        msgspec.convert(obj["metadata"], _MetadataShape)
    except msgspec.ValidationError as error:
        return f"metadata: {error}"
    return ""


def metadata_causes(info: ResourceInfo, obj: Object) -> list[Cause]:
    """The rules about metadata that an object breaks."""
    metadata = obj["metadata"]
    causes = list(_name_causes(info, metadata))
    for key, value in (metadata.get("labels") or {}).items():
        causes += _label_causes(str(key), value)
    for index, reference in enumerate(metadata.get("ownerReferences") or ()):
        causes += _owner_causes(reference, f"metadata.ownerReferences[{index}]")
    return causes


def _name_causes(info: ResourceInfo, metadata: Mapping[str, Any]) -> Iterable[Cause]:
    name = metadata.get("name") or ""
    if not name:
        yield Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
    elif info.names == "path":
        if "/" in name or "%" in name or name in {".", ".."}:
            text = f"Invalid value: \"{name}\": may not contain '/'"
            yield Cause("FieldValueInvalid", text, "metadata.name")
    elif info.names == "label":
        if not _LABEL.fullmatch(name):
            yield Cause("FieldValueInvalid", f'Invalid value: "{name}": {_LABEL_RULE}', "metadata.name")
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield Cause("FieldValueInvalid", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}', "metadata.name")


def _label_causes(key: str, value: Any) -> Iterable[Cause]:
    if not _QUALIFIED.fullmatch(key):
        yield Cause("FieldValueInvalid", f'Invalid value: "{key}": {_QUALIFIED_RULE}', "metadata.labels")
    if isinstance(value, str) and not _LABEL_VALUE.fullmatch(value):
        yield Cause("FieldValueInvalid", f'Invalid value: "{value}": {_LABEL_VALUE_RULE}', "metadata.labels")


def _owner_causes(reference: Any, path: str) -> Iterable[Cause]:
    for name in ("apiVersion", "kind", "name", "uid"):
        if not isinstance(reference, dict) or not reference.get(name):
            text = f'Invalid value: "": {"version" if name == "apiVersion" else name} must not be empty'
            yield Cause("FieldValueInvalid", text, f"{path}.{name}")


def being_deleted(obj: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def may_go(info: ResourceInfo, obj: Mapping[str, Any]) -> bool:
    """Whether an object under deletion waits for nothing any more."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if info.collection == "namespaces":
        return not (obj.get("spec") or {}).get("finalizers")
    return not metadata.get("deletionGracePeriodSeconds")


def deleted(info: ResourceInfo, live: Object, deletion: Deletion, deadline: str) -> Object:
    """The object marked for deletion: with deletionTimestamp ``deadline`` and the finalizers of its propagation."""
    metadata = dict(live["metadata"])
    finalizers = [f for f in metadata.get("finalizers") or () if f not in {FOREGROUND, ORPHAN}]
    finalizers += {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(deletion.propagation, [])
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    grace = grace_period(info, live, deletion)
    earlier = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or (earlier is not None and grace < earlier):
        metadata |= {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": grace}
        if info.has_generation and "deletionTimestamp" not in live["metadata"]:
            metadata["generation"] = metadata.get("generation", 0) + 1
    result = {**live, "metadata": metadata}
    if info.collection == "namespaces":
        result["status"] = {**(live.get("status") or {}), "phase": "Terminating"}
    return result


def grace_period(info: ResourceInfo, live: Mapping[str, Any], deletion: Deletion) -> int:
    """Seconds that an object gets to end; only pods on a node that have not ended yet get any."""
    if info.collection != "pods":
        return 0
    spec, phase = live.get("spec") or {}, (live.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    if deletion.grace_period is not None:
        return max(0, deletion.grace_period)
    return int(spec.get("terminationGracePeriodSeconds", 30))


def namespace_terminating(info: ResourceInfo, namespace: str, name: str) -> StatusError:
    """The 403 for a create in a namespace that is being deleted."""
    resource = f"{info.plural}.{info.group}" if info.group else info.plural
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    details = {"name": name, "group": info.group, "kind": info.plural}
    return StatusError(
        403,
        "Forbidden",
        f'{resource} "{name}" is forbidden: {why}',
        [Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")],
        {key: value for key, value in details.items() if value},
    )
