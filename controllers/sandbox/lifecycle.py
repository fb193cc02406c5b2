"""What the server does to an object in its life: identity, generation, status isolation, finalizers and deletion.

All functions are pure: they take the objects and the moment and return new objects, or raise the refusal.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from controllers.sandbox.errors import Cause, StatusError, bad_request, conflict, invalid
from controllers.sandbox.notation import equal
from controllers.sandbox.presets import STATUS_KEEPS
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.typeschema import zero

Object = dict[str, Any]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUALIFIED = re.compile(f"({_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_MAXIMUM_ANNOTATIONS = 256 * 2**10  # bytes of all keys and values, the API's
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
_LABEL_KEY_RULE = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
    "'example.com/MyName')"
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

    def check_again(self, info: ResourceInfo, live: Mapping[str, Any]) -> None:
        """Raises the 409 of the real server for any version, once it has taken finalizers from the object.

        It compares the version with that of the object that it would have written, and has written none.
        """
        metadata = live["metadata"]
        if self.resource_version:
            place = storage_key(info, metadata["name"], metadata.get("namespace", ""))
            why = (
                f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: ResourceVersion in precondition: , ResourceVersion in object meta: "
                f"{metadata['resourceVersion']}"
            )
            raise conflict(info.group, info.plural, metadata["name"], why)


@dataclass(frozen=True, slots=True)
class Deletion:
    """How an object is to be deleted; ``grace_period`` is in seconds, None for the object's own."""

    preconditions: Preconditions = Preconditions()
    propagation: str = ""  # "" is what the object's finalizers say, and else Background
    grace_period: int | None = None


class Undecodable(StatusError):
    """400: what was sent is no object of its kind."""

    def __init__(self, info: ResourceInfo, why: str) -> None:
        message = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: {why}'
        super().__init__(400, "BadRequest", message)

    def of_patch(self) -> StatusError:
        """The refusal where a patch has made an object so."""
        cause = Cause("FieldValueInvalid", f"Invalid value: {self.message}", "patch")
        return StatusError(422, "Invalid", f' "" is invalid: patch: {cause.message}', [cause])


def check_identity(info: ResourceInfo, obj: Any, namespace: str, name: str = "", *, named: bool = False) -> Object:
    """The body of a write, if it is of the kind and fits the path that it was sent to. Raises StatusError 400."""
    return check_place(info, check_kind(info, obj), namespace, name, named=named)


_TYPE_META = ("apiVersion", "kind")


def check_kind(info: ResourceInfo, obj: Any, *, subresource: str = "", patched: bool = False) -> Object:
    """The body of a write, if it is of the path's kind, with what it did not say of itself.

    Where only the status is written, the kind does not matter. Raises StatusError 400 and 422; of a ``patched`` custom
    object 500 where it has lost its version.
    """
    if not isinstance(obj, dict):
        raise bad_request(f"the body of the request must be a JSON object of kind {info.kind}")
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    nothing = () if info.custom else (None,)
    if any(name in obj and not isinstance(obj[name], str) and obj[name] not in nothing for name in _TYPE_META):
        raise Undecodable(info, "apiVersion and kind must be strings")
    if info.custom:
        _check_custom_kind(info, obj, patched=patched)
        if subresource != "status":
            _check_same_kind(info, obj)
        api_version, kind = info.api_version, kind and info.kind
    else:
        api_version, kind = api_version or info.api_version, kind or info.kind
    if (api_version, kind) != (info.api_version, info.kind):
        what = f"{info.kind} in version {info.version!r}".replace("'", '"')
        raise bad_request(f"the object provided is unrecognized: {what} is expected here, not {kind} ({api_version})")
    metadata = {} if obj.get("metadata") is None else obj["metadata"]
    if fault := _metadata_fault(metadata):
        raise Undecodable(info, fault)
    return {**obj, "apiVersion": info.api_version, "kind": info.kind, "metadata": dict(metadata)}


def _check_custom_kind(info: ResourceInfo, obj: Object, *, patched: bool) -> None:
    api_version, kind = obj.get("apiVersion") or "", obj.get("kind") or ""
    if patched and (not kind or api_version.count("/") > 1):
        raise Undecodable(info, "Object 'Kind' is missing" if not kind else f"unexpected apiVersion {api_version}")
    if patched and not api_version:
        text = "Object 'apiVersion' is missing in 'object has no apiVersion field'"
        raise StatusError(500, "InternalError", f"Internal error occurred: {text}", [Cause("", text, "")])
    if kind and api_version != info.api_version and not patched:
        why = f"does not match the expected API version ({info.api_version})"
        raise bad_request(f"the API version in the data ({api_version}) {why}")


