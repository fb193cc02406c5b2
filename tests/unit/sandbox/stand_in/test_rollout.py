"""The arithmetic of rollouts, also as a property over many ways that pods can come and go."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.sandbox.stand_in.kinds import ReplicaSet
from controllers.sandbox.stand_in.rollout import Rule, next_sizes, rule_of, size
from tests.unit.sandbox.stand_in.objects import deployment, replica_set


@pytest.mark.parametrize(
    ("replicas", "strategy", "rule"),
    [
        (4, {}, Rule(4, 1, 1, recreate=False)),
        (3, {}, Rule(3, 1, 0, recreate=False)),
        (10, {"rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}, Rule(10, 3, 0, recreate=False)),
        (2, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}, Rule(2, 0, 1, recreate=False)),
        (4, {"type": "Recreate"}, Rule(4, 0, 0, recreate=True)),
    ],
)
def test_rule_of_a_strategy(replicas: int, strategy: dict[str, Any], rule: Rule) -> None:
    assert rule_of(deployment(replicas=replicas, strategy=strategy)) == rule


RULE = Rule(4, 1, 1, recreate=False)


@pytest.mark.parametrize(
    ("new", "old", "sizes"),
    [
        ((0, 0), (4, 4), {"new": 1, "old": 4}),  # up as far as surge allows
        ((1, 0), (4, 4), {"new": 1, "old": 3}),  # one may be missing
        ((1, 0), (3, 3), {"new": 2, "old": 3}),
        ((2, 0), (3, 3), {"new": 2, "old": 3}),  # nothing new is available yet
        ((2, 1), (3, 3), {"new": 2, "old": 2}),
        ((1, 0), (4, 1), {"new": 1, "old": 3}),  # of the old ones those go first that do not run
        ((4, 4), (1, 1), {"new": 4, "old": 0}),
        ((6, 6), (0, 0), {"new": 4, "old": 0}),  # the wanted number has shrunk
    ],
)
def test_one_step(new: tuple[int, int], old: tuple[int, int], sizes: dict[str, int]) -> None:
    assert next_sizes(RULE, replica_set("new", *new), [replica_set("old", *old)]) == sizes


def test_recreate_waits_until_the_old_pods_are_gone() -> None:
    rule = Rule(4, 0, 0, recreate=True)
    assert next_sizes(rule, replica_set("new", 0), [replica_set("old", 4)]) == {"new": 0, "old": 0}
    assert next_sizes(rule, replica_set("new", 0), [replica_set("old", 0, pods=1)]) == {"new": 0, "old": 0}
    assert next_sizes(rule, replica_set("new", 0), [replica_set("old", 0)]) == {"new": 4, "old": 0}


@given(st.data())
def test_rollout_keeps_its_bounds_and_ends_whatever_becomes_available_first(data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, 8))
    surge = data.draw(st.integers(0, 3))
    unavailable = data.draw(st.integers(0 if surge else 1, 3))
    rule = Rule(wanted, surge, unavailable, recreate=False)
    sets = {
        "new": replica_set("new", 0),
        "a": replica_set("a", wanted // 2),
        "b": replica_set("b", wanted - wanted // 2),
    }
    for _ in range(200):
        sizes = next_sizes(rule, sets["new"], [sets["a"], sets["b"]])
        assert sum(sizes.values()) <= max(rule.most, sum(size(entry) for entry in sets.values()))
        settled = all(available(sets[name]) == sizes[name] == size(sets[name]) for name in sets)
        sets = {name: grown(data, entry, sizes[name]) for name, entry in sets.items()}
        assert sum(available(entry) for entry in sets.values()) >= wanted - unavailable
        if settled:
            break
    assert {name: size(entry) for name, entry in sets.items()} == {"new": wanted, "a": 0, "b": 0}


def available(entry: ReplicaSet) -> int:
    return int(entry.status["availableReplicas"])


def grown(data: st.DataObject, entry: ReplicaSet, to: int) -> ReplicaSet:
    """A ReplicaSet a while after it was given a size: what is too much is gone, some of what lacked is ready."""
    ready = min(available(entry), to)
    # At least one gets ready each time, or nothing would ever end.
    more = data.draw(st.integers(min(1, to - ready), to - ready)) if to > ready else 0
    return replica_set(entry.name, to, ready + more)
