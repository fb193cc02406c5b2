"""The sandbox as its clients feel it: requests per second, watch latency, memory and start, from another process."""

import asyncio
import contextlib
import gc
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from hack.bench import lanes
from hack.bench.lanes import Listener, Target
from hack.bench.plan import Plan
from hack.bench.report import Comparison, Table
from hack.bench.statistics import percentile
from hack.bench.usage import usage_of

START_TIMEOUT = 60.0  # seconds
POLL = 0.002  # seconds between looks whether a process is up
MAPS = "/api/v1/namespaces/default/configmaps"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STAMP = b'"due":"'
TIMER, TIMERS = 0.002, 500  # seconds, and how many of them tell how busy the machine is
SETTLED = 2.0  # seconds within which the last event must have come


@dataclass(frozen=True, slots=True)
class Server:
    """A running server in a process of its own."""

    pid: int
    target: Target
    started_in: float  # seconds

    def cpu(self) -> float:
        """Seconds that it has worked."""
        return usage_of(self.pid).cpu


@dataclass(slots=True)
class Rates:
    """What the repeats gave: requests per second, and the server's CPU time per request in microseconds."""

    rate: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def add(self, server: Server, requests: list[bytes], in_flight: int) -> None:
        cpu = server.cpu()
        with undisturbed():
            seconds = await lanes.crowd(server.target, requests, in_flight)
        self.rate.append(len(requests) / seconds)
        self.cpu.append((server.cpu() - cpu) / len(requests) * 1e6)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps this process from collecting garbage: what it costs here is not the server's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(plan: Plan) -> list[Table]:
    """Everything, each figure beside its goal."""
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-bench-") as directory:
        place = Path(directory)
        speed = uvloop.run(_speed(plan, place))
        delays = uvloop.run(_fan_out(plan, place))
        return [speed, delays, _start(plan, place), uvloop.run(_memory(plan, place))]


