"""The NodeResourceTopology of a node: what it should be, and whether it is that."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from controllers.api import topology
from controllers.api.core import Node, Pod
from controllers.api.topology import NodeResourceTopology
from controllers.estate import Numa, quantity
from controllers.estate.estate import GPU_RESOURCE
from controllers.estate.numa import policy_name
from controllers.node_resource_topology import record
from controllers.node_resource_topology.demand import (
    CPU,
    MEMORY,
    Amount,
    demands,
    has_exclusive_resources,
)
from controllers.node_resource_topology.fingerprint import WITH_EXCLUSIVE_RESOURCES, fingerprint
from controllers.node_resource_topology.layout import Layout, layout
from controllers.node_resource_topology.placement import EXHAUSTIVE, left_over, place

MARK = {"app.kubernetes.io/managed-by": "gpu-mirage"}
"""Labels of what this project writes. They prove nothing, but what has none need not be looked at."""

Manifest = dict[str, Any]


def manifest(node: Node, numa: Numa, pods: Sequence[Pod], present: NodeResourceTopology | None) -> Manifest:
    """The topology of a node with these pods on it, each of which stays where ``present`` says that it is."""
    spread = layout(numa, node.status)
    former = record.read(present.metadata.annotations.get(record.ANNOTATION, "")) if present else {}
    placements = place(spread.allocatable, demands(pods), former, policy=numa.policy, scope=numa.scope)
    return {
        "metadata": {
            "name": node.name,
            "labels": MARK,
            "annotations": {record.ANNOTATION: record.written(placements)},
            "ownerReferences": [_owner(node)],
        },
        "topologyPolicies": [policy_name(numa)],
        "attributes": topology.attributes(_attributes(numa, pods)),
        "zones": _zones(numa, spread, left_over(spread.allocatable, placements.values())),
    }


def is_current(wanted: Manifest, present: NodeResourceTopology) -> bool:
    """Whether nothing of what we write differs."""
    desired = msgspec.convert({**wanted, "metadata": {"name": present.name}}, NodeResourceTopology)
    metadata = wanted["metadata"]
    return (
        (desired.topology_policies, desired.attributes, desired.zones)
        == (present.topology_policies, present.attributes, present.zones)
        and metadata["labels"].items() <= present.metadata.labels.items()
        and metadata["annotations"].items() <= present.metadata.annotations.items()
        and any(owner.uid == metadata["ownerReferences"][0]["uid"] for owner in present.metadata.owner_references)
    )


def is_marked(present: NodeResourceTopology) -> bool:
    """Whether an object may be of our making."""
    return MARK.items() <= present.metadata.labels.items()


def _owner(node: Node) -> Manifest:
    """A plain owner: the Node is not the controller of its topology."""
    return {"apiVersion": node.resource.api_version, "kind": node.resource.kind, "name": node.name, "uid": node.uid}


def _attributes(numa: Numa, pods: Iterable[Pod]) -> Mapping[str, str]:
    # The scheduler's own count has only pods that run; one that is bound and does not yet is in neither of the two.
    counted = [(pod.namespace, pod.name) for pod in pods if pod.running and has_exclusive_resources(pod)]
    return {
        topology.POLICY: numa.policy,
        topology.SCOPE: numa.scope,
        **({topology.MAX_ZONES: str(numa.zones)} if numa.zones > EXHAUSTIVE else {}),
        topology.FINGERPRINT: fingerprint(counted),
        topology.FINGERPRINT_METHOD: WITH_EXCLUSIVE_RESOURCES,
    }


def _zones(numa: Numa, spread: Layout, available: Sequence[Amount]) -> list[Manifest]:
    names = [f"node-{index}" for index in range(numa.zones)]
    return [
        {
            "name": name,
            "type": "Node",
            "costs": [
                {"name": other, "value": numa.self_distance if other == name else numa.remote_distance}
                for other in names
            ],
            "resources": _resources(*amounts),
        }
        for name, *amounts in zip(names, spread.capacity, spread.allocatable, available, strict=True)
    ]


def _resources(capacity: Amount, allocatable: Amount, available: Amount) -> list[Manifest]:
    """The resources that a zone has any of."""
    columns = {"capacity": capacity, "allocatable": allocatable, "available": available}
    texts = {column: _texts(amount) for column, amount in columns.items()}
    return [
        {"name": name, **{column: texts[column][name] for column in columns}}
        for name, text in texts["capacity"].items()
        if text != "0"
    ]


def _texts(amount: Amount) -> Mapping[str, str]:
    return {
        GPU_RESOURCE: str(amount.gpus),
        CPU: quantity.milli(Fraction(amount.cpu, 1000)),
        MEMORY: quantity.binary(Fraction(amount.memory)),
    }
