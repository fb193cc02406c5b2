"""The manager on virtual time: the order of starting and stopping, and what ends it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from controllers.runtime import manager as manager_module
from controllers.runtime.cache import Change, Informer
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.errors import ConfigurationError, PermissionNotDeclared, RuntimeFault
from controllers.runtime.manager import Manager
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest

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


def later(seconds: float, action: Callable[[], None]) -> None:
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
