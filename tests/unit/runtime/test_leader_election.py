"""Leader election: the state machine by itself, and several electors on virtual time against one server of Leases."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controllers.runtime import leader_election
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import ConfigurationError, LeadershipLost
from controllers.runtime.leader_election import (
    Action,
    Create,
    Election,
    ElectionOptions,
    Elector,
    Lost,
    Read,
    Update,
    Wait,
    own_identity,
    own_namespace,
)
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.rbac import permissions
from controllers.runtime.testing import EPOCH, Answer, ScriptedTransport, run_virtual
from tests.unit.runtime.lease_server import Fault, LeaseServer, Network

OPTIONS = ElectionOptions(name="lock", namespace="here", identity="me")


def lease(holder: str = "other", version: str = "1", **spec: Any) -> dict[str, Any]:
    record = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "then", "leaseTransitions": 3, **spec}
    return {"metadata": {"name": "lock", "namespace": "here", "uid": "u", "resourceVersion": version}, "spec": record}


def election(random: float = 0.0, **options: Any) -> Election:
    return Election(replace(OPTIONS, **options), random=lambda: random)


def ask(candidate: Election, now: float) -> Action:
    return candidate.next_action(now, EPOCH + timedelta(seconds=now))


def leader(at: float = 0.0) -> Election:
    made = election()
    made.found(None, at)
    written(made, at)
    return made


def written(candidate: Election, at: float, *, answered: float | None = None, version: str = "7") -> None:
    action = ask(candidate, at)
    assert isinstance(action, Create | Update)
    metadata = {**action.body["metadata"], "uid": "u", "resourceVersion": version}
    candidate.written({**action.body, "metadata": metadata}, at, at if answered is None else answered)


# -- options ----------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_client_go() -> None:
    assert (OPTIONS.lease_duration, OPTIONS.renew_deadline, OPTIONS.retry_period) == (15.0, 10.0, 2.0)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"lease_duration": 10.0}, "must be longer than renew deadline 10 s"),
        ({"renew_deadline": 2.4}, "must be longer than 1.2 times retry period 2 s"),
        ({"retry_period": 0.0}, "must be above 0"),
        ({"lease_duration": 15.5}, "whole seconds"),
        ({"name": ""}, "the name is empty"),
        ({"namespace": ""}, "the namespace is empty"),
        ({"identity": ""}, "the identity is empty"),
    ],
)
def test_options_that_cannot_work_are_refused_and_nothing_exits(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        replace(OPTIONS, **bad)


def test_the_smallest_options_that_can_work_are_taken() -> None:
    assert replace(OPTIONS, lease_duration=4.0, renew_deadline=3.0, retry_period=2.0).request_timeout == 1.5


@pytest.mark.parametrize(("deadline", "timeout"), [(10.0, 5.0), (1.5, 1.0)])
def test_one_request_may_take_half_of_the_renew_deadline_and_at_least_a_second(deadline: float, timeout: float) -> None:
    assert replace(OPTIONS, renew_deadline=deadline, retry_period=1.0).request_timeout == timeout


def test_two_processes_on_one_host_are_two_candidates() -> None:
    first, second = own_identity(), own_identity()
    assert first != second
    assert first.rpartition("_")[0] == second.rpartition("_")[0] != ""


def test_the_namespace_is_that_of_the_pod_and_is_never_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leader_election, "NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    with pytest.raises(ConfigurationError, match="give --the-flag"):
        own_namespace("--the-flag")
    (tmp_path / "namespace").write_text("from-file\n")
    assert own_namespace("--the-flag") == "from-file"
    monkeypatch.setenv("POD_NAMESPACE", "from-env")
    assert own_namespace("--the-flag") == "from-env"


# -- the state machine ------------------------------------------------------------------------------------------------


def test_followers_wait_one_to_two_point_two_retry_periods() -> None:
    for random, seconds in ((0.0, 2.0), (0.5, 3.2), (1.0, 4.4)):
        follower = election(random)
        follower.found(lease(), 100.0)
        assert ask(follower, 100.0) == Wait(100.0 + seconds)
        assert ask(follower, 100.0 + seconds) == Read()


def test_what_the_record_says_of_the_time_decides_nothing() -> None:
    for renewed in ("1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", "nonsense"):
        follower = election()
        follower.found(lease(renewTime=renewed), 0.0)
        follower.found(lease(renewTime=renewed), 14.9)
        assert isinstance(ask(follower, 14.9), Wait)
        follower.found(lease(renewTime=renewed), 15.0)
        assert isinstance(ask(follower, 15.0), Update)


def test_time_counts_from_when_the_record_was_seen_to_change() -> None:
    follower = election()
    follower.found(lease(renewTime="1"), 0.0)
    follower.found(lease(renewTime="2"), 10.0)
    assert follower.held_by_other_at(24.9)
    assert not follower.held_by_other_at(25.0)


def test_a_new_version_of_the_object_with_the_same_record_is_no_sign_of_life() -> None:
    follower = election()
    follower.found(lease(version="1"), 0.0)
    follower.found(lease(version="2"), 10.0)
    assert not follower.held_by_other_at(15.0)


def test_the_recorded_duration_counts_and_not_our_own() -> None:
    for recorded in (4, 60):
        follower = election()
        follower.found(lease(leaseDurationSeconds=recorded), 0.0)
        assert follower.held_by_other_at(recorded - 0.1)
        assert not follower.held_by_other_at(recorded)


def test_a_record_without_a_duration_is_good_for_our_own() -> None:
    follower = election()
    follower.found(lease(leaseDurationSeconds=None), 0.0)
    assert follower.held_by_other_at(14.9)
    assert not follower.held_by_other_at(15.0)


def test_a_leader_renews_every_retry_period_without_reading() -> None:
    made = leader()
    assert ask(made, 1.9) == Wait(2.0)
    action = ask(made, 2.0)
    assert isinstance(action, Update)
    assert action.body["metadata"]["resourceVersion"] == "7"


def test_a_leader_whose_renewal_conflicts_reads_at_once_and_renews_what_is_still_its_own() -> None:
    made = leader()
    made.conflicted(2.0)
    assert ask(made, 2.0) == Read()
    made.found(lease("me", version="9"), 2.0)
    action = ask(made, 2.0)
    assert isinstance(action, Update)
    assert action.body["metadata"]["resourceVersion"] == "9"


def test_taking_over_counts_the_transition_and_renewing_keeps_when_it_was_acquired() -> None:
    follower = election()
    follower.found(lease("other", leaseTransitions=3, acquireTime="then"), 0.0)
    follower.found(lease("other", leaseTransitions=3, acquireTime="then"), 15.0)
    action = ask(follower, 15.0)
    assert isinstance(action, Update)
    spec = action.body["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("me", 4)
    assert spec["acquireTime"] == spec["renewTime"] == "2030-01-01T00:00:15.000000Z"
    written(follower, 15.0)
    renewal = ask(follower, 17.0)
    assert isinstance(renewal, Update)
    assert renewal.body["spec"]["acquireTime"] == spec["acquireTime"]
    assert renewal.body["spec"]["renewTime"] == "2030-01-01T00:00:17.000000Z"
    assert renewal.body["spec"]["leaseTransitions"] == 4


def test_what_others_have_written_beside_the_record_is_kept() -> None:
    follower = election()
    found = lease("", strategy="OldestEmulationVersion")
    found["metadata"]["labels"] = {"theirs": "yes"}
    follower.found(found, 0.0)
    action = ask(follower, 0.0)
    assert isinstance(action, Update)
    assert action.body["metadata"]["labels"] == {"theirs": "yes"}
    assert action.body["spec"]["strategy"] == "OldestEmulationVersion"


def test_where_there_is_no_lease_one_is_made_and_losing_that_race_is_no_error() -> None:
    follower = election()
    follower.found(None, 0.0)
    action = ask(follower, 0.0)
    assert isinstance(action, Create)
    assert action.body["spec"]["leaseTransitions"] == 0
    follower.conflicted(0.0)
    assert ask(follower, 0.0) == Wait(2.0)
    assert ask(follower, 2.0) == Read()


def test_a_lease_that_vanishes_has_not_run_out() -> None:
    follower = election()
    follower.found(lease(), 0.0)
    follower.found(None, 3.0)
    assert isinstance(ask(follower, 3.0), Wait)
    follower.found(None, 15.0)
    assert isinstance(ask(follower, 15.0), Create)


def test_a_leader_counts_from_before_it_sent_the_renewal() -> None:
    made = leader()
    written(made, 2.0, answered=6.0)
    assert made.valid_until == 12.0
    assert made.valid_at(11.9)
    assert not made.valid_at(12.0)


def test_a_leader_that_cannot_renew_is_none_at_the_deadline_and_says_why() -> None:
    made = leader()
    for at in (2.0, 4.0, 6.0, 8.0):
        made.failed("no route", at)
    assert not isinstance(ask(made, 9.9), Lost)
    assert ask(made, 10.0) == Lost("it was not renewed for 10 s: no route")
    assert not made.leading


def test_a_leader_wakes_at_its_deadline_and_not_after_it() -> None:
    made = leader()
    made.failed("no route", 9.0)
    assert ask(made, 9.5) == Wait(10.0)


def test_a_leader_that_finds_somebody_else_in_its_place_is_none_at_once() -> None:
    made = leader()
    made.conflicted(2.0)
    made.found(lease("other"), 2.0)
    assert ask(made, 2.0) == Lost("other has it")


def test_after_a_write_without_an_answer_the_lease_is_read_first() -> None:
    made = leader()
    made.failed("timeout", 2.0)
    assert ask(made, 4.0) == Read()


def test_an_acquisition_whose_answer_came_too_late_makes_no_leader() -> None:
    follower = election()
    follower.found(None, 0.0)
    written(follower, 0.0, answered=10.0)
    assert not follower.leading
    assert isinstance(ask(follower, 12.0), Update)


def test_who_is_no_candidate_only_looks() -> None:
    watcher = election()
    watcher.candidate = False
    for at in (0.0, 2.0, 4.0):
        assert ask(watcher, at) == Read()
        watcher.found(None, at)


def test_a_released_lease_is_free_at_once() -> None:
    follower = election()
    follower.found(lease("other"), 0.0)
    follower.found(lease("", leaseDurationSeconds=1), 2.0)
    assert isinstance(ask(follower, 2.0), Update)


def test_a_leader_that_does_not_notice_its_end_is_unhealthy_twenty_seconds_after_its_lease() -> None:
    made = leader()
    assert not made.overdue_at(34.9)
    assert made.overdue_at(35.0)
    assert not election().overdue_at(1000.0)


# -- the shell --------------------------------------------------------------------------------------------------------


class Replicas:
    """Electors of one Lease, each behind a network of its own."""

    def __init__(self) -> None:
        self.server = LeaseServer()
        self.networks: dict[str, Network] = {}
        self.electors: dict[str, Elector] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, *faults: Fault, **options: Any) -> Elector:
        self.networks[name] = Network(self.server, faults)
        self.electors[name] = Elector(
            self.networks[name].client(), replace(OPTIONS, identity=name), random=lambda: 0.0, **options
        )
        self.tasks[name] = asyncio.create_task(self.electors[name].run(), name=name)
        return self.electors[name]

    async def end(self, name: str) -> None:
        """A clean stop: what is guarded has ended, then the Lease is given back."""
        self.tasks[name].cancel()
        await asyncio.wait({self.tasks[name]})
        await self.electors[name].release()

    def kill(self, name: str) -> None:
        self.tasks[name].cancel()

    def leaders(self) -> list[str]:
        return [name for name, elector in self.electors.items() if elector.leading]

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.leases["lock"]["spec"]
        return found


def scenario(play: Callable[[Replicas], Coroutine[Any, Any, None]]) -> Replicas:
    replicas = Replicas()

    async def run() -> None:
        await play(replicas)

    run_virtual(run)
    return replicas


def test_the_first_one_leads_and_renews_with_one_put_each_time() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await elector.wait_leading()
        await asyncio.sleep(9.0)
        assert replicas.networks["a"].methods == ["GET", "POST", "PUT", "PUT", "PUT", "PUT"]

    scenario(play)


def test_a_killed_leader_is_followed_when_its_lease_has_run_out_and_not_before() -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a")
        await asyncio.sleep(1.0)
        replicas.start("b")
        await asyncio.sleep(9.0)
        last = replicas.server.log[-1][0]
        replicas.kill("a")
        await replicas.electors["b"].wait_leading()
        now = asyncio.get_running_loop().time()
        assert last + 15.0 <= now <= last + 15.0 + 2 * 2.0
        assert replicas.spec["leaseTransitions"] == 1

    scenario(play)


def test_a_clean_stop_lets_the_next_one_begin_within_a_retry_period() -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a")
        await asyncio.sleep(1.0)
        replicas.start("b")
        await asyncio.sleep(9.0)
        await replicas.end("a")
        assert (replicas.spec["holderIdentity"], replicas.spec["leaseDurationSeconds"]) == ("", 1)
        stopped = asyncio.get_running_loop().time()
        await replicas.electors["b"].wait_leading()
        assert asyncio.get_running_loop().time() - stopped <= 2.0

    scenario(play)


def test_a_release_is_a_get_and_a_put_and_touches_only_what_is_still_ours() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await elector.wait_leading()
        replicas.kill("a")
        await asyncio.sleep(0)
        taken = {**replicas.spec, "holderIdentity": "b"}
        replicas.server.leases["lock"] = {**replicas.server.leases["lock"], "spec": taken}
        before = len(replicas.networks["a"].requests)
        await elector.release()
        assert replicas.networks["a"].methods[before:] == ["GET"]
        assert replicas.spec["holderIdentity"] == "b"

    scenario(play)


def test_without_release_a_clean_stop_leaves_the_lease_to_run_out() -> None:
    async def play(replicas: Replicas) -> None:
        network = Network(replicas.server)
        elector = Elector(network.client(), replace(OPTIONS, release=False))
        task = asyncio.create_task(elector.run())
        await elector.wait_leading()
        task.cancel()
        before = len(network.requests)
        await elector.release()
        assert len(network.requests) == before
        assert replicas.spec["holderIdentity"] == "me"

    scenario(play)


def test_a_follower_that_stops_asks_for_nothing() -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a")
        await asyncio.sleep(1.0)
        replicas.start("b")
        await asyncio.sleep(5.0)
        replicas.kill("b")
        before = len(replicas.networks["b"].requests)
        await replicas.end("b")
        assert len(replicas.networks["b"].requests) == before
        assert replicas.spec["holderIdentity"] == "a"

    scenario(play)


def test_an_acquisition_that_was_cut_before_its_answer_is_released_as_well() -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a", Fault(), Fault("lose"))
        await asyncio.sleep(1.0)
        assert replicas.leaders() == []
        await replicas.end("a")
        assert replicas.spec["holderIdentity"] == ""

    scenario(play)


def test_a_release_that_fails_is_over_after_the_request_timeout() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await elector.wait_leading()
        replicas.networks["a"].cut = True
        began = asyncio.get_running_loop().time()
        await replicas.end("a")
        assert asyncio.get_running_loop().time() - began == 5.0
        assert not elector.leading

    scenario(play)


@pytest.mark.parametrize("fault", [Fault("vanish"), Fault("lose"), Fault("refuse"), Fault("slow", 4.9)])
def test_one_bad_request_does_not_cost_the_lease(fault: Fault) -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a", Fault(), Fault(), Fault(), fault)
        await asyncio.sleep(60.0)
        assert replicas.leaders() == ["a"]
        assert replicas.spec["leaseTransitions"] == 0

    scenario(play)


def test_a_server_that_cannot_be_reached_ends_leadership_and_no_exception_but_that_escapes() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await asyncio.sleep(3.0)
        replicas.networks["a"].cut = True
        with pytest.raises(LeadershipLost, match="was not renewed for 10 s: no answer in time"):
            await replicas.tasks["a"]
        assert asyncio.get_running_loop().time() == 12.0  # the last renewal was sent at 2
        assert not elector.leading

    scenario(play)


def test_a_process_that_does_not_end_after_it_has_lost_the_lease_is_unhealthy() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await elector.wait_leading()
        replicas.networks["a"].cut = True
        assert elector.unhealthy() is None
        await asyncio.wait({replicas.tasks["a"]})
        assert elector.unhealthy() == "the Lease here/lock was lost, and this process has not ended"

    scenario(play)


def test_a_follower_outlives_any_failure_and_tells_it_until_it_passes() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a", *[Fault("refuse")] * 30)
        await asyncio.sleep(50.0)
        assert "500" in elector.last_error
        assert elector.failing_for == 50.0
        await elector.wait_leading()
        assert (elector.last_error, elector.failing_for) == ("", 0.0)

    scenario(play)


def test_the_slow_path_is_counted_and_the_status_follows_leadership() -> None:
    metrics = Metrics()

    def value(name: str) -> str:
        lines = metrics.render().decode().splitlines()
        return next(line.rpartition(" ")[2] for line in lines if line.startswith(f'{name}{{name="lock"}}'))

    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a", observer=metrics.leader_election("lock"))
        assert value("leader_election_master_status") == "0.0"
        assert value("leader_election_slowpath_total") == "0.0"
        await elector.wait_leading()
        assert value("leader_election_master_status") == "1.0"
        metadata = replicas.server.leases["lock"]["metadata"]
        replicas.server.leases["lock"]["metadata"] = {**metadata, "resourceVersion": "somebody-has-put-a-label"}
        await asyncio.sleep(3.0)
        assert value("leader_election_slowpath_total") == "1.0"
        assert replicas.leaders() == ["a"]
        assert replicas.networks["a"].methods == ["GET", "POST", "PUT", "GET", "PUT"]
        await replicas.end("a")
        assert value("leader_election_master_status") == "0.0"

    scenario(play)


def test_every_new_leader_is_told_once_the_first_and_ourselves_included() -> None:
    told: list[str] = []

    async def play(replicas: Replicas) -> None:
        replicas.start("a")
        await asyncio.sleep(1.0)
        replicas.start("b", on_new_leader=told.append)
        await asyncio.sleep(10.0)
        assert told == ["a"]
        await replicas.end("a")
        await asyncio.sleep(30.0)

    scenario(play)
    assert told == ["a", "b"]


def test_a_leader_whose_lease_is_deleted_makes_it_again() -> None:
    async def play(replicas: Replicas) -> None:
        replicas.start("a")
        await asyncio.sleep(1.0)
        replicas.start("b")
        await asyncio.sleep(4.0)
        del replicas.server.leases["lock"]
        await asyncio.sleep(30.0)
        assert replicas.leaders() == ["a"]
        assert replicas.spec["leaseTransitions"] == 0

    scenario(play)


def test_losing_is_noticed_by_a_guard_even_where_the_elector_gets_no_turn() -> None:
    # A machine that sleeps stops the event loop too: whoever runs first afterwards must be refused.
    class Jumping:
        skipped = 0.0

        def monotonic(self) -> float:
            return asyncio.get_running_loop().time() + self.skipped

        def utcnow(self) -> Any:
            return EPOCH

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    async def play(replicas: Replicas) -> None:
        clock = Jumping()
        elector = replicas.start("a", clock=clock)
        await elector.wait_leading()
        elector.require_leadership()
        clock.skipped = 10.0
        with pytest.raises(LeadershipLost, match="a does not hold the Lease here/lock"):
            elector.require_leadership()

    scenario(play)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


def test_a_guarded_client_asks_before_each_attempt_of_a_write_and_never_for_a_read() -> None:
    body = {"metadata": {"name": "x", "namespace": "a", "uid": "u", "resourceVersion": "1"}}
    transport = ScriptedTransport([Answer(200, body=body), Answer(503), Answer(503)])
    asked: list[str] = []

    def guard() -> None:
        asked.append("?")
        if len(asked) == 3:
            raise LeadershipLost("not any more")

    async def run() -> None:
        client = Client(transport, ClientOptions("tests")).guarded_by(guard)
        await client.get(Thing, "x", "a")
        assert asked == []
        with pytest.raises(LeadershipLost):
            await client.create(Thing, body)

    run_virtual(run)
    assert [request.method for request in transport.requests] == ["GET", "POST", "POST"]


def test_a_restricted_client_keeps_its_guard() -> None:
    def guard() -> None:
        raise LeadershipLost("no")

    async def run() -> None:
        client = Client(ScriptedTransport([]), ClientOptions("tests")).guarded_by(guard)
        with pytest.raises(LeadershipLost):
            await client.restricted_to(permissions(Thing, "create")).create(Thing, {"metadata": {"name": "x"}})

    run_virtual(run)


# -- never two leaders ------------------------------------------------------------------------------------------------

FAULTS = st.one_of(
    st.just(Fault()),
    st.builds(Fault, st.sampled_from(["refuse", "lose", "vanish"])),
    st.builds(Fault, st.sampled_from(["slow", "late"]), st.floats(0.0, 40.0)),
)
# Failures come in rows: one alone never costs a lease.
PLANS = st.lists(st.tuples(FAULTS, st.integers(1, 6)), max_size=8).map(
    lambda rows: [fault for fault, times in rows for _ in range(times)]
)


class World:
    """Replicas that are started again when they have lost the Lease, and the times at which each was the leader."""

    def __init__(self) -> None:
        self.server = LeaseServer()
        self.terms: list[tuple[str, float, float]] = []
        self.leading_at_the_end: list[str] = []

    async def replica(self, name: str, faults: list[Fault], stop_at: float | None) -> None:
        network = Network(self.server, faults)
        life = 0
        while True:
            life += 1
            elector = Elector(network.client(), replace(OPTIONS, identity=f"{name}{life}"))
            self._record(elector)
            task = asyncio.create_task(elector.run())
            try:
                if stop_at is not None and life == 1:
                    await asyncio.wait({task}, timeout=stop_at)
                    if not task.done():
                        task.cancel()
                        await asyncio.wait({task})
                        self._end(elector)
                        await elector.release()
                        continue
                with suppress(LeadershipLost):
                    await task
            except asyncio.CancelledError:
                self.leading_at_the_end += [elector.options.identity] if elector.leading else []
                task.cancel()
                raise
            await asyncio.sleep(1.0)

    def _record(self, elector: Elector) -> None:
        election, written = elector.election, elector.election.written

        def recording(whole: Any, sent_at: float, now: float) -> None:
            written(whole, sent_at, now)
            if election.leading:
                self.terms.append((elector.options.identity, now, election.valid_until))

        election.written = recording  # type: ignore[method-assign]

    def _end(self, elector: Elector) -> None:
        now = asyncio.get_running_loop().time()
        me = elector.options.identity
        self.terms = [(who, start, min(end, now) if who == me else end) for who, start, end in self.terms]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(PLANS, st.none() | st.floats(0.5, 60.0)), min_size=2, max_size=4))
@example([([Fault(), Fault("late", 14.0)], None), ([], None)])
@example([([Fault()] * 3 + [Fault("vanish")] * 6, None), ([], None), ([], None)])
@example([([Fault()] * 3 + [Fault("lose")] * 4, None), ([], 5.0)])
def test_no_two_replicas_lead_at_the_same_time_whatever_happens_to_requests(
    plans: list[tuple[list[Fault], float | None]],
) -> None:
    world = World()

    async def run() -> None:
        tasks = [
            asyncio.create_task(world.replica(chr(ord("a") + number), faults, stop_at))
            for number, (faults, stop_at) in enumerate(plans)
        ]
        await asyncio.sleep(400.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtual(run)
    terms = sorted(world.terms, key=lambda term: term[1])
    for number, (who, _, end) in enumerate(terms):
        for other, start, _ in terms[number + 1 :]:
            assert who == other or start >= end, f"{other} leads from {start}, {who} until {end}"
    # When all faults are over somebody leads, and keeps leading.
    assert len(world.leading_at_the_end) == 1


def test_a_record_is_what_the_api_takes() -> None:
    async def play(replicas: Replicas) -> None:
        elector = replicas.start("a")
        await elector.wait_leading()

    body = msgspec.json.decode(scenario(play).networks["a"].requests[1].body or b"")
    assert (body["apiVersion"], body["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert body["metadata"] == {"name": "lock", "namespace": "here"}
    assert set(body["spec"]) == {
        "holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions",
    }  # fmt: skip
    assert body["spec"]["leaseDurationSeconds"] == 15
