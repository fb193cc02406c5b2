"""The core group, as far as controllers read it."""

from collections.abc import Mapping
from typing import ClassVar

from controllers.runtime import KubeObject, Projection, Resource

POOL_LABEL = "run.ai/simulated-gpu-node-pool"
"""The node label that puts a node into a simulated pool, as fake-gpu-operator has it."""

KWOK_ANNOTATION = "kwok.x-k8s.io/node"
"""Set on nodes that KWOK plays. A real kubelet deletes slices that are not its drivers', and its pods would wait."""


class NodeCondition(Projection, frozen=True, kw_only=True):
    type: str
    status: str = "Unknown"


class NodeStatus(Projection, frozen=True, kw_only=True):
    """``capacity`` and ``allocatable`` are quantities as the API writes them, by the name of the resource."""

    capacity: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    conditions: tuple[NodeCondition, ...] = ()


class Node(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "nodes", "Node", namespaced=False)

    status: NodeStatus = NodeStatus()

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True; a node without the condition is not ready."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    def condition(self, type_: str) -> NodeCondition | None:
        """The condition of a type, None where the node has none."""
        return next((condition for condition in self.status.conditions if condition.type == type_), None)


def is_simulated(node: Node, pool_label: str) -> bool:
    """Whether a node is in a pool and played by KWOK; only on such nodes devices and capacity can be made up."""
    return pool_label in node.labels and KWOK_ANNOTATION in node.metadata.annotations


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)

    data: Mapping[str, str] = {}


class Namespace(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
