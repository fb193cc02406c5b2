"""The manager on virtual time: the order of starting and stopping, and what ends it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.runtime import manager as manager_module
from controllers.runtime.cache import Change, Informer
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.errors import ConfigurationError, LeadershipLost, PermissionNotDeclared, RuntimeFault
from controllers.runtime.manager import Manager
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import STALL, Answer, Pause, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from tests.unit.runtime.lease_server import Fault, LeaseServer, Network

OFF = ManagerOptions(
    metrics_bind_address="0", health_probe_bind_address="0", grace_period=30.0, cache_sync_timeout=120.0
)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Part(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "parts", "Part", namespaced=True)


RAW = {"metadata": {"name": "x", "namespace": "a", "uid": "u", "resourceVersion": "1"}}


def server(request: HttpRequest) -> Reply:
    """One object of every kind, quiet watches, and every write succeeds."""
    if request.method != "GET" or request.path.endswith("/x"):
        return Answer(body=RAW)
    if ("watch", "true") in request.query:
        return Answer(stream=[STALL])
    return Answer(body={"metadata": {"resourceVersion": "1"}, "items": [RAW]})


def refusing(plural: str) -> Callable[[HttpRequest], Reply]:
    def answer(request: HttpRequest) -> Reply:
        return Answer(403, body=b"no right to " + plural.encode()) if plural in request.path else server(request)

    return answer


class Reconciler:
    def __init__(self, log: list[str], seconds: float = 0.0) -> None:
        self.log = log
        self.seconds = seconds

    async def reconcile(self, _: Request) -> Result:
        self.log.append("reconcile")
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.log.append("reconcile cancelled")
            raise
        self.log.append("reconciled")
        return DONE


class FakeServer:
    log: list[str]

    def __init__(self, bind: str, **_: Any) -> None:
        self.bind = bind

    async def start(self) -> None:
        self.log.append(f"start {self.bind}")

    async def stop(self) -> None:
        self.log.append(f"stop {self.bind}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []
    FakeServer.log = lines
    monkeypatch.setattr(manager_module, "HttpServer", FakeServer)
    yield lines
    del FakeServer.log


def made(script: Callable[[HttpRequest], Reply] = server, options: ManagerOptions = OFF) -> Manager:
    transport = ScriptedTransport(script)
    return Manager(Client(transport, ClientOptions("tests", attempts=1)), options)


def later(seconds: float, action: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, action)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def failure_of(manager: Manager) -> str:
    """What the manager ends with; exactly one error, however deep in groups."""
    with pytest.raises((RuntimeFault, BaseExceptionGroup, ValueError)) as caught:
        run_virtual(manager.run)
    (leaf,) = leaves(caught.value)
    return f"{type(leaf).__name__}: {leaf}"


async def for_ever() -> None:
    await asyncio.Event().wait()


# -- order ------------------------------------------------------------------------------------------------------------


def test_servers_then_prepare_then_caches_then_controllers_and_back(log: list[str]) -> None:
    def script(request: HttpRequest) -> Reply:
        if ("watch", "true") not in request.query and request.method == "GET":
            log.append("list")
            return Answer(body={"metadata": {"resourceVersion": "1"}, "items": [RAW]}, delay=2.0)
        return server(request)

    async def prepare(manager: Manager) -> None:
        log.append("prepare")
        await asyncio.sleep(5)
        log.append("prepared")
        manager.controller("things").for_(Thing).reconciles_with(Reconciler(log))

    async def runnable() -> None:
        log.append("runnable")
        try:
            await for_ever()
        finally:
            log.append("runnable ends")

    async def scenario() -> None:
        manager = made(script)
        manager.prepare(prepare)
        manager.add("extra", runnable)
        later(60, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert log[:5] == ["start 0", "start 0", "prepare", "prepared", "list"]
    assert sorted(log[5:8]) == ["reconcile", "reconciled", "runnable"]
    assert log[8:] == ["runnable ends", "stop 0", "stop 0"]


def test_the_cache_is_full_before_the_first_reconcile(log: list[str]) -> None:
    seen: list[int] = []

    class Counting:
        async def reconcile(self, _: Request) -> Result:
            seen.append(len(manager.reader(Part).list()))
            return DONE

    def script(request: HttpRequest) -> Reply:
        answer = server(request)
        slow = "parts" in request.path and isinstance(answer, Answer) and not answer.stream
        return Answer(body=answer.body, delay=20.0) if slow and isinstance(answer, Answer) else answer

    manager = made(script)
    manager.informer(Part)
    manager.controller("things").for_(Thing).reconciles_with(Counting())

    async def scenario() -> None:
        later(60, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert seen == [1]


def test_recorded_events_are_sent_before_the_end(log: list[str]) -> None:
    posted: list[Any] = []

    def script(request: HttpRequest) -> Reply:
        if request.method == "POST":
            assert request.body is not None
            posted.append(msgspec.json.decode(request.body))
            return Answer(body=RAW, delay=1.0)
        return server(request)

    manager = made(script)
    recorder = manager.recorder("things")
    subject = Thing.decode(msgspec.json.encode(RAW))

    class Late:
        async def reconcile(self, _: Request) -> Result:
            await asyncio.sleep(10)
            for reason in ("Late", "Later"):
                recorder.event(subject, "Normal", reason, "just before the end", "Test")
            return DONE

    manager.controller("things").for_(Thing).reconciles_with(Late())

    async def scenario() -> None:
        later(5, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert [(event["reason"], event["reportingController"]) for event in posted] == [
        ("Late", "gpu-mirage/things"),
        ("Later", "gpu-mirage/things"),
    ]


# -- readiness --------------------------------------------------------------------------------------------------------


def readiness(manager: Manager) -> str | None:
    return manager.readiness.result("caches").reason


def test_readiness_names_what_is_not_in_the_cache_and_why(log: list[str]) -> None:
    async def scenario() -> None:
        manager = made(refusing("parts"))
        manager.informer(Thing)
        manager.informer(Part)
        assert "things.example.com: not listed yet" in (readiness(manager) or "")
        later(30, lambda: log.append(readiness(manager) or "ready"))
        later(31, manager.stop)
        await manager.run()

    run_virtual(scenario)
    (text,) = [line for line in log if "parts" in line]
    assert text.startswith("parts.example.com: list: 403 Unknown: no right to parts")
    assert "things" not in text


def test_it_is_ready_once_everything_is_in_the_cache(log: list[str]) -> None:
    async def scenario() -> None:
        manager = made()
        assert readiness(manager) == "finding out what the server offers"
        manager.informer(Thing)
        later(10, lambda: log.append(str(readiness(manager))))
        later(11, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert "None" in log


def test_a_cache_that_does_not_fill_ends_it_with_kind_and_reason(log: list[str]) -> None:
    manager = made(refusing("parts"))
    manager.informer(Thing)
    manager.informer(Part)
    text = failure_of(manager)
    assert text.startswith("RuntimeFault: caches not filled within 120 s: parts.example.com: list: 403")
    assert "no right to parts" in text
    assert "things" not in text
    assert log[-2:] == ["stop 0", "stop 0"]


# -- what ends it -----------------------------------------------------------------------------------------------------


def test_a_runnable_that_raises_ends_it_with_that_error(log: list[str]) -> None:
    async def bad() -> None:
        await asyncio.sleep(10)
        raise RuntimeFault("broken")

    manager = made()
    manager.add("good", for_ever)
    manager.add("bad", bad)
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log))
    assert failure_of(manager) == "RuntimeFault: broken"
    assert log[-2:] == ["stop 0", "stop 0"]


def test_a_runnable_that_merely_ends_ends_it_and_is_named(log: list[str]) -> None:
    manager = made()
    manager.add("short-lived", lambda: asyncio.sleep(10))
    assert failure_of(manager) == "RuntimeFault: short-lived has ended, but must run for as long as the manager does"


@pytest.mark.parametrize("after", [0.0, 10.0])
def test_an_informer_that_raises_ends_it_with_that_error(
    log: list[str], monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    run = Informer.run

    async def breaks(self: Informer[Any]) -> None:
        if self.kind is not Part:
            await run(self)
        if after:
            with suppress(TimeoutError):
                await asyncio.wait_for(run(self), after)
        raise ValueError("a bug in the informer")

    monkeypatch.setattr(Informer, "run", breaks)
    manager = made()
    manager.informer(Thing)
    manager.informer(Part)
    assert failure_of(manager) == "ValueError: a bug in the informer"


def test_a_controller_without_reconciler_ends_it(log: list[str]) -> None:
    manager = made()
    manager.controller("idle").for_(Thing)
    assert "controller idle has no reconciler" in failure_of(manager)


def test_a_prepare_step_that_raises_ends_it_and_nothing_starts(log: list[str]) -> None:
    async def prepare(_: Manager) -> None:
        raise ConfigurationError("cannot work")

    manager = made(lambda request: pytest.fail(f"asked for {request.path}"))
    manager.informer(Thing)
    manager.prepare(prepare)
    assert failure_of(manager) == "ConfigurationError: cannot work"
    assert log == ["start 0", "start 0", "stop 0", "stop 0"]


# -- stopping ---------------------------------------------------------------------------------------------------------


def stopped_at(manager: Manager, *at: float) -> float:
    """Stops at these seconds; returns when ``run`` returned."""

    async def scenario() -> float:
        for seconds in at:
            later(seconds, manager.stop)
        await manager.run()
        return asyncio.get_running_loop().time()

    return run_virtual(scenario)


def test_stop_while_preparing_ends_at_once(log: list[str]) -> None:
    manager = made()
    manager.prepare(lambda _: for_ever())
    assert stopped_at(manager, 3.0) == 3.0
    assert log[-2:] == ["stop 0", "stop 0"]


def test_stop_while_caches_fill_ends_at_once(log: list[str]) -> None:
    manager = made(refusing("things"))
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log))
    assert stopped_at(manager, 3.0) == 3.0
    assert "reconcile" not in log


def test_stop_in_the_moment_in_which_the_caches_are_filled_leaves_nothing_behind(log: list[str]) -> None:
    manager = made()
    manager.add("extra", for_ever)
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log))

    def on_change(change: Change[Thing]) -> None:
        assert change.initial
        manager.stop()

    manager.informer(Thing).add_handler(on_change)
    assert stopped_at(manager) == 0.0
    assert "reconcile" not in log


def test_a_running_reconcile_may_end_within_the_grace_period(log: list[str]) -> None:
    manager = made()
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log, seconds=25.0))
    assert stopped_at(manager, 5.0) == 25.0
    assert log[2:4] == ["reconcile", "reconciled"]


def test_a_reconcile_that_hangs_is_cancelled_after_the_grace_period(log: list[str]) -> None:
    manager = made()
    manager.controller("things", reconcile_timeout=1000.0).for_(Thing).reconciles_with(Reconciler(log, seconds=500.0))
    assert stopped_at(manager, 5.0) == 35.0
    assert log[2:] == ["reconcile", "reconcile cancelled", "stop 0", "stop 0"]


def test_stopping_twice_is_stopping_once(log: list[str]) -> None:
    manager = made()
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log, seconds=25.0))
    assert stopped_at(manager, 5.0, 6.0) == 25.0


def test_a_controller_is_watched_for_errors_while_it_stops(log: list[str]) -> None:
    async def bad_at_the_end() -> None:
        try:
            await for_ever()
        finally:
            raise RuntimeFault("failed while stopping")

    manager = made()
    manager.add("bad", bad_at_the_end)

    async def scenario() -> None:
        later(5, manager.stop)
        await manager.run()

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtual(scenario)
    assert [str(leaf) for leaf in leaves(caught.value)] == ["failed while stopping"]


def test_cancelling_run_waits_until_everything_has_ended(log: list[str]) -> None:
    async def slow_to_end() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(3)
            log.append("ended")

    async def scenario() -> None:
        manager = made()
        manager.add("slow", slow_to_end)
        task = asyncio.create_task(manager.run())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log[2:] == ["ended", "stop 0", "stop 0"]

    run_virtual(scenario)


# -- declaring --------------------------------------------------------------------------------------------------------


def test_two_controllers_of_one_name_are_refused() -> None:
    manager = made()
    manager.controller("things")
    with pytest.raises(ConfigurationError, match="two controllers named things"):
        manager.controller("things")


def test_informers_are_shared() -> None:
    manager = made()
    assert manager.informer(Thing) is manager.informer(Thing)
    assert manager.reader(Thing) is manager.informer(Thing).store
    assert manager.informers_of(Thing) == [manager.informer(Thing)]
    assert manager.informers_of(Part) == []


def test_a_write_is_looked_for_where_its_kind_is_read() -> None:
    manager = made()

    class Marked(Thing, frozen=True, kw_only=True):
        """Things that are selected in another way."""

    marked = manager.informer(Marked, Selection(labels="marked"))
    assert manager.informers_of(Thing) == [marked]
    everything = manager.informer(Thing)
    assert manager.informers_of(Thing) == [everything]
    assert manager.informers_of(Marked) == [marked]


def test_only_the_first_use_may_select() -> None:
    manager = made()
    manager.informer(Thing, Selection(namespace="a"))
    assert manager.informer(Thing) is manager.informer(Thing)
    with pytest.raises(ConfigurationError, match=r"informer of things\.example\.com exists already"):
        manager.informer(Thing, Selection(namespace="b"))


def test_the_selection_is_what_is_asked_for(log: list[str]) -> None:
    transport = ScriptedTransport(server)
    manager = Manager(Client(transport, ClientOptions("tests")), OFF)
    manager.informer(Thing, Selection(namespace="a", labels="x=y"))
    stopped_at(manager, 1.0)
    assert {request.path for request in transport.requests} == {"/apis/example.com/v1/namespaces/a/things"}
    assert all(("labelSelector", "x=y") in request.query for request in transport.requests)


def test_a_controllers_client_has_its_own_field_manager_and_no_other_verbs() -> None:
    client = made().client_for(Declaration("things", permissions(Thing, "get")))
    assert client.field_manager == "gpu-mirage/things"
    run_virtual(client.get(Thing, "x", "a"))
    with pytest.raises(PermissionNotDeclared, match="has not declared list on things"):
        run_virtual(client.list(Thing))


def test_a_recorder_may_only_write_events() -> None:
    recorder = made().recorder("things")
    with pytest.raises(PermissionNotDeclared):
        run_virtual(recorder._client.get(Thing, "x", "a"))


def test_workers_of_the_manager_are_the_default_of_its_controllers() -> None:
    manager = made(options=ManagerOptions(workers=9))
    assert manager.controller("a")._options.workers == 9
    assert manager.controller("b", workers=2)._options.workers == 2


# -- what it promises beside that ---------------------------------------------------------------------------------


def test_a_server_of_ours_answers_before_anything_is_listed_and_until_the_caches_have_ended(log: list[str]) -> None:
    # The API server may need a conversion webhook of ours to answer the very list that the caches begin with.
    class Webhook:
        async def start(self) -> None:
            log.append("webhook starts")

        async def stop(self) -> None:
            log.append("webhook stops")

    def script(request: HttpRequest) -> Reply:
        log.append("watch" if ("watch", "true") in request.query else "list")
        return server(request)

    async def runnable() -> None:
        try:
            await for_ever()
        finally:
            log.append("runnable ends")

    manager = made(script)
    manager.informer(Thing)
    manager.add_server(Webhook())
    manager.add("x", runnable)
    stopped_at(manager, 5.0)
    assert log == [
        "start 0", "start 0", "webhook starts", "list", "watch", "runnable ends", "webhook stops", "stop 0", "stop 0",
    ]  # fmt: skip


def test_what_needs_no_leader_ends_before_what_needs_one(log: list[str]) -> None:
    def ends(name: str) -> Callable[[], Any]:
        async def run() -> None:
            try:
                await for_ever()
            finally:
                await asyncio.sleep(1)
                log.append(name)

        return run

    manager = made()
    manager.add("leader", ends("leader"))
    manager.add("other", ends("other"), needs_leader=False)
    stopped_at(manager, 5.0)
    assert log[2:4] == ["other", "leader"]


def test_a_second_run_is_refused(log: list[str]) -> None:
    manager = made()
    stopped_at(manager, 5.0)
    with pytest.raises(ConfigurationError, match="has been run already"):
        run_virtual(manager.run)


def test_no_grace_cuts_what_is_running_at_once(log: list[str]) -> None:
    manager = made(options=replace(OFF, grace_period=0.0))
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log, seconds=25.0))
    assert stopped_at(manager, 5.0) == 5.0
    assert "reconcile cancelled" in log


def test_negative_grace_waits_for_as_long_as_it_takes(log: list[str]) -> None:
    manager = made(options=replace(OFF, grace_period=-1.0))
    manager.controller("things", reconcile_timeout=9000.0).for_(Thing).reconciles_with(Reconciler(log, seconds=5000.0))
    assert stopped_at(manager, 5.0) == 5000.0
    assert "reconciled" in log


def test_the_grace_period_is_one_for_all_that_runs(log: list[str]) -> None:
    manager = made()
    long = Reconciler(log, seconds=500.0)
    manager.controller("a", needs_leader=False, reconcile_timeout=1000.0).for_(Thing).reconciles_with(long)
    manager.controller("b", reconcile_timeout=1000.0).for_(Thing).reconciles_with(long)
    assert stopped_at(manager, 5.0) == 35.0


def test_the_first_failure_lets_running_reconciles_end_and_every_failure_is_raised(log: list[str]) -> None:
    async def first() -> None:
        await asyncio.sleep(10)
        raise RuntimeFault("first")

    async def second() -> None:
        try:
            await for_ever()
        finally:
            raise RuntimeFault("second")

    manager = made()
    manager.add("first", first)
    manager.add("second", second)
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log, seconds=25.0))
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(manager.run)
    assert [str(leaf) for leaf in leaves(caught.value)] == ["first", "second"]
    assert "reconciled" in log


def test_the_cancellation_of_something_else_is_a_failure_and_not_a_silent_end(log: list[str]) -> None:
    async def waits() -> None:
        other = asyncio.create_task(asyncio.sleep(100))
        asyncio.get_running_loop().call_later(5, other.cancel)
        await other

    manager = made()
    manager.add("waits", waits)
    assert failure_of(manager) == "RuntimeFault: waits was cancelled by something that it waited for"


def test_a_stop_while_caches_fill_is_not_a_cache_that_did_not_fill(log: list[str]) -> None:
    manager = made(refusing("things"), replace(OFF, cache_sync_timeout=3.0))
    manager.informer(Thing)
    assert stopped_at(manager, 2.9) == 2.9  # and no error


def test_elected_is_set_without_an_election_too(log: list[str]) -> None:
    manager = made()

    async def scenario() -> None:
        assert not manager.elected.is_set()
        task = asyncio.create_task(manager.run())
        await manager.elected.wait()
        manager.stop()
        await task

    run_virtual(scenario)


def test_stopping_takes_no_time_even_where_the_network_hangs(log: list[str]) -> None:
    def script(request: HttpRequest) -> Reply:
        return server(request) if "things" in request.path else Answer(delay=1e9)

    manager = made(script)
    manager.informer(Thing)
    manager.informer(Part, optional=True)
    assert stopped_at(manager, 5.0) == 5.0


def test_thousands_of_reconnections_leave_no_task_behind(log: list[str]) -> None:
    watches: list[int] = []

    def script(request: HttpRequest) -> Reply:
        if ("watch", "true") in request.query:
            watches.append(len(asyncio.all_tasks()))
            if len(watches) == 10_000:
                manager.stop()
            return Answer(stream=[ADDED])
        return server(request)

    manager = made(script)
    manager.informer(Thing)
    run_virtual(manager.run, limit=4_000_000.0)
    assert len(watches) == 10_000
    assert len(set(watches[10:])) == 1


ADDED = {"type": "ADDED", "object": RAW}


# -- what cannot be read ----------------------------------------------------------------------------------------------


def test_an_optional_kind_that_is_forbidden_stops_nobody(log: list[str]) -> None:
    manager = made(refusing("parts"))
    manager.informer(Part, optional=True)
    manager.controller("things").for_(Thing).reconciles_with(Reconciler(log))

    async def scenario() -> None:
        later(200, lambda: log.append(str(readiness(manager))))
        later(201, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert "reconciled" in log
    assert "None" in log
    assert manager.informer(Part, optional=True).last_error


def test_whoever_needs_an_optional_kind_makes_it_needed(log: list[str]) -> None:
    manager = made(refusing("parts"))
    manager.informer(Part, optional=True)
    manager.reader(Part)
    assert "caches not filled within 120 s: parts.example.com" in failure_of(manager)


def test_rights_that_are_taken_away_make_it_unready_and_all_is_well_once_they_return(log: list[str]) -> None:
    def script(request: HttpRequest) -> Reply:
        now = asyncio.get_running_loop().time()
        if 100.0 <= now < 300.0:
            return Answer(403, body=b"no right to things")
        return Answer(stream=[Pause(100.0 - now % 100.0)]) if ("watch", "true") in request.query else server(request)

    manager = made(script)
    manager.informer(Thing)

    async def scenario() -> None:
        for at in (99, 200, 400):
            later(at, lambda: log.append(readiness(manager) or "ready"))
        later(401, manager.stop)
        await manager.run()

    run_virtual(scenario)
    first, second, third = log[2:5]
    assert (first, third) == ("ready", "ready")
    assert "things.example.com" in second
    assert "no right to things" in second


# -- what comes late --------------------------------------------------------------------------------------------------


def test_an_informer_added_after_the_start_fills_at_once(log: list[str]) -> None:
    manager = made()

    async def scenario() -> None:
        def add() -> None:
            manager.informer(Part)
            assert readiness(manager) == "parts.example.com: not listed yet"

        later(10, add)
        later(20, lambda: log.append(f"{len(manager.reader(Part).list())} {readiness(manager)}"))
        later(30, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert "1 None" in log


def test_a_controller_added_after_the_start_waits_for_its_caches_and_works(log: list[str]) -> None:
    seen: list[float] = []

    class Counting:
        async def reconcile(self, _: Request) -> Result:
            assert len(manager.reader(Part).list()) == 1
            seen.append(asyncio.get_running_loop().time())
            return DONE

    def script(request: HttpRequest) -> Reply:
        answer = server(request)
        assert isinstance(answer, Answer)
        return Answer(body=answer.body, delay=5.0) if "parts" in request.path and not answer.stream else answer

    manager = made(script)

    def add() -> None:
        manager.informer(Part)
        manager.controller("late").for_(Thing).reconciles_with(Counting())

    async def scenario() -> None:
        later(10, add)
        later(60, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert seen == [15.0]


def test_a_watch_added_to_a_running_controller_starts_its_cache_and_wakes_it(log: list[str]) -> None:
    seen: list[tuple[float, str]] = []

    class Seeing:
        async def reconcile(self, request: Request) -> Result:
            seen.append((asyncio.get_running_loop().time(), request.name))
            return DONE

    manager = made()
    controller = manager.controller("things").for_(Thing).reconciles_with(Seeing())

    async def scenario() -> None:
        later(10, lambda: controller.watches(Part, maps_to=lambda _: [Request("a", "woken")]))
        later(20, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert seen == [(0.0, "x"), (10.0, "woken")]


def test_what_is_added_late_starts_once_and_what_is_added_too_late_never(log: list[str]) -> None:
    def note(name: str) -> Callable[[], Any]:
        async def run() -> None:
            log.append(name)
            await for_ever()

        return run

    async def slow_to_end() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(5)

    manager = made()
    manager.add("slow", slow_to_end)

    async def scenario() -> None:
        later(10, lambda: manager.add("late", note("late")))
        later(20, manager.stop)
        later(21, lambda: manager.add("too late", note("too late")))
        await manager.run()

    run_virtual(scenario)
    assert log[2:-2] == ["late"]


# -- several clusters -------------------------------------------------------------------------------------------------


def other_cluster() -> tuple[ScriptedTransport, Client]:
    def script(request: HttpRequest) -> Reply:
        raw = {"metadata": {**RAW["metadata"], "name": "far", "resourceVersion": "500"}}
        if request.method != "GET":
            return Answer(body=raw)
        if ("watch", "true") in request.query:
            return Answer(stream=[Pause(5.0), {"type": "ADDED", "object": raw}, STALL])
        return Answer(body={"metadata": {"resourceVersion": "400"}, "items": []})

    transport = ScriptedTransport(script)
    return transport, Client(transport, ClientOptions("tests", attempts=1))


def test_what_happens_in_another_cluster_wakes_a_controller_and_its_caches_belong_to_the_manager(
    log: list[str],
) -> None:
    manager = made()
    there = manager.cluster("there", other_cluster()[1])
    seen: list[tuple[str, int, int]] = []

    class Seeing:
        async def reconcile(self, request: Request) -> Result:
            seen.append((request.name, len(manager.reader(Part).list()), len(there.reader(Part).list())))
            return DONE

    (
        manager.controller("things")
        .for_(Part)
        .watches(Part, maps_to=lambda part: [part.key], cluster=there)
        .reconciles_with(Seeing())
    )
    assert stopped_at(manager, 60.0) == 60.0
    assert seen == [("x", 1, 0), ("far", 1, 1)]


def test_a_cluster_that_cannot_be_read_is_named(log: list[str]) -> None:
    manager = made()
    transport = ScriptedTransport(refusing("parts"))
    manager.cluster("there", Client(transport, ClientOptions("tests", attempts=1))).informer(Part)
    manager.informer(Part)
    text = failure_of(manager)
    assert "caches not filled within 120 s: parts.example.com in there: list: 403" in text


def test_a_write_to_another_cluster_is_looked_for_in_its_own_caches(log: list[str]) -> None:
    manager = made()
    _, client = other_cluster()
    there = manager.cluster("there", client)
    there.informer(Part)
    manager.informer(Part)
    began: list[float] = []
    writer = there.client_for(Declaration("things", permissions(Part, "create")))

    class Writing:
        async def reconcile(self, request: Request) -> Result:
            began.append(asyncio.get_running_loop().time())
            if len(began) == 1:
                await writer.create(Part, {"metadata": {"name": "far", "namespace": "a"}})
                return Result(requeue_after=1.0)
            return DONE

    manager.controller("things").for_(Thing).reconciles_with(Writing())
    stopped_at(manager, 60.0)
    # The second reconcile waits until the other cluster's watch has shown the write, 5 seconds after it began.
    assert began == [0.0, 5.0]


@pytest.mark.parametrize("name", ["", "there"])
def test_two_clusters_of_one_name_are_refused(name: str) -> None:
    manager = made()
    manager.cluster("there", manager.client)
    with pytest.raises(ConfigurationError, match="is there already"):
        manager.cluster(name, manager.client)


def test_two_managers_share_no_metrics() -> None:
    first, second = made(), made()
    first.controller("things")
    assert b'controller="things"' in first.metrics.render()
    assert b'controller="things"' not in second.metrics.render()


# -- with an election -------------------------------------------------------------------------------------------------

ELECTING = replace(OFF, leader_elect=True, leader_elect_resource_name="lock", leader_elect_resource_namespace="here")


class Replica:
    """One of several managers that ask for the same Lease."""

    def __init__(self, leases: LeaseServer, log: list[str], name: str, options: ManagerOptions = ELECTING) -> None:
        self.name = name
        self.network = Network(leases)
        self.transport = ScriptedTransport(server)
        client = Client(self.transport, ClientOptions("tests", attempts=1))
        self.manager = Manager(client, options, leases=self.network.client())
        self.log = log
        self.manager.add("leader", self._runnable)
        self.manager.add("follower", lambda: self._tell("any"), needs_leader=False)
        self.writer = self.manager.client_for(Declaration("things", permissions(Thing, "create")))

    async def _runnable(self) -> None:
        await self._tell("leads")

    async def _tell(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        try:
            await for_ever()
        finally:
            self.log.append(f"{self.name} {what} no more")

    def start(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.manager.run(), name=self.name)


def electing(play: Callable[[LeaseServer], Any]) -> None:
    async def scenario() -> None:
        await play(LeaseServer())

    run_virtual(scenario)


def test_a_follower_is_ready_with_warm_caches_and_does_only_what_needs_no_leader(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        a, b = Replica(leases, log, "a"), Replica(leases, log, "b")
        reconciler = Reconciler(log)
        b.manager.controller("things").for_(Thing).reconciles_with(reconciler)
        first = a.start()
        await asyncio.sleep(1)
        second = b.start()
        await asyncio.sleep(60)
        assert "a leads" in log
        assert "b any" in log
        assert "b leads" not in log
        assert "reconcile" not in log
        assert not b.manager.elected.is_set()
        assert b.manager.readiness.result("caches").reason is None
        assert b.manager.readiness.result("leader-election").reason is None
        assert b.manager.liveness.result("leader-election").reason is None
        assert len(b.manager.reader(Thing).list()) == 1
        a.manager.stop()
        await first
        await asyncio.sleep(5)
        assert log.index("a leads no more") < log.index("b leads")
        assert "reconciled" in log
        b.manager.stop()
        await second

    electing(play)


def test_a_follower_queues_what_it_will_have_to_do_only_where_it_is_to_warm_up(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        a, b = Replica(leases, log, "a"), Replica(leases, log, "b")
        cold = b.manager.controller("cold").for_(Thing).reconciles_with(Reconciler(log))
        warm = b.manager.controller("warm", warm_up=True).for_(Thing).reconciles_with(Reconciler(log))
        first = a.start()
        await asyncio.sleep(1)
        second = b.start()
        await asyncio.sleep(5)
        assert (cold.statistics().ready, warm.statistics().ready) == (0, 1)
        a.manager.stop()
        await first
        await asyncio.sleep(5)
        assert log.count("reconciled") == 2
        b.manager.stop()
        await second

    electing(play)


def test_the_lease_is_released_after_all_guarded_work_and_before_the_last_events(log: list[str]) -> None:
    def script(request: HttpRequest) -> Reply:
        if request.method == "POST":
            log.append("event")
        return server(request)

    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        replica.transport._reply = script
        recorder = replica.manager.recorder("things")

        class Slow:
            async def reconcile(self, _: Request) -> Result:
                await asyncio.sleep(20)
                log.append("reconciled")
                return DONE

        async def at_the_end() -> None:
            try:
                await for_ever()
            finally:
                await asyncio.sleep(2)
                recorder.event(Thing.decode(msgspec.json.encode(RAW)), "Normal", "Bye", "ended", "Test")

        replica.manager.controller("things").for_(Thing).reconciles_with(Slow())
        replica.manager.add("x", at_the_end)
        task = replica.start()
        await asyncio.sleep(5)
        recording = leases._store

        def store(method: str, name: str, document: dict[str, Any]) -> dict[str, Any]:
            stored = recording(method, name, document)
            if not stored["spec"]["holderIdentity"]:
                log.append("released")
            return stored

        leases._store = store  # type: ignore[method-assign]
        replica.manager.stop()
        await task
        assert log.index("reconciled") < log.index("released")
        assert log.index("a leads no more") < log.index("stop 0") < log.index("released")

    electing(play)


def test_losing_the_lease_ends_everything_at_once_and_is_an_error(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        replica.manager.controller("things").for_(Thing).reconciles_with(Reconciler(log, seconds=1000.0))
        task = replica.start()
        await asyncio.sleep(5)
        replica.network.cut = True
        with pytest.raises(ExceptionGroup) as caught:
            await task
        (leaf,) = leaves(caught.value)
        assert isinstance(leaf, LeadershipLost)
        # The last renewal was sent at 4: no grace, no release, no waiting for a server that does not answer.
        assert asyncio.get_running_loop().time() == 14.0
        assert "reconcile cancelled" in log
        assert leases.leases["lock"]["spec"]["holderIdentity"] != ""

    electing(play)


def test_what_a_worker_does_when_it_is_cut_cannot_write_any_more(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")

        async def stubborn() -> None:
            try:
                await for_ever()
            finally:
                try:
                    await replica.writer.create(Thing, {"metadata": {"name": "x", "namespace": "a"}})
                except LeadershipLost:
                    log.append("refused")

        replica.manager.add("stubborn", stubborn)
        task = replica.start()
        await asyncio.sleep(5)
        replica.network.cut = True
        with pytest.raises(ExceptionGroup):
            await task
        assert "refused" in log
        assert all(request.method == "GET" for request in replica.transport.requests)

    electing(play)


def test_before_it_leads_nobody_writes_but_who_needs_no_leader(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        declaration = Declaration("any", permissions(Thing, "create"))
        body = {"metadata": {"name": "x", "namespace": "a"}}
        with pytest.raises(LeadershipLost):
            await replica.writer.create(Thing, body)
        await replica.manager.client_for(declaration, needs_leader=False).create(Thing, body)
        task = replica.start()
        await replica.manager.elected.wait()
        await replica.writer.create(Thing, body)
        replica.manager.stop()
        await task

    electing(play)


@pytest.mark.parametrize("at", [0.0, 1.0, 14.0])
def test_a_follower_that_stops_never_starts_what_needs_a_leader(log: list[str], at: float) -> None:
    async def play(leases: LeaseServer) -> None:
        a, b = Replica(leases, log, "a"), Replica(leases, log, "b")
        first = a.start()
        await asyncio.sleep(1)
        second = b.start()
        await asyncio.sleep(at)
        b.manager.stop()
        await second
        assert "b leads" not in log
        a.manager.stop()
        await first

    electing(play)


def test_a_stop_in_the_turn_in_which_it_is_elected_starts_nothing(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        elector = replica.manager._elector
        assert elector is not None
        elector._on_new_leader = lambda _: replica.manager.stop()
        await replica.start()
        assert "a leads" not in log
        assert leases.leases["lock"]["spec"]["holderIdentity"] == ""

    electing(play)


def test_an_orderly_stop_of_a_leader_is_no_error(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        task = replica.start()
        await replica.manager.elected.wait()
        replica.manager.stop()
        await task

    electing(play)


def test_what_is_added_late_waits_for_leadership_where_it_must(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        a, b = Replica(leases, log, "a"), Replica(leases, log, "b")
        first = a.start()
        await asyncio.sleep(1)
        second = b.start()
        await asyncio.sleep(5)
        b.manager.add("late", lambda: b._tell("late leader"))
        b.manager.add("late-too", lambda: b._tell("late follower"), needs_leader=False)
        await asyncio.sleep(5)
        assert "b late follower" in log
        assert "b late leader" not in log
        a.manager.stop()
        await first
        await asyncio.sleep(5)
        assert log.count("b late leader") == 1
        b.manager.stop()
        await second

    electing(play)


def test_work_that_dies_ends_the_leadership(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")

        async def dies() -> None:
            await asyncio.sleep(10)
            raise RuntimeFault("broken")

        replica.manager.add("dies", dies)
        with pytest.raises(ExceptionGroup):
            await replica.start()
        renewals = len(replica.network.requests)
        assert leases.leases["lock"]["spec"]["holderIdentity"] == ""
        await asyncio.sleep(60)
        assert len(replica.network.requests) == renewals

    electing(play)


def test_a_follower_that_cannot_reach_the_lease_becomes_unready_and_says_why(log: list[str]) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, log, "a")
        replica.network.cut = True
        task = replica.start()
        await asyncio.sleep(20)
        assert replica.manager.readiness.result("leader-election").reason is None
        await asyncio.sleep(40)
        assert replica.manager.readiness.result("leader-election").reason == "no answer in time"
        replica.manager.stop()
        await task

    electing(play)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 60.0),
    st.lists(st.sampled_from([Fault(), Fault("refuse"), Fault("vanish"), Fault("lose"), Fault("slow", 3.0)])),
)
def test_whenever_it_stops_it_ends_within_the_grace_period_and_leaves_nothing_behind(
    at: float, faults: list[Fault]
) -> None:
    async def play(leases: LeaseServer) -> None:
        replica = Replica(leases, [], "a")
        replica.network.faults.extend(faults)
        replica.manager.controller("things").for_(Thing).reconciles_with(Reconciler([], seconds=7.0))
        later(at, replica.manager.stop)
        with suppress(ExceptionGroup):
            await replica.manager.run()
        # Seven seconds for the reconcile, five at most for a release that gets no answer.
        assert asyncio.get_running_loop().time() <= at + 7.0 + 5.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    electing(play)


def test_an_election_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--leader-elect-resource-name"):
        made(options=replace(ELECTING, leader_elect_resource_name=""))


@pytest.mark.parametrize(
    ("option", "match"),
    [({"workers": 0}, "controller c: option workers=0"), ({"wrokers": 2}, "controller c: there is no option wrokers")],
)
def test_an_option_of_a_controller_that_cannot_work_is_named(option: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        made().controller("c", **option)


def test_what_does_not_end_at_a_stop_is_named_and_the_process_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[float] = []
    free = asyncio.Event()

    def end() -> None:
        ended.append(asyncio.get_running_loop().time())
        free.set()

    class Stubborn:
        async def reconcile(self, _: Request) -> Result:
            while not free.is_set():
                with suppress(asyncio.CancelledError):
                    await free.wait()
            return DONE

    client = Client(ScriptedTransport(server), ClientOptions("tests", attempts=1))
    manager = Manager(client, OFF, on_stuck=end)
    manager.controller("c").for_(Thing).reconciles_with(Stubborn())

    async def scenario() -> None:
        later(10.0, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert ended == [45.0]  # 10 s, the grace period, and 5 s for what is cancelled
    late = [r.fields for r in caplog.records if "still runs after the grace period" in r.message]  # type: ignore[attr-defined]
    assert late[0] == {"controller": "c", "about": "a/x"}


def test_a_leader_that_was_asleep_begins_no_reconcile_before_it_notices() -> None:
    seen: list[float] = []

    class Noting:
        async def reconcile(self, _: Request) -> Result:
            seen.append(asyncio.get_running_loop().time())
            return DONE

    leases = LeaseServer()
    client = Client(ScriptedTransport(server), ClientOptions("tests", attempts=1))
    manager = Manager(client, ELECTING, leases=Network(leases).client())
    controller = manager.controller("c").for_(Thing).reconciles_with(Noting())

    async def scenario() -> None:
        task = asyncio.create_task(manager.run())
        await asyncio.sleep(5.0)
        assert len(seen) == 1
        assert manager._elector is not None
        # As after a sleep: the time is over, and no task has had its turn yet.
        manager._elector.election._renewed_at -= 100.0
        controller.enqueue(Request("a", "x"))
        await asyncio.sleep(0.5)
        assert len(seen) == 1
        manager._elector.election._renewed_at += 100.0
        manager.stop()
        await task

    run_virtual(scenario)
