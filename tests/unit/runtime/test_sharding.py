"""Sharing keys among replicas: the hash, the plan and the members by themselves, and whole replicas on virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime import manager as manager_module
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import ConfigurationError, LeadershipLost
from controllers.runtime.leader_election import ElectionOptions, Elector
from controllers.runtime.manager import Manager
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.options import ManagerOptions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.sharding import MEMBERS_ANNOTATION, Membership, Plan, Shards, Sharers, plan, shard_of
from controllers.runtime.stage import Runnable
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.lease_server import Fault, LeaseServer, Network

KEYS = [Key("a", f"thing-{number}") for number in range(400)]

# -- which shard ------------------------------------------------------------------------------------------------------


def test_the_shard_of_a_key_is_the_same_in_every_process_and_version() -> None:
    # Written down once: replicas of two versions must agree while one replaces the other.
    assert [shard_of(Key("team", name), 8) for name in ("a", "b", "c", "d")] == [3, 5, 2, 5]


@given(st.text(max_size=20), st.text(min_size=1, max_size=20), st.integers(1, 64))
def test_every_key_has_a_shard_and_of_one_more_only_the_keys_that_it_gets_move(
    namespace: str, name: str, shards: int
) -> None:
    key = Key(namespace, name)
    before, after = shard_of(key, shards), shard_of(key, shards + 1)
    assert 0 <= before < shards
    assert after in (before, shards)


def test_shards_have_about_equally_many_keys() -> None:
    counts = Counter(shard_of(Key("", f"node-{number}"), 8) for number in range(8000))
    assert all(850 < counts[shard] < 1150 for shard in range(8))


# -- who takes what ---------------------------------------------------------------------------------------------------


def settle(holders: dict[int, str], members: Iterable[str], shards: int) -> tuple[dict[int, str], set[int]]:
    """Lets everybody follow his plan until nothing changes; the outcome, and what anybody had to give up."""
    given_up: set[int] = set()
    for _ in range(4 * shards + 4):
        plans = {member: plan(member, holders, members, shards) for member in members}
        changed = dict(holders)
        for member, made in plans.items():
            given_up |= made.give
            for shard in made.give:
                assert changed.pop(shard) == member
            for shard in made.take:
                if shard not in holders:
                    changed.setdefault(shard, member)
        if changed == holders:
            return holders, given_up
        holders = changed
    raise AssertionError(f"no end: {holders}")


MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@settings(deadline=None)
@given(st.data(), MEMBERS, st.integers(1, 24))
def test_from_wherever_it_starts_every_shard_is_held_in_equal_shares(
    data: st.DataObject, members: list[str], shards: int
) -> None:
    start = data.draw(st.dictionaries(st.integers(0, shards - 1), st.sampled_from(members)))
    holders, _ = settle(start, members, shards)
    counts = Counter(holders.values())
    assert set(holders) == set(range(shards))
    assert max(counts[m] for m in members) - min(counts[m] for m in members) <= 1


@settings(deadline=None)
@given(st.data(), MEMBERS.filter(lambda members: len(members) > 1), st.integers(1, 24))
def test_the_death_of_a_replica_moves_only_its_own_shards(data: st.DataObject, members: list[str], shards: int) -> None:
    before, _ = settle({}, members, shards)
    dead = data.draw(st.sampled_from(members))
    left = {shard: holder for shard, holder in before.items() if holder != dead}
    after, given_up = settle(left, [member for member in members if member != dead], shards)
    assert given_up == set()
    assert all(after[shard] == holder for shard, holder in left.items())


def test_a_newcomer_gets_its_share_and_nobody_gives_more_than_that() -> None:
    before, _ = settle({}, "abc", 9)
    after, given_up = settle(before, "abcd", 9)
    assert len(given_up) == 2  # 9 = 3 + 2 + 2 + 2
    assert Counter(after.values())["d"] == 2


def test_the_shards_of_a_dead_replica_are_not_free_before_its_leases_have_run_out() -> None:
    assert plan("a", {0: "a", 1: "dead"}, ["a"], 2) == Plan(frozenset(), frozenset())
    assert plan("a", {0: "a"}, ["a"], 2) == Plan(frozenset({1}), frozenset())


# -- who is alive -----------------------------------------------------------------------------------------------------


def test_a_member_lives_for_as_long_as_its_entry_changes() -> None:
    here, there = Membership("me", 4, 15.0), Membership("other", 4, 15.0)
    text = there.beaten(0.0)
    here.observe(text, 0.0)
    assert here.living(14.9) == ["me", "other"]
    here.observe(text, 10.0)
    assert here.living(15.0) == ["me"]
    there.observe(text, 16.0)
    here.observe(there.beaten(16.0), 16.0)
    assert here.living(16.0) == ["me", "other"]


def test_a_sign_of_life_drops_the_dead_and_keeps_the_others() -> None:
    here, there = Membership("me", 4, 15.0), Membership("other", 4, 15.0)
    here.observe(there.beaten(0.0), 0.0)
    assert set(msgspec.json.decode(here.beaten(14.0))) == {"me", "other"}
    assert set(msgspec.json.decode(here.beaten(15.0))) == {"me"}


def test_who_leaves_is_gone_at_once() -> None:
    here = Membership("me", 4, 15.0)
    here.observe(here.beaten(0.0), 0.0)
    assert msgspec.json.decode(here.left()) == {}


def test_a_list_of_members_that_cannot_be_read_is_written_anew() -> None:
    here = Membership("me", 4, 15.0)
    for text in ("{", "[]", '{"x": 1}'):
        here.observe(text, 0.0)
        assert here.living(0.0) == ["me"]
    assert set(msgspec.json.decode(here.beaten(0.0))) == {"me"}


def test_whoever_splits_the_keys_otherwise_waits_for_those_before_it() -> None:
    first, second = Membership("first", 4, 15.0), Membership("second", 8, 15.0)
    second.observe(first.beaten(0.0), 0.0)
    second.observe(second.beaten(0.0), 0.0)
    first.observe(second.beaten(0.0), 0.0)
    assert second.in_the_way(1.0) == ["first"]
    assert first.in_the_way(1.0) == []
    assert second.in_the_way(15.0) == []


def test_whoever_waits_for_others_gets_no_share_before_they_are_gone() -> None:
    first, other, last = Membership("first", 3, 15.0), Membership("other", 2, 15.0), Membership("last", 3, 15.0)
    text = first.beaten(0.0)
    for member in (other, last):
        member.observe(text, 0.0)
        text = member.beaten(0.0)
    first.observe(text, 0.0)
    assert first.peers(1.0) == ["first"]
    assert other.in_the_way(1.0) == ["first"]
    other.observe(text, 0.0)
    first.observe(other.left(), 1.0)
    assert first.peers(1.0) == ["first", "last"]


# -- whole replicas ---------------------------------------------------------------------------------------------------


class Worker:
    """A replica that works on keys as far as its shards let it."""

    def __init__(
        self, world: "World", name: str, shards: int, faults: Iterable[Fault] = (), *, seconds: float = 0.9
    ) -> None:
        self.world = world
        self.seconds = seconds
        self.name = name
        self.network = Network(world.leases, faults)
        options = ElectionOptions(name="lock", namespace="here", identity=name)
        self.leader = Elector(self.network.client(), options, sharing=True)
        self.shards = Shards(self.network.client(), self.leader, shards, self._opened)
        self.opened: list[int] = []
        self.task: asyncio.Task[None] | None = None

    def _opened(self, shard: int) -> None:
        self.opened.append(shard)

    def start(self) -> "asyncio.Task[None]":
        self.task = asyncio.create_task(self._run(), name=self.name)
        return self.task

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for runnable in self.runnables():
                    tasks.create_task(runnable())
                for key in KEYS[::40]:
                    tasks.create_task(self._work_on(key))
        except* LeadershipLost:
            self.world.lost.append(self.name)

    def runnables(self) -> list[Runnable]:
        return [self.leader.run, *(runnable for _, runnable in self.shards.runnables())]

    def enter(self, key: Key) -> bool:
        return self.shards.enter(key)

    def leave(self, key: Key) -> None:
        self.shards.leave(key)

    async def _work_on(self, key: Key) -> None:
        while True:
            if self.enter(key):
                began = asyncio.get_running_loop().time()
                try:
                    await asyncio.sleep(self.seconds)
                finally:
                    self.world.runs.append((key, began, asyncio.get_running_loop().time(), self.name))
                    self.leave(key)
            await asyncio.sleep(0.35)

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.release()

    async def release(self) -> None:
        await self.shards.release()
        await self.leader.release()

    def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()


class Alone(Worker):
    """A replica that does not share: it works on all keys while it leads, as a manager with one shard does."""

    def __init__(self, world: "World", name: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(world, name, 1, faults)
        client, options = self.network.client(), self.leader.options
        self.leader = Elector(client, options, in_use=Sharers(client, options).in_use)

    def runnables(self) -> list[Runnable]:
        return [self.leader.run]

    def enter(self, key: Key) -> bool:
        return self.leader.leading

    def leave(self, key: Key) -> None:
        pass

    async def release(self) -> None:
        await self.leader.release()


def of(world: "World", name: str, shards: int, faults: Iterable[Fault] = ()) -> Worker:
    return Worker(world, name, shards, faults) if shards > 1 else Alone(world, name, faults)


class World:
    def __init__(self) -> None:
        self.leases = LeaseServer()
        self.runs: list[tuple[Key, float, float, str]] = []
        self.lost: list[str] = []

    def owners(self, since: float, until: float) -> dict[Key, set[str]]:
        """Who has worked on each key between two moments."""
        found: dict[Key, set[str]] = {key: set() for key in KEYS[::40]}
        for key, began, _, name in self.runs:
            if since <= began < until:
                found[key].add(name)
        return found

    def collisions(self) -> list[Any]:
        by_key: dict[Key, list[tuple[float, float, str]]] = {}
        for key, began, ended, name in self.runs:
            by_key.setdefault(key, []).append((began, ended, name))
        return [
            (key, one, two)
            for key, runs in by_key.items()
            for one, two in zip(sorted(runs), sorted(runs)[1:], strict=False)
            if one[2] != two[2] and two[0] < one[1]
        ]


def playing(play: Callable[[World], Any]) -> World:
    world = World()

    async def run() -> None:
        await play(world)

    run_virtual(run)
    return world


def test_replicas_share_the_shards_and_a_dead_one_loses_only_its_own_keys() -> None:
    async def play(world: World) -> None:
        replicas = [Worker(world, name, 6) for name in "abc"]
        for replica in replicas:
            replica.start()
        await asyncio.sleep(60.0)
        assert sorted(len(replica.shards.held) for replica in replicas) == [2, 2, 2]
        before = world.owners(50.0, 60.0)
        assert all(len(names) == 1 for names in before.values())
        replicas[1].kill()
        await asyncio.sleep(60.0)
        after = world.owners(110.0, 120.0)
        assert all(len(names) == 1 for names in after.values())
        moved = {key for key in before if before[key] != after[key]}
        assert moved == {key for key, names in before.items() if names == {"b"}}
        # Those of the others were worked on all the time.
        for key in set(before) - moved:
            assert world.owners(60.0, 63.0)[key] == before[key]

    assert playing(play).collisions() == []


def test_a_newcomer_gets_shards_without_any_key_being_worked_on_twice() -> None:
    async def play(world: World) -> None:
        # Each piece of work takes longer than a free Lease stays free.
        first, second = Worker(world, "a", 4, seconds=20.0), Worker(world, "b", 4)
        first.start()
        await asyncio.sleep(30.0)
        assert len(first.shards.held) == 4
        second.start()
        await asyncio.sleep(60.0)
        assert (len(first.shards.held), len(second.shards.held)) == (2, 2)

    assert playing(play).collisions() == []


def test_a_clean_stop_hands_everything_over_within_seconds() -> None:
    async def play(world: World) -> None:
        first, second = Worker(world, "a", 4), Worker(world, "b", 4)
        first.start()
        second.start()
        await asyncio.sleep(60.0)
        await first.end()
        await asyncio.sleep(10.0)
        assert len(second.shards.held) == 4

    assert playing(play).collisions() == []


def test_whoever_splits_the_keys_in_another_way_gets_nothing_until_the_others_are_gone() -> None:
    async def play(world: World) -> None:
        old, new = Worker(world, "old", 4), Worker(world, "new", 6)
        old.start()
        await asyncio.sleep(20.0)
        new.start()
        await asyncio.sleep(60.0)
        assert (len(old.shards.held), len(new.shards.held)) == (4, 0)
        await old.end()
        await asyncio.sleep(30.0)
        assert len(new.shards.held) == 6

    assert playing(play).collisions() == []


def test_who_cannot_be_heard_for_the_renew_deadline_ends() -> None:
    async def play(world: World) -> None:
        replica = Worker(world, "a", 2)
        task = replica.start()
        await asyncio.sleep(30.0)
        replica.network.cut = True
        began = asyncio.get_running_loop().time()
        await task
        assert world.lost == ["a"]
        assert asyncio.get_running_loop().time() - began <= 10.0

    playing(play)


def test_a_write_in_a_shard_is_refused_once_the_shard_is_lost_and_elsewhere_the_leader_is_asked() -> None:
    async def play(world: World) -> None:
        replica = Worker(world, "a", 2)
        replica.start()
        await asyncio.sleep(10.0)
        assert not replica.shards.require_shard()
        key = KEYS[0]
        assert replica.shards.enter(key)
        assert replica.shards.require_shard()
        replica.kill()
        await asyncio.sleep(20.0)
        with pytest.raises(LeadershipLost):
            replica.shards.require_shard()
        replica.shards.leave(key)
        assert not replica.shards.enter(key)

    playing(play)


FAULTS = st.one_of(
    st.just(Fault()),
    st.builds(Fault, st.sampled_from(["refuse", "lose", "vanish"])),
    st.builds(Fault, st.sampled_from(["slow", "late"]), st.floats(0.0, 30.0)),
)
COUNTS = st.sampled_from([1, 2, 3])
ROWS = st.lists(st.tuples(FAULTS, st.integers(1, 12)), max_size=8).map(
    lambda rows: [fault for fault, times in rows for _ in range(times)]
)


def test_one_who_leads_alone_is_waited_for_by_those_who_share(caplog: pytest.LogCaptureFixture) -> None:
    async def play(world: World) -> None:
        alone, sharers = Alone(world, "alone"), [Worker(world, name, 3) for name in "ab"]
        alone.start()
        await asyncio.sleep(20.0)
        for sharer in sharers:
            sharer.start()
        await asyncio.sleep(60.0)
        assert set().union(*world.owners(40.0, 80.0).values()) == {"alone"}
        assert "waiting for the end of replicas with another number of shards" in caplog.text
        alone.kill()
        await asyncio.sleep(40.0)
        assert sorted(len(sharer.shards.held) for sharer in sharers) == [1, 2]

    assert playing(play).collisions() == []


@pytest.mark.parametrize("killed", [True, False])
def test_those_who_share_are_waited_for_by_one_who_would_work_alone_whoever_leads(
    killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(world: World) -> None:
        sharers = {name: Worker(world, name, 3) for name in "ab"}
        for sharer in sharers.values():
            sharer.start()
            await asyncio.sleep(10.0)
        alone = Alone(world, "alone")
        alone.start()
        await asyncio.sleep(30.0)
        first, second = (sharers[name] for name in ("a", "b"))
        assert first.leader.leading
        # The Lease that all of them ask for is free for a while, and one that shares goes on without having it.
        first.kill() if killed else await first.end()
        second.leader.election.candidate = False
        await asyncio.sleep(60.0)
        assert not alone.leader.leading
        assert set().union(*world.owners(90.0, 110.0).values()) == {"b"}
        assert "waiting for the end of replicas with another number of shards" in caplog.text
        second.kill() if killed else await second.end()
        await asyncio.sleep(30.0)
        assert alone.leader.leading

    assert playing(play).collisions() == []


def test_a_replica_that_never_shares_sends_nothing_more_than_its_lease_after_the_first_look() -> None:
    async def play(world: World) -> None:
        leader, follower = Alone(world, "a"), Alone(world, "b")
        leader.start()
        await asyncio.sleep(5.0)
        follower.start()
        await asyncio.sleep(60.0)
        paths = [request.path.rpartition("/")[2] for w in (leader, follower) for request in w.network.requests]
        assert paths.count("lock-members") == 1
        assert set(world.leases.leases) == {"lock"}

    playing(play)


def test_sharers_end_where_somebody_leads_alone_who_has_not_asked() -> None:
    async def play(world: World) -> None:
        leader, sharer = Worker(world, "a", 2), Worker(world, "b", 2)
        leader.start()
        await asyncio.sleep(10.0)
        task = sharer.start()
        await asyncio.sleep(20.0)
        assert leader.leader.leading
        leader.kill()
        lease = world.leases.leases["lock"]
        lease["spec"] = {**lease["spec"], "holderIdentity": "stranger"}
        lease["metadata"] = {**lease["metadata"], "annotations": {}, "resourceVersion": "other"}
        await asyncio.wait({task}, timeout=7.0)
        assert world.lost == ["b"]

    playing(play)


def test_a_list_of_members_that_is_missing_is_not_taken_for_an_empty_one() -> None:
    async def play(world: World) -> None:
        sharer, alone = Worker(world, "a", 2), Alone(world, "alone")
        sharer.start()
        await asyncio.sleep(10.0)
        sharer.kill()
        del world.leases.leases["lock-members"]
        world.leases.leases["lock"]["spec"] = {"holderIdentity": ""}
        alone.start()
        await asyncio.sleep(14.0)
        assert not alone.leader.leading
        await asyncio.sleep(6.0)
        assert alone.leader.leading

    playing(play)


def test_who_gave_no_sign_of_life_works_on_nothing_whatever_its_leases_say() -> None:
    async def play(world: World) -> None:
        replica = Worker(world, "a", 2)
        replica.start()
        await asyncio.sleep(10.0)
        assert replica.shards.enter(KEYS[0])
        replica.shards._beaten_at -= 10.0
        assert all(elector.leading for elector in replica.shards.electors)
        with pytest.raises(LeadershipLost, match="no sign of life"):
            replica.shards.require_shard()
        replica.shards.leave(KEYS[0])
        assert not replica.shards.enter(KEYS[0])
        assert replica.shards.held == frozenset()

    playing(play)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(ROWS, st.floats(0.0, 60.0), st.none() | st.floats(5.0, 90.0), st.booleans(), COUNTS, COUNTS),
        min_size=2,
        max_size=4,
    )
)
def test_no_key_is_ever_worked_on_by_two_replicas_whatever_happens_to_requests(
    plans: list[tuple[list[Fault], float, float | None, bool, int, int]],
) -> None:
    async def replica(
        world: World,
        name: str,
        faults: list[Fault],
        start: float,
        life: float | None,
        killed: bool,
        before: int,
        after: int,
    ) -> None:
        await asyncio.sleep(start)
        first = of(world, name + "1", before, faults)
        await asyncio.wait({first.start()}, timeout=life)
        first.kill() if killed else await first.end()
        second = of(world, name + "2", after)
        try:
            await second.start()
        finally:
            second.kill()

    async def play(world: World) -> None:
        tasks = [
            asyncio.create_task(replica(world, chr(ord("a") + number), *made)) for number, made in enumerate(plans)
        ]
        await asyncio.sleep(300.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # All is well in the end: every key has one owner.
        assert all(len(names) == 1 for names in world.owners(285.0, 300.0).values())

    assert playing(play).collisions() == []


# -- in a manager -----------------------------------------------------------------------------------------------------


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


ITEMS = [
    {"metadata": {"name": key.name, "namespace": key.namespace, "uid": key.name, "resourceVersion": "1"}}
    for key in KEYS[:100]
]
OPTIONS = ManagerOptions(
    metrics_bind_address="0",
    health_probe_bind_address="0",
    leader_elect=True,
    leader_elect_resource_name="lock",
    leader_elect_resource_namespace="here",
    shards=4,
)


def api(request: HttpRequest) -> Reply:
    if ("watch", "true") in request.query:
        return Answer(stream=[STALL])
    return Answer(body={"metadata": {"resourceVersion": "1"}, "items": ITEMS})


class Replica:
    """One of several managers that share the keys of one controller."""

    def __init__(self, leases: LeaseServer, name: str, seconds: float = 0.0) -> None:
        self.network = Network(leases)
        client = Client(ScriptedTransport(api), ClientOptions("tests", attempts=1))
        self.manager = Manager(client, OPTIONS, leases=self.network.client())
        self.seen: list[Request] = []
        self.whole: list[Request] = []
        self.leading = False
        self.seconds = seconds
        self.manager.controller("things").for_(Thing).reconciles_with(Noting(self.seen, seconds))
        self.manager.controller("whole", sharded=False).for_(Thing).reconciles_with(Noting(self.whole, 0.0))
        self.manager.add("leader", self._lead)

    async def _lead(self) -> None:
        self.leading = True
        await asyncio.Event().wait()


class Noting:
    def __init__(self, seen: list[Request], seconds: float) -> None:
        self.seen, self.seconds = seen, seconds

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request)
        await asyncio.sleep(self.seconds)
        return DONE


def test_managers_share_keys_look_at_what_they_get_and_one_leads_what_is_not_shared() -> None:
    async def scenario() -> None:
        leases = LeaseServer()
        a, b = Replica(leases, "a"), Replica(leases, "b")
        first, second = asyncio.create_task(a.manager.run()), asyncio.create_task(b.manager.run())
        await asyncio.sleep(60.0)
        wanted = {Key(item["metadata"]["namespace"], item["metadata"]["name"]) for item in ITEMS}
        assert set(a.seen) | set(b.seen) == wanted
        owned = {replica: set(replica.manager._shards.held) for replica in (a, b) if replica.manager._shards}
        assert sorted(map(len, owned.values())) == [2, 2]
        assert [a.leading, b.leading].count(True) == 1
        leader, other = (a, b) if a.leading else (b, a)
        assert set(leader.whole) == wanted
        assert other.whole == []
        b.seen.clear()
        a.manager.stop()
        await first
        await asyncio.sleep(10.0)
        # What it gets it looks at, and what it had already is left in peace.
        assert set(b.seen) == {key for key in wanted if shard_of(key, 4) not in owned[b]}
        b.manager.stop()
        await second
        assert all(lease["spec"].get("holderIdentity", "") == "" for lease in leases.leases.values())
        assert leases.leases["lock-members"]["metadata"]["annotations"][MEMBERS_ANNOTATION] == "{}"

    run_virtual(scenario)


def test_a_lost_shard_ends_the_replica() -> None:
    async def scenario() -> None:
        replica = Replica(LeaseServer(), "a", seconds=50.0)
        task = asyncio.create_task(replica.manager.run())
        await asyncio.sleep(10.0)
        replica.network.cut = True
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.value.subgroup(LeadershipLost) is not None
        assert asyncio.get_running_loop().time() <= 20.0

    run_virtual(scenario)


def test_each_shard_has_its_own_series() -> None:
    manager = Replica(LeaseServer(), "a").manager
    text = manager.metrics.render().decode()
    for name in ("lock", "lock-shard-0", "lock-shard-3"):
        assert f'leader_election_master_status{{name="{name}"}} 0.0' in text


def test_shards_without_an_election_are_refused() -> None:
    client = Client(ScriptedTransport(api), ClientOptions("tests"))
    with pytest.raises(ConfigurationError, match="give --leader-elect, too"):
        manager_module.Manager(client, replace(OPTIONS, leader_elect=False))
