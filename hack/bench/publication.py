"""How fast one process publishes an estate, beside the same writes without any controller, and what that costs."""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil

from controllers.all_in_one import PARTS
from controllers.api.core import ConfigMap, Node
from controllers.api.topology import NodeResourceTopology
from controllers.estate import DRA
from controllers.estate.estate import GPU_RESOURCE
from controllers.gpu_fractioning.condition import READY
from controllers.node_pool.setup import SELECTOR
from controllers.runtime import Client, ClientOptions, Selection
from controllers.runtime.client import EVERYTHING
from controllers.runtime.options import ManagerOptions
from controllers.runtime.transport import AiohttpTransport, Credentials
from hack.bench import lanes, load
from hack.bench.audit import AuditLog, Sort, Write
from hack.bench.expectations import PUBLICATION, QUIET_ESTATE, judged
from hack.bench.lanes import Target
from hack.bench.manifests import DRA as API
from hack.bench.manifests import Manifest
from hack.bench.plan import Plan
from hack.bench.population import (
    OPTIONS,
    bare_writes,
    object_names,
    plain_nodes,
    pool_nodes,
    pool_of,
    topology_config,
)
from hack.bench.report import Comparison, Table, WriteList
from hack.bench.statistics import percentile
from hack.bench.usage import usage_of
from hack.localcluster import LOCAL, SANDBOX, ControllerProcess, ControlPlane, Environment, SandboxEnvironment
from hack.localcluster.controllers import NAMESPACE, REPOSITORY

ACCOUNT = "gpu-mirage-all-in-one"
WRITERS = len(PARTS) - 1  # controllers that write here: all but compute-domain, as there are no domains
NAMES = {SANDBOX: "the sandbox", LOCAL: "a control plane with KWOK"}
NOTE = "\n(fake-gpu-operator, 1,000 nodes on such a control plane: capacity 22 s, slices 40 s; 189 MiB, 5.9 s of CPU)"
POLL = 0.25  # seconds between looks at the audit log
QUIET = 3.0  # seconds without a write after which everything is written
PATIENCE = 300.0  # seconds until what does not come counts as a failure
COMPARED = 1000  # nodes for which the figures of NOTE are known, and so the goals that follow from them


@dataclass
class Samples:
    """One value per repeat."""

    bare: list[float] = field(default_factory=list)  # seconds
    published: list[float] = field(default_factory=list)  # seconds from the first write to the last
    started: list[float] = field(default_factory=list)  # seconds from the start of the process to the last write
    cpu: list[float] = field(default_factory=list)  # seconds
    resident: list[float] = field(default_factory=list)  # MiB
    bare_server: list[float] = field(default_factory=list)  # CPU seconds of the API server
    server: list[float] = field(default_factory=list)
    writes: Counter[Sort] = field(default_factory=Counter)
    reads: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one controller alone takes to publish its part of the estate."""

    took: float  # seconds from the start of the process to its last write
    cpu: float  # seconds
    resident: float  # MiB
    writes: int


@dataclass
class Site:
    """A cluster with everything installed, in which no controller runs, and its admin."""

    plan: Plan
    environment: Environment
    client: Client
    target: Target
    audit: AuditLog
    process: ControllerProcess
    server: int  # pid


@contextmanager
def cluster(kind: str) -> Iterator[Environment]:
    """Starts an environment with CRDs, accounts and the topology, and ends it."""
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-bench-") as directory:
        place = Path(directory)
        with ControlPlane(place) if kind == LOCAL else SandboxEnvironment(place) as environment:
            _install(environment, "config/overlays/all-in-one", "crds/noderesourcetopology")
            environment.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")
            yield environment


def _install(environment: Environment, *directories: str) -> None:
    """Installs as a user would; the controllers run as processes instead of pods."""
    for directory in directories:
        environment.kubectl("apply", "--server-side", "-k", str(REPOSITORY / directory))
    environment.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)


async def measure(kind: str, environment: Environment, plan: Plan) -> list[Table | WriteList]:
    """All repeats, each with the bare writes before the controllers' own; then rest, and churn."""
    samples = Samples()
    async with _site(environment, plan) as site:
        for repeat in range(plan.estate_repeats):
            print(f"estate on {kind}, repeat {repeat + 1} of {plan.estate_repeats}", file=sys.stderr, flush=True)
            await _bare(site, samples)
            names = _names("node", plan.estate_nodes)
            await _make_nodes(site, pool_nodes(names))
            await _published(site, samples, names)
            if repeat + 1 < plan.estate_repeats:
                site.process.stop()
                await _clear(site)
        quiet = await _quiet(site)
        delays = await _churn(site, names)
        site.process.stop()
        apart = await _apart(site)
    publication = _table(kind, plan, samples), _write_list(kind, plan, samples)
    return [*publication, quiet, _delays(kind, plan, delays), *_apart_tables(kind, plan, apart)]


