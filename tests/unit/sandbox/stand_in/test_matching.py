"""Selectors, taints and tolerations."""

from typing import Any

import pytest

from controllers.sandbox.stand_in.matching import (
    lifecycle_taints,
    matches_labels,
    matches_node,
    selects,
    tolerates_all,
)
from tests.unit.sandbox.stand_in.objects import node, pod

LABELS = {"zone": "a", "rank": "3"}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"zone": "a"}}, True),
        ({"matchLabels": {"zone": "b"}}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["2"]}]}, True),
        ({"matchExpressions": [{"key": "rank", "operator": "Lt", "values": ["2"]}]}, False),
    ],
)
def test_label_selector(selector: dict[str, Any] | None, fits: bool) -> None:
    assert matches_labels(selector, LABELS) is fits


def test_terms_of_a_node_selector_are_alternatives_and_empty_ones_are_none() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    other = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    assert matches_node({"nodeSelectorTerms": [other, by_name]}, node("n"))
    assert not matches_node({"nodeSelectorTerms": [{**other, **by_name}]}, node("n"))
    assert not matches_node({"nodeSelectorTerms": [{}]}, node("n"))
    assert not matches_node({"nodeSelectorTerms": []}, node("n"))


def test_node_selector_and_affinity_must_both_fit() -> None:
    term = {"matchExpressions": [{"key": "name", "operator": "In", "values": ["n"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    assert selects(pod("p", nodeSelector={"zone": "a"}, affinity=affinity), node("n", labels=LABELS))
    assert not selects(pod("p", nodeSelector={"zone": "b"}, affinity=affinity), node("n", labels=LABELS))
    assert not selects(pod("p", affinity=affinity), node("m"))


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "l", "operator": "Exists"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
    ],
)
def test_toleration(toleration: dict[str, str], tolerated: bool) -> None:
    assert tolerates_all([toleration], [{"key": "k", "value": "v", "effect": "NoSchedule"}]) is tolerated


def test_taint_that_only_prefers_forbids_nothing() -> None:
    assert tolerates_all([], [{"key": "k", "effect": "PreferNoSchedule"}])
    assert not tolerates_all([], [{"key": "k", "effect": "NoExecute"}])


@pytest.mark.parametrize(
    ("ready", "key"), [("False", "not-ready"), ("", "not-ready"), ("Unknown", "unreachable"), ("True", None)]
)
def test_readiness_is_a_taint(ready: str, key: str | None) -> None:
    assert [taint["key"] for taint in lifecycle_taints(node("n", ready=ready))] == (
        [f"node.kubernetes.io/{key}"] if key else []
    )


def test_pressure_and_cordon_are_taints() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]
    tired = node("n", unschedulable=True, status={"conditions": conditions})
    keys = [taint["key"] for taint in lifecycle_taints(tired)]
    assert keys == ["node.kubernetes.io/disk-pressure", "node.kubernetes.io/unschedulable"]
