"""The core group, as far as controllers read it."""

from collections.abc import Mapping
from typing import ClassVar

from controllers.runtime import KubeObject, Projection, Resource

POOL_LABEL = "run.ai/simulated-gpu-node-pool"
"""The node label that puts a node into a simulated pool, as fake-gpu-operator has it."""


class NodeCondition(Projection, frozen=True, kw_only=True):
    type: str
    status: str = "Unknown"


class NodeStatus(Projection, frozen=True, kw_only=True):
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
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class Namespace(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
