"""A no-op handler of pods on kopf, in its default settings except that it posts no Events."""

import asyncio
import importlib
import sys
from typing import Any

import uvloop

from hack.bench.entrants.meter import Ages, Meter, delays, finish, report


async def main(url: str, mode: str, objects: int, events: int) -> None:
    # Not imported by a statement: where types are checked, kopf need not be installed.
    kopf = importlib.import_module("kopf")

    async def login(**_: Any) -> Any:
        return kopf.ConnectionInfo(server=url)

    ages = Ages(objects, events)

    async def handle(*, meta: Any, **_: Any) -> None:
        ages.note(meta.annotations)

    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "pods", registry=registry)(handle)
    meter = Meter()
    async with asyncio.TaskGroup() as tasks:
        operator = kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)
        tasks.create_task(operator)
        await ages.listed.wait()
        if mode != "list":
            meter = Meter()
            report({})
            await ages.told.wait()
        finish({**meter.figures(), **(delays(ages.ages) if mode == "latency" else {})})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
