"""Schedules are drawn so that a seed is all that is needed to repeat one, and so that all that can happen does."""

from random import Random

import pytest

from hack.localcluster import LOCAL, SANDBOX
from tests.chaos.faults import Fault, compacted, menu, server_killed
from tests.chaos.schedule import CHANGES, STEPS, draw, possible
from tests.integration.environments import BOTH

MANY = 400


@pytest.mark.parametrize("environment", BOTH)
@pytest.mark.parametrize("leader_elect", [False, True])
def test_a_seed_is_always_the_same_schedule(environment: str, leader_elect: bool) -> None:
    first, second = (str(draw(7, environment, leader_elect=leader_elect)) for _ in range(2))
    assert first == second
    assert first != str(draw(8, environment, leader_elect=leader_elect))


@pytest.mark.parametrize("environment", BOTH)
def test_every_change_and_every_sort_of_fault_is_drawn(environment: str) -> None:
    steps = [step for seed in range(MANY) for step in draw(seed, environment).steps]
    assert len(steps) == MANY * STEPS
    assert {step.change for step in steps} == set(CHANGES)
    words = {fault.words.split(" ")[0] for step in steps for fault in step.faults}
    assert words >= {make(Random(0)).words.split(" ")[0] for make in menu(environment).values()}


def test_a_server_is_ended_once_in_a_step_and_only_after_it_was_asked_for_the_rest() -> None:
    calm = Fault("a compaction", compacted)
    etcd, server = (Fault(f"the end of {what}", server_killed, deafens=True) for what in ("etcd", "the server"))
    assert possible([etcd, calm]) == (calm, etcd)
    assert possible([etcd, server]) == (etcd,)


def test_each_environment_has_faults_of_its_own() -> None:
    assert menu(SANDBOX).keys() - menu(LOCAL).keys() >= {"lost answers", "forgotten versions"}
    assert menu(LOCAL).keys() - menu(SANDBOX).keys() >= {"kill-etcd", "out-of-share"}