@asynccontextmanager
async def _site(environment: Environment, plan: Plan) -> AsyncIterator[Site]:
    transport = AiohttpTransport(Credentials(str(environment.admin_kubeconfig)), user_agent="bench")
    client = Client(transport, ClientOptions(field_manager="bench"))
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    # The account's own rights and its own place in the server's queues.
    target = Target.of(environment.kubeconfig_for(NAMESPACE, ACCOUNT))
    controllers = f"--controllers={','.join(PARTS)}"
    process = ControllerProcess(
        environment, package="all_in_one", account=ACCOUNT, name="all-in-one", arguments=(controllers,)
    )
    try:
        await client.apply_owned(ConfigMap, topology_config())
        yield Site(plan, environment, client, target, AuditLog(environment.layout.audit_log, user), process, _server())
    finally:
        await transport.close()


def _server() -> int:
    """The pid of the API server, or of the sandbox, below this process."""
    for process in psutil.Process().children(recursive=True):
        if process.name() == "kube-apiserver" or "controllers.sandbox" in process.cmdline():
            return int(process.pid)
    raise LookupError("no API server was started from here")


# -- bring-up ---------------------------------------------------------------------------------------------------------


async def _bare(site: Site, samples: Samples) -> None:
    """The same objects by nothing but writes, as many at a time as the controllers have workers; removed then."""
    made = await _make_nodes(site, plain_nodes(_names("bare", site.plan.estate_nodes)))
    requests = [request for number, node in enumerate(made) for request in bare_writes(site.target, node, number)]
    await site.audit.restart()
    busy = usage_of(site.server).cpu
    await lanes.crowd(site.target, requests, WRITERS * ManagerOptions().workers)
    written = await _settled(site, len(requests))
    samples.bare_server.append(usage_of(site.server).cpu - busy)
    samples.bare.append(written[-1].at - written[0].at)
    await _clear(site)


async def _published(site: Site, samples: Samples, names: Sequence[str]) -> None:
    """Starts the process and waits until it has published everything there is."""
    await site.audit.restart()
    busy = usage_of(site.server).cpu
    pid = site.process.start(wait=False)
    written = await _settled(site, sum(_writes_of(number) for number in range(len(names))))
    samples.server.append(usage_of(site.server).cpu - busy)
    usage, began = usage_of(pid), psutil.Process(pid).create_time()
    if missing := await _unpublished(site, names):
        raise AssertionError(f"{len(missing)} nodes are not published, such as {missing[0]}")
    samples.published.append(written[-1].at - written[0].at)
    samples.started.append(written[-1].at - began)
    samples.cpu.append(usage.cpu)
    samples.resident.append(usage.resident)
    episode = await site.audit.episode()
    samples.writes += episode.writes
    samples.reads += sum(episode.reads.values())


async def _settled(site: Site, least: int) -> list[Write]:
    """Waits for so many writes and until no more come; returns them in the order of their answers."""
    deadline, seen, since = time.monotonic() + PATIENCE, 0, time.monotonic()
    while seen < least or time.monotonic() - since < QUIET:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{seen} writes of {least} came in {PATIENCE:g} s (log: {site.process.log})")
        await asyncio.sleep(POLL)
        count = len(site.audit.events())
        if count != seen:
            seen, since = count, time.monotonic()
    written = sorted(site.audit.writes(), key=lambda write: write.at)
    # Garbage collection may be quicker than the withdrawal of what a deleted node had.
    refused = [write for write in written if write.code >= 300 and (write.sort[0], write.code) != ("delete", 404)]
    if refused:
        print(f"{len(refused)} writes were refused, the first: {refused[0]}", file=sys.stderr)
    return written


