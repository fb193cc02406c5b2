"""The framework's client, informer and manager against every fault that the sandbox knows, on a real socket.

Whatever happens on the way, the cache comes to show what is stored and its handlers have heard of each change; the
controllers' work gets done. No control plane is needed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from controllers.runtime import Client, ClientOptions, Key, KubeObject, Manager, Resource
from controllers.runtime import client as runtime_client
from controllers.runtime.cache import Change, Informer, InformerOptions, reflector
from controllers.runtime.clock import SystemClock
from controllers.runtime.errors import Conflict, Expired, InternalError, TransportError, Unauthorized
from controllers.runtime.options import ManagerOptions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.transport import AiohttpTransport, Credentials
from controllers.sandbox import Fault, Sandbox
from controllers.sandbox.cluster import Cluster, WriteOptions
from controllers.sandbox.lifecycle import Deletion

SPEED = 25.0  # how much faster than real time the client's pauses pass
PATIENCE = 10.0  # seconds until a cache must show what is stored
SHORT_SILENCE = 0.5  # seconds that stand for the time after which a silent watch is given up
VALUE = "größer"  # what is cut within a character has one of several bytes


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)

    data: dict[str, str] = {}  # noqa: RUF012 - a struct copies its default


class FastClock:
    """A clock on which pauses are short; the network's timeouts are real."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def monotonic(self) -> float:
        return self._clock.monotonic() * SPEED

    def utcnow(self) -> datetime:
        return self._clock.utcnow()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds / SPEED)


class Cache:
    """An informer, and the state that a handler who only believes changes has pieced together."""

    def __init__(self, client: Client, *, stream_lists: bool = True) -> None:
        options = InformerOptions(stream_lists=stream_lists, freeze_after_sync=False, random=lambda: 0.0)
        self.informer = Informer(client, ConfigMap, options=options, clock=FastClock())
        self.seen: dict[Key, ConfigMap] = {}
        self.informer.add_handler(self._on_change)

    def _on_change(self, change: Change[ConfigMap]) -> None:
        key, before = change.subject.key, self.seen.get(change.subject.key)
        if change.new is None:
            # What a deletion tells is the last state, which may be newer than any that was told before.
            assert change.old is not None
            assert before is not None, f"{key} is told to be gone, but was not told to be there"
            assert before.uid == change.old.uid
            del self.seen[key]
            return
        assert before == change.old, "a change does not begin where the one before ended"
        self.seen[key] = change.new

    async def agrees_with(self, sandbox: Sandbox) -> None:
        """Waits until cache and handler know exactly what is stored."""
        end = time.monotonic() + PATIENCE
        while True:
            stored = sandbox.call(versions)
            cached = {item.key: item.metadata.resource_version for item in self.informer.store.list()}
            handled = {key: item.metadata.resource_version for key, item in self.seen.items()}
            if stored == cached == handled:
                return
            assert time.monotonic() < end, f"stored {stored}, cached {cached}, handled {handled}"
            await asyncio.sleep(0.01)


def versions(cluster: Cluster) -> dict[Key, str]:
    found = (each.object["metadata"] for each in cluster.store.collection("configmaps").objects.values())
    return {Key(each["namespace"], each["name"]): each["resourceVersion"] for each in found}


def named(name: str) -> Key:
    return Key("default", name)


def put(name: str, value: str) -> Callable[[Cluster], None]:
    """A write that no fault strikes."""

    def write(cluster: Cluster) -> None:
        info = cluster.registry.find("", "v1", "configmaps")
        assert info is not None
        body = {"metadata": {"name": name}, "data": {"value": value}}
        if f"default/{name}" in cluster.store.collection("configmaps").objects:
            cluster.update(info, "default", name, body, WriteOptions())
        else:
            cluster.create(info, "default", body, WriteOptions())

    return write


def remove(name: str) -> Callable[[Cluster], None]:
    def write(cluster: Cluster) -> None:
        info = cluster.registry.find("", "v1", "configmaps")
        assert info is not None
        cluster.delete(info, "default", name, Deletion(), dry_run=False)

    return write


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        # What every namespace has comes a moment later; tests begin with what stays.
        running.call(lambda cluster: cluster.collector.settle())
        yield running
        running.clear_faults()


