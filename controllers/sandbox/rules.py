"""Rules of built-in kinds that no schema tells, for the kinds whose writers rely on being refused.

A leader that writes a lease without a duration, or a node agent that reports less than nothing, finds out here. The
texts are the real server's; all other rules of built-in kinds are not played.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from controllers.api.quantity import parse_quantity
from controllers.sandbox.errors import Cause
from controllers.sandbox.registry import ResourceInfo

_NO_LESS: Final = "must be greater than or equal to 0"


def causes(info: ResourceInfo, obj: Mapping[str, Any]) -> Iterator[Cause]:
    """What is wrong with an object whose types are right."""
    if rule := _RULES.get(info.collection):
        yield from rule(obj)


def _lease(lease: Mapping[str, Any]) -> Iterator[Cause]:
    spec = lease.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield _invalid("spec.leaseDurationSeconds", str(duration), "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield _invalid("spec.leaseTransitions", str(transitions), _NO_LESS)


def _node(node: Mapping[str, Any]) -> Iterator[Cause]:
    status = node.get("status") or {}
    for field in ("capacity", "allocatable"):
        for name, amount in sorted((status.get(field) or {}).items()):
            if parse_quantity(amount) < 0:
                yield _invalid(f"status.{field}.{name}", f'"{amount}"', _NO_LESS)


def _invalid(field: str, shown: str, why: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[Cause]]]] = {
    "coordination.k8s.io/leases": _lease,
    "nodes": _node,
}
