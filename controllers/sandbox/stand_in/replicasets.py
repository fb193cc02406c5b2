"""ReplicaSets: as many pods as they want."""

from collections.abc import Sequence

from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.concurrency import settle
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import Body, Pod, ReplicaSet, replaced
from controllers.sandbox.stand_in.patience import Patient
from controllers.sandbox.stand_in.pods import BY_CONTROLLER, pod_of, pods_by_controller

BURST = 500  # pods made or deleted at a time, as in a real cluster


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
        missing = min(BURST, wanted - len(alive))
        made = await settle(*(self._client.create(Pod, pod_of(entry, entry.spec["template"])) for _ in range(missing)))
        surplus = sorted(alive, key=_worth)[: max(0, len(alive) - wanted)][:BURST]
        await settle(*(self._client.delete(pod) for pod in surplus))
        await self._report(entry, [pod for pod in (*alive, *made) if pod not in surplus])
        return Result(0.0) if len(alive) + missing < wanted else DONE

    async def _report(self, entry: ReplicaSet, alive: Sequence[Pod]) -> None:
        status = replica_set_status(entry, alive)
        if status != entry.status:
            await self._client.json_patch(entry, replaced(status), subresource="status")


def replica_set_status(entry: ReplicaSet, alive: Sequence[Pod]) -> Body:
    """What the pods make of a ReplicaSet; counts of 0 are left out, as the API does."""
    ready = sum(pod.ready for pod in alive)
    counts = {"fullyLabeledReplicas": len(alive), "readyReplicas": ready, "availableReplicas": ready}
    return {
        "replicas": len(alive),
        **{name: count for name, count in counts.items() if count},
        "terminatingReplicas": 0,
        "observedGeneration": entry.metadata.generation,
    }


def _worth(pod: Pod) -> tuple[bool, bool, str]:
    """The lower, the sooner a pod goes: those that wait first, then those that are not ready."""
    return bool(pod.node), pod.ready, pod.name


def setup(manager: Manager) -> None:
    """Declares the controller."""
    reconciler = ReplicaSetReconciler(manager.client, manager.reader(ReplicaSet), pods_by_controller(manager))
    (manager.controller("stand-in-replicasets").for_(ReplicaSet).owns(Pod).reconciles_with(Patient(reconciler)))
