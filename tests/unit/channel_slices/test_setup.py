"""The controller that keeps the slices, alone and beside compute-domain, against a scripted server."""

import argparse
import asyncio
from typing import Any

import msgspec
import pytest

from controllers import channel_slices, compute_domain
from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import dra_api
from controllers.channel_slices.options import ChannelSlicesOptions, add_arguments, channel_slices_options
from controllers.channel_slices.setup import DECLARATION, FIELD_MANAGER
from controllers.channel_slices.slices import desired_slice
from controllers.runtime import Client, ClientOptions, Manager
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import Permission
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest

V1 = dra_api("v1")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
OFF = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")
Json = dict[str, Any]

SIMULATED = {
    "labels": {"run.ai/simulated-gpu-node-pool": "default"},
    "annotations": {"kwok.x-k8s.io/node": "fake"},
}


def node(name: str, **metadata: Any) -> Json:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "1", **SIMULATED, **metadata}}


def slice_of(owner: Json, *, generation: int = 1, **spec: Any) -> Json:
    body = desired_slice(Node.decode(msgspec.json.encode(owner)), V1, generation)
    identity = {"uid": f"s-{owner['metadata']['name']}", "resourceVersion": "1"}
    return {"metadata": {**body["metadata"], **identity}, "spec": {**body["spec"], **spec}}


