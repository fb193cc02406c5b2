"""Jobs: pods until enough of them have succeeded. Pods do not fail here, so that nothing is ever tried again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.clock import Clock
from controllers.runtime.concurrency import settle
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import Body, Job, Pod, condition, replaced
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.patience import Patient
from controllers.sandbox.stand_in.pods import BY_CONTROLLER, pod_of, pods_by_controller

GROUP = "batch.kubernetes.io"
INDEX = f"{GROUP}/job-completion-index"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a Job is."""

    succeeded: int
    active: Sequence[Pod]
    indexes: frozenset[int] = frozenset()  # that have succeeded, of an indexed Job

    def is_complete(self, job: Job) -> bool:
        """Whether nothing is left to do; without a number of completions one pod that has ended well is enough."""
        wanted = completions(job)
        return self.succeeded >= wanted if wanted is not None else self.succeeded > 0 and not self.active


def completions(job: Job) -> int | None:
    """How many pods are to succeed; None where the first one decides."""
    if "completions" in job.spec:
        return int(job.spec["completions"])
    return None if "parallelism" in job.spec else 1


def is_indexed(job: Job) -> bool:
    return bool(job.spec.get("completionMode") == "Indexed")


def progress(job: Job, pods: Iterable[Pod]) -> Progress:
    """How far the pods have brought a Job. What had succeeded counts for ever, pods that were deleted included."""
    pods = list(pods)
    active = [pod for pod in pods if not pod.finished and not pod.deleting]
    succeeded = [pod for pod in pods if pod.phase == "Succeeded"]
    if is_indexed(job):
        indexes = {index_of(pod) for pod in succeeded} | parse_indexes(job.status.get("completedIndexes", ""))
        return Progress(len(indexes), active, frozenset(indexes))
    return Progress(max(len(succeeded), int(job.status.get("succeeded", 0))), active)


def missing(job: Job, now: Progress) -> Sequence[int | None]:
    """The pods to make: their indexes, or None for each where the Job has none."""
    if job.spec.get("suspend") or now.is_complete(job):
        return []
    wanted, parallelism = completions(job), int(job.spec.get("parallelism", 1))
    if wanted is None:
        return [None] * (0 if now.succeeded else parallelism - len(now.active))
    number = max(0, min(parallelism, wanted - now.succeeded) - len(now.active))
    if not is_indexed(job):
        return [None] * number
    busy = now.indexes | {index_of(pod) for pod in now.active}
    return [index for index in range(wanted) if index not in busy][:number]


def allowed(job: Job, now: Progress) -> int:
    """How many pods may be active at present."""
    idle = job.spec.get("suspend") or now.is_complete(job)
    return 0 if idle else int(job.spec.get("parallelism", 1))


def index_of(pod: Pod) -> int:
    """A pod's index in its Job; -1 where it has none."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdigit() else -1


def parse_indexes(text: str) -> set[int]:
    """The numbers that a list such as ``0-2,5`` stands for."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """The shortest list that ``parse_indexes`` reads as these numbers."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ",".join("-".join(map(str, run)) for run in runs)


class JobReconciler:
    """Makes the pods of a Job until enough of them have succeeded."""

    def __init__(self, client: Client, jobs: Reader[Job], pods: Reader[Pod], now: Now, clock: Clock) -> None:
        self._client = client
        self._jobs = jobs
        self._pods = pods
        self._now = now
        self._clock = clock

    async def reconcile(self, request: Request) -> Result:
        job = self._jobs.get(request)
        if job is None or job.deleting:
            return DONE
        if condition(job.status, "Complete").get("status") == "True":
            return await self._expire(job)
        pods = self._pods.by_index(BY_CONTROLLER, job.uid)
        before = progress(job, pods)
        made = await settle(*(self._client.create(Pod, job_pod(job, index)) for index in missing(job, before)))
        kept = before.active[: allowed(job, before)]
        await settle(*(self._client.delete(pod) for pod in before.active[len(kept) :]))
        active = [*kept, *made]
        status = job_status(job, Progress(before.succeeded, active, before.indexes), self._now())
        if status != job.status:
            await self._client.json_patch(job, replaced(status), subresource="status")
        return DONE

    async def _expire(self, job: Job) -> Result:
        if "ttlSecondsAfterFinished" not in job.spec:
            return DONE
        finished = datetime.fromisoformat(job.status["completionTime"])
        left = int(job.spec["ttlSecondsAfterFinished"]) - (self._clock.utcnow() - finished).total_seconds()
        if left > 0:
            return Result(left)
        await self._client.delete(job)
        return DONE


def job_pod(job: Job, index: int | None) -> Body:
    """A pod of a Job, that of an index where it has one."""
    own = {f"{GROUP}/job-name": job.name, "job-name": job.name, f"{GROUP}/controller-uid": job.uid}
    own["controller-uid"] = job.uid
    if index is None:
        return pod_of(job, job.spec["template"], own)
    own[INDEX] = str(index)
    pod = pod_of(job, job.spec["template"], own)
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = {**metadata["annotations"], INDEX: str(index)}
    metadata |= {"generateName": f"{job.name}-{index}-", "annotations": annotations}
    indexed = {name: [_with_index(entry) for entry in spec[name]] for name in _CONTAINERS if name in spec}
    return {"metadata": metadata, "spec": {**spec, "hostname": f"{job.name}-{index}"[:63], **indexed}}


_CONTAINERS = ("containers", "initContainers")


def _with_index(container: Mapping[str, Any]) -> Body:
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*container.get("env", ()), {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]}


def job_status(job: Job, at: Progress, now: str) -> Body:
    """What the pods make of a Job; counts of 0 are left out where the API does."""
    complete = at.is_complete(job)
    active = [] if complete else at.active
    counts = {"active": len(active), "succeeded": at.succeeded}
    suspended = _suspension(job, now)
    status: Body = {
        **{name: count for name, count in counts.items() if count},
        **({"completedIndexes": format_indexes(at.indexes)} if at.indexes else {}),
        "ready": sum(pod.ready for pod in active),
        "terminating": 0,
        "uncountedTerminatedPods": {},
        **({} if job.spec.get("suspend") else {"startTime": job.status.get("startTime", now)}),
    }
    if not complete:
        return status | ({"conditions": suspended} if suspended else {})
    done = ("CompletionsReached", "Reached expected number of succeeded pods", now)
    conditions = [*suspended, _condition("SuccessCriteriaMet", "True", *done), _condition("Complete", "True", *done)]
    return {**status, "completionTime": now, "conditions": conditions}


def _suspension(job: Job, now: str) -> list[Body]:
    before = condition(job.status, "Suspended")
    if job.spec.get("suspend"):
        wanted = _condition("Suspended", "True", "JobSuspended", "Job suspended", now)
    elif before:
        wanted = _condition("Suspended", "False", "JobResumed", "Job resumed", now)
    else:
        return []
    return [dict(before) if before.get("status") == wanted["status"] else wanted]


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Body:
    times = {"lastProbeTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def setup(manager: Manager, now: Now) -> None:
    """Declares the controller."""
    pods = pods_by_controller(manager)
    reconciler = JobReconciler(manager.client, manager.reader(Job), pods, now, manager.clock)
    manager.controller("stand-in-jobs").for_(Job).owns(Pod).reconciles_with(Patient(reconciler))
