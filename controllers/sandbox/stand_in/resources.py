"""What pods ask for and nodes have of cpu, memory and extended resources."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from controllers.api.quantity import parse_quantity
from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.refusal import Refusal

PODS = "pods"
Amounts = dict[str, Decimal]
"""Numbers by the name of the resource."""


def requested(pod: Pod) -> Amounts:
    """What a pod takes of a node, its place among the pods included. Raises ValueError for a quantity that is none.

    Init containers run one after the other and before the rest, but for those that stay.
    """
    running = total(_of(container) for container in pod.spec.get("containers", ()))
    staying, peak = Amounts(), Amounts()
    for container in pod.spec.get("initContainers", ()):
        now = total((staying, _of(container)))
        peak = _largest(peak, now)
        staying = now if container.get("restartPolicy") == "Always" else staying
    needed = _largest(total((running, staying)), peak) | _of(pod.spec)
    return total((needed, _amounts(pod.spec.get("overhead", {})), {PODS: Decimal(1)}))


def total(many: Iterable[Mapping[str, Decimal]]) -> Amounts:
    """The sum of amounts."""
    found = Amounts()
    for amounts in many:
        for name, number in amounts.items():
            found[name] = found.get(name, Decimal()) + number
    return found


def check_room(wanted: Mapping[str, Decimal], used: Mapping[str, Decimal], allocatable: Mapping[str, Any]) -> None:
    """Raises Refusal where a node has too little left, ValueError where it does not say how much in numbers."""
    lacking = [
        name for name, number in wanted.items() if number and used.get(name, 0) + number > _has(allocatable, name)
    ]
    if lacking:
        raise Refusal(*("Too many pods" if name == PODS else f"Insufficient {name}" for name in sorted(lacking)))


def _has(allocatable: Mapping[str, Any], name: str) -> Decimal:
    return _number(name, allocatable.get(name, 0))


def _largest(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, Decimal()), right.get(name, Decimal())) for name in {**left, **right}}


def _of(container: Mapping[str, Any]) -> Amounts:
    given = container.get("resources", {})
    return _amounts({**given.get("limits", {}), **given.get("requests", {})})


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    return {name: _number(name, quantity) for name, quantity in quantities.items()}


def _number(name: str, quantity: Any) -> Decimal:
    try:
        return parse_quantity(quantity)
    except ValueError as error:
        raise ValueError(f"resource {name}: {error}") from None
