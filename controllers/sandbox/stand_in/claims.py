"""ResourceClaims for pods: made from templates, and released and deleted when their pods are done."""

from collections.abc import Iterable
from typing import Any

from controllers.api.dra import ResourceClaimTemplate
from controllers.runtime import Client, Key, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder
from controllers.sandbox.stand_in.kinds import Body, Claim, Pod, owned_by, replaced
from controllers.sandbox.stand_in.patience import Patient

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that is made for a pod: what the pod calls it."""

PROTECTION = "resource.kubernetes.io/delete-protection"
"""Finalizer that keeps an allocated claim until its devices are given back."""

BY_POD, BY_TEMPLATE = "pod", "template"


class ClaimMaker:
    """Makes the claims of one pod."""

    def __init__(
        self,
        client: Client,
        pods: Reader[Pod],
        claims: Reader[Claim],
        templates: Reader[ResourceClaimTemplate],
        recorder: EventRecorder,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._pods = pods
        self._claims = claims
        self._templates = templates

    async def reconcile(self, request: Request) -> Result:
        pod = self._pods.get(request)
        if pod is None or pod.deleting or pod.finished:
            return DONE
        recorded = {entry["name"]: entry for entry in pod.status.get("resourceClaimStatuses", ())}
        made = recorded | dict(await self._missing(pod, recorded))
        if made != recorded:
            status = {**pod.status, "resourceClaimStatuses": list(made.values())}
            await self._client.json_patch(pod, replaced(status), subresource="status")
        return DONE

    async def _missing(self, pod: Pod, recorded: dict[str, Any]) -> list[tuple[str, Body]]:
        """The claims that a pod should have and has not, except those whose template is still to come."""
        found: list[tuple[str, Body]] = []
        for name, template_name in pod.templates:
            if name in recorded:
                continue
            template = self._templates.get(Key(pod.namespace, template_name))
            if template is None:
                note = f"PodResourceClaim {name}: resource claim template {template_name!r} does not exist yet"
                self._recorder.event(pod, "Warning", "FailedResourceClaimCreation", note, "CreateClaim")
                continue
            claim = self._made_before(pod, name) or await self._client.create(Claim, claim_for(pod, name, template))
            found.append((name, {"name": name, "resourceClaimName": claim.name}))
        return found

    def _made_before(self, pod: Pod, name: str) -> Claim | None:
        """A claim whose record in the pod's status was refused."""
        own = (claim for claim in self._claims.by_index(BY_POD, pod.uid) if pod.uid in _owners(claim))
        return next((claim for claim in own if claim.metadata.annotations.get(POD_CLAIM) == name), None)


def claim_for(pod: Pod, name: str, template: ResourceClaimTemplate) -> Body:
    """The claim that a pod calls ``name``, as its template wants it."""
    metadata = template.spec.get("metadata", {})
    return {
        "metadata": {
            "generateName": f"{pod.name}-{name}-",
            "namespace": pod.namespace,
            "labels": metadata.get("labels", {}),
            "annotations": {**metadata.get("annotations", {}), POD_CLAIM: name},
            "ownerReferences": [owned_by(pod)],
        },
        "spec": template.spec.get("spec", {}),
    }


class ClaimReleaser:
    """Gives back what one claim holds once no pod needs it."""

    def __init__(self, client: Client, claims: Reader[Claim], pods: Reader[Pod]) -> None:
        self._client = client
        self._claims = claims
        self._pods = pods

    async def reconcile(self, request: Request) -> Result:
        claim = self._claims.get(request)
        if claim is None:
            return DONE
        kept = [consumer for consumer in claim.consumers if await self._needs(claim, consumer)]
        unused = not kept and (claim.deleting or bool(claim.consumers))
        if len(kept) != len(claim.consumers) or unused:
            claim = await self._release(claim, kept)
        if unused:
            await self._client.remove_finalizer(claim, PROTECTION)
        if not claim.deleting and not kept and self._owner_is_done(claim):
            await self._client.delete(claim)
        return DONE

    async def _release(self, claim: Claim, kept: list[Any]) -> Claim:
        status = released(claim, kept)
        if status == claim.status:
            return claim
        return await self._client.json_patch(claim, replaced(status), subresource="status")

    async def _needs(self, claim: Claim, consumer: Any) -> bool:
        if consumer.get("resource") != "pods":
            return True
        key = Key(claim.namespace, consumer["name"])
        pod = self._pods.get(key)
        if pod is None or pod.uid != consumer["uid"]:
            # The cache of pods may be behind the one of claims, and a live pod must not lose its device.
            pod = await self._client.find(Pod, key.name, key.namespace)
        return pod is not None and pod.uid == consumer["uid"] and not pod.finished

    def _owner_is_done(self, claim: Claim) -> bool:
        pods = (self._pods.get(Key(claim.namespace, o.name)) for o in claim.metadata.owner_references if o.controller)
        return any(pod is not None and pod.finished and pod.uid in _owners(claim) for pod in pods)


def released(claim: Claim, kept: list[Any]) -> Body:
    """A claim's status with fewer consumers; without any, its devices are free again."""
    status = {key: value for key, value in claim.status.items() if key != "reservedFor"}
    if kept:
        return {**status, "reservedFor": kept}
    if PROTECTION not in claim.metadata.finalizers:
        # Somebody else's allocation, who has said nothing of giving it back.
        return status
    return {key: value for key, value in status.items() if key not in {"allocation", "devices"}}


def setup(manager: Manager) -> None:
    """Declares both controllers."""
    claims = manager.informer(Claim).store
    pods = manager.informer(Pod).store
    claims.add_index(BY_POD, _pods_of)
    pods.add_index(BY_TEMPLATE, lambda pod: {f"{pod.namespace}/{template}" for _, template in pod.templates})
    recorder = manager.recorder("stand-in-claims")
    maker = ClaimMaker(manager.client, pods, claims, manager.reader(ResourceClaimTemplate), recorder)
    (
        manager.controller("stand-in-claims")
        .for_(Pod)
        .watches(ResourceClaimTemplate, maps_to=lambda t: [p.key for p in pods.by_index(BY_TEMPLATE, str(t.key))])
        .reconciles_with(Patient(maker))
    )
    (
        manager.controller("stand-in-release")
        .for_(Claim)
        .watches(Pod, maps_to=lambda pod: [claim.key for claim in claims.by_index(BY_POD, pod.uid)])
        .reconciles_with(Patient(ClaimReleaser(manager.client, claims, pods)))
    )


def _pods_of(claim: Claim) -> Iterable[str]:
    """The uids of the pods that have to do with a claim."""
    return {*_owners(claim), *(consumer["uid"] for consumer in claim.consumers)}


def _owners(claim: Claim) -> set[str]:
    return {owner.uid for owner in claim.metadata.owner_references if owner.kind == "Pod"}
