"""On which nodes a pod may run: pure decisions on a picture of the cluster at one moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controllers.runtime import Key
from controllers.sandbox.selectors import Requirement
from controllers.sandbox.stand_in.devices import Device, DeviceId, Refusal, allocation
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass, Node, Pod

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": "gt", "Lt": "lt"}
_UNBOUNDED = 2**31


@dataclass(slots=True)
class Picture:
    """The cluster at one moment, with what was decided since that moment."""

    nodes: Sequence[Node]
    placed: dict[str, list[Pod]]  # by node
    claims: dict[Key, Claim]
    devices: Mapping[str, list[Device]]  # by node; "" for those that all can reach
    held: set[DeviceId]
    classes: Mapping[str, DeviceClass]
    decided: list["Decision"] = field(default_factory=list)

    def take(self, decision: "Decision") -> None:
        """Make a decision part of the picture."""
        self.decided.append(decision)
        self.placed.setdefault(decision.node, []).append(decision.pod)
        for choice in decision.claims:
            consumers = [*choice.claim.consumers, reservation(decision.pod)]
            status = {**choice.claim.status, "allocation": choice.allocation, "reservedFor": consumers}
            self.claims[choice.claim.key] = Claim(metadata=choice.claim.metadata, spec=choice.claim.spec, status=status)
            results = choice.allocation.get("devices", {}).get("results", ())
            self.held |= {(result["driver"], result["pool"], result["device"]) for result in results}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a claim gets."""

    claim: Claim
    allocation: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a pod goes, and with what."""

    pod: Pod
    node: str
    claims: tuple[Choice, ...]


def reservation(pod: Pod) -> Body:
    """A pod as a consumer of a claim."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def decide(pod: Pod, picture: Picture) -> Decision:
    """The first node that fits. Raises Refusal with the reasons of all of them, as kubectl shows them."""
    claims = _claims_of(pod, picture)
    counted = [_peers_by_domain(pod, constraint, picture) for constraint in _spread(pod)]
    reasons: Counter[str] = Counter()
    for node in picture.nodes:
        try:
            _check(pod, node, picture)
            for constraint, peers in zip(_spread(pod), counted, strict=True):
                _check_spread(node, constraint, peers)
            return Decision(pod, node.name, _choices(claims, node, picture))
        except Refusal as refusal:
            reasons[str(refusal)] += 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    what = f"{len(picture.nodes)} nodes are available" + (f": {listed}" if listed else "")
    raise Refusal(f"0/{what}.")


def _claims_of(pod: Pod, picture: Picture) -> list[Claim]:
    found = []
    for name, claim_name in pod.claims:
        claim = picture.claims.get(Key(pod.namespace, claim_name)) if claim_name else None
        if claim is None or claim.deleting:
            raise Refusal(f"waiting for the ResourceClaim that the pod calls {name}")
        found.append(claim)
    return found


def _check(pod: Pod, node: Node, picture: Picture) -> None:
    """What of a node alone stands against a pod. Raises Refusal."""
    if not node.ready or node.deleting:
        raise Refusal("node(s) were not ready")
    if node.spec.get("unschedulable"):
        raise Refusal("node(s) were unschedulable")
    if not _selects(pod, node):
        raise Refusal("node(s) didn't match Pod's node affinity/selector")
    for taint in node.spec.get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and not any(_tolerates(t, taint) for t in _tolerations(pod)):
            raise Refusal("node(s) had untolerated taint(s)")
    room = int(node.status.get("allocatable", {}).get("pods", _UNBOUNDED))
    if len(picture.placed.get(node.name, ())) >= room:
        raise Refusal("Too many pods")


def _selects(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.get("nodeSelector", {}).items()):
        return False
    affinity = pod.spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or matches_node(required, node)


def matches_node(selector: Mapping[str, Any], node: Node) -> bool:
    """Whether one of a node selector's terms fits."""
    fields = {"metadata.name": node.name}
    return any(
        _all_match(term.get("matchExpressions", ()), node.metadata.labels)
        and _all_match(term.get("matchFields", ()), fields)
        for term in selector.get("nodeSelectorTerms", ())
    )


def _all_match(expressions: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    return all(
        Requirement(e["key"], _OPERATORS[e["operator"]], frozenset(e.get("values", ()))).matches(labels)
        for e in expressions
    )


def matches_labels(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector of an object, not of a request, selects labels."""
    wanted = selector.get("matchLabels", {})
    same = all(labels.get(key) == value for key, value in wanted.items())
    return same and _all_match(selector.get("matchExpressions", ()), labels)


def _tolerations(pod: Pod) -> Iterable[Mapping[str, Any]]:
    tolerations: Iterable[Mapping[str, Any]] = pod.spec.get("tolerations", ())
    return tolerations


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


# -- spreading --------------------------------------------------------------------------------------------------------


def _spread(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """The constraints that forbid a node; those that only prefer one are nothing to a first fit."""
    for constraint in pod.spec.get("topologySpreadConstraints", ()):
        if constraint["whenUnsatisfiable"] == "DoNotSchedule":
            yield constraint


def _peers_by_domain(pod: Pod, constraint: Mapping[str, Any], picture: Picture) -> Counter[str]:
    """How many pods each value of the topology key has that the constraint counts, those without any included."""
    key, selector = constraint["topologyKey"], constraint.get("labelSelector", {})
    counted: Counter[str] = Counter()
    for node in picture.nodes:
        if key not in node.metadata.labels or not _selects(pod, node):
            continue
        counted[node.metadata.labels[key]] += sum(
            peer.namespace == pod.namespace and not peer.deleting and matches_labels(selector, peer.metadata.labels)
            for peer in picture.placed.get(node.name, ())
        )
    return counted


def _check_spread(node: Node, constraint: Mapping[str, Any], peers: Counter[str]) -> None:
    domain = node.metadata.labels.get(constraint["topologyKey"])
    if domain is None or peers[domain] + 1 - min(peers.values()) > constraint["maxSkew"]:
        raise Refusal("node(s) didn't match pod topology spread constraints")


# -- claims -----------------------------------------------------------------------------------------------------------


def _choices(claims: Iterable[Claim], node: Node, picture: Picture) -> tuple[Choice, ...]:
    free = [
        device
        for device in (*picture.devices.get(node.name, ()), *picture.devices.get("", ()))
        if device.id not in picture.held
    ]
    chosen: list[Choice] = []
    for claim in claims:
        given = claim.allocation
        if given is None:
            given = allocation(claim, node.name, free, picture.classes)
            results = {(r["driver"], r["pool"], r["device"]) for r in given["devices"]["results"]}
            free = [device for device in free if device.id not in results]
        elif "nodeSelector" in given and not matches_node(given["nodeSelector"], node):
            raise Refusal("node(s) cannot reach the devices of an allocated ResourceClaim")
        chosen.append(Choice(claim, given))
    return tuple(chosen)
