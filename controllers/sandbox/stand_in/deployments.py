"""Deployments: a ReplicaSet for each template, and the way from one to the next."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.concurrency import settle
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import (
    Body,
    Deployment,
    ReplicaSet,
    condition,
    controller_uid,
    owned_by,
    replaced,
)
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.patience import Patient
from controllers.sandbox.stand_in.rollout import Rule, count, next_sizes, rule_of, size

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
BY_CONTROLLER = "controller"
MAX_PREFIX = 242  # characters of a name that still leave room for a hash


class DeploymentReconciler:
    """Rolls one Deployment out."""

    def __init__(self, client: Client, deployments: Reader[Deployment], sets: Reader[ReplicaSet], now: Now) -> None:
        self._client = client
        self._deployments = deployments
        self._sets = sets
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        deployment = self._deployments.get(request)
        if deployment is None or deployment.deleting:
            return DONE
        own = sorted(self._sets.by_index(BY_CONTROLLER, deployment.uid), key=_age)
        name = set_name(deployment)
        current = next((entry for entry in own if entry.name == name), None)
        old = [entry for entry in own if entry.name != name]
        if deployment.spec.get("paused"):
            await self._keep_size(deployment, own)
        else:
            current = await self._roll(deployment, current, old)
            await self._forget(deployment, old)
        await self._report(deployment, current, own if current in own or current is None else [*own, current])
        return DONE

    async def _roll(self, deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet]) -> ReplicaSet:
        rule, revision = rule_of(deployment), max((_revision(entry) for entry in old), default=0) + 1
        if current is None:
            occupied = sum(size(entry) for entry in old)
            first = 0 if rule.recreate and occupied else min(rule.wanted, max(0, rule.most - occupied))
            return await self._client.create(ReplicaSet, replica_set(deployment, first, revision))
        if _revision(current) < revision:
            current = await self._client.json_patch(current, [_set_annotation(current, REVISION, str(revision))])
        sizes = next_sizes(rule, current, old)
        changed = await settle(*(self._scale(entry, sizes[entry.name]) for entry in (current, *old)))
        return changed[0]

    async def _keep_size(self, deployment: Deployment, own: Sequence[ReplicaSet]) -> None:
        """A Deployment that is paused in the middle stays there; one that is not can still grow and shrink."""
        active = [entry for entry in own if size(entry)] or list(own[-1:])
        if len(active) == 1:
            await self._scale(active[0], rule_of(deployment).wanted)

    async def _scale(self, entry: ReplicaSet, replicas: int) -> ReplicaSet:
        if size(entry) == replicas:
            return entry
        return await self._client.json_patch(entry, [{"op": "add", "path": "/spec/replicas", "value": replicas}])

    async def _forget(self, deployment: Deployment, old: Sequence[ReplicaSet]) -> None:
        """Deletes the oldest of the empty ones beyond the number that is kept to go back to."""
        kept = int(deployment.spec.get("revisionHistoryLimit", 10))
        empty = [entry for entry in old if not size(entry) and not count(entry, "replicas") and not entry.deleting]
        await settle(*(self._client.delete(entry) for entry in empty[: max(0, len(empty) - kept)]))

    async def _report(self, deployment: Deployment, current: ReplicaSet | None, own: Sequence[ReplicaSet]) -> None:
        revision = str(_revision(current)) if current else ""
        if revision and deployment.metadata.annotations.get(REVISION) != revision:
            deployment = await self._client.json_patch(deployment, [_set_annotation(deployment, REVISION, revision)])
        status = deployment_status(deployment, current, own, self._now())
        if status != deployment.status:
            await self._client.json_patch(deployment, replaced(status), subresource="status")


def _age(entry: ReplicaSet) -> tuple[str, int, str]:
    return entry.metadata.creation_timestamp, _revision(entry), entry.name


def _revision(entry: ReplicaSet) -> int:
    text = entry.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdigit() else 0


def _set_annotation(obj: Deployment | ReplicaSet, name: str, value: str) -> Body:
    annotations = {**obj.metadata.annotations, name: value}
    return {"op": "add", "path": "/metadata/annotations", "value": annotations}


def template_hash(template: Mapping[str, Any]) -> str:
    """What tells the pods of one template from those of another."""
    return hashlib.sha256(msgspec.json.encode(template, order="deterministic")).hexdigest()[:10]


def set_name(deployment: Deployment) -> str:
    """The name of the ReplicaSet of a Deployment's present template."""
    return f"{deployment.name[:MAX_PREFIX]}-{template_hash(deployment.spec['template'])}"


