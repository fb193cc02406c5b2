"""Schedules: changes of the desired state and faults meanwhile, drawn from a seed."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

from controllers.estate import DRA
from tests.chaos.arena import LEASE_DURATION, Arena
from tests.chaos.audit import Event, code, creations, excess, is_renewal, is_write, without_lease
from tests.chaos.faults import AT_LEADERS, BEYOND_LEASES, Fault, menu
from tests.chaos.world import BASE_NODES, BASE_POOLS, World
from tests.integration.scenario import Manifest

STEPS = 3
SETTLING = 2.0  # seconds after which what followed from a schedule has been written
QUIET = 3.0  # seconds in which a write would have come
LONGEST_FAULT = 1.0  # seconds for which faults last after the change, beside what it takes to end them
VARIANTS: Mapping[str, Manifest] = {
    "fewer GPUs in racks": {
        "racks": {**BASE_POOLS["racks"], "gpu": {"profile": "b200", "offered": DRA, "overrides": {"device_count": 2}}}
    },
    "no zones in racks": {"racks": {key: value for key, value in BASE_POOLS["racks"].items() if key != "numa"}},
    "other old GPUs": {"old": {"gpuCount": 3}},
    "no zones in the hall": {"hall": {key: value for key, value in BASE_POOLS["hall"].items() if key != "numa"}},
    "the base": {},
}

Change = Callable[[Arena, Random], None]


@dataclass(frozen=True)
class Step:
    """A change, and what goes wrong around it."""

    change: str
    faults: tuple[Fault, ...]
    seconds: float

    def __str__(self) -> str:
        return f"{self.change} with {' and '.join(fault.words for fault in self.faults)} for {self.seconds:g} s"


@dataclass(frozen=True)
class Schedule:
    """What is to happen, of which the seed is all that need be known."""

    seed: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))


def draw(seed: int, environment: str, *, leader_elect: bool = False) -> Schedule:
    """The schedule of a seed in an environment."""
    chance = Random(seed)
    faults = menu(environment)
    first = {**AT_LEADERS, **BEYOND_LEASES} if leader_elect else faults

    def step() -> Step:
        name = chance.choice(sorted(first))
        others = [other for other in sorted(faults) if other != name]
        names = [name, *chance.sample(others, chance.choice((0, 0, 1)))]
        seconds = round(chance.uniform(0.0, LONGEST_FAULT), 2)
        return Step(
            chance.choice(sorted(CHANGES)), possible([{**faults, **first}[name](chance) for name in names]), seconds
        )

    return Schedule(seed, tuple(step() for _ in range(STEPS)))


def possible(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Those that can happen together, in order: what the server must be asked for comes before its own end.

    One end is enough, as an API server does not start without etcd.
    """
    ends = [fault for fault in faults if fault.deafens]
    return (*(fault for fault in faults if not fault.deafens), *ends[:1])


def play(arena: Arena, schedule: Schedule) -> list[Event]:
    """Plays a schedule from the base to the base again; returns what our controllers did.

    Fails where the cluster does not come to show what it should, or where the audit log tells of what must not be.
    """
    arena.world.allowed.clear()
    chance = Random(schedule.seed)
    for step in schedule.steps:
        _play_step(arena, step, chance)
    arena.world.wait_reached()
    arena.restore()
    events = arena.read_audit()
    judge(arena, events, restarted=any(fault.deafens for step in schedule.steps for fault in step.faults))
    return events


def _play_step(arena: Arena, step: Step, chance: Random) -> None:
    change = CHANGES[step.change]
    deaf = any(fault.deafens for fault in step.faults)
    if deaf:
        change(arena, chance)
        time.sleep(chance.uniform(0.0, 0.2))
    with ExitStack() as troubles:
        for fault in step.faults:
            troubles.enter_context(fault.strike(arena))
        if not deaf:
            change(arena, chance)
        time.sleep(step.seconds)


def judge(arena: Arena, events: list[Event], *, restarted: bool) -> None:
    """Demands that every child was made once, and nothing was written by anybody but the leader.

    A real server that was ``restarted`` denies everything until it has read who may do what.
    """
    repeated = excess(creations(events), arena.world.allowed)
    assert not repeated, f"made more often than once: {repeated}"
    strangers = {event["userAgent"] for event in events} - {replica.agent for replica in arena.replicas}
    assert not strangers, f"the audit log does not tell replicas apart: {strangers}"
    denied = [event["requestURI"] for event in events if code(event) in (401, 403)]
    assert restarted or not denied, f"denied: {denied}"
    if arena.leader_elect:
        usurped = without_lease(arena.history, LEASE_DURATION)
        assert not usurped, f"written without the Lease: {usurped}"


def demand_rest(arena: Arena) -> None:
    """Demands that nothing but Leases is written while nothing happens."""
    time.sleep(SETTLING)
    arena.read_audit()
    time.sleep(QUIET)
    written = [event["requestURI"] for event in arena.read_audit() if is_write(event) and not is_renewal(event)]
    assert not written, f"written though nothing happens: {written}"


# -- changes ----------------------------------------------------------------------------------------------------------


def add_domain(arena: Arena, chance: Random) -> None:
    used = set(arena.world.domains.values())
    free = [pair for pair in arena.pairs if pair not in used]
    if free:
        arena.world.add_domain(_name(arena, "domain"), chance.choice(free))


def delete_domain(arena: Arena, chance: Random) -> None:
    if arena.world.domains:
        arena.world.delete_domain(chance.choice(sorted(arena.world.domains)))
    else:
        add_domain(arena, chance)


def replace_domain(arena: Arena, chance: Random) -> None:
    delete_domain(arena, chance)
    add_domain(arena, chance)


def add_nodes(arena: Arena, chance: Random) -> None:
    for _ in range(2):
        pool = chance.choice(sorted(BASE_POOLS))
        arena.world.add_node(_name(arena, pool), pool)


def move_nodes(arena: Arena, chance: Random) -> None:
    """Moves nodes that are not of the base; there is at least one."""
    if not _others(arena.world):
        add_nodes(arena, chance)
    for name in _others(arena.world):
        arena.world.move_node(name, chance.choice(sorted(BASE_POOLS)))


def delete_nodes(arena: Arena, chance: Random) -> None:
    if not _others(arena.world):
        add_nodes(arena, chance)
    arena.world.delete_node(chance.choice(_others(arena.world)))


def reconfigure(arena: Arena, chance: Random) -> None:
    arena.world.set_pools({**BASE_POOLS, **VARIANTS[chance.choice(sorted(VARIANTS))]})


def _others(world: World) -> list[str]:
    return sorted(world.nodes.keys() - BASE_NODES.keys())


def _name(arena: Arena, kind: str) -> str:
    """A name that nothing in this arena had before."""
    arena.names += 1
    return f"{kind}-x{arena.names}"


CHANGES: Mapping[str, Change] = {
    "a new domain": add_domain,
    "the end of a domain": delete_domain,
    "a domain in place of another": replace_domain,
    "new nodes": add_nodes,
    "nodes that move": move_nodes,
    "the end of a node": delete_nodes,
    "other pools": reconfigure,
}
