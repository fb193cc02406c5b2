"""A crash after every single write that serving and retiring a domain takes: whatever comes next converges.

The controllers run in this process on the real control plane, under their ServiceAccount. A crash keeps the answer to
the last write from them, and everything after it from the server, so a crash before a write reaches the server is the
crash after the write before it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from controllers import channel_slices, compute_domain
from controllers.api.dra import wait_for_dra
from controllers.runtime import Client, Manager
from controllers.runtime.client import ClientOptions
from controllers.runtime.errors import RuntimeFault
from controllers.runtime.options import ManagerOptions
from controllers.runtime.transport import (
    AiohttpTransport,
    ByteStream,
    Credentials,
    HttpRequest,
    HttpResponse,
    Transport,
)
from hack.localcluster import install, make_nodes, wait_ready
from tests.integration.environments import BOTH, started
from tests.integration.scenario import (
    DOMAIN_KEY,
    EAST,
    TIMEOUT,
    WEST,
    Cluster,
    channel_claim,
    channel_parameters,
    domain,
    worker,
)

ACCOUNT = "gpu-mirage-compute-domain"
NAMESPACE = "default"
NO_SERVER = "0"  # as a bind address
NEVER = 10_000  # writes
OVERTAKING = 0.05  # seconds that the first of several writes sent together waits for the others
MOST_WRITES = 30  # of one attempt; twice what is needed
CREATION = {
    "POST resourceclaimtemplates",
    "PATCH computedomains",
    "PATCH nodes",
    "PATCH computedomaincliques",
    "PATCH computedomains/status",
}
DELETION = {
    "PATCH resourceclaimtemplates",
    "DELETE resourceclaimtemplates",
    "PATCH nodes",
    "DELETE computedomaincliques",
    "PATCH computedomains",
}


class Crashed(RuntimeFault):
    """What a request of a crashed process comes to: no answer, and nobody who would try again."""


class CrashingTransport:
    """Records the writes that the server accepted, and is dead from the ``crash_after``-th on."""

    def __init__(self, inner: Transport, crash_after: int) -> None:
        self.writes: list[str] = []
        self.crashed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._waiting = 0
        self._inner = inner
        self._crash_after = crash_after

    async def request(self, request: HttpRequest) -> HttpResponse:
        if request.method == "GET":
            self._check()
            response = await self._inner.request(request)
        else:
            # One write at a time: of those that are sent together the crash must leave some without the others.
            # Later ones overtake earlier ones, so that it is the finalizer which may be missing.
            self._waiting += 1
            await asyncio.sleep(OVERTAKING / self._waiting)
            self._waiting -= 1
            async with self._writing:
                self._check()
                response = await self._inner.request(request)
                self._note(request, response)
        self._check()
        return response

    def _note(self, request: HttpRequest, response: HttpResponse) -> None:
        if response.status < 400:
            self.writes.append(f"{request.method} {_resource(request.path)}")
            if len(self.writes) == self._crash_after:
                self.crashed.set()

    @asynccontextmanager
    async def stream(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        self._check()
        async with self._inner.stream(request) as stream:
            yield stream

    async def close(self) -> None:
        await self._inner.close()

    def _check(self) -> None:
        if self.crashed.is_set():
            raise Crashed("the process is dead")


def _resource(path: str) -> str:
    """The resource of a write, with its subresource, from a path such as /apis/GROUP/VERSION/namespaces/NS/PLURAL."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return "/".join(rest[::2])


@dataclass(frozen=True)
class Estate:
    """The control plane of this module and the account that the controllers run under."""

    cluster: Cluster
    kubeconfig: Path

    @asynccontextmanager
    async def manager(self, crash_after: int = NEVER) -> AsyncIterator[CrashingTransport]:
        """Both controllers, until the end of the block. After a crash they stop too, with nothing of it on the wire."""
        transport = CrashingTransport(AiohttpTransport(Credentials(str(self.kubeconfig))), crash_after)
        options = ManagerOptions(metrics_bind_address=NO_SERVER, health_probe_bind_address=NO_SERVER)
        manager = Manager(Client(transport, ClientOptions(field_manager="gpu-mirage")), options)
        manager.prepare(_declare)
        running = asyncio.create_task(manager.run())
        try:
            yield transport
        finally:
            manager.stop()
            outcome = (await asyncio.gather(running, return_exceptions=True))[0]
            await transport.close()
        if isinstance(outcome, BaseException) and not transport.crashed.is_set():
            raise outcome

    async def publish_slices(self, nodes: Collection[str], crash_after: int = NEVER) -> CrashingTransport:
        """Runs the controllers until each of some nodes has its slice, or until they crash."""

        def published() -> bool:
            return set(nodes) <= {entry["spec"]["nodeName"] for entry in self.cluster.list("resourceslices")}

        async with self.manager(crash_after) as transport:
            await _until(published, transport, lambda: f"the slices of {', '.join(nodes)}")
        return transport


