"""The reconciler of one node, against a scripted server."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

from controllers.api.core import Node, Pod
from controllers.api.topology import NodeResourceTopology
from controllers.estate import DRA, Pool
from controllers.node_resource_topology.manifest import manifest
from controllers.node_resource_topology.setup import BY_NODE, DECLARATION, GPU_GRACE, SETTLE, TopologyReconciler
from controllers.runtime import Client, ClientOptions, Key
from controllers.runtime.cache import Store
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.reconcile import DONE, Result
from controllers.runtime.recorder import FakeRecorder
from controllers.runtime.testing import Answer, FakeClock, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from controllers.topology import TopologySource, Undecided
from tests.unit.node_resource_topology.builders import guaranteed, node, numa, pod

OURS = "gpu-mirage/node-resource-topology"
POOL = Pool("p", gpu_count=8, numa=numa())
KEY = Key("", "n1")
Json = dict[str, Any]


class Topology:
    """Says of every node that it is in the same pool."""

    def __init__(self, pool: Pool | Undecided | None) -> None:
        self.pool = pool

    def pool_of(self, _: Node) -> Pool | Undecided | None:
        return self.pool


class World:
    """Caches that hold what a test puts there, and a server that has one topology and remembers what it is asked."""

    def __init__(self, *, pool: Pool | Undecided | None = POOL) -> None:
        self.nodes, self.pods, self.present = Store[Node](), Store[Pod](), Store[NodeResourceTopology]()
        self.pods.add_index(BY_NODE, lambda found: (found.node_name,))
        self.topology = Topology(pool)
        self.clock = FakeClock()
        self.recorder = FakeRecorder()
        self.managers = [OURS]  # of the zones
        self.conflicts = 0  # applies that are refused
        self.asked: list[str] = []
        self.bodies: list[Json] = []
        client = Client(ScriptedTransport(self), ClientOptions(OURS)).restricted_to(DECLARATION.everything)
        self.reconciler = TopologyReconciler(
            OwnedObjects(client, NodeResourceTopology, owners=Node, proof=("f:zones",)),
            self.nodes,
            self.pods,
            self.present,
            cast(TopologySource, self.topology),
            self.recorder,
            self.clock,
        )

    def __call__(self, request: HttpRequest) -> Reply:
        forced = " force" if ("force", "true") in request.query else ""
        self.asked.append(f"{request.method}{forced}")
        if request.method == "GET":
            fields = [{"manager": name, "operation": "Apply", "fieldsV1": {"f:zones": {}}} for name in self.managers]
            return Answer(body={"metadata": {"name": "n1", "uid": "nrt1", "managedFields": fields}})
        if request.method == "DELETE":
            return Answer(body={"kind": "Status"})
        if self.conflicts and not forced:
            self.conflicts -= 1
            causes = [{"reason": "FieldManagerConflict", "field": ".zones", "message": 'conflict with "nfd"'}]
            body = {"kind": "Status", "code": 409, "reason": "Conflict", "details": {"causes": causes}}
            return Answer(409, body={**body, "message": 'conflict with "nfd"'})
        self.bodies.append(msgspec.json.decode(request.body or b""))
        return Answer(body=self.serve(self.bodies[-1]))

    def serve(self, body: Json) -> Json:
        metadata = {**body["metadata"], "uid": "nrt1", "resourceVersion": str(len(self.asked))}
        whole = {**body, "metadata": metadata}
        self.present.put(NodeResourceTopology.decode(msgspec.json.encode(whole)))
        return whole

    def reconcile(self) -> Result:
        """One run; what was asked of the server is in ``asked``."""
        self.asked.clear()
        return run_virtual(self.reconciler.reconcile(KEY))


@pytest.fixture
def world() -> World:
    made = World()
    made.nodes.put(node())
    return made


def existing(world: World, pods: Sequence[Pod] = ()) -> None:
    """A topology from an earlier life of the controller."""
    world.serve(manifest(node(), numa(), pods, None))


def test_a_new_node_costs_one_write_and_then_none(world: World) -> None:
    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])
    assert world.bodies[0]["zones"][0]["name"] == "node-0"

    assert (world.reconcile(), world.asked) == (DONE, [])


def test_a_topology_from_before_a_restart_is_left_as_it_is(world: World) -> None:
    existing(world)

    assert (world.reconcile(), world.asked) == (DONE, [])


def test_a_change_costs_one_look_at_the_maker_and_the_next_one_none(world: World) -> None:
    existing(world)
    world.pods.put(pod("a", guaranteed(1)))
    world.reconcile()
    assert world.asked == ["GET", "PATCH"]

    world.clock.advance(SETTLE)
    world.pods.put(pod("b", guaranteed(1)))
    world.reconcile()
    assert world.asked == ["PATCH"]


def test_pods_that_come_right_after_a_write_share_the_next_one(world: World) -> None:
    world.reconcile()
    for name in "abc":
        world.pods.put(pod(name, guaranteed(1)))
        assert (world.reconcile(), world.asked) == (Result(requeue_after=SETTLE), [])

    world.clock.advance(SETTLE)

    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])
    assert world.bodies[-1]["zones"][0]["resources"][0]["available"] == "1"


def test_a_node_that_does_not_say_yet_what_it_has_waits(world: World) -> None:
    world.nodes.put(node({}, {"cpu": "1"}))

    assert (world.reconcile(), world.asked) == (DONE, [])


NO_GPUS_YET = {"cpu": "32", "memory": "128Gi"}


def test_a_new_node_waits_a_moment_for_its_gpus(world: World) -> None:
    world.nodes.put(node(NO_GPUS_YET))
    assert (world.reconcile(), world.asked) == (Result(requeue_after=GPU_GRACE), [])
    world.clock.advance(GPU_GRACE / 4)
    assert (world.reconcile(), world.asked) == (Result(requeue_after=GPU_GRACE * 3 / 4), [])

    world.nodes.put(node())

    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])


def test_gpus_that_do_not_come_hold_nothing_up_for_long(world: World) -> None:
    world.nodes.put(node(NO_GPUS_YET))
    world.reconcile()
    world.clock.advance(GPU_GRACE)

    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])


@pytest.mark.parametrize("pool", [Pool("p", numa=numa()), Pool("p", gpu_count=8, offered=DRA, numa=numa())])
def test_gpus_that_nobody_offers_are_not_waited_for(world: World, pool: Pool) -> None:
    world.topology.pool = pool
    world.nodes.put(node(NO_GPUS_YET))

    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])


def test_gpus_that_go_are_not_waited_for(world: World) -> None:
    existing(world)
    world.nodes.put(node(NO_GPUS_YET))

    assert (world.reconcile(), world.asked) == (DONE, ["GET", "PATCH"])


def gone(world: World) -> None:
    world.nodes.remove(KEY)


def leave_pool(world: World) -> None:
    world.topology.pool = None


def lose_zones(world: World) -> None:
    world.topology.pool = Pool("p")


@pytest.mark.parametrize("change", [gone, leave_pool, lose_zones])
def test_a_topology_that_nobody_asks_for_any_more_goes(world: World, change: Callable[[World], None]) -> None:
    existing(world)
    change(world)

    assert (world.reconcile(), world.asked) == (DONE, ["GET", "DELETE"])


@pytest.mark.parametrize("change", [gone, leave_pool, lose_zones])
def test_where_there_never_was_one_nothing_is_asked(world: World, change: Callable[[World], None]) -> None:
    change(world)

    assert (world.reconcile(), world.asked) == (DONE, [])


@pytest.mark.parametrize("change", [gone, leave_pool])
def test_an_object_without_our_mark_costs_no_request(world: World, change: Callable[[World], None]) -> None:
    world.serve({"metadata": {"name": "n1"}, "zones": []})
    change(world)

    assert (world.reconcile(), world.asked) == (DONE, [])


def test_somebody_elses_object_with_our_mark_is_not_withdrawn(world: World) -> None:
    existing(world)
    world.managers = ["nfd"]
    gone(world)

    assert (world.reconcile(), world.asked) == (DONE, ["GET"])


def test_a_node_of_which_nothing_is_known_is_not_touched(world: World) -> None:
    existing(world)
    world.topology.pool = Undecided("the topology is not YAML")
    world.pods.put(pod("a", guaranteed(1)))

    assert (world.reconcile(), world.asked) == (DONE, [])


@pytest.mark.parametrize("managers", [["nfd"], ["nfd", OURS], []])
def test_somebody_elses_topology_is_reported_and_left_alone(world: World, managers: list[str]) -> None:
    world.serve({"metadata": {"name": "n1"}, "zones": [{"name": "node-0", "type": "Node"}]})
    world.managers = managers

    assert (world.reconcile(), world.asked) == (DONE, ["GET"])
    (event,) = world.recorder.events
    assert (event.obj.name, event.type, event.reason) == ("n1", "Warning", "ForeignNodeResourceTopology")


def test_a_topology_that_somebody_takes_over_is_given_up(world: World) -> None:
    world.reconcile()
    world.clock.advance(SETTLE)
    world.managers = ["nfd"]
    world.conflicts = 1
    world.pods.put(pod("a", guaranteed(1)))

    world.reconcile()
    assert world.asked == ["PATCH", "GET"]
    assert [event.reason for event in world.recorder.events] == ["ForeignNodeResourceTopology"]

    world.reconcile()
    assert world.asked == ["GET"]


def test_attributes_that_somebody_edits_are_taken_back(world: World) -> None:
    world.reconcile()
    world.clock.advance(SETTLE)
    world.conflicts = 1
    world.pods.put(pod("a", guaranteed(1)))

    world.reconcile()

    assert world.asked == ["PATCH", "GET", "PATCH force"]
    assert world.recorder.events == []


def test_one_that_appears_under_our_hands_is_left_alone(world: World) -> None:
    world.conflicts = 1

    assert (world.reconcile(), world.asked) == (DONE, ["PATCH"])
    assert [event.reason for event in world.recorder.events] == ["ForeignNodeResourceTopology"]
