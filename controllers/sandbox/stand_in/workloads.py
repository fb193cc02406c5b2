"""Deployments, ReplicaSets and Jobs, as far as trying things out needs them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import (
    Body,
    Deployment,
    Job,
    Pod,
    ReplicaSet,
    condition,
    controller_uid,
    owned_by,
    replaced,
)
from controllers.sandbox.stand_in.moment import Now

HASH = "pod-template-hash"
BY_CONTROLLER = "controller"
MAX_PREFIX = 243  # characters of a name that still leave room for a hash


class DeploymentReconciler:
    """Keeps the ReplicaSet of a Deployment's present template, and empties those of earlier ones.

    A rolling update makes all new pods first and takes all old ones away once these run; ``maxSurge`` and
    ``maxUnavailable`` are not looked at.
    """

    def __init__(self, client: Client, deployments: Reader[Deployment], sets: Reader[ReplicaSet], now: Now) -> None:
        self._client = client
        self._deployments = deployments
        self._sets = sets
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        deployment = self._deployments.get(request)
        if deployment is None or deployment.deleting:
            return DONE
        own = self._sets.by_index(BY_CONTROLLER, deployment.uid)
        name = set_name(deployment)
        current = next((entry for entry in own if entry.name == name), None)
        old = [entry for entry in own if entry.name != name]
        if not deployment.spec.get("paused"):
            current = await self._roll(deployment, current, old)
        await self._report(deployment, current, old)
        return DONE

    async def _roll(
        self, deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet]
    ) -> ReplicaSet | None:
        wanted = int(deployment.spec.get("replicas", 1))
        recreate = deployment.spec.get("strategy", {}).get("type") == "Recreate"
        replaceable = recreate or (current is not None and _number(current, "readyReplicas") >= wanted)
        for entry in old if replaceable else ():
            await self._scale(entry, 0)
        if recreate and any(_number(entry, "replicas") for entry in old):
            return current
        if current is None:
            return await self._client.create(ReplicaSet, replica_set(deployment, wanted))
        return await self._scale(current, wanted)

    async def _scale(self, entry: ReplicaSet, replicas: int) -> ReplicaSet:
        if entry.spec.get("replicas", 1) == replicas:
            return entry
        return await self._client.json_patch(entry, [{"op": "add", "path": "/spec/replicas", "value": replicas}])

    async def _report(self, deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet]) -> None:
        status = deployment_status(deployment, current, old, self._now())
        if status != deployment.status:
            await self._client.json_patch(deployment, replaced(status), subresource="status")


def _number(entry: ReplicaSet, name: str) -> int:
    return int(entry.status.get(name, 0))


def template_hash(template: Mapping[str, Any]) -> str:
    """What tells the pods of one template from those of another."""
    return hashlib.sha256(msgspec.json.encode(template, order="deterministic")).hexdigest()[:10]


def set_name(deployment: Deployment) -> str:
    """The name of the ReplicaSet of a Deployment's present template."""
    return f"{deployment.name[:MAX_PREFIX]}-{template_hash(deployment.spec['template'])}"


def replica_set(deployment: Deployment, replicas: int) -> Body:
    """The ReplicaSet of a Deployment's present template."""
    template, digest = deployment.spec["template"], template_hash(deployment.spec["template"])
    labels = {**template.get("metadata", {}).get("labels", {}), HASH: digest}
    selector = deployment.spec["selector"]
    return {
        "metadata": {
            "name": set_name(deployment),
            "namespace": deployment.namespace,
            "labels": labels,
            "ownerReferences": [owned_by(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {**selector, "matchLabels": {**selector.get("matchLabels", {}), HASH: digest}},
            "template": {**template, "metadata": {**template.get("metadata", {}), "labels": labels}},
        },
    }


def deployment_status(deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet], now: str) -> Body:
    """What the ReplicaSets make of a Deployment; counts of 0 are left out, as the API does."""
    wanted = int(deployment.spec.get("replicas", 1))
    everything = [*old, *([current] if current else [])]
    ready = sum(_number(entry, "readyReplicas") for entry in everything)
    counts = {
        "replicas": sum(_number(entry, "replicas") for entry in everything),
        "updatedReplicas": _number(current, "replicas") if current else 0,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, wanted - ready),
    }
    available = _since(deployment.status, "Available", "True" if ready >= wanted else "False", now)
    return {
        "observedGeneration": deployment.metadata.generation,
        **{name: count for name, count in counts.items() if count},
        "conditions": [available],
    }


