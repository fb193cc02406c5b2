"""Nodes on the sandbox's API in this process, for reconcilers that share a node's status with other writers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from controllers.api.core import KWOK_ANNOTATION, POOL_LABEL, Node
from controllers.estate import Estate, Pool
from controllers.runtime import Client, ClientOptions, Key
from controllers.runtime.cache import Store
from controllers.runtime.client import FieldsEntry, LiveOwnership
from controllers.runtime.errors import Conflict, ObjectGone, RuntimeFault
from controllers.runtime.reconcile import Reconciler
from controllers.runtime.recorder import FakeRecorder
from controllers.runtime.testing import Answer, FakeClock, Reply, ScriptedTransport
from controllers.runtime.transport import HttpRequest
from controllers.sandbox.cluster import Cluster, ListOptions, WriteOptions
from controllers.sandbox.errors import StatusError
from controllers.sandbox.lifecycle import Deletion
from controllers.sandbox.patch import json_patch, merge_patch, strategic_merge_patch
from controllers.sandbox.registry import Registry
from controllers.topology import TopologySource, Undecided

Json = dict[str, Any]
TURNS = 20  # reconciles within which everything must be settled
FIRST = {"cpu": "64", "memory": "512Gi", "pods": "250"}
"""What KWOK gives a node."""

_nodes = Registry().find("", "v1", "nodes")
assert _nodes is not None
INFO = _nodes


class Crashed(RuntimeFault):
    """What the answer to the last write of a process that died is to it."""


@dataclass
class Pools:
    """A topology that tests change."""

    by_name: dict[str, Pool | Undecided] = field(default_factory=dict)
    estate: Estate = field(default_factory=Estate)

    def pool_of(self, node: Node) -> Pool | Undecided | None:
        return self.by_name.get(node.labels.get(POOL_LABEL, ""))

    @property
    def source(self) -> TopologySource:
        return cast("TopologySource", self)


class LiveNodes:
    """A server with nodes, a cache of them, and a record of what a controller asks of the server."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = Cluster(clock=self.clock)
        self.cache = Store[Node]()
        self.pools = Pools()
        self.recorder = FakeRecorder()
        self.requests: list[str] = []
        self.crash_after = 0  # writes, from now on; 0 is never

    # -- what others do -----------------------------------------------------------------------------------------------

    def make(self, name: str = "n", *, pool: str = "p", simulated: bool = True, **status: Any) -> None:
        """A node as KWOK's user makes it; by default with the status that KWOK gives it, which nobody owns."""
        labels = {"kubernetes.io/hostname": name, **({POOL_LABEL: pool} if pool else {})}
        metadata = {"name": name, "labels": labels, "annotations": {KWOK_ANNOTATION: "fake"} if simulated else {}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        made = self.cluster.create(INFO, "", body, WriteOptions("kubectl")).object
        given = {**made["status"], **(status or {"capacity": FIRST, "allocatable": FIRST})}
        self.cluster.amend(INFO, self.cluster.stored(INFO, "", name), {**made, "status": given})

    def delete(self, name: str = "n") -> None:
        self.cluster.delete(INFO, "", name, Deletion(), dry_run=False)

    def patch(self, change: Mapping[str, Any], name: str = "n", *, by: str = "kubectl") -> None:
        """Changes everything but the status."""
        self.cluster.patch(INFO, "", name, lambda live: merge_patch(live, change), WriteOptions(by))

    def patch_status(self, change: Mapping[str, Any], name: str = "n", *, by: str = "kubelet") -> None:
        """Changes the status as kubelets and KWOK do."""
        self.cluster.patch(
            INFO,
            "",
            name,
            lambda live: strategic_merge_patch(live, {"status": change}, INFO.schema),
            WriteOptions(by, subresource="status"),
        )

    def give(self, resources: Mapping[str, str | None], name: str = "n", *, by: str = "kubelet") -> None:
        """Sets resources, or takes them away, in both places."""
        self.patch_status({"capacity": resources, "allocatable": resources}, name, by=by)

    # -- what is there ------------------------------------------------------------------------------------------------

    def live(self, name: str = "n") -> Json:
        return self.cluster.get(INFO, "", name)

    def status(self, name: str = "n") -> Json:
        status: Json = self.live(name)["status"]
        return status

    def extended(self, name: str = "n") -> Json:
        """The extended resources of a node; both places must have the same."""
        status = self.status(name)
        assert status["capacity"] == status["allocatable"]
        return {key: value for key, value in status["capacity"].items() if "/" in key}

    def managers(self, *path: str, name: str = "n") -> frozenset[str]:
        entries = self.live(name)["metadata"].get("managedFields", ())
        owned = (FieldsEntry(e["manager"], e["operation"], e.get("subresource", ""), e["fieldsV1"]) for e in entries)
        return LiveOwnership("", tuple(owned)).managers_of("f:status", *path, subresource="status")

    # -- the controller -----------------------------------------------------------------------------------------------

    def client(self, field_manager: str) -> Client:
        return Client(ScriptedTransport(self._answer), ClientOptions(field_manager, attempts=1))

    def sync(self) -> None:
        """Brings the cache up to date."""
        found = self.cluster.list(INFO, ListOptions()).items
        self.cache.replace([Node.decode(msgspec.json.encode(item.object)) for item in found])

    async def settle(self, reconciler: Reconciler, name: str = "n") -> list[str]:
        """Reconciles a node until that writes nothing more; returns what was asked of the server."""
        self.requests.clear()
        for _ in range(TURNS):
            before = len(self.requests)
            self.sync()
            try:
                await reconciler.reconcile(Key("", name))
            except (Conflict, ObjectGone):
                continue
            if not any(request != f"get {name}" for request in self.requests[before:]):
                return list(self.requests)
        raise AssertionError(f"still writing after {TURNS} turns: {self.requests}")

    def _answer(self, request: HttpRequest) -> Reply:
        name = request.path.split("/")[4]
        try:
            if request.method == "GET":
                self.requests.append(f"get {name}")
                return Answer(body=self.cluster.get(INFO, "", name))
            return Answer(body=self._patched(request, name))
        except StatusError as refusal:
            return Answer(refusal.code, body=refusal.status())

    def _patched(self, request: HttpRequest, name: str) -> Json:
        query, body = dict(request.query), msgspec.json.decode(request.body or b"")
        assert request.path == f"/api/v1/nodes/{name}/status"
        options = WriteOptions(query["fieldManager"], subresource="status")
        if request.headers["Content-Type"] == "application/apply-patch+yaml":
            assert query["force"] == "false"
            self.requests.append(f"apply {name}")
            written = self.cluster.apply(INFO, "", name, body, options)
        else:
            assert request.headers["Content-Type"] == "application/json-patch+json"
            self.requests.append(f"patch {name}")
            written = self.cluster.patch(INFO, "", name, lambda live: json_patch(live, body), options)
        if self.crash_after:
            self.crash_after -= 1
            if not self.crash_after:
                raise Crashed("the process is dead")
        return written.object