@asynccontextmanager
async def client_of(sandbox: Sandbox, kubeconfig: Path | None = None, timeout: float = 5.0) -> AsyncIterator[Client]:
    clock = FastClock()
    transport = AiohttpTransport(Credentials(str(kubeconfig or sandbox.kubeconfig), clock=clock))
    try:
        yield Client(transport, ClientOptions(field_manager="faults", timeout=timeout), clock=clock)
    finally:
        await transport.close()
        # Connections with TLS are closed only once both ends have said goodbye, and nothing tells when that is.
        await asyncio.sleep(0.1)


@asynccontextmanager
async def cache_of(sandbox: Sandbox, *, stream_lists: bool = True) -> AsyncIterator[Cache]:
    async with client_of(sandbox) as client:
        cache = Cache(client, stream_lists=stream_lists)
        following = asyncio.create_task(cache.informer.run())
        await asyncio.wait_for(cache.informer.wait_synced(), PATIENCE)
        yield cache
        following.cancel()
        # An error in a handler is counted by the informer and must not pass unseen.
        assert cache.informer.statistics().handler_errors == 0
        await asyncio.gather(following, return_exceptions=True)


CUT = Fault(do="cut", verbs=("watch",))
EXPIRE = Fault(do="expire")
STORMS: dict[str, tuple[Fault, ...]] = {
    "version-forgotten-as-event": (EXPIRE,),
    "version-forgotten-as-status": (CUT, Fault(do="refuse", verbs=("watch",), code=410)),
    "lists-forgotten-too": (EXPIRE, Fault(do="refuse", verbs=("list",), code=410, times=3)),
    "watch-reset": (Fault(do="cut", verbs=("watch",), times=3),),
    "watch-cut-within-a-character": (Fault(do="truncate", verbs=("watch",), times=3),),
    "watch-half-open": (Fault(do="stall", verbs=("watch",)),),
    "watch-half-open-before-its-answer": (CUT, Fault(do="stall", verbs=("watch",))),
    "too-many-requests": (
        CUT,
        Fault(do="refuse", verbs=("watch",), code=429, retry_after=1, times=3),
        EXPIRE,
        Fault(do="refuse", verbs=("list",), code=429, retry_after=1, times=3),
    ),
    "server-errors": (
        CUT,
        Fault(do="refuse", verbs=("watch",), code=500, times=4),
        EXPIRE,
        Fault(do="refuse", verbs=("list",), code=500, times=4),
    ),
    "unavailable": (CUT, Fault(do="refuse", code=503, times=6)),
    "gateway-timeouts": (CUT, Fault(do="refuse", code=504, times=4)),
    "slow-answers": (EXPIRE, Fault(do="delay", verbs=("list", "watch"), seconds=0.2, times=2)),
    "list-stalled": (EXPIRE, Fault(do="stall", verbs=("list",))),
    "list-cut-within-a-character": (EXPIRE, Fault(do="truncate", verbs=("list",), times=2)),
    "list-lost": (EXPIRE, Fault(do="lose", verbs=("list",), times=2)),
    "token-refused": (CUT, Fault(do="refuse", code=401, times=3)),
    "rights-refused": (CUT, Fault(do="refuse", code=403, times=3)),
    "late-events": (Fault(do="lag", seconds=0.2, times=3),),
    "events-twice": (Fault(do="duplicate", times=5),),
}
STORMS_OF_STREAMS: dict[str, tuple[Fault, ...]] = {
    "version-forgotten-as-event": (EXPIRE,),
    "version-forgotten-as-status": (CUT, Fault(do="refuse", verbs=("watch",), code=410)),
    "stream-refused-for-load": (EXPIRE, Fault(do="refuse", verbs=("watch",), code=429, retry_after=1, times=2)),
    "stream-refused-for-good": (EXPIRE, Fault(do="refuse", verbs=("watch",), code=403)),
    "stream-stalled": (EXPIRE, Fault(do="stall", verbs=("watch",))),
    "stream-reset-until-it-is-listed": (EXPIRE, Fault(do="cut", verbs=("watch",), times=4)),
    "unavailable": (CUT, Fault(do="refuse", code=503, times=6)),
    "events-twice": (Fault(do="duplicate", times=5),),
}
RUNS = [
    *[pytest.param(faults, False, id=name) for name, faults in STORMS.items()],
    *[pytest.param(faults, True, id=f"{name}-streamed") for name, faults in STORMS_OF_STREAMS.items()],
]


