"""The controller beside kubelets, KWOK and people, who write conditions of the same node."""

from typing import Any

import pytest

from controllers.api.core import POOL_LABEL
from controllers.estate import DRA, MOCK, Pool
from controllers.gpu_fractioning.condition import READY
from controllers.gpu_fractioning.setup import DECLARATION, FractioningReconciler
from controllers.runtime import Key
from controllers.runtime.rbac import Permission
from controllers.runtime.testing import run_virtual
from controllers.topology import Undecided
from tests.unit.live_nodes import FIRST, Crashed, LiveNodes

US = "gpu-mirage/gpu-fractioning"
GPU = "nvidia.com/gpu"
POOL = Pool("p", gpu_count=8)
FIELD = ("f:conditions", f'k:{{"type":"{READY}"}}')
KUBELET_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


class World(LiveNodes):
    def __init__(self, pool: Pool | Undecided | None = POOL) -> None:
        super().__init__()
        self.set_pool(pool)
        self.restart()

    def set_pool(self, pool: Pool | Undecided | None) -> None:
        self.pools.by_name = {} if pool is None else {"p": pool}

    def restart(self) -> None:
        """A new process, which remembers nothing."""
        client = self.client(US).restricted_to(DECLARATION.everything)
        self.reconciler = FractioningReconciler(client, self.cache, self.pools.source, self.recorder, self.clock)

    def run(self) -> list[str]:
        """What is asked of the server until the node is settled."""
        return run_virtual(self.settle(self.reconciler))

    def conditions(self) -> dict[str, Any]:
        return {condition["type"]: condition for condition in self.status().get("conditions", ())}

    @property
    def condition(self) -> Any:
        return self.conditions().get(READY)


def world_with_gpus(pool: Pool | Undecided | None = POOL) -> World:
    world = World(pool)
    world.make()
    world.patch_status({"conditions": [KUBELET_READY]})
    world.give({GPU: "8"})
    return world


def published() -> World:
    world = world_with_gpus()
    assert world.run() == ["apply n"]
    assert world.condition["status"] == "True"
    return world


def test_one_write_sets_the_condition_once_gpus_are_allocatable() -> None:
    world = World()
    world.make()
    assert world.run() == []
    world.give({GPU: "0"})
    assert world.run() == []
    world.give({GPU: "8"})
    assert world.run() == ["apply n"]
    assert world.condition["status"] == "True"


def test_nodes_with_a_kubelet_have_it_too() -> None:
    world = World()
    world.make(simulated=False)
    world.give({GPU: "8"})
    assert world.run() == ["apply n"]


def test_nothing_is_asked_where_nothing_differs() -> None:
    world = published()
    assert world.run() == []
    world.restart()
    assert world.run() == []


def test_the_rest_of_the_status_and_the_moment_of_the_transition_stay() -> None:
    world = world_with_gpus()
    before = world.status()
    world.run()
    first = world.condition
    assert {**world.status(), "conditions": before["conditions"]} == before
    world.clock.advance(3600)
    world.restart()
    world.give({GPU: "4"})
    assert world.run() == []
    assert world.condition == first
    assert world.conditions()["Ready"] == KUBELET_READY