@contextlib.contextmanager
def running(module: str, place: Path, *arguments: str) -> Iterator[Server]:
    """Runs a server that writes a kubeconfig when it is up."""
    kubeconfig = place / f"{module}.kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", module, *(argument.format(kubeconfig) for argument in arguments)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not kubeconfig.exists():
            if process.poll() is not None or time.perf_counter() - began > START_TIMEOUT:
                raise ConnectionError(f"{' '.join(command)} did not start")
            time.sleep(POLL)
        yield Server(process.pid, Target.of(kubeconfig), time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


def sandbox(place: Path) -> contextlib.AbstractContextManager[Server]:
    return running("controllers.sandbox", place, "--port", "0", "--kubeconfig", "{}")


def config_map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app": "bench"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def _speed(plan: Plan, place: Path) -> Table:
    bare, creates, applies, gets = Rates(), Rates(), Rates(), Rates()
    with running("hack.bench.reference", place, "{}") as reference, sandbox(place) as server:
        for repeat in range(plan.repeats):
            names = [f"map-{repeat}-{number}" for number in range(plan.requests)]
            request = server.target.request
            create = [request("POST", MAPS, config_map(name, a="b")) for name in names]
            query = "?fieldManager=bench&force=true"
            apply = [request("PATCH", f"{MAPS}/{name}{query}", config_map(name, c=name), APPLY) for name in names]
            get = [request("GET", f"{MAPS}/{name}") for name in names]
            await bare.add(reference, create, plan.in_flight)
            await creates.add(server, create, plan.in_flight)
            await applies.add(server, apply, plan.in_flight)
            await gets.add(server, get, plan.in_flight)
    base = bare.rate
    rows = [
        Comparison("creates", "/s", creates.rate, base, 1500.0, higher_is_better=True, absolute=True),
        Comparison("applies", "/s", applies.rate, base, 1000.0, higher_is_better=True, absolute=True),
        Comparison("gets", "/s", gets.rate, base),
        Comparison("server's CPU time per create", "us", creates.cpu, bare.cpu),
        Comparison("server's CPU time per apply", "us", applies.cpu, bare.cpu),
        Comparison("server's CPU time per get", "us", gets.cpu, bare.cpu),
    ]
    title = f"Sandbox: {plan.requests:,} small objects, {plan.in_flight} requests in flight, TLS"
    return Table(title, rows, base="bare aiohttp")


async def _fan_out(plan: Plan, place: Path) -> Table:
    half, most, cpu, idle_half, idle_most = [], [], [], [], []
    with sandbox(place) as server:
        for repeat in range(plan.repeats):
            late = await _late_timers()
            idle_half.append(percentile(late, 0.5) * 1000)
            idle_most.append(percentile(late, 0.99) * 1000)
            busy = server.cpu()
            delays = await _delays(server.target, f"watched-{repeat}", plan)
            cpu.append((server.cpu() - busy) / plan.events * 1e6)
            half.append(percentile(delays, 0.5) * 1000)
            most.append(percentile(delays, 0.99) * 1000)
    rows = [
        Comparison("p50", "ms", half, idle_half),
        Comparison("p99", "ms", most, idle_most, goal=20.0, absolute=True),
        Comparison("server's CPU time per event", "us", cpu),
    ]
    pace = f"{plan.events_rate:,.0f} changes per second to each of {plan.watchers} watchers"
    title = f"Sandbox: {pace}, from when a write is due until its event has come"
    return Table(title, rows, base="timer, nothing going on")


async def _late_timers() -> list[float]:
    """How many seconds late short timers fire in this process while it does nothing else: the machine's own delays."""
    late = []
    for _ in range(TIMERS):
        due = time.perf_counter() + TIMER
        await asyncio.sleep(TIMER)
        late.append(max(time.perf_counter() - due, 1e-6))
    return late


async def _delays(target: Target, name: str, plan: Plan) -> list[float]:
    """Seconds from when each change was due until each watcher had it."""
    delays: list[float] = []

    def arrived(line: bytes) -> None:
        at = line.find(STAMP)
        if at >= 0:
            start = at + len(STAMP)
            delays.append(time.perf_counter() - float(line[start : line.index(b'"', start)]))

    def change(_: int, due: float) -> bytes:
        return target.request("PATCH", f"{MAPS}/{name}", {"data": {"due": f"{due:.6f}"}}, MERGE)

    await lanes.crowd(target, [target.request("POST", MAPS, config_map(name))], 1)
    listeners = [Listener(arrived) for _ in range(plan.watchers)]
    async with lanes.connected(target, listeners):
        for listener in listeners:
            listener.send(target.request("GET", f"{MAPS}?watch=true"))
        await asyncio.sleep(SETTLED)
        delays.clear()
        with undisturbed():
            await lanes.pace(target, change, plan.events, plan.events_rate, plan.in_flight)
            await asyncio.sleep(SETTLED)
    missing = plan.events * plan.watchers - len(delays)
    if missing:
        raise ConnectionError(f"{missing} events did not come")
    return delays


def _start(plan: Plan, place: Path) -> Table:
    seconds = []
    for _ in range(plan.repeats):
        with sandbox(place) as server:
            seconds.append(server.started_in)
    row = Comparison("until the kubeconfig is there", "s", seconds, goal=1.0, absolute=True)
    return Table("Sandbox: start", [row])


async def _memory(plan: Plan, place: Path) -> Table:
    with sandbox(place) as server:
        empty = usage_of(server.pid).resident
        request = server.target.request
        nodes = (request("POST", NODES, node(number)) for number in range(plan.sandbox_nodes))
        pods = (request("POST", PODS, pod(number, plan)) for number in range(plan.sandbox_pods))
        await lanes.crowd(server.target, itertools.chain(nodes, pods), plan.in_flight)
        full = usage_of(server.pid).resident
    # The goal is for the full number; fewer objects say nothing about it.
    goal = 1.2 * 1024 if plan.sandbox_pods >= 30_000 else None
    rows = [
        Comparison("empty", "MiB", [empty]),
        Comparison("with them", "MiB", [full], goal=goal, absolute=True),
    ]
    return Table(f"Sandbox: resident memory with {plan.sandbox_nodes:,} nodes and {plan.sandbox_pods:,} pods", rows)


def node(number: int) -> dict[str, Any]:
    labels = {f"example.com/label-{label}": "value" for label in range(10)}
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {"metadata": {"name": f"node-{number}", "labels": labels}, "status": {"capacity": capacity}}


def pod(number: int, plan: Plan) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example.com/worker:1.0",
        "env": [{"name": "VARIABLE", "value": "value"}],
        "resources": {"limits": {"cpu": "1"}},
    }
    spec = {"nodeName": f"node-{number % plan.sandbox_nodes}", "containers": [container]}
    return {"metadata": {"name": f"pod-{number}", "labels": {"app": "worker"}}, "spec": spec}
