"""Schedules of faults: whatever happens on the way, the cluster comes to show what it should; nothing is made twice.

Each is drawn from a seed and printed. `GPU_MIRAGE_CHAOS_SEED` is the first one, `GPU_MIRAGE_CHAOS_SCHEDULES` and
`GPU_MIRAGE_CHAOS_REAL_SCHEDULES` how many there are on the sandbox and on the real control plane.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hack.localcluster import LOCAL, SANDBOX
from tests.chaos.arena import Arena, opened
from tests.chaos.audit import codes
from tests.chaos.schedule import draw, play
from tests.integration.environments import BOTH

SEED_VARIABLE = "GPU_MIRAGE_CHAOS_SEED"
COUNT_VARIABLES = {SANDBOX: "GPU_MIRAGE_CHAOS_SCHEDULES", LOCAL: "GPU_MIRAGE_CHAOS_REAL_SCHEDULES"}
SMOKE = {SANDBOX: 5, LOCAL: 2}
KILLED = -int(signal.SIGKILL)


def seeds(environment: str) -> range:
    first = int(os.environ.get(SEED_VARIABLE, "1"))
    return range(first, first + int(os.environ.get(COUNT_VARIABLES[environment], SMOKE[environment])))


def repetition(environment: str, seed: int) -> str:
    """The command that plays one schedule again."""
    variables = f"{SEED_VARIABLE}={seed} {COUNT_VARIABLES[environment]}=1"
    return f"{variables} .venv/bin/python -m pytest tests/chaos/test_schedules.py -k {environment}"


class Arenas:
    """One arena of each sort, opened when it is first needed, and again after a schedule has failed in it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._open: dict[str, tuple[Arena, ExitStack]] = {}

    def of(self, environment: str) -> Arena:
        if environment in self._open and self._open[environment][0].broken:
            self.close(environment)
        if environment not in self._open:
            stack = ExitStack()
            arena = stack.enter_context(opened(environment, self._factory.mktemp(environment)))
            self._open[environment] = arena, stack
        return self._open[environment][0]

    def close(self, environment: str) -> None:
        self._open.pop(environment)[1].close()

    def close_all(self) -> None:
        for environment in list(self._open):
            self.close(environment)


@pytest.fixture(scope="module")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    found = Arenas(tmp_path_factory)
    yield found
    found.close_all()


@pytest.mark.parametrize(("environment", "seed"), [(each, seed) for each in BOTH for seed in seeds(each)])
def test_the_cluster_comes_to_show_what_it_should_and_every_child_is_made_once(
    environment: str, seed: int, arenas: Arenas, capsys: pytest.CaptureFixture[str]
) -> None:
    arena = arenas.of(environment)
    schedule = draw(seed, environment)
    with capsys.disabled():
        print(f"\n{environment} {seed}: {schedule}")
    exits = len(arena.supervisor.exits)
    try:
        events = play(arena, schedule)
        assert {code for _, code in arena.supervisor.exits[exits:]} <= {KILLED}
    except BaseException:
        arena.broken = True
        with capsys.disabled():
            print(f"logs: {arena.environment.data_dir}; to repeat it: {repetition(environment, seed)}")
        raise
    with capsys.disabled():
        print(f"answers by code: {dict(sorted(codes(events).items()))}")
