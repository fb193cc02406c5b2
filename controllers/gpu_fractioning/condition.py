"""The condition that says that fractions of a node's GPUs can be asked for."""

from datetime import datetime
from typing import Any

from controllers.api.core import Node
from controllers.estate import EXTENDED_RESOURCE, FAKE, Pool, quantity
from controllers.estate.estate import GPU_RESOURCE
from controllers.runtime import patch
from controllers.runtime.clock import rfc3339

READY = "gpu-fractioning.nvidia.com/Ready"

FIELD = ("f:status", "f:conditions", f'k:{{"type":"{READY}"}}')
"""The condition in the terms of managedFields."""


def is_due(node: Node, pool: Pool | None) -> bool:
    """Whether a node should have the condition.

    Fractions are fractions of ``nvidia.com/gpu``: where a pool offers its GPUs as devices, or where a driver mock
    brings them, the condition is not ours to give.
    """
    if pool is None or pool.backend != FAKE or pool.offered != EXTENDED_RESOURCE:
        return False
    return has_gpus(node)


def has_gpus(node: Node) -> bool:
    """Whether ``nvidia.com/gpu`` is allocatable on a node, in whatever way it came there."""
    try:
        return quantity.parse(node.status.allocatable.get(GPU_RESOURCE, "0")) > 0
    except ValueError:
        return False


def fields(now: datetime) -> dict[str, Any]:
    """The body of an apply of the condition, with the moment of its transition."""
    at = rfc3339(now)
    condition = {
        "type": READY,
        "status": "True",
        "reason": "GPUsAllocatable",
        "message": f"{GPU_RESOURCE} is allocatable on the node",
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }
    return {"status": {"conditions": [condition]}}


def removal(node: Node) -> list[dict[str, Any]]:
    """The operations of a JSON patch that takes the condition off a node that has it.

    An apply that names no condition takes all of them away unless somebody owns one, and nobody owns those that a node
    was made with.
    """
    index = next(index for index, condition in enumerate(node.status.conditions) if condition.type == READY)
    return [patch.removal("status", "conditions", index)]