async def _unpublished(site: Site, names: Sequence[str]) -> list[str]:
    """The nodes of which something is missing."""
    found = {node.name: node for node in await site.client.list(Node)}
    kinds = (ConfigMap, API.slices, NodeResourceTopology)
    objects = {found.name for kind in kinds for found in await site.client.list(kind)} | found.keys()
    return [
        name
        for number, name in enumerate(names)
        if not objects.issuperset(_objects(name, number)) or not _is_complete(found[name], number)
    ]


def _objects(name: str, number: int) -> tuple[str, ...]:
    """The names of what there must be for a node; GPUs are in a slice or in the node itself."""
    found = object_names(name)
    return found if pool_of(number).offered == DRA else found[:-1]


def _is_complete(node: Node, number: int) -> bool:
    if "nvidia.com/gpu.present" not in node.labels:
        return False
    if pool_of(number).offered == DRA:
        return "nvidia.com/gpu.clique" in node.labels
    return GPU_RESOURCE in node.status.allocatable and node.condition(READY) is not None


async def _make_nodes(site: Site, manifests: Sequence[Manifest]) -> list[Node]:
    """Makes nodes and returns them once all of them can be used."""
    await load.create_all(site.client, Node, manifests, site.plan.in_flight)
    names = [manifest["metadata"]["name"] for manifest in manifests]
    deadline = time.monotonic() + PATIENCE
    while True:
        found = {node.name: node for node in await site.client.list(Node)}
        if all(name in found and found[name].ready for name in names):
            return [found[name] for name in names]
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(names)} nodes did not become ready in {PATIENCE:g} s")
        await asyncio.sleep(1.0)


async def _clear(site: Site) -> None:
    """Takes away the nodes and what was published for them, whoever would do so later."""
    config_maps = Selection(namespace=OPTIONS.namespace, labels=SELECTOR)
    kinds = ((Node, EVERYTHING), (ConfigMap, config_maps), (API.slices, EVERYTHING), (NodeResourceTopology, EVERYTHING))
    for kind, selection in kinds:
        await load.delete_all(site.client, await site.client.list(kind, selection), site.plan.in_flight)
    await asyncio.sleep(QUIET)


def _names(sort: str, count: int) -> list[str]:
    return [f"{sort}-{number}" for number in range(count)]


def _writes_of(number: int) -> int:
    """How many writes a node needs: two objects and the labels, and a slice, or capacity and condition."""
    return 5 if pool_of(number).offered == DRA else 6


# -- rest and churn ---------------------------------------------------------------------------------------------------


async def _quiet(site: Site) -> WriteList:
    await site.audit.restart()
    await asyncio.sleep(site.plan.estate_quiet_seconds)
    idle = await site.audit.episode()
    site.process.stop()
    await site.audit.restart()
    site.process.start()
    await asyncio.sleep(site.plan.estate_quiet_seconds)
    again = await site.audit.episode()
    title = f"Writes in {site.plan.estate_quiet_seconds:g} quiet seconds, and as many after a restart"
    reads = sum((idle.reads + again.reads).values())
    return WriteList(title, judged(idle.writes + again.writes, QUIET_ESTATE, 1), f" (and {reads:g} single reads)")


async def _churn(site: Site, old: Sequence[str]) -> list[float]:
    """Replaces nodes at a steady rate; returns how many seconds each new one took until all of it was written."""
    rate = site.plan.estate_nodes * site.plan.churn_per_minute / 60
    names = _names("new", max(1, int(rate * site.plan.churn_seconds)))
    made: dict[str, float] = {}
    present = {node.name: node for node in await site.client.list(Node)}

    async def replace(number: int, manifest: Manifest) -> None:
        made[names[number]] = time.time()
        await site.client.create(Node, manifest)
        await site.client.delete(present[old[number]])

    await site.audit.restart()
    await load.paced([partial(replace, *item) for item in enumerate(pool_nodes(names))], rate)
    written = await _settled(site, sum(_writes_of(number) for number in range(len(names))))
    if missing := await _unpublished(site, names):
        raise AssertionError(f"{len(missing)} new nodes are not published, such as {missing[0]}")
    node_of = {name: node for node in names for name in object_names(node)}
    # In the order of their times, so that the last one stays.
    last = {node_of[write.name]: write.at for write in written if write.name in node_of}
    return [last[name] - made[name] for name in names]


# -- each controller by itself --------------------------------------------------------------------------------------


