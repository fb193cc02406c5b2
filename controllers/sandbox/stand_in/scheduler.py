"""Places pods: first fit, one after the other."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from controllers.api.dra import ResourceSlice
from controllers.runtime import Client, Key, KubeObject, Manager, logs
from controllers.runtime.cache import Reader
from controllers.runtime.concurrency import settle
from controllers.runtime.errors import ApiError, Conflict, ObjectGone
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder
from controllers.sandbox.stand_in.claims import PROTECTION, released
from controllers.sandbox.stand_in.devices import Catalogue
from controllers.sandbox.stand_in.kinds import Body, Claim, DeviceClass, Node, Pod, condition, replaced
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.patience import RETRY
from controllers.sandbox.stand_in.placement import (
    Choice,
    Decision,
    Picture,
    decide,
    is_reachable,
    reservation,
    reserved,
)
from controllers.sandbox.stand_in.refusal import SCHEDULER_ERROR, Unplaceable

NAME = "default-scheduler"
"""Pods that name another scheduler wait for that one."""

EVERYTHING = Key("", "all-pods")
"""The one thing that is ever asked for, so that no two placements can be decided at the same time."""

BATCH = 100  # pods placed on one picture of the cluster
REFUSED = 2.0  # seconds after a write that was refused for another reason than a change
PATIENCE = 20  # pods looked at without a pause for whatever else runs in the same process

logger = logs.get_logger(__name__)


class Scheduler:
    """Places all pods that wait."""

    def __init__(
        self,
        client: Client,
        pods: Reader[Pod],
        nodes: Reader[Node],
        claims: Reader[Claim],
        slices: Reader[ResourceSlice],
        classes: Reader[DeviceClass],
        recorder: EventRecorder,
        now: Now,
    ) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._claims = claims
        self._slices = slices
        self._classes = classes
        self._recorder = recorder
        self._now = now
        self._catalogue = Catalogue()
        # A binding's answer does not say which version of the pod to wait for, so it is remembered until it is seen.
        self._bound: dict[str, str] = {}

    async def reconcile(self, _request: Request) -> Result:
        await settle(*(self._say_gated(pod) for pod in self._pods.list() if is_gated(pod)))
        waiting = self._waiting()
        if not waiting:
            return DONE
        picture = self._picture()
        decisions, refused = await self._decide(waiting, picture)
        outcomes = await settle(
            *(self._carry_out(chain) for chain in chains(decisions)),
            *(self._refuse(pod, why, picture) for pod, why in refused),
        )
        if len(decisions) == BATCH:
            return Result(0.0)
        return Result(min(filter(None, outcomes))) if any(outcomes) else DONE

    async def _decide(
        self, waiting: Iterable[Pod], picture: Picture
    ) -> tuple[list[Decision], list[tuple[Pod, Unplaceable]]]:
        decisions: list[Decision] = []
        refused: list[tuple[Pod, Unplaceable]] = []
        for number, pod in enumerate(waiting, 1):
            try:
                decision = decide(pod, picture)
            except Unplaceable as why:
                refused.append((pod, why))
            else:
                picture.take(decision)
                decisions.append(decision)
            if len(decisions) == BATCH:
                break
            if number % PATIENCE == 0:
                await asyncio.sleep(0)
        return decisions, refused

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, chain: Sequence[Decision]) -> float:
        """Carries out decisions one after the other; returns the seconds to wait before the rest, 0 without any."""
        written: dict[Key, Claim] = {}
        for decision in chain:
            if wait := await self._attempt(decision, written):
                return wait
        return 0.0

    async def _attempt(self, decision: Decision, written: dict[Key, Claim]) -> float:
        pod = decision.pod
        try:
            for choice in decision.claims:
                claim = written.get(choice.claim.key, choice.claim)
                written[claim.key] = await self._reserve(Choice(claim, choice.allocation), pod)
            await self._bind(decision)
        except (ObjectGone, ApiError) as error:
            # What is reserved by now is found again by the next try, or given back with the pod.
            return _failed("a pod is not placed yet", pod, error)
        logger.info("placed", pod=str(pod.key), node=decision.node, claims=len(decision.claims))
        note = f"Successfully assigned {pod.key} to {decision.node}"
        self._recorder.event(pod, "Normal", "Scheduled", note, "Binding")
        return 0.0

    async def _bind(self, decision: Decision) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": decision.node}
        binding = {"metadata": {"name": decision.pod.name, "uid": decision.pod.uid}, "target": target}
        await self._client.post(decision.pod, "binding", {"apiVersion": "v1", "kind": "Binding", **binding})
        self._bound[decision.pod.uid] = decision.node

    async def _reserve(self, choice: Choice, pod: Pod) -> Claim:
        claim = choice.claim
        if reservation(pod) in claim.consumers:
            return claim
        if claim.allocation is None and PROTECTION not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, PROTECTION]
            claim = await self._client.json_patch(
                claim, [{"op": "add", "path": "/metadata/finalizers", "value": finalizers}]
            )
        status = reserved(Choice(claim, choice.allocation), pod)
        return await self._client.json_patch(claim, replaced(status), subresource="status")

    async def _refuse(self, pod: Pod, why: Unplaceable, picture: Picture) -> float:
        """Says in a pod's status and in an Event why it waits; returns the seconds after which to try again, or 0."""
        try:
            given_back = stuck(pod, picture)
            for claim in given_back:
                await self._give_back(claim)
            if await self._tell(pod, why.reason, why.message):
                level = logger.warning if why.reason == SCHEDULER_ERROR else logger.debug
                level("a pod cannot be placed", pod=str(pod.key), reason=why.message)
                self._recorder.event(pod, "Warning", "FailedScheduling", why.message, "Scheduling")
        except (ObjectGone, ApiError) as error:
            return _failed("a pod could not be told why it waits", pod, error)
        return RETRY if given_back else 0.0

    async def _give_back(self, claim: Claim) -> None:
        """Lets a claim be allocated anew, elsewhere."""
        await self._client.json_patch(claim, replaced(released(claim, [])), subresource="status")

    async def _say_gated(self, pod: Pod) -> None:
        try:
            await self._tell(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
        except (ObjectGone, ApiError) as error:
            _failed("a pod could not be told that it is gated", pod, error)

    async def _tell(self, pod: Pod, reason: str, message: str) -> bool:
        """Writes into a pod's status why it waits; whether that was not there already."""
        told = condition(pod.status, "PodScheduled")
        if (told.get("reason"), told.get("message")) == (reason, message):
            return False
        others = [entry for entry in pod.status.get("conditions", ()) if entry["type"] != "PodScheduled"]
        entry: Body = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": told.get("lastTransitionTime") or self._now(),
            "observedGeneration": pod.metadata.generation,
        }
        status = {**pod.status, "conditions": [*others, entry]}
        await self._client.json_patch(pod, replaced(status), subresource="status")
        return True

    # -- looking ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> list[Pod]:
        """The pods to place: the most important first, then the oldest."""
        pods = self._pods.list()
        self._bound = {pod.uid: self._bound[pod.uid] for pod in pods if pod.uid in self._bound and not pod.node}
        found = [pod for pod in pods if is_waiting(pod) and pod.uid not in self._bound]
        return sorted(found, key=_turn)

    def _picture(self) -> Picture:
        picture = Picture(
            nodes=sorted(self._nodes.list(), key=lambda node: node.name),
            claims={claim.key: claim for claim in self._claims.list()},
            classes={entry.name: entry for entry in self._classes.list()},
            offer=self._catalogue.offer(self._slices.list()),
            now=self._now(),
        )
        for pod in self._pods.list():
            node = pod.node or self._bound.get(pod.uid)
            if node and not pod.finished:
                picture.add(pod, node)
        return picture


