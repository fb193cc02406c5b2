"""What pods want of the pods beside them: spreading, and required affinity and anti-affinity."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.sandbox.stand_in.kinds import Body, Node, Pod
from controllers.sandbox.stand_in.matching import matches_labels, selects
from controllers.sandbox.stand_in.refusal import UNREADABLE, Refusal

Placed = Mapping[str, Iterable[Pod]]
"""The pods on each node, by its name."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What one pod's wishes make of the topology's domains, counted once for all nodes."""

    spread: list[tuple[Mapping[str, Any], Counter[str]]]  # constraints, with the peers in each domain
    near: list[tuple[str, Counter[str], bool]]  # topology keys, with the pods wanted, and whether the pod is one
    avoided: list[tuple[str, Counter[str]]]  # topology keys, with the pods to be kept away from

    def check(self, node: Node) -> None:
        """Raises Refusal where a node is no place for the pod."""
        labels = node.metadata.labels
        for constraint, peers in self.spread:
            domain = labels.get(constraint["topologyKey"])
            if domain is None:
                raise Refusal("node(s) didn't match pod topology spread constraints (missing required label)")
            if peers[domain] + 1 - min(peers.values(), default=0) > constraint["maxSkew"]:
                raise Refusal("node(s) didn't match pod topology spread constraints")
        for key, wanted, own in self.near:
            # The first of pods that want to be together has nobody to go to.
            alone = own and not wanted.total()
            if key not in labels or not (wanted[labels[key]] or alone):
                raise Refusal("node(s) didn't match pod affinity rules")
        if any(key in labels and unwanted[labels[key]] for key, unwanted in self.avoided):
            raise Refusal("node(s) didn't match pod anti-affinity rules")


def neighbourhood(
    pod: Pod, nodes: Sequence[Node], placed: Placed, exclusive: Iterable[tuple[Pod, Node]]
) -> Neighbourhood:
    """``exclusive`` are the placed pods that have anti-affinity themselves, with their nodes."""
    affinity, repulsion = _terms(pod, "podAffinity"), _terms(pod, "podAntiAffinity")
    near = [(term["topologyKey"], _count(pod, term, nodes, placed), _is_meant(pod, pod, term)) for term in affinity]
    avoided = [(term["topologyKey"], _count(pod, term, nodes, placed)) for term in repulsion]
    avoided += list(_who_avoid(pod, exclusive))
    spread = [(constraint, _peers(pod, constraint, nodes, placed)) for constraint in _spread(pod)]
    return Neighbourhood(spread, near, avoided)


def is_exclusive(pod: Pod) -> bool:
    """Whether a pod keeps others away."""
    return bool(_terms(pod, "podAntiAffinity"))


def _terms(pod: Pod, kind: str) -> list[Mapping[str, Any]]:
    return list(pod.spec.get("affinity", {}).get(kind, {}).get(_REQUIRED, ()))


def _is_meant(owner: Pod, other: Pod, term: Mapping[str, Any]) -> bool:
    """Whether another pod is one of those that a term of a pod is about."""
    namespaces = term.get("namespaces", [])
    # Namespaces' labels are not looked at, so that a selector of namespaces means all of them.
    here = other.namespace in (namespaces or [owner.namespace]) or "namespaceSelector" in term
    return here and matches_labels(_selector(owner, term), other.metadata.labels)


def _selector(owner: Pod, term: Mapping[str, Any]) -> Body | None:
    selector: Body | None = term.get("labelSelector")
    own = owner.metadata.labels
    same = {key: own[key] for key in term.get("matchLabelKeys", ()) if key in own}
    if selector is None or not same:
        return selector
    return {**selector, "matchLabels": {**selector.get("matchLabels", {}), **same}}


def _count(pod: Pod, term: Mapping[str, Any], nodes: Iterable[Node], placed: Placed) -> Counter[str]:
    key, counted = term["topologyKey"], Counter[str]()
    for node in nodes:
        if key in node.metadata.labels:
            others = placed.get(node.name, ())
            counted[node.metadata.labels[key]] += sum(_is_meant(pod, other, term) for other in others)
    return counted


def _who_avoid(pod: Pod, exclusive: Iterable[tuple[Pod, Node]]) -> Iterator[tuple[str, Counter[str]]]:
    for other, node in exclusive:
        for term in _terms(other, "podAntiAffinity"):
            try:
                meant = _is_meant(other, pod, term)
            except UNREADABLE:
                # The other's wish cannot be read, and this pod is not to wait for that.
                continue
            domain = node.metadata.labels.get(term["topologyKey"])
            if meant and domain is not None:
                yield term["topologyKey"], Counter({domain: 1})


def _spread(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """The constraints that forbid a node; those that only prefer one are nothing to a first fit."""
    for constraint in pod.spec.get("topologySpreadConstraints", ()):
        if constraint["whenUnsatisfiable"] == "DoNotSchedule":
            yield constraint


def _peers(pod: Pod, constraint: Mapping[str, Any], nodes: Iterable[Node], placed: Placed) -> Counter[str]:
    """How many pods each domain has that the constraint counts, those without any included."""
    key, selector = constraint["topologyKey"], _selector(pod, constraint)
    counted: Counter[str] = Counter()
    for node in nodes:
        if key in node.metadata.labels and selects(pod, node):
            counted[node.metadata.labels[key]] += sum(
                peer.namespace == pod.namespace and not peer.deleting and matches_labels(selector, peer.metadata.labels)
                for peer in placed.get(node.name, ())
            )
    return counted