async def _apart(site: Site) -> dict[str, Cost]:
    """What each controller costs as a process of its own, one after another on the same nodes; each finds nothing."""
    await _clear(site)
    names = _names("apart", site.plan.estate_nodes)
    await _make_nodes(site, pool_nodes(names))
    return {part: await _cost(site, part, names) for part in WRITES_OF}


async def _cost(site: Site, part: str, names: Sequence[str]) -> Cost:
    package, account = part.replace("-", "_"), f"gpu-mirage-{part}"
    _install(site.environment, f"config/base/{part}")
    process = ControllerProcess(site.environment, package=package, account=account, name=part)
    audit = AuditLog(site.environment.layout.audit_log, f"system:serviceaccount:{NAMESPACE}:{account}")
    await audit.restart()
    pid = process.start(wait=False)
    try:
        one = replace(site, process=process, audit=audit)
        written = await _settled(one, sum(WRITES_OF[part](number) for number in range(len(names))))
        usage, began = usage_of(pid), psutil.Process(pid).create_time()
    finally:
        process.stop()
    return Cost(written[-1].at - began, usage.cpu, usage.resident, len(written))


def _offers_slices(number: int) -> int:
    return int(pool_of(number).offered == DRA)


WRITES_OF: Mapping[str, Callable[[int], int]] = {
    "node-pool": lambda _number: 2,
    "extended-resource": lambda number: 1 - _offers_slices(number),
    "gpu-fractioning": lambda number: 1 - _offers_slices(number),  # sees what the one before it has written
    "gpu-slices": _offers_slices,
    "channel-slices": lambda _number: 1,
    "node-resource-topology": lambda _number: 1,
}
"""How many writes each controller has for a node, by the node's number."""


# -- reports ----------------------------------------------------------------------------------------------------------


def _table(kind: str, plan: Plan, samples: Samples) -> Table:
    rows = [
        Comparison("first write -> everything published", "s", samples.published, samples.bare, 1.3),
        Comparison("process started -> everything published", "s", samples.started, samples.bare),
        Comparison("CPU of the API server meanwhile", "s", samples.server, samples.bare_server),
    ]
    known = plan.estate_nodes == COMPARED
    absolute = [
        ("process started -> everything published", "s", samples.started, 40.0 / 2.5),
        ("CPU of the process until then", "s", samples.cpu, 5.9),
        ("resident memory then", "MiB", samples.resident, 189.0),
    ]
    rows += [
        Comparison(name, unit, ours, None, goal if known else None, absolute=True)
        for name, unit, ours, goal in absolute
    ]
    title = f"Estate of {plan.estate_nodes:,} nodes with 8 GPUs each on {NAMES[kind]}, all controllers in one process"
    return Table(title + NOTE, rows, base="bare writes")


def _delays(kind: str, plan: Plan, delays: Sequence[float]) -> Table:
    rows = [
        Comparison("p50", "s", [percentile(delays, 0.5)]),
        Comparison("p99", "s", [percentile(delays, 0.99)]),
    ]
    pace = f"{plan.churn_per_minute:.0%} of {plan.estate_nodes:,} nodes replaced per minute, {len(delays)} in all"
    return Table(f"{pace}, on {NAMES[kind]}: from the creation of a node until all of it is published", rows)


def _apart_tables(kind: str, plan: Plan, apart: Mapping[str, Cost]) -> list[Table]:
    title = f"Each controller in a process of its own, {plan.estate_nodes:,} nodes on {NAMES[kind]}"
    values: Sequence[tuple[str, str, Callable[[Cost], float]]] = (
        ("from its start to its last write", "s", lambda cost: cost.took),
        ("CPU until then", "s", lambda cost: cost.cpu),
        ("resident memory then", "MiB", lambda cost: cost.resident),
    )
    return [
        Table(f"{title}: {name}", [Comparison(part, unit, [value(cost)]) for part, cost in apart.items()])
        for name, unit, value in values
    ]


def _write_list(kind: str, plan: Plan, samples: Samples) -> WriteList:
    nodes = plan.estate_nodes * plan.estate_repeats
    title = f"Writes per node, over {plan.estate_nodes:,} nodes in two pools on {NAMES[kind]}"
    return WriteList(
        title, judged(samples.writes, PUBLICATION, nodes), f" (and {samples.reads / nodes:g} single reads)"
    )
