"""The subresources that are actions: binding and evicting a pod, finalizing a namespace."""

from typing import Any

from controllers.sandbox.cluster import Cluster, Written
from controllers.sandbox.errors import bad_request, conflict, invalid_options
from controllers.sandbox.lifecycle import Deletion, Object, Preconditions, check_identity, check_update
from controllers.sandbox.registry import ResourceInfo


def bind(cluster: Cluster, info: ResourceInfo, namespace: str, name: str, body: Any) -> Written:
    """Assigns a pod to a node, as a scheduler does. Raises StatusError 400, 404 or 409."""
    node = ((body.get("target") if isinstance(body, dict) else None) or {}).get("name")
    if not node:
        raise bad_request("target.name of the Binding must name a node")
    found = cluster.stored(info, namespace, name)
    spec = found.object.get("spec") or {}
    if spec.get("nodeName"):
        raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    status = found.object.get("status") or {}
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": cluster.now(),
    }
    others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    new = {
        **found.object,
        "spec": {**spec, "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }
    return cluster.amend(info, found, new)


def evict(cluster: Cluster, info: ResourceInfo, namespace: str, name: str, body: Any) -> Written:
    """Deletes a pod on behalf of an Eviction; there are no disruption budgets here. Raises StatusError 404 or 409."""
    options = (body.get("deleteOptions") if isinstance(body, dict) else None) or {}
    return cluster.delete(info, namespace, name, deletion_of(options), dry_run=False)


def finalize(cluster: Cluster, info: ResourceInfo, name: str, body: Any) -> Object:
    """Replaces a namespace's ``spec.finalizers``. Raises StatusError 400, 404, 409 or 422."""
    obj = check_identity(info, body, "", name)
    found = cluster.stored(info, "", name)
    check_update(info, found.object, obj)
    finalizers = (obj.get("spec") or {}).get("finalizers") or []
    new = {**found.object, "spec": {**(found.object.get("spec") or {}), "finalizers": finalizers}}
    return cluster.amend(info, found, new).object


def deletion_of(options: Any) -> Deletion:
    """How DeleteOptions want an object deleted. Raises StatusError 400."""
    if not isinstance(options, dict):
        raise bad_request("the body of a delete must be a JSON object of kind DeleteOptions")
    if options.get("orphanDependents") is not None and options.get("propagationPolicy"):
        policy = options["propagationPolicy"]
        text = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise invalid_options("DeleteOptions", "FieldValueInvalid", text, "propagationPolicy")
    conditions = options.get("preconditions") or {}
    orphan = options.get("orphanDependents")
    if orphan not in (None, True, False):
        raise bad_request("orphanDependents must be true or false")
    propagation = options.get("propagationPolicy") or {None: "", True: "Orphan", False: "Background"}[orphan]
    if propagation not in {"", "Background", "Foreground", "Orphan"}:
        text = f'Unsupported value: "{propagation}": supported values: "Foreground", "Background", "Orphan", "nil"'
        raise invalid_options("DeleteOptions", "FieldValueNotSupported", text, "propagationPolicy")
    grace = options.get("gracePeriodSeconds")
    if grace is not None and not isinstance(grace, int):
        raise bad_request("gracePeriodSeconds must be a whole number")
    preconditions = Preconditions(str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or ""))
    return Deletion(preconditions, propagation, grace)
