"""On which node a pod goes: pure decisions on a picture of the cluster at one moment."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from controllers.runtime import Key
from controllers.sandbox.stand_in import affinity
from controllers.sandbox.stand_in.allocation import Supply, Want, allocate, allocation_of, wants_of
from controllers.sandbox.stand_in.devices import Counter as SharedCounter
from controllers.sandbox.stand_in.devices import Device, DeviceId, Offer, devices_of, held
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass, Node, Pod
from controllers.sandbox.stand_in.matching import UNSCHEDULABLE, lifecycle_taints, matches_node, selects, tolerates_all
from controllers.sandbox.stand_in.refusal import SCHEDULER_ERROR, UNREADABLE, Refusal, Unplaceable
from controllers.sandbox.stand_in.resources import Amounts, check_room, requested, total

MAX_CONSUMERS = 256
"""Pods that the API lets a claim be reserved for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a claim gets."""

    claim: Claim
    allocation: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a pod goes, and with what."""

    pod: Pod
    node: str
    claims: tuple[Choice, ...] = ()


@dataclass(slots=True)
class Picture:
    """The cluster at one moment, with what was decided since that moment."""

    nodes: Sequence[Node]
    claims: dict[Key, Claim]
    classes: Mapping[str, DeviceClass]
    offer: Offer
    now: str
    placed: dict[str, list[Pod]] = field(default_factory=dict)  # by node
    used: dict[str, Amounts] = field(default_factory=dict)  # of each node's resources
    held: set[DeviceId] = field(default_factory=set)
    left: dict[SharedCounter, Decimal] = field(default_factory=dict)  # of what devices share
    exclusive: list[tuple[Pod, Node]] = field(default_factory=list)
    taints: dict[str, list[Body]] = field(default_factory=dict)  # by node, those included that are about to come
    _local: dict[str, list[Device]] = field(default_factory=dict)
    _by_name: dict[str, Node] = field(default_factory=dict)
    _devices: dict[DeviceId, Device] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The taints of a node's state come a moment after the state.
        self.taints = {node.name: [*lifecycle_taints(node), *node.spec.get("taints", ())] for node in self.nodes}
        self._by_name = {node.name: node for node in self.nodes}
        self._devices = {device.id: device for device in self.offer.devices}
        self.left = dict(self.offer.counters)
        for device in held(self.claims.values()):
            self._hold(device)

    def add(self, pod: Pod, node: str) -> None:
        """A pod is on a node."""
        self.placed.setdefault(node, []).append(pod)
        try:
            amounts = requested(pod)
        except UNREADABLE:
            # It got there past every scheduler; what cannot be read counts for nothing.
            amounts = {}
        self.used[node] = total((self.used.get(node, {}), amounts))
        if affinity.is_exclusive(pod) and node in self._by_name:
            self.exclusive.append((pod, self._by_name[node]))

    def take(self, decision: Decision) -> None:
        """Make a decision part of the picture."""
        self.add(decision.pod, decision.node)
        for choice in decision.claims:
            status = reserved(choice, decision.pod)
            self.claims[choice.claim.key] = Claim(metadata=choice.claim.metadata, spec=choice.claim.spec, status=status)
            for device in devices_of(choice.allocation):
                self._hold(device)

    def supply(self, node: Node) -> Supply:
        """What of the devices a node has and can reach is free."""
        if not self._local:
            self._local = self._reachable()
        return Supply(self._local[node.name], self.held, self.left)

    def _reachable(self) -> dict[str, list[Device]]:
        own: dict[str, list[Device]] = defaultdict(list)
        shared: list[Device] = []
        for device in self.offer.devices:
            (own[device.reach.node] if device.reach.node else shared).append(device)
        return {
            node.name: [*own[node.name], *(device for device in shared if device.reach.includes(node))]
            for node in self.nodes
        }

    def _hold(self, device: DeviceId) -> None:
        known = self._devices.get(device)
        if device not in self.held and known is not None:
            for counter, number in known.consumes.items():
                self.left[counter] = self.left.get(counter, Decimal()) - number
        self.held.add(device)


