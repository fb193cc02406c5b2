"""A no-op controller of pods on this framework."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import yaml

from controllers.api.core import Node
from controllers.runtime import Client, ClientOptions, KubeObject, Manager, Projection, Resource
from controllers.runtime.cache import Change, ChangeType, Informer
from controllers.runtime.options import ManagerOptions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.transport import AiohttpTransport, Credentials
from hack.bench.entrants.meter import Ages, Meter, delays, finish, report

TICK = 0.001  # seconds between two looks whether the event loop stalls


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


class Counter:
    """Counts the changes of one sort until enough have come."""

    def __init__(self, sort: ChangeType, count: int) -> None:
        self.count = 0
        self.enough = asyncio.Event()
        self._sort = sort
        self._target = count

    def __call__(self, change: Change[Any]) -> None:
        if change.type is self._sort:
            self.count += 1
            if self.count == self._target:
                self.enough.set()


class Looker:
    """A reconciler that does nothing but look how old what it looks at is."""

    def __init__(self, manager: Manager, ages: Ages) -> None:
        self._pods = manager.reader(Pod)
        self._ages = ages

    async def reconcile(self, request: Request) -> Result:
        pod = self._pods.get(request)
        self._ages.note(pod.metadata.annotations if pod is not None else None)
        return DONE


async def run(mode: str, client: Client, objects: int, events: int) -> None:
    """Never returns in time: each mode ends by waiting to be ended."""
    if mode == "latency":
        await latency(client, objects, events)
    elif mode == "watch":
        await watch(client, events)
    elif mode == "stall":
        await stall(client, objects)
    else:
        await list_all(client, Node if mode == "nodes" else Pod, objects)


async def list_all(client: Client, kind: type[KubeObject], objects: int) -> None:
    heard = Counter(ChangeType.ADDED, objects)
    informer = Informer(client, kind)
    informer.add_handler(heard)
    meter = Meter()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        await heard.enough.wait()
        finish(meter.figures())


async def watch(client: Client, events: int) -> None:
    heard = Counter(ChangeType.UPDATED, events)
    informer = Informer(client, Pod)
    informer.add_handler(heard)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        await informer.wait_synced()
        meter = Meter()
        report({})
        await heard.enough.wait()
        finish(meter.figures())


async def latency(client: Client, objects: int, events: int) -> None:
    manager = Manager(client, ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0"))
    ages = Ages(objects, events)
    manager.controller("bench").for_(Pod).reconciles_with(Looker(manager, ages))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.run())
        await ages.listed.wait()
        meter = Meter()
        report({})
        await ages.told.wait()
        finish({**meter.figures(), **delays(ages.ages)})


async def stall(client: Client, objects: int) -> None:
    """The longest time for which the event loop ran nothing else while everything was listed."""
    heard = Counter(ChangeType.ADDED, objects)
    informer = Informer(client, Pod)
    informer.add_handler(heard)
    late: list[float] = []
    meter = Meter()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        while not heard.enough.is_set():
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - due)
        finish({**meter.figures(), "longest": max(late)})


async def main(url: str, mode: str, objects: int, events: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-bench-") as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "bench", "cluster": {"server": url}}],
                    "users": [{"name": "bench", "user": {}}],
                    "contexts": [context],
                    "current-context": "bench",
                }
            )
        )
        client = Client(AiohttpTransport(Credentials(str(kubeconfig))), ClientOptions(field_manager="bench"))
        # Reading a configuration imports the official package, which takes longer than many a list.
        await client.get_json("/version")
        await run(mode, client, objects, events)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