def _check_same_kind(info: ResourceInfo, obj: Object) -> None:
    api_version, kind = obj.get("apiVersion") or "", obj.get("kind") or ""
    wanted = (("apiVersion", api_version, info.api_version), ("kind", kind, info.kind))
    causes = [
        Cause("FieldValueInvalid", f'Invalid value: "{given}": must be {expected}', name)
        for name, given, expected in wanted
        if given and given != expected
    ]
    if kind and causes:
        raise invalid(info.group, kind, (obj.get("metadata") or {}).get("name", ""), causes)


def check_place(info: ResourceInfo, obj: Object, namespace: str, name: str = "", *, named: bool = False) -> Object:
    """The object, if it fits the path it was sent to; a missing namespace or name is filled in.

    A ``named`` one must say its name itself. Raises StatusError 400.
    """
    metadata = obj["metadata"]
    if named and not metadata.get("name"):
        why = "undeterminable: name must be provided"
        raise bad_request(f"the name of the object ({name} based on URL) was {why}")
    if info.namespaced and (metadata.setdefault("namespace", namespace) or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if not info.namespaced:
        metadata.pop("namespace", None)
    if name and (metadata.setdefault("name", name) or name) != name:
        given = metadata["name"]
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
    if name:
        metadata["name"] = name
    return obj


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
    return kept if info.custom else {**kept, "status": zero(info.schema.field("status"))}


def _at_birth(info: ResourceInfo, obj: Object) -> Object:
    match info.collection:
        case "namespaces":
            labels = {**(obj["metadata"].get("labels") or {}), NAMESPACE_NAME_LABEL: obj["metadata"].get("name", "")}
            obj["metadata"] = {**obj["metadata"], "labels": labels}
            obj["spec"] = {**(obj.get("spec") or {}), "finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        case "serviceaccounts":
            _only_names_of_secrets(obj)
        case "pods":
            obj["status"] = {"phase": "Pending", "qosClass": _quality(obj.get("spec") or {})}
    return obj


def _only_names_of_secrets(account: Object) -> None:
    if account.get("secrets"):
        account["secrets"] = [{k: v for k, v in secret.items() if k == "name"} for secret in account["secrets"]]


def _quality(spec: Mapping[str, Any]) -> str:
    """How well a pod is served when its node runs short: by what its containers ask for and are limited to."""
    parts = [c.get("resources") or {} for c in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))]
    computed = ("cpu", "memory")
    asked = [{k: v for k, v in (part.get("requests") or {}).items() if k in computed} for part in parts]
    limits = [{k: v for k, v in (part.get("limits") or {}).items() if k in computed} for part in parts]
    if not any(asked) and not any(limits):
        return "BestEffort"
    return "Guaranteed" if asked == limits and all(len(limit) == len(computed) for limit in limits) else "Burstable"


def updated(info: ResourceInfo, old: Object, new: Object, subresource: str = "") -> Object:
    """What a write of ``new`` over ``old`` makes, with all that the client may not change taken from ``old``."""
    if subresource == "status":
        return _with_status(info, old, new)
    metadata = _with_own(old["metadata"], new["metadata"], _SERVER_FIELDS)
    result = {**new, "metadata": metadata}
    if "status" in info.subresources:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if info.collection == "namespaces" and "spec" in old:
        result["spec"] = old["spec"]
    if info.collection == "serviceaccounts":
        _only_names_of_secrets(result)
    noted = info.collection == "apps/deployments" and not _same_annotations(old, result)
    if info.has_generation and (noted or not equal(_content(info, old), _content(info, result))):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    return result


def _same_annotations(old: Object, new: Object) -> bool:
    before, after = (obj["metadata"].get("annotations") or {} for obj in (old, new))
    return bool(before == after)


