"""Places pods: first fit, one after the other."""

from collections import defaultdict
from collections.abc import Iterable

from controllers.runtime import Client, Key, KubeObject, Manager, logs
from controllers.runtime.cache import Reader
from controllers.runtime.errors import ApiError, Conflict, ObjectGone
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.claims import PROTECTION
from controllers.sandbox.stand_in.devices import Device, Refusal, held, offered
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass, Node, Pod, Slice, condition, replaced
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.placement import Choice, Decision, Picture, decide, reservation

NAME = "default-scheduler"
"""Pods that name another scheduler wait for that one."""

EVERYTHING = Key("", "all-pods")
"""The one thing that is ever asked for, so that no two placements can be decided at the same time."""

RETRY = 0.1  # seconds after a write that was refused, mostly because its object had changed

logger = logs.get_logger(__name__)


class Scheduler:
    """Places all pods that wait."""

    def __init__(
        self,
        client: Client,
        pods: Reader[Pod],
        nodes: Reader[Node],
        claims: Reader[Claim],
        slices: Reader[Slice],
        classes: Reader[DeviceClass],
        now: Now,
    ) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._claims = claims
        self._slices = slices
        self._classes = classes
        self._now = now
        # A binding's answer does not say which version of the pod to wait for, so it is remembered until it is seen.
        self._bound: dict[str, str] = {}

    async def reconcile(self, _request: Request) -> Result:
        waiting = self._waiting()
        if not waiting:
            return DONE
        picture = self._picture()
        refused = False
        for pod in waiting:
            try:
                await self._place(pod, picture)
            except (Conflict, ObjectGone, ApiError) as error:
                refused = True
                logger.info("a pod is not placed yet", pod=str(pod.key), reason=str(error))
        return Result(RETRY) if refused else DONE

    async def _place(self, pod: Pod, picture: Picture) -> None:
        try:
            decision = decide(pod, picture)
        except Refusal as refusal:
            await self._tell(pod, str(refusal))
            return
        await self._carry_out(decision)
        picture.take(decision)
        logger.info("placed", pod=str(pod.key), node=decision.node, claims=len(decision.claims))

    async def _carry_out(self, decision: Decision) -> None:
        for choice in decision.claims:
            await self._reserve(choice, decision.pod)
        target = {"apiVersion": "v1", "kind": "Node", "name": decision.node}
        binding = {"metadata": {"name": decision.pod.name, "uid": decision.pod.uid}, "target": target}
        await self._client.post(decision.pod, "binding", {"apiVersion": "v1", "kind": "Binding", **binding})
        self._bound[decision.pod.uid] = decision.node

    async def _reserve(self, choice: Choice, pod: Pod) -> None:
        claim = choice.claim
        wanted = reservation(pod)
        if wanted in claim.consumers:
            return
        if claim.allocation is None and PROTECTION not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, PROTECTION]
            claim = await self._client.json_patch(
                claim, [{"op": "add", "path": "/metadata/finalizers", "value": finalizers}]
            )
        status = {**claim.status, "allocation": choice.allocation, "reservedFor": [*claim.consumers, wanted]}
        await self._client.json_patch(claim, replaced(status), subresource="status")

    async def _tell(self, pod: Pod, why: str) -> None:
        """Writes into a pod's status why it waits, unless that is there already."""
        told = condition(pod.status, "PodScheduled")
        if told.get("message") == why:
            return
        others = [entry for entry in pod.status.get("conditions", ()) if entry["type"] != "PodScheduled"]
        entry: Body = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastTransitionTime": told.get("lastTransitionTime") or self._now(),
        }
        status = {**pod.status, "conditions": [*others, entry]}
        await self._client.json_patch(pod, replaced(status), subresource="status")

    def _waiting(self) -> list[Pod]:
        """The pods to place, the oldest first."""
        pods = self._pods.list()
        self._bound = {pod.uid: self._bound[pod.uid] for pod in pods if pod.uid in self._bound and not pod.node}
        found = [pod for pod in pods if is_waiting(pod) and pod.uid not in self._bound]
        return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.key))

    def _picture(self) -> Picture:
        placed: dict[str, list[Pod]] = defaultdict(list)
        for pod in self._pods.list():
            node = pod.node or self._bound.get(pod.uid)
            if node and not pod.finished:
                placed[node].append(pod)
        devices: dict[str, list[Device]] = defaultdict(list)
        for device in offered(self._slices.list()):
            devices[device.node].append(device)
        return Picture(
            nodes=sorted(self._nodes.list(), key=lambda node: node.name),
            placed=placed,
            claims={claim.key: claim for claim in self._claims.list()},
            devices=devices,
            held=held(self._claims.list()),
            classes={entry.name: entry for entry in self._classes.list()},
        )


def is_waiting(pod: Pod) -> bool:
    """Whether a pod is for this scheduler to place, now."""
    return (
        not pod.node
        and not pod.deleting
        and not pod.finished
        and not pod.spec.get("schedulingGates")
        and pod.spec.get("schedulerName", NAME) == NAME
        and all(claim is not None for _, claim in pod.claims)
    )


def setup(manager: Manager, now: Now) -> None:
    """Declares the scheduler."""
    scheduler = Scheduler(
        manager.client,
        manager.reader(Pod),
        manager.reader(Node),
        manager.reader(Claim),
        manager.reader(Slice),
        manager.reader(DeviceClass),
        now,
    )
    (
        manager.controller("stand-in-scheduler", workers=1)
        .watches(Pod, maps_to=_everything)
        .watches(Node, maps_to=_everything, when=changed(_what_matters_of_a_node))
        .watches(Claim, maps_to=_everything)
        .watches(Slice, maps_to=_everything)
        .watches(DeviceClass, maps_to=_everything)
        .reconciles_with(scheduler)
    )


def _everything(_: KubeObject) -> Iterable[Request]:
    return (EVERYTHING,)


def _what_matters_of_a_node(node: Node) -> object:
    return node.ready, node.spec, node.metadata.labels, node.deleting
