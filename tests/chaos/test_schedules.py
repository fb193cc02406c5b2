"""Schedules of faults: whatever happens on the way, the cluster comes to show what it should; nothing is made twice.

Each is drawn from a seed and printed. `GPU_MIRAGE_CHAOS_SEED` is the first one, `GPU_MIRAGE_CHAOS_SCHEDULES` and
`GPU_MIRAGE_CHAOS_REAL_SCHEDULES` how many there are on the sandbox and on the real control plane; for each four of them
another one is played with two replicas that elect a leader.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from controllers.runtime.options import ManagerOptions
from hack.localcluster import LOCAL, SANDBOX
from tests.chaos.arena import Arena, opened
from tests.chaos.audit import codes
from tests.chaos.schedule import demand_rest, draw, play
from tests.integration.environments import BOTH

SEED_VARIABLE = "GPU_MIRAGE_CHAOS_SEED"
COUNT_VARIABLES = {SANDBOX: "GPU_MIRAGE_CHAOS_SCHEDULES", LOCAL: "GPU_MIRAGE_CHAOS_REAL_SCHEDULES"}
SMOKE = {SANDBOX: range(98, 102), LOCAL: range(69, 71)}
"""Seeds of which few have most sorts of faults."""
ELECTIONS = 4  # schedules for each of which one with an election is played
KILLED = -int(signal.SIGKILL)
LEADERSHIP_LOST = 1
CAN_ELECT = hasattr(ManagerOptions(), "leader_elect")


@dataclass(frozen=True)
class Sort:
    """Where schedules are played, and by how many replicas."""

    environment: str
    leader_elect: bool

    def __str__(self) -> str:
        return f"{self.environment}-leaders" if self.leader_elect else self.environment

    @property
    def exits(self) -> set[int]:
        """How replicas may end: by our hands, and where they are no longer the leader."""
        return {KILLED, LEADERSHIP_LOST} if self.leader_elect else {KILLED}

    def seeds(self) -> range:
        smoke = SMOKE[self.environment]
        first = int(os.environ.get(SEED_VARIABLE, smoke.start))
        count = int(os.environ.get(COUNT_VARIABLES[self.environment], len(smoke)))
        return range(first, first + (-(-count // ELECTIONS) if self.leader_elect else count))

    def repetition(self, seed: int) -> str:
        """The command that plays one schedule again."""
        variables = f"{SEED_VARIABLE}={seed} {COUNT_VARIABLES[self.environment]}=1"
        return f"{variables} .venv/bin/python -m pytest 'tests/chaos/test_schedules.py' -k '{self}-{seed}'"


class Arenas:
    """One arena of each sort, opened when it is first needed, and again after a schedule has failed in it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._sort: Sort | None = None
        self._arena: Arena | None = None
        self._stack = ExitStack()

    def of(self, sort: Sort) -> Arena:
        """Closes the one of another sort before: a machine with two cores has no room for two."""
        if self._arena is None or self._sort != sort or self._arena.broken:
            self.close()
            directory = self._factory.mktemp(str(sort))
            context = opened(sort.environment, directory, leader_elect=sort.leader_elect)
            self._sort, self._arena = sort, self._stack.enter_context(context)
        return self._arena

    def close(self) -> None:
        self._arena = None
        self._stack.close()


@pytest.fixture(scope="module")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    found = Arenas(tmp_path_factory)
    yield found
    found.close()


def cases() -> Iterator[object]:
    for environment in BOTH:
        marks = [pytest.mark.control_plane] if environment == LOCAL else []
        for sort in (Sort(environment, leader_elect=False), Sort(environment, leader_elect=True)):
            if sort.leader_elect and not CAN_ELECT:
                continue
            for seed in sort.seeds():
                yield pytest.param(sort, seed, id=f"{sort}-{seed}", marks=marks)


@pytest.mark.parametrize(("sort", "seed"), list(cases()))
def test_the_cluster_comes_to_show_what_it_should_and_every_child_is_made_once(
    sort: Sort, seed: int, arenas: Arenas, capsys: pytest.CaptureFixture[str]
) -> None:
    arena = arenas.of(sort)
    schedule = draw(seed, sort.environment, leader_elect=sort.leader_elect)
    with capsys.disabled():
        print(f"\n{sort} {seed}: {schedule}")
    exits = len(arena.supervisor.exits)
    try:
        events = play(arena, schedule)
        if seed == sort.seeds()[-1]:
            demand_rest(arena)
        assert {code for _, code in arena.supervisor.exits[exits:]} <= sort.exits
    except BaseException as error:
        arena.broken = True
        with capsys.disabled():
            print(f"{error}\nlogs: {arena.environment.data_dir}; to repeat it: {sort.repetition(seed)}")
        raise
    with capsys.disabled():
        print(f"answers by code: {dict(sorted(codes(events).items()))}")
