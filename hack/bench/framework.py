"""The framework alone, without a cluster: its queue, and decoding a list beside the official client's informer."""

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, ClassVar

import uvloop

from controllers.runtime import Key, KubeObject, Projection, Resource
from controllers.runtime.cache import Store
from controllers.runtime.client import decode_page
from controllers.runtime.workqueue import AsyncWorkQueue
from hack.bench.plan import Plan
from hack.bench.report import Comparison, Table

POD_BYTES = 4096
MEMORY_SAMPLE = 500  # pods whose memory is traced; tracing all of them would take minutes


class PodSpec(Projection, frozen=True, kw_only=True):
    node_name: str = ""


class PodStatus(Projection, frozen=True, kw_only=True):
    phase: str = ""
    pod_ip: str = ""


class Pod(KubeObject, frozen=True, kw_only=True):
    """What a controller would read of a pod."""

    resource: ClassVar[Resource] = Resource("", "v1", "pods", "Pod", namespaced=True)

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def measure(plan: Plan) -> list[Table]:
    """Queue and decoding. Where the official client cannot read the list, its column is missing and a line says why."""
    return [_queue(plan), *_decoding(plan)]


def _queue(plan: Plan) -> Table:
    queue, plain = [], []
    for _ in range(plan.repeats):
        queue.append(plan.queue_keys / uvloop.run(_through_work_queue(plan.queue_keys)) / 1000)
        plain.append(plan.queue_keys / uvloop.run(_through_plain_queue(plan.queue_keys)) / 1000)
    row = Comparison("add, get and done", "k/s", queue, plain, higher_is_better=True)
    return Table(f"Work queue, {plan.queue_keys:,} keys", [row], base="asyncio.Queue")


async def _through_work_queue(count: int) -> float:
    queue = AsyncWorkQueue[Key]()
    keys = [Key("default", f"object-{number}") for number in range(count)]
    began = time.perf_counter()
    for key in keys:
        queue.add(key)
    for _ in keys:
        item = await queue.get()
        assert item is not None
        queue.done(item.key)
    return time.perf_counter() - began


async def _through_plain_queue(count: int) -> float:
    queue: asyncio.Queue[Key] = asyncio.Queue()
    keys = [Key("default", f"object-{number}") for number in range(count)]
    began = time.perf_counter()
    for key in keys:
        queue.put_nowait(key)
    for _ in keys:
        await queue.get()
        queue.task_done()
    return time.perf_counter() - began


def _decoding(plan: Plan) -> list[Table]:
    title = f"List of {plan.pods:,} pods of {POD_BYTES // 1024} KB, decoded into a cache"
    body, sample = pod_list(plan.pods), pod_list(min(plan.pods, MEMORY_SAMPLE))
    ours: list[float] = []
    base: list[float] = []
    try:
        official = _official_decoder()
        for _ in range(plan.repeats):
            ours.append(_seconds(lambda: into_our_cache(body)))
            base.append(_seconds(lambda: official(body)))
        kept, base_kept = [_kept_kib(into_our_cache, sample)], [_kept_kib(official, sample)]
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"{title}: not compared, as kubernetes.informer's decoder does not run here: {error}\n")
        return []
    return [
        Table(
            title,
            [
                Comparison("time", "s", ours, base, goal=0.1),
                Comparison("memory per object", "KiB", kept, base_kept, goal=0.1),
            ],
            base="kubernetes.informer",
        )
    ]


def into_our_cache(body: bytes) -> Store[Pod]:
    """What our informer does with a page."""
    store = Store[Pod]()
    store.replace(decode_page(Pod, body).items)
    return store


def _official_decoder() -> Callable[[bytes], Any]:
    """What ``kubernetes.informer`` does with a list: the generated models, in a dict by name."""
    from kubernetes.client import ApiClient

    client = ApiClient()

    def decode(body: bytes) -> Any:
        pods = client.deserialize(body.decode(), "V1PodList", "application/json").items
        return {f"{pod.metadata.namespace}/{pod.metadata.name}": pod for pod in pods}

    return decode


def _seconds(decode: Callable[[], Any]) -> float:
    gc.collect()
    began = time.perf_counter()
    decode()
    return time.perf_counter() - began


def _kept_kib(decode: Callable[[bytes], Any], body: bytes) -> float:
    """Memory that is held per pod once the list is in the cache."""
    count = len(json.loads(body)["items"])
    decode(body)  # imports and type information that are made once must not count
    gc.collect()
    tracemalloc.start()
    cache = decode(body)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del cache
    return kept / count / 1024


def pod_list(count: int) -> bytes:
    """A list as a server sends it, each pod with managed fields, probes, volumes and conditions."""
    items = [_pod(number) for number in range(count)]
    document = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1000"}, "items": items}
    return json.dumps(document, separators=(",", ":")).encode()


def _pod(number: int) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    name = f"worker-{number:06}"
    fields = {"f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:rack": {}}}, "f:spec": {"f:containers": {}}}
    pod: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number),
            "creationTimestamp": at,
            "labels": {"app": "worker", "rack": str(number % 20), "pod-template-hash": "6d4cf56db6"},
            "annotations": {"example.com/padding": ""},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "worker", "uid": "1", "controller": True}
            ],
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": at,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 1000}",
            "containers": [_container(index) for index in range(2)],
            "volumes": [{"name": f"volume-{index}", "emptyDir": {}} for index in range(3)],
            "tolerations": [{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "serviceAccountName": "default",
            "restartPolicy": "Always",
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{number % 256}.{number // 256 % 256}",
            "startTime": at,
            "conditions": [
                {"type": sort, "status": "True", "lastTransitionTime": at}
                for sort in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
        },
    }
    missing = POD_BYTES - len(json.dumps(pod, separators=(",", ":")))
    pod["metadata"]["annotations"]["example.com/padding"] = "x" * max(0, missing)
    return pod


def _container(index: int) -> dict[str, Any]:
    return {
        "name": f"main-{index}",
        "image": "registry.example.com/worker:1.0",
        "env": [{"name": f"VARIABLE_{number}", "value": "some value"} for number in range(4)],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi"}, "requests": {"cpu": "2", "memory": "8Gi"}},
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/data/{number}"} for number in range(3)],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 10},
    }
