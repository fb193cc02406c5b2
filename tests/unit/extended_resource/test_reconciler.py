"""The controller beside kubelets, KWOK and people, who write the same status."""

import asyncio
from dataclasses import replace

import pytest

from controllers.api.core import KWOK_ANNOTATION, POOL_LABEL
from controllers.estate import DRA, MOCK, Pool
from controllers.extended_resource.setup import DECLARATION, ExtendedResourceReconciler
from controllers.runtime import Key
from controllers.runtime.rbac import Permission
from controllers.runtime.testing import run_virtual
from controllers.topology import Undecided
from tests.unit.live_nodes import FIRST, Crashed, LiveNodes

US = "gpu-mirage/extended-resource"
GPU = "nvidia.com/gpu"
POOL = Pool("p", gpu_count=8, resources={"rdma/hca": 2})
OFFERED = {GPU: "8", "rdma/hca": "2"}


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
        self.reconciler = ExtendedResourceReconciler(client, self.cache, self.pools.source, self.recorder)

    def run(self) -> list[str]:
        """What is asked of the server until the node is settled."""
        return run_virtual(self.settle(self.reconciler))


def published(pool: Pool = POOL) -> World:
    world = World(pool)
    world.make()
    assert world.run() == ["apply n"]
    return world


def test_one_write_publishes_everything_and_leaves_the_rest_of_the_status() -> None:
    world = World()
    world.make()
    before = world.status()
    assert world.run() == ["apply n"]
    after = {**FIRST, **OFFERED}
    assert world.status() == {**before, "capacity": after, "allocatable": after}


def test_nothing_is_asked_where_nothing_differs() -> None:
    world = published()
    assert world.run() == []
    world.restart()
    assert world.run() == []


@pytest.mark.parametrize("first", [{}, {"cpu": "1"}, {"pods": "1"}])
def test_nothing_is_written_before_a_node_has_its_own_resources(first: dict[str, str]) -> None:
    world = World()
    world.make(capacity=first, allocatable=first, phase="Pending")
    assert world.run() == []
    world.give(FIRST, by="kwok")
    assert world.run() == ["apply n"]
    assert world.status()["allocatable"] == {**FIRST, **OFFERED}


def test_changes_of_the_pool_are_followed() -> None:
    world = published()
    for pool, offered in [
        (replace(POOL, gpu_count=4), {GPU: "4", "rdma/hca": "2"}),
        (replace(POOL, resources={}), {GPU: "8"}),
        (replace(POOL, resources={"a/b": 1}), {GPU: "8", "a/b": "1"}),
        (replace(POOL, gpu_count=0, resources={}), {GPU: "0"}),
    ]:
        world.set_pool(pool)
        assert world.run() == ["apply n"]
        assert world.extended() == offered


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("reason", ["pool gone", "dra", "mock", "label gone", "other pool", "annotation gone"])
def test_everything_goes_where_the_node_offers_it_no_more(reason: str, restarted: bool) -> None:
    world = published()
    match reason:
        case "pool gone":
            world.set_pool(None)
        case "dra":
            world.set_pool(replace(POOL, offered=DRA))
        case "mock":
            world.set_pool(replace(POOL, backend=MOCK))
        case "label gone":
            world.patch({"metadata": {"labels": {POOL_LABEL: None}}})
        case "other pool":
            world.patch({"metadata": {"labels": {POOL_LABEL: "q"}}})
        case "annotation gone":
            world.patch({"metadata": {"annotations": {KWOK_ANNOTATION: None}}})
    if restarted:
        world.restart()
    assert world.run() == ["get n", "patch n"]
    assert world.status()["capacity"] == world.status()["allocatable"] == FIRST
    assert US not in str(world.live()["metadata"].get("managedFields"))


def test_an_undecided_pool_changes_nothing() -> None:
    world = published()
    world.set_pool(Undecided("it is not YAML"))
    world.give({GPU: None}, by="kubectl")
    assert world.run() == []


def test_a_node_that_is_gone_or_going_is_left_alone() -> None:
    world = World()
    assert world.run() == []
    world.make()
    world.patch({"metadata": {"finalizers": ["a/b"]}})
    world.delete()
    assert world.run() == []


def test_a_namesake_is_not_mistaken_for_the_node_that_was_seen() -> None:
    world = World()
    world.make()
    world.sync()
    world.delete()
    world.make()
    with pytest.raises(Exception, match="uid"):
        run_virtual(world.reconciler.reconcile(Key("", "n")))
    assert world.extended() == {}


def test_what_is_taken_away_by_hand_comes_back() -> None:
    world = published()
    world.give({GPU: None}, by="kubectl")
    assert world.run() == ["apply n"]
    assert world.extended() == OFFERED