def _failed(what: str, pod: Pod, error: Exception) -> float:
    """Logs a write that was refused, and returns the seconds after which it is worth another try."""
    routine = isinstance(error, Conflict | ObjectGone)
    (logger.debug if routine else logger.warning)(what, pod=str(pod.key), reason=str(error))
    return RETRY if routine else REFUSED


def _turn(pod: Pod) -> tuple[int, str, Key]:
    return -int(pod.spec.get("priority", 0)), pod.metadata.creation_timestamp, pod.key


def is_gated(pod: Pod) -> bool:
    """Whether a pod is to wait until its gates are taken away, and does not know it yet."""
    return _is_ours(pod) and bool(pod.spec.get("schedulingGates")) and not condition(pod.status, "PodScheduled")


def is_waiting(pod: Pod) -> bool:
    """Whether a pod is for this scheduler to place, now."""
    ready = all(claim is not None for _, claim in pod.claims)
    return _is_ours(pod) and not pod.spec.get("schedulingGates") and ready


def _is_ours(pod: Pod) -> bool:
    own = pod.spec.get("schedulerName", NAME) == NAME
    return own and not pod.node and not pod.deleting and not pod.finished


def chains(decisions: Iterable[Decision]) -> list[list[Decision]]:
    """Decisions that can be carried out at the same time: those that share a claim are in one chain, in order."""
    found: list[list[Decision]] = []
    by_claim: dict[Key, list[Decision]] = {}
    for decision in decisions:
        keys = [choice.claim.key for choice in decision.claims]
        earlier = list({id(by_claim[key]): by_claim[key] for key in keys if key in by_claim}.values())
        chain = list(itertools.chain.from_iterable(earlier))
        chain.append(decision)
        found = [other for other in found if not any(other is one for one in earlier)]
        found.append(chain)
        by_claim |= {choice.claim.key: chain for one in chain for choice in one.claims}
    return found


def stuck(pod: Pod, picture: Picture) -> list[Claim]:
    """The claims that hold a pod on nodes where it cannot go, though nobody else needs them there."""
    own = [picture.claims.get(Key(pod.namespace, name)) for _, name in pod.claims if name]
    allocated = [claim for claim in own if claim is not None and claim.allocation and not claim.deleting]
    alone = (claim for claim in allocated if all(user == reservation(pod) for user in claim.consumers))
    return [claim for claim in alone if not all(is_reachable(claim, node) for node in picture.nodes)]


def setup(manager: Manager, now: Now) -> None:
    """Declares the scheduler."""
    scheduler = Scheduler(
        manager.client,
        manager.reader(Pod),
        manager.reader(Node),
        manager.reader(Claim),
        manager.reader(ResourceSlice),
        manager.reader(DeviceClass),
        manager.recorder("stand-in-scheduler"),
        now,
    )
    (
        manager.controller("stand-in-scheduler", workers=1)
        .watches(Pod, maps_to=_everything, when=changed(_what_matters_of_a_pod))
        .watches(Node, maps_to=_everything, when=changed(_what_matters_of_a_node))
        .watches(Claim, maps_to=_everything)
        .watches(ResourceSlice, maps_to=_everything)
        .watches(DeviceClass, maps_to=_everything)
        .reconciles_with(scheduler)
    )


def _everything(_: KubeObject) -> Iterable[Request]:
    return (EVERYTHING,)


def _what_matters_of_a_pod(pod: Pod) -> object:
    return pod.spec, pod.metadata.labels, pod.deleting, pod.finished, list(pod.claims)


def _what_matters_of_a_node(node: Node) -> object:
    return node.ready, node.spec, node.metadata.labels, node.deleting, node.status.get("allocatable")