def _with_status(info: ResourceInfo, old: Object, new: Object) -> Object:
    result = {key: value for key, value in old.items() if key != "status"}
    if "status" in new:
        result["status"] = new["status"]
    if info.collection == "pods" and (quality := (old.get("status") or {}).get("qosClass")):
        result["status"] = {"qosClass": quality, **(result.get("status") or {})}
    if info.custom:
        metadata = {key: value for key, value in old["metadata"].items() if key != "managedFields"}
        if "managedFields" in new["metadata"]:
            metadata["managedFields"] = new["metadata"]["managedFields"]
        return {**result, "metadata": metadata}
    kept = STATUS_KEEPS.get(info.schema.name, ())
    return {**result, "metadata": _with_own(old["metadata"], new["metadata"], (*_SERVER_FIELDS, *kept))}


def _with_own(old: Object, new: Object, names: Iterable[str]) -> Object:
    """New metadata in which some members are, or are missing, as they were."""
    metadata = {name: value for name, value in new.items() if name not in names}
    metadata |= {name: old[name] for name in names if name in old}
    return {**metadata, "resourceVersion": old["resourceVersion"]}


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
        raise other_object(info, name, before.get("namespace", ""), after["uid"], before["uid"])
    version = after.get("resourceVersion")
    if version and not version.isdigit():
        raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version in (None, "", "0") and not info.unconditional_update:
        cause = Cause("FieldValueInvalid", "Invalid value: 0: must be specified for an update", _VERSION_PATH)
        # The real server says the resource's name here where it says the kind's elsewhere.
        raise invalid(info.group, info.plural, name, [cause])
    if version and version != "0" and version != before["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(info.group, info.plural, name, why)


def other_object(info: ResourceInfo, name: str, namespace: str, wanted: str, found: str) -> StatusError:
    """The 409 for an update of an object with another uid than the one that is there."""
    place = storage_key(info, name, namespace)
    why = (
        f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )
    return conflict(info.group, info.plural, name, why)


def storage_key(info: ResourceInfo, name: str, namespace: str) -> str:
    """Where the real server stores an object, but for a few built-in kinds that have other names there."""
    return "/".join(filter(None, ("/registry", info.group if info.custom else "", info.plural, namespace, name)))


_VERSION_PATH = "metadata.resourceVersion"


def finalizer_causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Cause]:
    """What is wrong with the finalizers of an update: an object that goes gets no new ones."""
    before, after = old["metadata"], new["metadata"]
    added = [f for f in after.get("finalizers") or () if f not in (before.get("finalizers") or ())]
    if not added or "deletionTimestamp" not in before:
        return []
    listed = ", ".join(f'"{finalizer}"' for finalizer in sorted(added))
    text = (
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
        f"[]string{{{listed}}}"
    )
    return [Cause("FieldValueForbidden", text, "metadata.finalizers")]


def finalizer_warnings(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """What the writer of a custom object is told of new finalizers that others might use, too."""
    known = {FOREGROUND, ORPHAN, "kubernetes", *(finalizers(old) if old else ())}
    return [
        f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name '
        + ("including a path (/) " if "." in name else "")
        + "to avoid accidental conflicts with other finalizer writers"
        for name in sorted(set(finalizers(new)) - known)
        if "/" not in name
    ]


def immutable_causes(info: ResourceInfo, old: Object, new: Object) -> list[Cause]:
    """What changed of what stays as it was created, for the kinds that controllers here rely on."""
    causes: list[Cause] = []
    if info.collection == "pods":
        causes += _changes_of_pod(old.get("spec") or {}, new.get("spec") or {})
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
    return causes


def _changes_of_pod(old: Object, new: Object) -> Iterable[Cause]:
    gated = bool(old.get("schedulingGates"))
    if len(old.get("containers") or ()) != len(new.get("containers") or ()):
        why = "Forbidden: pod updates may not add or remove containers"
        yield Cause("FieldValueForbidden", why, "spec.containers")
    elif not equal(_fixed_of_pod(old, gated=gated), _fixed_of_pod(new, gated=gated)):
        mutable = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`"
        more = "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds`"
        why = f"Forbidden: pod updates may not change fields other than {mutable},{more}"
        yield Cause("FieldValueForbidden", why, "spec")


def _fixed_of_pod(spec: Object, *, gated: bool) -> Object:
    """What nobody may change of a pod; where it may run can be narrowed as long as it is not to be scheduled."""
    mutable = {"activeDeadlineSeconds", "tolerations", "nodeName", "schedulingGates"}
    mutable |= {"nodeSelector", "affinity"} if gated else set()
    fixed = {k: v for k, v in spec.items() if k not in mutable}
    for name in ("containers", "initContainers"):
        fixed[name] = [{k: v for k, v in part.items() if k != "image"} for part in spec.get(name) or ()]
    return fixed


def same(old: Object, new: Object) -> bool:
    """Whether a write would change nothing, the times in managedFields apart."""
    return equal(_without_managed(old), _without_managed(new)) and _managed(old) == _managed(new)


def _without_managed(obj: Object) -> Object:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}


