"""Whatever comes and goes, the plan of a domain keeps its promises."""

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controllers.api import nvidia
from controllers.api.core import POOL_LABEL, Node
from controllers.api.nvidia import DomainNode
from controllers.compute_domain.membership import Membership, Rules, clique_of, plan
from tests.unit.compute_domain.world import FABRIC, OTHER_UID, UID, domain, entry, node

NAMES = tuple(f"n{number}" for number in range(9))
CLIQUES = ("", f"{FABRIC}.1", f"{FABRIC}.2", "garbage")
DOMAIN = domain()


@dataclass(frozen=True)
class Step:
    """One state of the cluster: the nodes that exist, and on which of the names claims hold a channel."""

    nodes: dict[str, Node]
    claimed: frozenset[str]
    admits_new: bool = True


@dataclass
class History:
    steps: list[Step] = field(default_factory=list)
    limit: int = 3
    stray: tuple[DomainNode, ...] = ()


# Made once: building a node costs more than planning for it. What is common comes more often than what is odd.
VARIANTS = [
    node(name, clique=clique, pool=pool, owner=owner, ready=ready)
    for name, clique, pool, owner, ready in itertools.product(
        NAMES, (*CLIQUES, *CLIQUES[1:3]), (True, True, False), ("", "", UID, OTHER_UID), (True, False)
    )
]
NODES = st.lists(st.sampled_from(VARIANTS), unique_by=lambda each: each.name).map(
    lambda nodes: {each.name: each for each in nodes}
)
STEPS = st.builds(Step, NODES, st.frozensets(st.sampled_from(NAMES)), st.booleans() | st.just(True))
STRAY = st.builds(
    lambda name, index, clique: entry(name, index, clique),
    st.sampled_from(NAMES),
    st.integers(-2, 20),
    st.sampled_from(CLIQUES),
)
HISTORIES = st.builds(
    History, st.lists(STEPS, min_size=1, max_size=6), st.integers(1, 5), st.lists(STRAY, max_size=8).map(tuple)
)


def planned(step: Step, previous: tuple[DomainNode, ...], limit: int) -> Membership:
    nodes = {name: step.nodes.get(name) for name in step.claimed}
    return plan(DOMAIN, step.claimed, nodes, previous, Rules(POOL_LABEL, limit, step.admits_new))


def check(step: Step, previous: tuple[DomainNode, ...], now: Membership, limit: int) -> None:
    names = [member.name for member in now.members]
    assert names == sorted(set(names))
    indices: dict[str, list[int]] = {}
    for member in now.members:
        live = step.nodes[member.name]
        assert POOL_LABEL in live.labels
        assert live.labels.get(nvidia.DOMAIN_KEY, UID) == UID
        assert member.clique_id == clique_of(live)
        assert member.status == (nvidia.READY if live.ready else nvidia.NOT_READY)
        if member.clique_id:
            indices.setdefault(member.clique_id, []).append(member.index)
        else:
            assert member.index == -1
    for held in indices.values():
        assert len(held) == len(set(held)) <= limit
        assert all(0 <= index < limit for index in held)
    check_everybody_is_accounted_for(step, previous, now)


def check_everybody_is_accounted_for(step: Step, previous: tuple[DomainNode, ...], now: Membership) -> None:
    members = {member.name for member in now.members}
    refused = {refusal.node for refusal in now.refused}
    assert not members & refused
    known = {entry.name for entry in previous}
    candidates = {name for name in step.claimed if name in step.nodes and (step.admits_new or name in known)}
    assert members | refused == candidates
    eligible = {
        name
        for name in candidates
        if POOL_LABEL in step.nodes[name].labels and step.nodes[name].labels.get(nvidia.DOMAIN_KEY, UID) == UID
    }
    full = {refusal.node for refusal in now.refused if refusal.reason == "CliqueFull"}
    assert members | full == eligible


def check_who_stays_keeps_its_index(before: Membership, now: Membership) -> None:
    held = {(member.name, member.clique_id): member.index for member in before.members}
    for member in now.members:
        assert held.get((member.name, member.clique_id), member.index) == member.index


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES)
def test_a_plan_keeps_its_promises_through_any_history(history: History) -> None:
    before = Membership(())
    for number, step in enumerate(history.steps):
        previous = before.members if number else history.stray
        now = planned(step, previous, history.limit)
        check(step, previous, now, history.limit)
        if number:
            check_who_stays_keeps_its_index(before, now)
        before = now


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.lists(STRAY, max_size=8), st.integers(1, 5))
def test_a_plan_is_the_same_every_time_and_stands_once_it_is_made(
    step: Step, previous: list[DomainNode], limit: int
) -> None:
    first = planned(step, tuple(previous), limit)
    backwards = Step(dict(reversed(step.nodes.items())), frozenset(sorted(step.claimed, reverse=True)), step.admits_new)
    assert planned(backwards, tuple(previous), limit) == first
    assert planned(step, first.members, limit).members == first.members


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, STEPS, st.integers(1, 5))
def test_a_member_is_never_pushed_out_by_a_newcomer(first: Step, second: Step, limit: int) -> None:
    before = planned(first, (), limit)
    grown = Step({**second.nodes, **first.nodes}, first.claimed | second.claimed)
    now = planned(grown, before.members, limit)
    assert {member.name for member in before.members} <= {member.name for member in now.members}