def test_what_a_device_plugin_wrote_is_left_alone_and_reported() -> None:
    world = World()
    world.make()
    world.give({GPU: "2"})
    assert world.run() == ["get n", "apply n"]
    assert world.extended() == {GPU: "2", "rdma/hca": "2"}
    (event,) = {(e.type, e.reason, e.note) for e in world.recorder.events}
    assert event[:2] == ("Warning", "ForeignCapacity")
    assert event[2].startswith("nvidia.com/gpu is 2 in the node's status, written by kubelet, and is left alone")
    assert world.managers("f:capacity", "f:nvidia.com/gpu") == {"kubelet"}


def test_what_the_node_was_made_with_is_left_alone_and_reported() -> None:
    world = World()
    made = {**FIRST, GPU: "2"}
    world.make(capacity=made, allocatable=made)
    assert world.run() == ["get n", "apply n"]
    assert world.extended() == {GPU: "2", "rdma/hca": "2"}
    assert "written by whoever made the node" in world.recorder.events[0].note


def test_what_others_wrote_as_it_should_be_is_neither_taken_over_nor_reported() -> None:
    world = World()
    world.make()
    world.give({GPU: "8"})
    assert world.run() == ["get n", "apply n"]
    assert world.managers("f:capacity", "f:nvidia.com/gpu") == {"kubelet"}
    world.set_pool(None)
    assert world.run() == ["get n", "patch n"]
    assert world.extended() == {GPU: "8"}
    assert world.recorder.events == []


def test_a_device_plugin_that_takes_over_keeps_what_it_took_even_if_only_in_part() -> None:
    world = published()
    world.patch_status({"capacity": {GPU: "2"}})
    world.run()
    assert world.status()["capacity"] == {**FIRST, GPU: "2", "rdma/hca": "2"}
    assert US not in world.managers("f:capacity", "f:nvidia.com/gpu")
    assert US not in world.managers("f:allocatable", "f:nvidia.com/gpu")
    assert {event.reason for event in world.recorder.events} == {"ForeignCapacity"}
    world.set_pool(None)
    world.run()
    assert world.extended() == {GPU: "2"}


def test_ours_comes_once_the_other_writer_has_given_up() -> None:
    world = World()
    world.make()
    world.give({GPU: "2"})
    world.run()
    world.give({GPU: None})
    assert world.run() == ["apply n"]
    assert world.extended() == OFFERED


def test_a_node_of_no_pool_that_has_resources_of_others_is_looked_at_once() -> None:
    world = World()
    world.make(pool="", simulated=False)
    world.give({GPU: "2"})
    assert world.run() == ["get n"]
    world.patch({"metadata": {"labels": {"a": "b"}}})
    assert world.run() == []
    assert world.recorder.events == []


def test_a_writer_that_the_cache_has_not_seen_is_noticed() -> None:
    world = World()
    world.make()
    world.sync()
    world.give({GPU: "2"})
    with pytest.raises(Exception, match="conflict"):
        run_virtual(world.reconciler.reconcile(Key("", "n")))
    world.run()
    assert world.extended() == {GPU: "2", "rdma/hca": "2"}


@pytest.mark.parametrize("pool", [replace(POOL, gpu_count=4), None])
def test_what_kwok_brings_back_is_ours_again(pool: Pool | None) -> None:
    world = published()
    world.set_pool(pool)
    world.run()
    world.give(OFFERED, by="kwok")
    world.run()
    assert world.extended() == ({} if pool is None else {GPU: "4", "rdma/hca": "2"})
    assert world.recorder.events == []


def test_what_kwok_is_told_to_give_by_its_user_stays() -> None:
    world = World(None)
    world.make()
    world.give(OFFERED, by="kwok")
    assert world.run() == ["get n"]
    assert world.extended() == OFFERED


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_crash_after_any_write_of_a_take_back_converges(writes: int) -> None:
    world = published()
    world.set_pool(None)
    world.run()
    world.give(OFFERED, by="kwok")
    world.crash_after = writes

    async def scenario() -> None:
        try:
            await world.settle(world.reconciler)
        except Crashed:
            world.restart()
            await world.settle(world.reconciler)

    run_virtual(scenario)
    assert world.extended() == {}


def test_reconciles_of_many_nodes_at_once_do_not_disturb_each_other() -> None:
    world = World()
    names = [f"n{number}" for number in range(50)]
    for name in names:
        world.make(name)
    world.sync()

    async def scenario() -> None:
        await asyncio.gather(*(world.reconciler.reconcile(Key("", name)) for name in names))

    run_virtual(scenario)
    assert sorted(world.requests) == sorted(f"apply {name}" for name in names)


def test_it_may_do_no_more_than_it_does() -> None:
    assert DECLARATION.cluster == {
        *(Permission("", "nodes", verb) for verb in ("get", "list", "watch")),
        Permission("", "nodes/status", "patch"),
        *(Permission("events.k8s.io", "events", verb) for verb in ("create", "patch")),
    }
    assert DECLARATION.driver_namespace == {Permission("", "configmaps", verb) for verb in ("list", "watch")}