class Cluster:
    """Nodes and slices that are listed once, quiet watches, and a record of what is written."""

    def __init__(self, nodes: list[Json], slices: list[Json], *, conflict: bool = False) -> None:
        self.nodes = nodes
        self.slices = slices
        self.conflict = conflict
        self.managers = {FIELD_MANAGER}
        self.events: list[Json] = []
        self.written: list[tuple[str, str, bool]] = []
        self.bodies: list[Json] = []
        self.queries: list[tuple[tuple[str, str], ...]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        body = msgspec.json.decode(request.body) if request.body else {}
        if request.path.endswith("/events"):
            self.events.append(body)
            return Answer(201, body=body)
        if request.method != "GET":
            return self._write(request, body)
        if ("watch", "true") in request.query:
            return Answer(stream=[STALL])
        if request.path.startswith(SLICES + "/"):
            return self._ownership(request.path.removeprefix(SLICES + "/"))
        items = self.nodes if request.path.endswith("/nodes") else self.slices if request.path == SLICES else []
        self.queries.append((("path", request.path), *request.query))
        return Answer(body={"metadata": {"resourceVersion": "9"}, "items": items})

    def _write(self, request: HttpRequest, body: Json) -> Reply:
        name, forced = request.path.rpartition("/")[2], ("force", "true") in request.query
        self.written.append((request.method, name, forced))
        self.bodies.append(body)
        if self.conflict and request.method == "PATCH" and not forced:
            causes = [{"reason": "FieldManagerConflict", "field": ".spec.devices"}]
            status = {
                "kind": "Status",
                "code": 409,
                "reason": "Conflict",
                "message": "m",
                "details": {"causes": causes},
            }
            return Answer(409, body=status)
        if request.method == "DELETE":
            return Answer(body={"kind": "Status"})
        metadata = {**body["metadata"], "uid": f"s-{name}", "resourceVersion": "9"}
        return Answer(body={**body, "metadata": metadata})

    def _ownership(self, name: str) -> Reply:
        (live,) = [item for item in self.slices if item["metadata"]["name"] == name]
        fields: Json = {"f:spec": {"f:driver": {}}}
        entries = [{"manager": m, "operation": "Apply", "fieldsV1": fields} for m in sorted(self.managers)]
        return Answer(body={"metadata": {**live["metadata"], "managedFields": entries}})


def manager_on(cluster: Cluster) -> Manager:
    return Manager(Client(ScriptedTransport(cluster), ClientOptions("tests", attempts=1)), OFF)


def run(cluster: Cluster) -> Cluster:
    async def scenario() -> None:
        manager = manager_on(cluster)
        channel_slices.setup(manager, V1, ChannelSlicesOptions())
        asyncio.get_running_loop().call_later(20, manager.stop)
        await manager.run()

    run_virtual(scenario)
    return cluster


N1 = node("n1")
N1_SLICE = "n1-compute-domain.nvidia.com"


def test_a_simulated_node_gets_its_slice_and_no_other_node_does() -> None:
    real, unpooled = node("real", annotations={}), node("unpooled", labels={})
    going = node("going", deletionTimestamp="2030-01-01T00:00:00Z")
    cluster = run(Cluster([N1, real, unpooled, going], []))
    assert cluster.written == [("PATCH", N1_SLICE, False)]
    assert cluster.bodies[0]["spec"]["nodeName"] == "n1"


def test_a_slice_that_is_as_it_should_be_costs_no_write() -> None:
    assert run(Cluster([N1], [slice_of(N1)])).written == []


def test_only_slices_of_our_driver_are_read() -> None:
    cluster = run(Cluster([], []))
    selected = [dict(query) for query in cluster.queries if ("path", SLICES) in query]
    assert {query["fieldSelector"] for query in selected} == {f"spec.driver={nvidia.DRIVER}"}


def test_a_slice_that_differs_is_written_with_a_higher_generation() -> None:
    cluster = run(Cluster([N1], [slice_of(N1, generation=4, devices=[])]))
    assert cluster.written == [("PATCH", N1_SLICE, False)]
    assert cluster.bodies[0]["spec"]["pool"]["generation"] == 5


@pytest.mark.parametrize("nodes", [[], [node("n1", labels={})], [node("n1", annotations={})]])
def test_the_slice_of_a_node_that_is_gone_or_simulated_no_more_goes(nodes: list[Json]) -> None:
    cluster = run(Cluster(nodes, [slice_of(N1)]))
    assert cluster.written == [("DELETE", N1_SLICE, False)]
    assert cluster.bodies[0]["preconditions"] == {"uid": "s-n1"}


@pytest.mark.parametrize("managers", [{"kubelet"}, {FIELD_MANAGER, "kubelet"}, set()])
def test_a_slice_that_others_made_is_never_deleted(managers: set[str]) -> None:
    cluster = Cluster([], [slice_of(N1)])
    cluster.managers = managers
    assert run(cluster).written == []


def test_a_slice_that_others_made_is_never_overwritten_but_reported() -> None:
    cluster = Cluster([N1], [slice_of(N1, devices=[])], conflict=True)
    cluster.managers = {"kubelet"}
    run(cluster)
    assert cluster.written == [("PATCH", N1_SLICE, False)]
    assert [event["reason"] for event in cluster.events] == ["ForeignResourceSlice"]
    assert N1_SLICE in cluster.events[0]["note"]


def test_a_slice_of_ours_that_somebody_edited_is_put_right() -> None:
    cluster = run(Cluster([N1], [slice_of(N1, devices=[])], conflict=True))
    assert cluster.written == [("PATCH", N1_SLICE, False), ("PATCH", N1_SLICE, True)]
    assert cluster.events == []


def test_what_it_may_do_is_what_it_does() -> None:
    assert DECLARATION.cluster == {
        *(Permission("", "nodes", verb) for verb in ("list", "watch")),
        *(
            Permission("resource.k8s.io", "resourceslices", verb)
            for verb in ("get", "list", "watch", "create", "patch", "delete")
        ),
        *(Permission("events.k8s.io", "events", verb) for verb in ("create", "patch")),
    }
    assert DECLARATION.driver_namespace == frozenset()


@pytest.mark.parametrize("slices_first", [True, False])
def test_it_runs_beside_compute_domain_in_either_order(slices_first: bool) -> None:
    cluster = Cluster([N1], [])

    async def scenario() -> None:
        manager = manager_on(cluster)
        if slices_first:
            channel_slices.setup(manager, V1, ChannelSlicesOptions())
        compute_domain.setup(manager, V1, compute_domain.ComputeDomainOptions())
        if not slices_first:
            channel_slices.setup(manager, V1, ChannelSlicesOptions())
        asyncio.get_running_loop().call_later(20, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert cluster.written == [("PATCH", N1_SLICE, False)]
    assert len([query for query in cluster.queries if ("path", "/api/v1/nodes") in query]) == 1


def test_its_flag_reaches_its_option() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert channel_slices_options(parser.parse_args([])) == ChannelSlicesOptions()
    assert channel_slices_options(parser.parse_args(["--pool-label=a/b"])) == ChannelSlicesOptions("a/b")
