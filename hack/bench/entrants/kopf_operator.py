"""A no-op handler of pods on kopf, in its default settings except that it posts no Events."""

import asyncio
import importlib
import sys
from typing import Any

import uvloop

from hack.bench.entrants.meter import Meter, age, delays, finish, report


class Counter:
    """Counts calls, first for what is listed and then for what changes."""

    def __init__(self, objects: int, events: int) -> None:
        self.ages: list[float] = []
        self.listed, self.told = asyncio.Event(), asyncio.Event()
        self._left = objects
        self._events = events

    async def handle(self, *, meta: Any, **_: Any) -> None:
        old = age(meta.annotations)
        if old is None:
            self._left -= 1
            if self._left == 0:
                self.listed.set()
        else:
            self.ages.append(old)
            if len(self.ages) == self._events:
                self.told.set()


async def main(url: str, mode: str, objects: int, events: int) -> None:
    # Not imported by a statement: where types are checked, kopf need not be installed.
    kopf = importlib.import_module("kopf")

    async def login(**_: Any) -> Any:
        return kopf.ConnectionInfo(server=url)

    counter = Counter(objects, events)
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "pods", registry=registry)(counter.handle)
    meter = Meter()
    async with asyncio.TaskGroup() as tasks:
        operator = kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)
        tasks.create_task(operator)
        await counter.listed.wait()
        if mode != "list":
            meter = Meter()
            report({})
            await counter.told.wait()
        finish({**meter.figures(), **(delays(counter.ages) if mode == "latency" else {})})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
