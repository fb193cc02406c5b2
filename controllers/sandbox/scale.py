"""The scale subresource of workloads: the number of their replicas alone, as kubectl and autoscalers see it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controllers.sandbox.errors import Cause, bad_request, conflict, invalid
from controllers.sandbox.lifecycle import Object, check_identity
from controllers.sandbox.registry import ResourceInfo

SCALE = ResourceInfo("autoscaling", "v1", "scales", "Scale")
MOST = 2**31 - 1  # replicas
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(obj: Mapping[str, Any]) -> Object:
    """A workload as a Scale; none of its replicas are left out of the spec, as the API does."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    replicas = spec.get("replicas", 1)
    return {
        "kind": SCALE.kind,
        "apiVersion": SCALE.api_version,
        "metadata": {name: obj["metadata"][name] for name in _SHOWN if name in obj["metadata"]},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": status.get("replicas") or 0, "selector": _selector(spec.get("selector") or {})},
    }


def replacement(info: ResourceInfo, namespace: str, name: str, body: Any) -> Callable[[Object], Object]:
    """What makes a workload of that name what a Scale says. Raises StatusError 400 and 422."""
    scale = check_identity(SCALE, body, namespace, name)
    if not (body.get("metadata") or {}).get("name"):
        why = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        raise bad_request(why)
    return lambda live: _scaled(info, live, scale)


def change(info: ResourceInfo, namespace: str, name: str, patch: Callable[[Object], Any]) -> Callable[[Object], Object]:
    """What makes a workload what the patch of its Scale says. Raises StatusError when it is called."""
    return lambda live: _scaled(info, live, check_identity(SCALE, patch(scale_of(live)), namespace, name))


def applied(info: ResourceInfo, namespace: str, name: str, body: Any) -> Object:
    """An applied Scale as a configuration of the workload. Raises StatusError 400 and 422."""
    scale = check_identity(SCALE, body, namespace, name)
    metadata = {"name": name, "namespace": namespace}
    replicas = _replicas(scale)
    spec = {"replicas": replicas} if "replicas" in (scale.get("spec") or {}) else {}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}


def _scaled(info: ResourceInfo, live: Object, scale: Mapping[str, Any]) -> Object:
    wanted, metadata = scale["metadata"], live["metadata"]
    if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {metadata['uid']}"
        raise conflict(info.group, info.plural, metadata["name"], why)
    version = wanted.get("resourceVersion") or metadata["resourceVersion"]
    spec = {**(live.get("spec") or {}), "replicas": _replicas(scale)}
    return {**live, "metadata": {**metadata, "resourceVersion": version}, "spec": spec}


def _replicas(scale: Mapping[str, Any]) -> int:
    spec = {} if scale.get("spec") is None else scale["spec"]
    replicas = (spec.get("replicas") or 0) if isinstance(spec, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas > MOST:
        raise bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas must be an int32')
    if replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = Cause("FieldValueInvalid", text, "spec.replicas")
        raise invalid(SCALE.group, SCALE.kind, scale["metadata"]["name"], [cause])
    return replicas


def _selector(selector: Mapping[str, Any]) -> str:
    """A label selector in the API's syntax."""
    labels = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    terms = [(term["key"], _term(term)) for term in selector.get("matchExpressions") or ()]
    return ",".join(text for _, text in sorted([*labels, *terms]))


def _term(term: Mapping[str, Any]) -> str:
    key, values = term["key"], _listed(term.get("values") or ())
    match term.get("operator"):
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "DoesNotExist":
            return f"!{key}"
    return str(key)


def _listed(values: Iterable[Any]) -> str:
    return ",".join(sorted(map(str, values)))