@pytest.mark.parametrize("by", ["kubelet", "kwok"])
def test_it_survives_what_kubelets_and_kwok_write(by: str) -> None:
    world = published()
    first = world.condition
    for beat in range(3):
        pressure = {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": f"2030-01-01T00:00:0{beat}Z"}
        world.patch_status({"conditions": [{**KUBELET_READY, "status": "False"}, pressure], "phase": "Running"}, by=by)
        assert world.run() == []
    assert world.condition == first
    assert world.managers(*FIELD) == {US}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("reason", ["no gpus", "zero gpus", "pool gone", "dra", "mock", "label gone"])
def test_it_goes_where_fractions_can_be_asked_for_no_more(reason: str, restarted: bool) -> None:
    world = published()
    match reason:
        case "no gpus":
            world.give({GPU: None})
        case "zero gpus":
            world.give({GPU: "0"})
        case "pool gone":
            world.set_pool(None)
        case "dra":
            world.set_pool(Pool("p", offered=DRA))
        case "mock":
            world.set_pool(Pool("p", backend=MOCK))
        case "label gone":
            world.patch({"metadata": {"labels": {POOL_LABEL: None}}})
    if restarted:
        world.restart()
    before = world.status()
    assert world.run() == ["get n", "patch n"]
    assert world.status() == {**before, "conditions": [KUBELET_READY]}
    assert US not in str(world.live()["metadata"]["managedFields"])


def test_it_is_removed_without_what_the_node_was_made_with() -> None:
    world = World()
    resources = {**FIRST, GPU: "8"}
    world.make(capacity=resources, allocatable=resources, conditions=[KUBELET_READY])
    before = world.status()
    assert world.run() == ["apply n"]
    world.set_pool(None)
    assert world.run() == ["get n", "patch n"]
    assert world.status() == before


@pytest.mark.parametrize("pool", [Pool("p", backend=MOCK), Pool("p", offered=DRA), None, Undecided("unreadable")])
def test_other_pools_get_none(pool: Pool | Undecided | None) -> None:
    assert world_with_gpus(pool).run() == []


def test_an_undecided_pool_changes_nothing() -> None:
    world = published()
    world.set_pool(Undecided("it is not YAML"))
    world.give({GPU: None})
    assert world.run() == []
    assert world.condition


def test_a_node_that_is_gone_or_going_is_left_alone() -> None:
    world = World()
    assert world.run() == []
    world = world_with_gpus()
    world.patch({"metadata": {"finalizers": ["a/b"]}})
    world.delete()
    assert world.run() == []


def test_it_comes_back_where_it_is_taken_off_by_hand() -> None:
    world = published()
    world.patch_status({"conditions": [{"$patch": "delete", "type": READY}]}, by="kubectl")
    assert world.condition is None
    assert world.run() == ["apply n"]


def test_somebody_elses_condition_is_left_alone_reported_and_looked_at_once() -> None:
    world = world_with_gpus()
    foreign = {"type": READY, "status": "False", "reason": "Broken"}
    world.patch_status({"conditions": [foreign]}, by="operator")
    assert world.run() == ["get n"]
    world.give({GPU: "4"})
    assert world.run() == []
    assert world.condition == foreign
    (event,) = {(event.type, event.reason, event.note) for event in world.recorder.events}
    assert event[:2] == ("Warning", "ForeignCondition")
    assert f"the condition {READY} is False, written by operator, and is left alone" in event[2]


def test_ours_comes_once_somebody_elses_has_gone_and_goes_as_ours() -> None:
    world = world_with_gpus()
    world.patch_status({"conditions": [{"type": READY, "status": "False"}]}, by="operator")
    world.run()
    world.patch_status({"conditions": [{"$patch": "delete", "type": READY}]}, by="operator")
    assert world.run() == ["apply n"]
    world.set_pool(None)
    assert world.run() == ["get n", "patch n"]


@pytest.mark.parametrize("pool", [POOL, None, Pool("p", backend=MOCK)])
def test_somebody_elses_condition_is_not_removed(pool: Pool | None) -> None:
    world = World(pool)
    world.make()
    world.patch_status({"conditions": [{"type": READY, "status": "True"}]}, by="operator")
    assert world.run() == ["get n"]
    assert world.condition["status"] == "True"
    assert world.recorder.events == []


def test_what_somebody_changed_in_ours_is_theirs() -> None:
    world = published()
    world.patch_status({"conditions": [{"type": READY, "status": "False"}]}, by="kubectl")
    assert world.run() == ["get n"]
    assert "written by kubectl, and is left alone" in world.recorder.events[0].note
    world.set_pool(None)
    assert world.run() == []
    assert world.condition["status"] == "False"


def test_a_condition_that_came_with_the_node_is_nobodys_and_left_alone() -> None:
    world = World()
    resources = {**FIRST, GPU: "8"}
    world.make(capacity=resources, allocatable=resources, conditions=[{"type": READY, "status": "False"}])
    assert world.run() == ["get n"]
    assert "written by whoever made the node" in world.recorder.events[0].note


def test_somebody_who_was_quicker_is_not_overwritten() -> None:
    world = world_with_gpus()
    world.sync()
    world.patch_status({"conditions": [{"type": READY, "status": "False"}]}, by="operator")
    with pytest.raises(Exception, match="conflict"):
        run_virtual(world.reconciler.reconcile(Key("", "n")))
    assert world.run() == ["get n"]
    assert world.condition["status"] == "False"


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_crash_after_its_write_converges(withdrawn: bool) -> None:
    world = published() if withdrawn else world_with_gpus()
    if withdrawn:
        world.set_pool(None)
    world.crash_after = 1
    with pytest.raises(Crashed):
        world.run()
    world.restart()
    assert world.run() == []
    assert (world.condition is None) is withdrawn


def test_it_may_do_no_more_than_it_does() -> None:
    assert DECLARATION.cluster == {
        *(Permission("", "nodes", verb) for verb in ("get", "list", "watch")),
        Permission("", "nodes/status", "patch"),
        *(Permission("events.k8s.io", "events", verb) for verb in ("create", "patch")),
    }
    assert DECLARATION.driver_namespace == {Permission("", "configmaps", verb) for verb in ("list", "watch")}
