"""The framework alone, without a cluster: its queue and its loop, and beside other libraries' its informer.

Every library works in processes of its own against a server of prepared answers, without TLS and in JSON, in turns and
several times. What is compared is CPU time and memory, which a busy machine changes less than it does the time.
"""

import asyncio
import time
from collections.abc import Sequence

from controllers.runtime import Client, ClientOptions, Key, Manager
from controllers.runtime.options import ManagerOptions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.transport import AiohttpTransport, Credentials
from controllers.runtime.workqueue import AsyncWorkQueue
from hack.bench import contest
from hack.bench.contest import CLIENT_GO, FRAMEWORK, KOPF, OFFICIAL, Entrant, Figures, Server, Standings
from hack.bench.objects import POD_BYTES
from hack.bench.plan import Plan
from hack.bench.report import Comparison, Table

FEW_PENDING = 1000  # keys in a queue whose workers keep up
MS = 1000.0  # per second
KIB = 1024.0  # per MiB
TICK, IDLE_TIMERS = 0.001, 1000  # seconds, and how many such timers tell how busy the machine is


def measure(plan: Plan) -> list[Table]:
    """Everything. Where a library is missing its rows are, and a line says why."""
    present, absent = contest.entrants()
    for name, reason in absent.items():
        print(f"not compared with {name}: {reason}\n")
    with contest.canned(pods=plan.pods) as server:
        tables = [_listing(plan, server, present), _watching(plan, server, present), _latency(plan, server, present)]
    return [_queue(plan), _loop(plan), *tables, _nodes(plan), _stall(plan)]


# -- in this process --------------------------------------------------------------------------------------------------


def _queue(plan: Plan) -> Table:
    rows = []
    for name, pending in (("all pending at once", plan.queue_keys), (f"{FEW_PENDING:,} pending", FEW_PENDING)):
        ours, base = [], []
        for _ in range(plan.repeats):
            ours.append(plan.queue_keys / asyncio.run(_through_work_queue(plan.queue_keys, pending)) / 1000)
            base.append(plan.queue_keys / asyncio.run(_through_plain_queue(plan.queue_keys, pending)) / 1000)
        rows.append(Comparison(name, "k/s", ours, base, 300.0, higher_is_better=True, absolute=True))
    title = f"Work queue, {plan.queue_keys:,} keys added, got and done, per second of CPU time"
    return Table(title, rows, base="asyncio.Queue")


async def _through_work_queue(count: int, pending: int) -> float:
    """CPU seconds for so many keys, so many of them at a time."""
    queue = AsyncWorkQueue[Key]()
    keys = _keys(count)
    began = time.process_time()
    for begin in range(0, count, pending):
        some = keys[begin : begin + pending]
        for key in some:
            queue.add(key)
        for _ in some:
            item = await queue.get()
            assert item is not None
            queue.done(item.key)
    return time.process_time() - began


async def _through_plain_queue(count: int, pending: int) -> float:
    queue: asyncio.Queue[Key] = asyncio.Queue()
    keys = _keys(count)
    began = time.process_time()
    for begin in range(0, count, pending):
        some = keys[begin : begin + pending]
        for key in some:
            queue.put_nowait(key)
        for _ in some:
            await queue.get()
            queue.task_done()
    return time.process_time() - began


def _keys(count: int) -> list[Key]:
    return [Key("default", f"object-{number}") for number in range(count)]


class _Nothing:
    """A reconciler that does nothing but count."""

    def __init__(self, count: int) -> None:
        self.done = asyncio.Event()
        self._left = count

    async def reconcile(self, _: Request) -> Result:
        self._left -= 1
        if self._left == 0:
            self.done.set()
        return DONE


def _loop(plan: Plan) -> Table:
    rates = [plan.reconciles / asyncio.run(_through_controller(plan.reconciles)) / 1000 for _ in range(plan.repeats)]
    row = Comparison("reconciles that do nothing", "k/s", rates, goal=20.0, higher_is_better=True, absolute=True)
    return Table(f"Controller, {plan.reconciles:,} keys, with metrics and log fields, per second of CPU time", [row])


async def _through_controller(count: int) -> float:
    """CPU seconds for so many keys through a whole controller. No request is sent."""
    client = Client(AiohttpTransport(Credentials()), ClientOptions(field_manager="bench"))
    reconciler = _Nothing(count)
    controller = Manager(client, ManagerOptions()).controller("bench").reconciles_with(reconciler)
    keys = _keys(count)
    began = time.process_time()
    for key in keys:
        controller.enqueue(key)
    running = asyncio.create_task(controller.run())
    await reconciler.done.wait()
    seconds = time.process_time() - began
    controller.stop()
    await running
    return seconds