@pytest.mark.parametrize(("faults", "stream_lists"), RUNS)
def test_cache_shows_what_is_stored_after(
    faults: tuple[Fault, ...], stream_lists: bool, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_client, "WATCH_GRACE", SHORT_SILENCE)
    # Whole seconds go to the server; within one every watch of this test is ended and begun again.
    monkeypatch.setattr(reflector, "WATCH_TIMEOUT", 1.0)
    sandbox.call(put("changes", VALUE))
    sandbox.call(put("goes", VALUE))

    async def scenario() -> None:
        async with cache_of(sandbox, stream_lists=stream_lists) as cache:
            await cache.agrees_with(sandbox)
            sandbox.add_faults(*faults)
            sandbox.call(remove("goes"))
            end = time.monotonic() + PATIENCE
            count = 0
            while sandbox.faults:
                count += 1
                sandbox.call(put("changes", f"{VALUE}-{count}"))
                sandbox.call(put(f"comes-{count % 3}", f"{VALUE}-{count}"))
                assert time.monotonic() < end, f"these did not strike: {sandbox.faults}"
                await asyncio.sleep(0.05)
            await cache.agrees_with(sandbox)
            assert sandbox.struck == sum(fault.times for fault in faults)

    asyncio.run(scenario())


def test_cache_shows_what_is_stored_after_changes_of_different_objects_came_backwards(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with cache_of(sandbox) as cache:
            await cache.agrees_with(sandbox)
            sandbox.add_faults(Fault(do="reorder", times=3))
            for number in range(6):
                sandbox.call(put(f"object-{number}", VALUE))
            await cache.agrees_with(sandbox)
            assert not sandbox.faults

    asyncio.run(scenario())


def test_cache_survives_a_restart_that_forgets_the_past(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with cache_of(sandbox) as cache:
            sandbox.call(put("before", VALUE))
            await cache.agrees_with(sandbox)
            await asyncio.to_thread(sandbox.restart, down=0.3)
            sandbox.call(put("after", VALUE))
            await cache.agrees_with(sandbox)

    asyncio.run(scenario())


def test_cache_lists_again_where_a_compaction_took_its_version(sandbox: Sandbox) -> None:
    def change_and_forget(cluster: Cluster) -> None:
        put("unseen", VALUE)(cluster)
        cluster.store.compact()

    async def scenario() -> None:
        async with cache_of(sandbox) as cache:
            await cache.agrees_with(sandbox)
            lists = cache.informer.statistics().lists
            sandbox.add_faults(CUT, Fault(do="delay", verbs=("watch",), seconds=0.1))
            sandbox.call(change_and_forget)
            await cache.agrees_with(sandbox)
            assert cache.informer.statistics().lists > lists

    asyncio.run(scenario())


def test_cache_goes_back_with_a_restored_backup_once_it_has_to_list(sandbox: Sandbox) -> None:
    """A watch from a version that is not reached again yet is silent here as on a real server; a list is not."""

    async def scenario() -> None:
        sandbox.call(put("kept", "old"))
        sandbox.checkpoint()
        async with cache_of(sandbox) as cache:
            sandbox.call(put("kept", "new"))
            sandbox.call(put("lost", VALUE))
            await cache.agrees_with(sandbox)
            sandbox.add_faults(Fault(do="refuse", verbs=("watch",), code=410))
            await asyncio.to_thread(sandbox.restart, restore=True)
            await cache.agrees_with(sandbox)
            assert cache.seen[named("kept")].data == {"value": "old"}

    asyncio.run(scenario())


class Copier:
    """Copies a value within each object, as controllers do: from the cache, by apply."""

    def __init__(self, manager: Manager) -> None:
        self._client = manager.client
        self._cache = manager.reader(ConfigMap)

    async def reconcile(self, request: Request) -> Result:
        found = self._cache.get(request)
        if found is not None and found.data.get("copy") != found.data.get("value"):
            await self._client.apply(found, {"data": {"copy": found.data.get("value", "")}}, force=True)
        return DONE


WRITES = ("patch",)
WORK: dict[str, tuple[Fault, ...]] = {
    "conflicts": (Fault(do="refuse", verbs=WRITES, code=409, times=20),),
    "too-many-requests": (Fault(do="refuse", verbs=WRITES, code=429, retry_after=1, times=10),),
    "server-errors": (Fault(do="refuse", code=500, times=3), Fault(do="refuse", verbs=WRITES, code=500, times=20)),
    "lost-answers": (Fault(do="lose", verbs=WRITES, times=10),),
    "resets": (Fault(do="cut", times=3), Fault(do="cut", verbs=WRITES, times=10)),
    "cut-answers": (Fault(do="truncate", verbs=WRITES, times=10),),
    "expired-tokens": (Fault(do="refuse", code=401, times=3), Fault(do="refuse", verbs=WRITES, code=401, times=10)),
    "late-sight-of-own-writes": (Fault(do="lag", seconds=0.1, times=5), Fault(do="delay", seconds=0.1, times=5)),
}


@pytest.mark.parametrize("faults", WORK.values(), ids=WORK.keys())
def test_controllers_get_their_work_done_after(faults: tuple[Fault, ...], sandbox: Sandbox) -> None:
    names = [f"work-{number}" for number in range(10)]

    def undone(cluster: Cluster) -> list[str]:
        found = cluster.store.collection("configmaps").objects
        contents = {name: found[f"default/{name}"].object["data"] for name in names}
        return [name for name, data in contents.items() if data.get("copy") != data["value"]]

    async def scenario() -> None:
        async with client_of(sandbox) as client:
            options = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")
            manager = Manager(client, options, clock=FastClock())
            manager.controller("copier").for_(ConfigMap).reconciles_with(Copier(manager))
            sandbox.add_faults(*faults)
            running = asyncio.create_task(manager.run())
            end = time.monotonic() + PATIENCE
            count = 0
            while sandbox.faults or sandbox.call(undone):
                if sandbox.faults:
                    count += 1
                    for name in names:
                        sandbox.call(put(name, f"{VALUE}-{count}"))
                assert time.monotonic() < end, f"{sandbox.faults} wait, {sandbox.call(undone)} are undone"
                await asyncio.sleep(0.05)
            manager.stop()
            await running

    asyncio.run(scenario())


def test_client_repeats_what_was_refused_for_a_while(sandbox: Sandbox) -> None:
    sandbox.add_faults(Fault(do="refuse", verbs=("create",), code=429, retry_after=1, times=2))

    async def scenario() -> ConfigMap:
        async with client_of(sandbox) as client:
            return await client.create(ConfigMap, body("late"))

    assert asyncio.run(scenario()).name == "late"
    assert sandbox.struck == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(do="refuse", code=500, times=0), InternalError),
        (Fault(do="refuse", code=409, times=0), Conflict),
        (Fault(do="refuse", code=410, times=0), Expired),
        (Fault(do="refuse", code=401, times=0), Unauthorized),
        (Fault(do="cut", times=0), TransportError),
        (Fault(do="truncate", times=0), TransportError),
        (Fault(do="lose", times=0), TransportError),
        (Fault(do="stall", times=0), TransportError),
    ],
    ids=lambda value: f"{value.do}-{value.code}" if isinstance(value, Fault) else "",
)
def test_lasting_fault_becomes_the_error_of_its_kind(sandbox: Sandbox, fault: Fault, error: type[Exception]) -> None:
    sandbox.add_faults(fault)

    async def scenario() -> None:
        async with client_of(sandbox, timeout=0.5) as client:
            with pytest.raises(error):
                await client.create(ConfigMap, body("doomed"))

    asyncio.run(scenario())
    assert sandbox.struck >= 1
    done = named("doomed") in sandbox.call(versions)
    assert done == (fault.do in {"lose", "truncate"}), "only a lost answer hides a write that was done"


def test_clients_read_new_tokens_after_the_old_ones_were_revoked(sandbox: Sandbox, tmp_path: Path) -> None:
    account = sandbox.kubeconfig_for("default", "default", tmp_path / "account")

    async def scenario() -> None:
        async with client_of(sandbox) as client, client_of(sandbox, account) as other:
            for each in (client, other):
                assert "gitVersion" in await each.get_json("/version")
            sandbox.revoke_tokens()
            for each in (client, other):
                assert "gitVersion" in await each.get_json("/version")

    asyncio.run(scenario())


def body(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}}
