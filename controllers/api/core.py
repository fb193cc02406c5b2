"""The core group, as far as controllers read it."""

from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from controllers.api.sharing import shared
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

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Self:
        """Keeps equal parts once: nodes of one type hardly differ in what they offer, and their conditions too."""
        node = super().decode(raw)
        # The conditions also for themselves: real machines of one type differ by some KiB of memory.
        status = replace(node.status, conditions=shared(node.status.conditions))
        return replace(node, status=shared(status))

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


class Resources(Projection, frozen=True, kw_only=True):
    """Quantities by the name of the resource; the server gives a limit without a request one of the same amount."""

    requests: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}


class Container(Projection, frozen=True, kw_only=True):
    resources: Resources = Resources()
    restart_policy: str = ""


class PodSpec(Projection, frozen=True, kw_only=True):
    """``resources`` are those of the pod as a whole, which few pods have."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()


class PodStatus(Projection, frozen=True, kw_only=True):
    phase: str = ""


_NONE: Mapping[str, str] = {}


class Pod(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "pods", "Pod", namespaced=True)

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Self:
        """Keeps equal parts once, and leaves out metadata that nobody reads of a pod: there may be very many."""
        pod = super().decode(raw)
        spec = replace(
            pod.spec,
            containers=shared(pod.spec.containers),
            init_containers=shared(pod.spec.init_containers),
            resources=shared(pod.spec.resources),
        )
        metadata = replace(pod.metadata, labels=_NONE, annotations=_NONE, owner_references=(), finalizers=())
        return replace(pod, metadata=metadata, spec=spec, status=shared(pod.status))

    @property
    def node_name(self) -> str:
        """The node that it is bound to, "" before that."""
        return self.spec.node_name

    @property
    def running(self) -> bool:
        return self.status.phase == "Running"