def _managed(obj: Object) -> list[dict[str, Any]]:
    entries = obj["metadata"].get("managedFields") or []
    return [{key: value for key, value in entry.items() if key != "time"} for entry in entries]


class _OwnerShape(msgspec.Struct):
    """The types of a reference to an owner."""

    apiVersion: str | None = None  # noqa: N815 - the API's name
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None
    blockOwnerDeletion: bool | None = None  # noqa: N815


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
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    finalizers: list[str | None] | None = None
    ownerReferences: list[_OwnerShape | None] | None = None  # noqa: N815
    managedFields: list[dict[str, Any]] | None = None  # noqa: N815


def _metadata_fault(metadata: Any) -> str:
    """What in an object's metadata has a wrong type, "" where nothing has."""
    try:
        msgspec.convert(metadata, _MetadataShape)
    except msgspec.ValidationError as error:
        return f"metadata: {error}"
    return ""


def metadata_causes(info: ResourceInfo, obj: Object) -> list[Cause]:
    """The rules about metadata that an object breaks."""
    metadata = obj["metadata"]
    causes = list(_name_causes(info, metadata))
    for key, value in (metadata.get("labels") or {}).items():
        causes += _label_causes(str(key), value)
    causes += _annotation_causes(metadata.get("annotations") or {})
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        causes += _finalizer_faults(info, str(finalizer), f"metadata.finalizers[{index}]")
    for index, reference in enumerate(metadata.get("ownerReferences") or ()):
        causes += _owner_causes(reference, f"metadata.ownerReferences[{index}]")
    causes += _controller_causes(metadata.get("ownerReferences") or [])
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
        yield from _invalid_as(name, _faults(name, 63, _LABEL, _LABEL_RULE), "metadata.name")
    else:
        yield from _invalid_as(name, _faults(name, 253, _SUBDOMAIN, _SUBDOMAIN_RULE), "metadata.name")


def _invalid_as(value: str, why: Iterable[str], path: str) -> Iterable[Cause]:
    return (Cause("FieldValueInvalid", f'Invalid value: "{value}": {each}', path) for each in why)


def _faults(text: str, limit: int, pattern: re.Pattern[str], rule: str) -> Iterable[str]:
    if len(text.encode()) > limit:
        yield f"must be no more than {limit} bytes"
    if not pattern.fullmatch(text):
        yield rule


def _label_causes(key: str, value: Any) -> Iterable[Cause]:
    yield from _invalid_as(key, _key_faults(key), "metadata.labels")
    if isinstance(value, str):
        yield from _invalid_as(value, _faults(value, 63, _LABEL_VALUE, _LABEL_VALUE_RULE), "metadata.labels")


def _annotation_causes(annotations: Mapping[str, Any]) -> Iterable[Cause]:
    path = "metadata.annotations"
    for key in annotations:
        yield from _invalid_as(key, _key_faults(key.lower()), path)
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items()) > _MAXIMUM_ANNOTATIONS:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {_MAXIMUM_ANNOTATIONS} bytes", path)


def _key_faults(key: str) -> Iterable[str]:
    """Why something cannot be the key of a label: a name, and perhaps a domain and a slash before it."""
    if len(key) <= 253 and _QUALIFIED.fullmatch(key):
        return
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield _LABEL_KEY_RULE
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        yield from (f"prefix part {fault}" for fault in _faults(prefix, 253, _SUBDOMAIN, _SUBDOMAIN_RULE))
    if not name:
        yield "name part must be non-empty"
    elif len(name.encode()) > 63:
        yield "name part must be no more than 63 bytes"
    if not _NAME_PART.fullmatch(name):
        yield _QUALIFIED_RULE