async def _declare(manager: Manager) -> None:
    dra = await wait_for_dra(manager)
    compute_domain.setup(manager, dra, compute_domain.ComputeDomainOptions())
    channel_slices.setup(manager, dra, channel_slices.ChannelSlicesOptions())


@pytest.fixture(scope="module", params=BOTH)
def estate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """A cluster in which no other controller of ours runs, with two simulated nodes and their slices."""
    with started(request.param, tmp_path_factory.mktemp("crashes")) as environment:
        install(environment)
        nodes = make_nodes(environment, {EAST: 2}, "node")
        estate = Estate(Cluster(environment, NAMESPACE), environment.kubeconfig_for("gpu-mirage", ACCOUNT))
        asyncio.run(estate.publish_slices(nodes))
        wait_ready(environment, nodes)
        yield estate


@dataclass(frozen=True)
class Pair:
    """A domain with two workers on the two nodes."""

    estate: Estate
    name: str
    nodes: tuple[str, str] = ("node-0-0", "node-0-1")

    @property
    def template(self) -> str:
        return f"{self.name}-channel"

    def create_with_pods(self) -> str:
        """Makes domain and workers; returns the domain's uid."""
        workers = (worker(NAMESPACE, f"{self.name}-{n}", template=self.template, node=n) for n in self.nodes)
        self.estate.cluster.apply(domain(NAMESPACE, self.name, nodes=2), *workers)
        return self.estate.cluster.uid("computedomains", self.name)

    def create_with_claims(self) -> str:
        """The same, with claims that are allocated by hand in place of pods: quicker, and as good for a deletion."""
        cluster = self.estate.cluster
        cluster.apply(domain(NAMESPACE, self.name, nodes=2))
        uid = cluster.uid("computedomains", self.name)
        for node in self.nodes:
            cluster.allocate(channel_claim(NAMESPACE, f"{self.name}-{node}", channel_parameters(uid)), node)
        return uid

    def delete(self) -> None:
        self.estate.cluster.delete("computedomains", self.name)

    def clean_up(self) -> None:
        """Ends the workers and waits for the end of their claims, of which a later start would speak in Events."""
        cluster = self.estate.cluster
        cluster.environment.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--now")
        cluster.environment.kubectl("delete", "resourceclaims", "-n", NAMESPACE, "--all")

    def served(self, uid: str) -> bool:
        """Whether everything stands as it should for a domain with two workers."""
        cluster = self.estate.cluster
        found = cluster.get("computedomains", self.name)
        assert found is not None
        status = found.get("status", {})
        if status.get("status") != "Ready":
            return False
        members = {entry["name"]: (entry["cliqueID"], entry["index"], entry["status"]) for entry in status["nodes"]}
        daemons = cluster.clique_daemons(uid).get(f"{uid}.{EAST}", [])
        return (
            set(members) == set(self.nodes)
            and set(members.values()) == {(EAST, 0, "Ready"), (EAST, 1, "Ready")}
            and {entry["nodeName"]: entry["index"] for entry in daemons} == {n: i for n, (_, i, _) in members.items()}
            and found["metadata"].get("finalizers") == [DOMAIN_KEY]
            and self.template in self._names("resourceclaimtemplates", uid)
            and self._names("nodes", uid) == set(self.nodes)
        )

    def leftovers(self, uid: str) -> set[str]:
        """What is there of the domain, itself included."""
        return self.estate.cluster.leftovers(self.name, uid)

    def _names(self, kind: str, uid: str) -> set[str]:
        found = self.estate.cluster.list(kind, selector=f"{DOMAIN_KEY}={uid}")
        return {entry["metadata"]["name"] for entry in found}

    async def until_served(self, uid: str, transport: CrashingTransport) -> None:
        await _until(lambda: self.served(uid), transport, lambda: f"domain {self.name} to be served")

    async def until_gone(self, uid: str, transport: CrashingTransport) -> None:
        await _until(lambda: not self.leftovers(uid), transport, lambda: f"the end of {', '.join(self.leftovers(uid))}")