def reservation(pod: Pod) -> Body:
    """A pod as a consumer of a claim."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def reserved(choice: Choice, pod: Pod) -> Body:
    """The status of a claim that a pod has got."""
    consumers, own = choice.claim.consumers, reservation(pod)
    with_own = consumers if own in consumers else [*consumers, own]
    return {**choice.claim.status, "allocation": choice.allocation, "reservedFor": with_own}


def decide(pod: Pod, picture: Picture) -> Decision:
    """The first node that fits. Raises Unplaceable with the reasons of all of them, as kubectl shows them."""
    try:
        return _decide(pod, picture)
    except Unplaceable:
        raise
    except UNREADABLE as error:
        raise Unplaceable(f"the stand-in cannot read the pod or what it needs: {error!r}", SCHEDULER_ERROR) from error


def _decide(pod: Pod, picture: Picture) -> Decision:
    claims = [_claim(pod, name, claim_name, picture) for name, claim_name in pod.claims]
    prefix = f"0/{len(picture.nodes)} nodes are available"
    try:
        wants = wants_of([claim for claim in claims if claim.allocation is None], picture.classes)
    except Unplaceable as why:
        raise Unplaceable(f"{prefix}: {why.message}.", why.reason) from None
    amounts = requested(pod)
    around = affinity.neighbourhood(pod, picture.nodes, picture.placed, picture.exclusive)
    reasons: Counter[str] = Counter()
    for node in picture.nodes:
        try:
            _check(pod, node, picture)
            check_room(amounts, picture.used.get(node.name, {}), node.status.get("allocatable", {}))
            around.check(node)
            return Decision(pod, node.name, _choices(claims, wants, node, picture))
        except Refusal as refusal:
            reasons.update(refusal.reasons)
        except UNREADABLE as error:
            # It may be the node's fault, and then the others are still good.
            reasons[f"node(s) that the stand-in cannot judge: {error!r}"] += 1
    if not picture.nodes:
        raise Unplaceable("no nodes available to schedule pods")
    raise Unplaceable(f"{prefix}: {', '.join(sorted(f'{count} {reason}' for reason, count in reasons.items()))}.")


def _claim(pod: Pod, name: str, claim_name: str | None, picture: Picture) -> Claim:
    claim = picture.claims.get(Key(pod.namespace, claim_name)) if claim_name else None
    if claim is None:
        raise Unplaceable(f"waiting for the ResourceClaim {claim_name or ''} that the pod calls {name}")
    if claim.deleting:
        raise Unplaceable(f"resourceclaim {claim.name} is being deleted")
    if len(claim.consumers) >= MAX_CONSUMERS and reservation(pod) not in claim.consumers:
        raise Unplaceable(f"resourceclaim {claim.name} is reserved for {MAX_CONSUMERS} pods, which is the most")
    return claim


def _check(pod: Pod, node: Node, picture: Picture) -> None:
    """What of a node alone stands against a pod. Raises Refusal."""
    tolerations, taints = pod.spec.get("tolerations", ()), picture.taints[node.name]
    if node.deleting:
        raise Refusal("node(s) were being deleted")
    if taints and not tolerates_all(tolerations, taints):
        cordoned = [taint for taint in taints if taint["key"] == UNSCHEDULABLE]
        raise Refusal(
            "node(s) had untolerated taint(s)" if tolerates_all(tolerations, cordoned) else "node(s) were unschedulable"
        )
    if not selects(pod, node):
        raise Refusal("node(s) didn't match Pod's node affinity/selector")


def _choices(claims: Iterable[Claim], wants: Sequence[Want], node: Node, picture: Picture) -> tuple[Choice, ...]:
    given = [claim for claim in claims if claim.allocation is not None]
    if not all(is_reachable(claim, node) for claim in given):
        raise Refusal("resourceclaim not available on the node")
    grants = allocate(wants, picture.supply(node)) if wants else []
    fresh = [claim for claim in claims if claim.allocation is None]
    chosen = [Choice(claim, claim.allocation or {}) for claim in given]
    return (*chosen, *(Choice(claim, allocation_of(claim, grants, node.name, picture.now)) for claim in fresh))


def is_reachable(claim: Claim, node: Node) -> bool:
    """Whether what a claim was given can be used on a node."""
    selector = (claim.allocation or {}).get("nodeSelector")
    return selector is None or matches_node(selector, node)
