"""Plays the kubelets of simulated nodes: their pods run, what should end does, and what is deleted goes."""

import ipaddress
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from controllers.runtime import Client, Key, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.clock import Clock
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import Body, Node, Pod, condition, replaced
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.nodes import address, internal_address
from controllers.sandbox.stand_in.patience import Patient

BY_NODE = "node"
JOB_DURATION = 1.0  # seconds that a pod of a Job runs
QUARANTINE = 40.0  # seconds that a new pod may wait for a node of the name that it asks for; as in a real cluster
POD_NETWORK = ipaddress.ip_network("10.64.0.0/10")


class PodRunner:
    """Runs one pod, and ends it."""

    def __init__(self, client: Client, pods: Reader[Pod], nodes: Reader[Node], now: Now, clock: Clock) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._now = now
        self._clock = clock

    async def reconcile(self, request: Request) -> Result:
        pod = self._pods.get(request)
        if pod is None or not pod.node:
            return DONE
        node = self._nodes.get(Key("", pod.node))
        if node is None:
            return await self._forget(pod)
        if pod.deleting:
            if node.simulated:
                await self._client.delete(pod, grace_period=0)
        elif node.simulated and node.ready:
            return await self._run(pod, node)
        return DONE

    async def _forget(self, pod: Pod) -> Result:
        """Deletes a pod whose node is gone; the cache of nodes may only be behind, so that is looked at first."""
        early = QUARANTINE - self._age(pod)
        if early > 0 and not pod.deleting and not pod.status.get("startTime") and not _was_scheduled(pod):
            return Result(early)
        if await self._client.find(Node, pod.node) is None:
            await self._client.delete(pod, grace_period=0)
        return DONE

    def _age(self, pod: Pod) -> float:
        return (self._clock.utcnow() - datetime.fromisoformat(pod.metadata.creation_timestamp)).total_seconds()

    async def _run(self, pod: Pod, node: Node) -> Result:
        if pod.phase == "Pending":
            status = running(pod, node, self._now())
            pod = await self._client.json_patch(pod, replaced(status), subresource="status")
            return Result(JOB_DURATION) if _is_of_job(pod) else DONE
        if pod.phase == "Running" and _is_of_job(pod):
            return await self._finish(pod)
        return DONE

    async def _finish(self, pod: Pod) -> Result:
        started = datetime.fromisoformat(pod.status["startTime"])
        # Times in statuses have no fractions, so that a pod can seem older than it is by nearly a second.
        left = JOB_DURATION - (self._clock.utcnow() - started).total_seconds()
        if left > 0:
            return Result(left)
        await self._client.json_patch(pod, replaced(succeeded(pod, self._now())), subresource="status")
        return DONE


def _was_scheduled(pod: Pod) -> bool:
    return condition(pod.status, "PodScheduled").get("status") == "True"


def _is_of_job(pod: Pod) -> bool:
    return any(owner.kind == "Job" and owner.controller for owner in pod.metadata.owner_references)


def running(pod: Pod, node: Node, now: str) -> Body:
    """The status of a pod all of whose containers run; it has the shape that KWOK gives it."""
    host = internal_address(node.status, node.name)
    own = host if pod.spec.get("hostNetwork") else address(POD_NETWORK, pod.uid)
    gates = [gate["conditionType"] for gate in pod.spec.get("readinessGates", ())]
    kinds = ["Initialized", "Ready", "ContainersReady", *gates]
    others = [entry for entry in pod.status.get("conditions", ()) if entry["type"] not in kinds]
    initial = [_started_before(entry, now) for entry in pod.spec.get("initContainers", ())]
    return {
        **pod.status,
        "phase": "Running",
        "conditions": [*(_condition(kind, "True", now) for kind in kinds), *others],
        "containerStatuses": [_container(entry, _runs(now), ready=True) for entry in pod.spec["containers"]],
        **({"initContainerStatuses": initial} if initial else {}),
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": own,
        "podIPs": [{"ip": own}],
        "startTime": now,
    }


def succeeded(pod: Pod, now: str) -> Body:
    """The status of a pod all of whose containers have done their work."""
    done = {"Ready", "ContainersReady"}
    conditions = [
        _condition(entry["type"], "False", now, "PodCompleted") if entry["type"] in done else entry
        for entry in pod.status.get("conditions", ())
    ]
    state = _ended(pod.status["startTime"], now)
    containers = [_container(entry, state, ready=False) for entry in pod.spec["containers"]]
    return {**pod.status, "phase": "Succeeded", "conditions": conditions, "containerStatuses": containers}


def _started_before(entry: Mapping[str, Any], now: str) -> Body:
    stays = entry.get("restartPolicy") == "Always"
    return _container(entry, _runs(now) if stays else _ended(now, now), ready=True)


def _runs(now: str) -> Body:
    return {"running": {"startedAt": now}}


def _ended(started: str, now: str) -> Body:
    return {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": now}}


def _condition(kind: str, status: str, now: str, reason: str = "") -> Body:
    return {"type": kind, "status": status, "lastTransitionTime": now, **({"reason": reason} if reason else {})}


def _container(entry: Mapping[str, Any], state: Body, *, ready: bool) -> Body:
    names = {"name": entry["name"], "image": entry.get("image", ""), "imageID": ""}
    return {**names, "ready": ready, "started": "running" in state, "restartCount": 0, "lastState": {}, "state": state}


def setup(manager: Manager, now: Now) -> None:
    """Declares the controller."""
    pods = manager.informer(Pod).store
    pods.add_index(BY_NODE, lambda pod: (pod.node,) if pod.node else ())

    def on(node: Node) -> Iterable[Request]:
        return [pod.key for pod in pods.by_index(BY_NODE, node.name)]

    runner = PodRunner(manager.client, pods, manager.reader(Node), now, manager.clock)
    (
        manager.controller("stand-in-pods")
        .for_(Pod)
        .watches(Node, maps_to=on, when=changed(lambda node: (node.ready, node.simulated)))
        .reconciles_with(Patient(runner))
    )
