"""Selectors, taints and tolerations, as specs have them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controllers.runtime.selector import Requirement
from controllers.sandbox.stand_in.kinds import Body, Node, Pod, condition

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": "gt", "Lt": "lt"}

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
LIFECYCLE_TAINTS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_PRESSURES.values()})
"""Keys of the taints that follow a node's state."""


def matches_labels(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects labels; none selects nothing, an empty one everything."""
    if selector is None:
        return False
    same = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return same and _all_match(selector.get("matchExpressions", ()), labels)


def matches_node(selector: Mapping[str, Any], node: Node) -> bool:
    """Whether one of a node selector's terms fits."""
    return any(_term_fits(term, node) for term in selector.get("nodeSelectorTerms", ()))


def _term_fits(term: Mapping[str, Any], node: Node) -> bool:
    expressions, fields = term.get("matchExpressions", ()), term.get("matchFields", ())
    fits = _all_match(expressions, node.metadata.labels) and _all_match(fields, {"metadata.name": node.name})
    return fits and bool(expressions or fields)  # an empty term selects nothing


def _all_match(expressions: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    return all(
        Requirement(e["key"], _OPERATORS[e["operator"]], frozenset(e.get("values", ()))).matches(labels)
        for e in expressions
    )


def selects(pod: Pod, node: Node) -> bool:
    """Whether a pod's node selector and required node affinity let it onto a node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.get("nodeSelector", {}).items()):
        return False
    affinity = pod.spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or matches_node(required, node)


def lifecycle_taints(node: Node) -> list[Body]:
    """The taints that a node's own state gives it, as the node lifecycle controller of a real cluster sets them."""
    ready = condition(node.status, "Ready").get("status")
    keys = {"True": [], "Unknown": [UNREACHABLE]}.get(ready or "", [NOT_READY])
    keys = keys + [key for kind, key in _PRESSURES.items() if condition(node.status, kind).get("status") == "True"]
    keys += [UNSCHEDULABLE] if node.spec.get("unschedulable") else []
    return [{"key": key, "effect": "NoSchedule"} for key in keys]


def tolerates_all(tolerations: Sequence[Mapping[str, Any]], taints: Iterable[Mapping[str, Any]]) -> bool:
    """Whether each taint that forbids something is tolerated."""
    forbidding = (taint for taint in taints if taint["effect"] in {"NoSchedule", "NoExecute"})
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in forbidding)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