def _finalizer_faults(info: ResourceInfo, finalizer: str, path: str) -> Iterable[Cause]:
    yield from _invalid_as(finalizer, _key_faults(finalizer), "metadata.finalizers")
    if info.group == "apiextensions.k8s.io" or info.custom:
        return  # Others than these also demand a domain.
    if "/" not in finalizer and finalizer not in {FOREGROUND, ORPHAN, "kubernetes"}:
        why = "name is neither a standard finalizer name nor is it fully qualified"
        yield Cause("FieldValueInvalid", f'Invalid value: "{finalizer}": {why}', path)


def _owner_causes(reference: Any, path: str) -> Iterable[Cause]:
    for name in ("apiVersion", "kind", "name", "uid"):
        if not isinstance(reference, dict) or not reference.get(name):
            yield Cause("FieldValueRequired", "Required value: must not be empty", f"{path}.{name}")


def _controller_causes(references: list[dict[str, Any]]) -> Iterable[Cause]:
    controllers = [reference for reference in references if reference.get("controller") is True]
    if len(controllers) > 1:
        order = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
        listed = json.dumps([{k: r[k] for k in order if k in r} for r in references], separators=(",", ":"))
        names = [f"{reference.get('kind', '')}/{reference.get('name', '')}" for reference in controllers[:2]]
        found = " and ".join(names)
        why = f'Only one reference can have Controller set to true. Found "true" in references for {found}'
        yield Cause("FieldValueInvalid", f"Invalid value: {listed}: {why}", "metadata.ownerReferences")


def being_deleted(obj: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def finalizers(obj: Mapping[str, Any]) -> list[str]:
    """What an object waits for before it goes."""
    return obj["metadata"].get("finalizers") or []


def without_repeated_owners(obj: Object, *, patched: bool) -> str:
    """Takes the owners that are named twice out of an object, in place, and returns what to warn the client of."""
    references = obj["metadata"].get("ownerReferences") or []
    kept = [reference for index, reference in enumerate(references) if reference not in references[:index]]
    if len(kept) == len(references):
        return ""
    obj["metadata"]["ownerReferences"] = kept
    repeated = [r.get("uid", "") for index, r in enumerate(references) if r in references[:index]]
    when = " after mutating admission happens" if patched else ""
    return (
        f".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and "
        "may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
        + ", ".join(repeated)
    )


def unmarked(obj: Object, sent: Object) -> Object:
    """The object without marks of deletion that the client did not send."""
    marks = {"deletionTimestamp", "deletionGracePeriodSeconds"} - sent["metadata"].keys()
    if obj["metadata"].keys().isdisjoint(marks):
        return obj
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in marks}}


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
    held = metadata.get("finalizers") or []
    wanted = {"Foreground": [FOREGROUND], "Orphan": [ORPHAN], "Background": []}.get(deletion.propagation)
    if wanted is None:
        wanted = [f for f in (ORPHAN, FOREGROUND) if f in held][:1]
    left = [*(f for f in held if f not in {FOREGROUND, ORPHAN}), *wanted]
    if set(left) == set(held):
        left = held
    if left:
        metadata["finalizers"] = left
    else:
        metadata.pop("finalizers", None)
    grace = grace_period(info, live, deletion)
    earlier = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or (earlier is not None and grace < earlier):
        metadata |= {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": grace}
        if metadata.get("generation") and "deletionTimestamp" not in live["metadata"]:
            metadata["generation"] += 1
    result = {**live, "metadata": metadata}
    if info.collection == "namespaces":
        result["status"] = {**(live.get("status") or {}), "phase": "Terminating"}
    return result


def nothing(info: ResourceInfo) -> Object:
    """The empty object that a dry run shows where an object would lose its last finalizers and go."""
    identity = {"kind": info.kind, "apiVersion": info.api_version}
    return identity if info.custom else {**identity, "metadata": {}, **zero(info.schema)}


def grace_period(info: ResourceInfo, live: Mapping[str, Any], deletion: Deletion) -> int:
    """Seconds that an object gets to end; only pods on a node that have not ended yet get any."""
    if info.collection != "pods":
        return 0
    spec, phase = live.get("spec") or {}, (live.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    if deletion.grace_period is not None:
        return deletion.grace_period if deletion.grace_period >= 0 else 1
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