def _since(status: Mapping[str, Any], kind: str, value: str, now: str) -> Body:
    """A condition, with the times of the one that is there where its status is the same."""
    before = condition(status, kind)
    if before.get("status") == value:
        return dict(before)
    reason = "MinimumReplicasAvailable" if value == "True" else "MinimumReplicasUnavailable"
    return {"type": kind, "status": value, "reason": reason, "lastTransitionTime": now, "lastUpdateTime": now}


class ReplicaSetReconciler:
    """Keeps the number of a ReplicaSet's pods."""

    def __init__(self, client: Client, sets: Reader[ReplicaSet], pods: Reader[Pod]) -> None:
        self._client = client
        self._sets = sets
        self._pods = pods

    async def reconcile(self, request: Request) -> Result:
        entry = self._sets.get(request)
        if entry is None or entry.deleting:
            return DONE
        alive = [p for p in self._pods.by_index(BY_CONTROLLER, entry.uid) if not p.deleting and not p.finished]
        wanted = int(entry.spec.get("replicas", 1))
        for _ in range(wanted - len(alive)):
            await self._client.create(Pod, pod_of(entry, entry.spec["template"]))
        for pod in sorted(alive, key=_worth)[: max(0, len(alive) - wanted)]:
            await self._client.delete(pod)
        await self._report(entry, alive)
        return DONE

    async def _report(self, entry: ReplicaSet, alive: Sequence[Pod]) -> None:
        ready = sum(pod.ready for pod in alive)
        counts = {"fullyLabeledReplicas": len(alive), "readyReplicas": ready, "availableReplicas": ready}
        status = {
            "replicas": len(alive),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": entry.metadata.generation,
        }
        if status != entry.status:
            await self._client.json_patch(entry, replaced(status), subresource="status")


def _worth(pod: Pod) -> tuple[bool, bool, str]:
    """The lower, the sooner a pod goes: those that wait first, then those that are not ready."""
    return bool(pod.node), pod.ready, pod.name


def pod_of(owner: ReplicaSet | Job, template: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Body:
    """A pod from the template of what looks after it."""
    metadata = template.get("metadata", {})
    return {
        "metadata": {
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": {**metadata.get("labels", {}), **(labels or {})},
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [owned_by(owner)],
        },
        "spec": template["spec"],
    }


class JobReconciler:
    """Makes the pods of a Job until enough of them have succeeded."""

    def __init__(self, client: Client, jobs: Reader[Job], pods: Reader[Pod], now: Now) -> None:
        self._client = client
        self._jobs = jobs
        self._pods = pods
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        job = self._jobs.get(request)
        if job is None or job.deleting or condition(job.status, "Complete"):
            return DONE
        pods = self._pods.by_index(BY_CONTROLLER, job.uid)
        done = sum(pod.phase == "Succeeded" for pod in pods)
        active = sum(not pod.finished and not pod.deleting for pod in pods)
        wanted = int(job.spec.get("completions", 1))
        missing = 0 if job.spec.get("suspend") else min(int(job.spec.get("parallelism", 1)), wanted - done) - active
        labels = {"batch.kubernetes.io/job-name": job.name, "job-name": job.name}
        for _ in range(missing):
            await self._client.create(Pod, pod_of(job, job.spec["template"], labels))
        status = job_status(job, active + max(0, missing), done, self._now())
        if status != job.status:
            await self._client.json_patch(job, replaced(status), subresource="status")
        return DONE


def job_status(job: Job, active: int, done: int, now: str) -> Body:
    """What the pods make of a Job."""
    counts = {name: count for name, count in (("active", active), ("succeeded", done)) if count}
    status: Body = {"startTime": job.status.get("startTime", now), **counts}
    if done < int(job.spec.get("completions", 1)):
        return status
    complete = {"type": "Complete", "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
    return {**status, "completionTime": now, "conditions": [complete]}


def setup(manager: Manager, now: Now) -> None:
    """Declares the three controllers."""
    pods, sets = manager.informer(Pod).store, manager.informer(ReplicaSet).store
    pods.add_index(BY_CONTROLLER, lambda pod: filter(None, (controller_uid(pod),)))
    sets.add_index(BY_CONTROLLER, lambda entry: filter(None, (controller_uid(entry),)))
    (
        manager.controller("stand-in-deployments")
        .for_(Deployment)
        .owns(ReplicaSet)
        .reconciles_with(DeploymentReconciler(manager.client, manager.reader(Deployment), sets, now))
    )
    (
        manager.controller("stand-in-replicasets")
        .for_(ReplicaSet)
        .owns(Pod)
        .reconciles_with(ReplicaSetReconciler(manager.client, sets, pods))
    )
    (
        manager.controller("stand-in-jobs")
        .for_(Job)
        .owns(Pod)
        .reconciles_with(JobReconciler(manager.client, manager.reader(Job), pods, now))
    )