# -- beside other libraries -------------------------------------------------------------------------------------------


def _listing(plan: Plan, server: Server, entrants: Sequence[Entrant]) -> Table:
    cpu, seconds, memory = Standings(), Standings(), Standings()
    for _ in range(plan.repeats):
        for entrant in entrants:
            one, every = _one_and_all(entrant, server, "list", "pods", plan.pods)
            cpu.add(entrant, every.told["cpu"] - one.told["cpu"])
            seconds.add(entrant, every.told["seconds"] - one.told["seconds"])
            if entrant.name != KOPF:  # which keeps no objects
                memory.add(entrant, _kib_each(one, every, plan.pods))
    rows = [
        *cpu.rows("CPU time", "s", {OFFICIAL: 0.1, CLIENT_GO: 1.5}),
        *seconds.rows("time", "s"),
        *memory.rows("memory per object", "KiB", {OFFICIAL: 0.1}),
    ]
    size = POD_BYTES // 1024
    return Table(f"List of {plan.pods:,} pods of {size} KB, until every handler has heard of all", rows, base="other")


def _one_and_all(entrant: Entrant, server: Server, mode: str, resource: str, count: int) -> tuple[Figures, Figures]:
    """What a process costs that lists a single object, and one that lists all: the rest is what the objects cost."""
    server.tell("show", **{resource: 1})
    one = contest.run(entrant, server, mode, objects=1)
    server.tell("show", **{resource: count})
    return one, contest.run(entrant, server, mode, objects=count)


def _kib_each(one: Figures, every: Figures, count: int) -> float:
    return (every.resident - one.resident) * KIB / (count - 1)


def _watching(plan: Plan, server: Server, entrants: Sequence[Entrant]) -> Table:
    rates = Standings()
    for _ in range(plan.repeats):
        for entrant in entrants:
            figures = contest.run(entrant, server, "watch", objects=plan.pods, events=plan.pods)
            rates.add(entrant, plan.pods / figures.told["cpu"] / 1000)
    goal = Comparison("alone", "k/s", rates.ours, goal=15.0, higher_is_better=True, absolute=True)
    rows = [goal, *rates.rows("", "k/s", higher_is_better=True)]
    return Table(f"Watch, a burst of {plan.pods:,} events, per second of CPU time", rows, base="other")


def _latency(plan: Plan, server: Server, entrants: Sequence[Entrant]) -> Table:
    half, most = Standings(), Standings()
    count = min(plan.pods, plan.events)
    for _ in range(plan.repeats):
        for entrant in entrants:
            figures = contest.run(entrant, server, "latency", objects=plan.pods, events=count, rate=plan.events_rate)
            half.add(entrant, figures.told["p50"] * MS)
            most.add(entrant, figures.told["p99"] * MS)
    rows = [
        Comparison("p99, alone", "ms", most.ours, goal=5.0, absolute=True),
        *half.rows("p50", "ms"),
        *most.rows("p99", "ms"),
    ]
    title = f"From the server's event until it is reconciled, {plan.events_rate:,.0f} events per second"
    return Table(title, rows, base="other")


def _nodes(plan: Plan) -> Table:
    count = plan.resident
    with contest.canned(nodes=count) as server:
        runs = [_one_and_all(FRAMEWORK, server, "nodes", "nodes", count) for _ in range(plan.repeats)]
    each = [_kib_each(one, every, count) for one, every in runs]
    row = Comparison("memory per node", "KiB", each, goal=3.0, absolute=True)
    return Table(f"Cache of {plan.resident:,} nodes, as the estate's controllers read them", [row])


def _stall(plan: Plan) -> Table:
    longest, idle = [], []
    with contest.canned(pods=plan.stalled) as server:
        for _ in range(plan.repeats):
            idle.append(asyncio.run(_idle_stall()) * MS)
            longest.append(contest.run(FRAMEWORK, server, "stall", objects=plan.stalled).told["longest"] * MS)
    row = Comparison("longest stall of the event loop", "ms", longest, idle, 30.0, absolute=True)
    return Table(f"List of {plan.stalled:,} pods, page by page", [row], base="nothing going on")


async def _idle_stall() -> float:
    """How late a short timer is at most in a process that does nothing else: the machine's own delays."""
    late = 0.0
    for _ in range(IDLE_TIMERS):
        due = time.perf_counter() + TICK
        await asyncio.sleep(TICK)
        late = max(late, time.perf_counter() - due)
    return late