async def _until(reached: Callable[[], bool], transport: CrashingTransport, what: Callable[[], str]) -> None:
    """Returns when something is so, or when the controllers have crashed."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT
    while not transport.crashed.is_set() and not await asyncio.to_thread(reached):
        assert asyncio.get_running_loop().time() < deadline, f"waited {TIMEOUT:g} s for {what()}"
        await asyncio.sleep(0.05)


Report = Callable[[str, list[str]], None]
Attempt = Callable[[int], Coroutine[None, None, CrashingTransport]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]) -> Report:
    """Shows what was tried, in the terminal and in a report."""

    def show(what: str, writes: list[str]) -> None:
        record_property("writes", writes)
        with capsys.disabled():
            print(f"\n{what}: a crash after each of {len(writes)} writes: {', '.join(writes)}")

    return show


async def crash_after_each_write(attempt: Attempt) -> list[str]:
    """Attempts something with a crash after its first, second, third write and so on until it comes to its end.

    Returns the writes of that last attempt, which had no crash.
    """
    for number in range(1, MOST_WRITES + 1):
        transport = await attempt(number)
        if not transport.crashed.is_set():
            return transport.writes
    raise AssertionError(f"still not done after {MOST_WRITES} writes: {transport.writes}")


def test_after_a_crash_at_any_write_of_slices_every_node_has_its_slice(estate: Estate, report: Report) -> None:
    async def attempt(number: int) -> CrashingTransport:
        nodes = make_nodes(estate.cluster.environment, {WEST: 3}, f"slices-{number}")
        first = await estate.publish_slices(nodes, crash_after=number)
        await estate.publish_slices(nodes)
        return first

    writes = asyncio.run(crash_after_each_write(attempt))
    report("slices of three nodes", writes)
    assert writes == ["PATCH resourceslices"] * 3


def test_after_a_crash_at_any_write_of_its_creation_a_domain_becomes_ready(estate: Estate, report: Report) -> None:
    async def attempt(number: int) -> CrashingTransport:
        pair = Pair(estate, f"create-{number}")
        async with estate.manager(crash_after=number) as first:
            uid = await asyncio.to_thread(pair.create_with_pods)
            await pair.until_served(uid, first)
        async with estate.manager() as second:
            await pair.until_served(uid, second)
            await asyncio.to_thread(pair.delete)
            await pair.until_gone(uid, second)
        await asyncio.to_thread(pair.clean_up)
        return first

    writes = asyncio.run(crash_after_each_write(attempt))
    report("creation of a domain", writes)
    assert set(writes) >= CREATION


def test_after_a_crash_at_any_write_of_its_deletion_nothing_of_a_domain_is_left(estate: Estate, report: Report) -> None:
    async def attempt(number: int) -> CrashingTransport:
        pair = Pair(estate, f"delete-{number}")
        async with estate.manager() as preparing:
            uid = await asyncio.to_thread(pair.create_with_claims)
            await pair.until_served(uid, preparing)
        async with estate.manager(crash_after=number) as first:
            await asyncio.to_thread(pair.delete)
            await pair.until_gone(uid, first)
        async with estate.manager() as second:
            await pair.until_gone(uid, second)
        await asyncio.to_thread(pair.clean_up)
        return first

    writes = asyncio.run(crash_after_each_write(attempt))
    report("deletion of a domain", writes)
    assert set(writes) >= DELETION


def test_a_domain_deleted_after_a_crash_at_any_write_of_its_creation_leaves_nothing(
    estate: Estate, report: Report
) -> None:
    async def attempt(number: int) -> CrashingTransport:
        pair = Pair(estate, f"both-{number}")
        async with estate.manager(crash_after=number) as first:
            uid = await asyncio.to_thread(pair.create_with_claims)
            await pair.until_served(uid, first)
        await asyncio.to_thread(pair.delete)
        async with estate.manager() as second:
            await pair.until_gone(uid, second)
        await asyncio.to_thread(pair.clean_up)
        return first

    writes = asyncio.run(crash_after_each_write(attempt))
    report("creation of a domain that is deleted before the restart", writes)
    assert set(writes) >= CREATION