def replica_set(deployment: Deployment, replicas: int, revision: int) -> Body:
    """The ReplicaSet of a Deployment's present template."""
    template, digest = deployment.spec["template"], template_hash(deployment.spec["template"])
    labels = {**template.get("metadata", {}).get("labels", {}), HASH: digest}
    selector = deployment.spec["selector"]
    return {
        "metadata": {
            "name": set_name(deployment),
            "namespace": deployment.namespace,
            "labels": labels,
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [owned_by(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {**selector, "matchLabels": {**selector.get("matchLabels", {}), HASH: digest}},
            "template": {**template, "metadata": {**template.get("metadata", {}), "labels": labels}},
        },
    }


def deployment_status(deployment: Deployment, current: ReplicaSet | None, own: Iterable[ReplicaSet], now: str) -> Body:
    """What the ReplicaSets make of a Deployment; counts of 0 are left out, as the API does."""
    rule, own = rule_of(deployment), list(own)
    names = ("replicas", "readyReplicas", "availableReplicas")
    counts = {name: sum(count(entry, name) for entry in own) for name in names}
    available = counts["availableReplicas"]
    counts |= {
        "updatedReplicas": count(current, "replicas"),
        "unavailableReplicas": max(0, sum(size(entry) for entry in own) - available),
    }
    return {
        "observedGeneration": deployment.metadata.generation,
        **{name: number for name, number in counts.items() if number},
        "terminatingReplicas": 0,
        "conditions": [
            _available(deployment, available >= rule.wanted - rule.unavailable, now),
            _progressing(deployment, current, _is_complete(rule, counts), now),
        ],
    }


def _is_complete(rule: Rule, counts: Mapping[str, int]) -> bool:
    return all(counts[name] == rule.wanted for name in ("replicas", "updatedReplicas", "availableReplicas"))


def _available(deployment: Deployment, enough: bool, now: str) -> Body:
    if enough:
        texts = ("MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        texts = ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return _since(deployment, "Available", "True" if enough else "False", *texts, now)


def _progressing(deployment: Deployment, current: ReplicaSet | None, complete: bool, now: str) -> Body:
    if deployment.spec.get("paused"):
        return _since(deployment, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", now)
    name = current.name if current else set_name(deployment)
    if complete:
        texts = ("NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
    else:
        texts = ("ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
    return _since(deployment, "Progressing", "True", *texts, now)


def _since(deployment: Deployment, kind: str, value: str, reason: str, message: str, now: str) -> Body:
    """A condition, with the times of the one that is there as far as they still hold."""
    said: Body = {"type": kind, "status": value, "reason": reason, "message": message}
    before = condition(deployment.status, kind)
    if {key: before.get(key) for key in said} == said:
        return dict(before)
    since = before["lastTransitionTime"] if before.get("status") == value else now
    return {**said, "lastTransitionTime": since, "lastUpdateTime": now}


def setup(manager: Manager, now: Now) -> None:
    """Declares the controller."""
    sets = manager.informer(ReplicaSet).store
    sets.add_index(BY_CONTROLLER, lambda entry: filter(None, (controller_uid(entry),)))
    reconciler = DeploymentReconciler(manager.client, manager.reader(Deployment), sets, now)
    (manager.controller("stand-in-deployments").for_(Deployment).owns(ReplicaSet).reconciles_with(Patient(reconciler)))
