"""A scripted server with nodes and a topology, for tests of what wakes a controller of the estate."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml

from controllers.runtime import Client, ClientOptions, Manager
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import STALL, Answer, Pause, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from controllers.topology import TopologyOptions, TopologySource

OFF = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")
PERIOD = 10.0  # virtual seconds between two changes, and after the last one
POOL_LABEL = "run.ai/simulated-gpu-node-pool"
Json = dict[str, Any]


def node(name: str, version: int = 1, *, labels: Json | None = None, **status: Any) -> Json:
    """A simulated node, in pool p unless it has other labels."""
    metadata = {
        "name": name,
        "uid": f"u-{name}",
        "resourceVersion": str(version),
        "labels": {POOL_LABEL: "p"} if labels is None else labels,
        "annotations": {"kwok.x-k8s.io/node": "fake"},
    }
    return {"metadata": metadata, "status": status}


def topology(document: Json, version: int = 1) -> Json:
    metadata = {"name": "topology", "namespace": "gpu-mirage", "uid": "t", "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"topology.yml": yaml.safe_dump(document)}}


class ScriptedEstate:
    """Nodes and a topology that are listed, then changed one after the other; and the requests for single nodes."""

    def __init__(
        self, nodes: Sequence[Json], document: Json, *, later_nodes: Sequence[Json] = (), later: Sequence[Json] = ()
    ) -> None:
        self.nodes = nodes
        self.document = document
        self.later_nodes = later_nodes
        self.later = later
        self.requests: list[str] = []
        self.events: list[Json] = []

    def __call__(self, request: HttpRequest) -> Reply:
        parts = request.path.split("/")
        if parts[3:4] == ["nodes"] and len(parts) > 4:
            return self._single(request, "/".join(parts[4:]))
        if parts[-1] == "events":
            self.events.append(msgspec.json.decode(request.body or b""))
            return Answer(201, body=self.events[-1])
        assert request.method == "GET", f"{request.method} {request.path}"
        if ("watch", "true") in request.query:
            return Answer(stream=self._changes(request))
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": self._listed(request)})

    def _single(self, request: HttpRequest, what: str) -> Reply:
        self.requests.append(f"{request.method} {what}")
        found = next(item for item in self.nodes if item["metadata"]["name"] == what.partition("/")[0])
        # What is written comes back by no watch, so the answer has the version that the cache has already.
        return Answer(body={**found, "metadata": {**found["metadata"], "managedFields": []}})

    def _listed(self, request: HttpRequest) -> list[Json]:
        if request.path.endswith("/nodes"):
            return list(self.nodes)
        return [topology(self.document)] if "fieldSelector" in dict(request.query) else []

    def _changes(self, request: HttpRequest) -> list[Any]:
        if request.path.endswith("/nodes"):
            changes = [{"type": "MODIFIED", "object": item} for item in self.later_nodes]
        elif "fieldSelector" in dict(request.query):
            documents = enumerate(self.later, 2)
            changes = [{"type": "MODIFIED", "object": topology(each, version)} for version, each in documents]
        else:
            changes = []
        paused = [step for change in changes for step in (Pause(PERIOD), msgspec.json.encode(change) + b"\n")]
        return [*paused, STALL]


def run(estate: ScriptedEstate, setup: Callable[[Manager, TopologySource], None]) -> list[str]:
    """What a controller asks of single nodes until all changes are over."""

    async def scenario() -> None:
        manager = Manager(Client(ScriptedTransport(estate), ClientOptions("tests", attempts=1)), OFF)
        setup(manager, TopologySource(manager, TopologyOptions()))
        duration = PERIOD * (1 + max(len(estate.later), len(estate.later_nodes)))
        asyncio.get_running_loop().call_later(duration, manager.stop)
        await manager.run()

    run_virtual(scenario)
    return estate.requests
