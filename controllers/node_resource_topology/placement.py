"""Which zones a node's pods take what they need from, as a kubelet's topology manager would decide it.

What belongs together goes into the fewest zones that have room for it, and among those of a number into the lowest: one
zone where one is enough. Policy and scope say what belongs together. A kubelet that insists on alignment would refuse
a pod that fits into no zone, or not into as few as it could; a pod that is there nevertheless takes what it needs from
several zones, so that the sums stay right.

A pod stays where it is for as long as it lives and its requests do not change, whatever comes and goes beside it. For
that, placements are given back to ``place`` the next time; without them pods are placed in the order of their age.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from controllers.node_resource_topology.demand import NOTHING, Amount, Demand, total

Placement = Mapping[int, Amount]
"""What one pod takes from each zone, by the index of the zone."""

EXHAUSTIVE = 8
"""Zones up to which every combination is tried, as many as a kubelet takes unless it is told otherwise. Where there are
more, a unit that fits into no single zone takes from the lowest ones."""


def place(
    zones: Sequence[Amount], demands: Iterable[Demand], kept: Mapping[str, Placement], *, policy: str, scope: str
) -> dict[str, Placement]:
    """The placement of each pod by its uid, in the order of ``demands``, the oldest pod first.

    ``zones`` are what each zone can give; ``kept`` are earlier placements, of which those that no longer hold are
    decided anew. No zone ever gives more than it has: a pod may be left without some of what it asks for.
    """
    wanted = list(demands)
    free = list(zones)
    stays: dict[str, Placement] = {}
    for demand in wanted:
        former = kept.get(demand.uid, {})
        if _holds(former, demand, free):
            _take(free, former)
            stays[demand.uid] = former
    return {demand.uid: _completed(free, stays.get(demand.uid, {}), demand, policy, scope) for demand in wanted}


def left_over(zones: Sequence[Amount], placements: Iterable[Placement]) -> list[Amount]:
    """What each zone has for further pods."""
    free = list(zones)
    for placement in placements:
        _take(free, placement)
    return free


def _take(free: list[Amount], placement: Placement) -> None:
    for index, amount in placement.items():
        free[index] -= amount


def _holds(placement: Placement, demand: Demand, free: Sequence[Amount]) -> bool:
    """Whether the pod still asks for all of it, and it is there."""
    there = all(index < len(free) and free[index].covers(amount) for index, amount in placement.items())
    return there and demand.whole.covers(total(placement.values()))


def _completed(free: list[Amount], placement: Placement, demand: Demand, policy: str, scope: str) -> Placement:
    """A placement, with what the pod does not have yet."""
    found = dict(placement)
    missing = (demand.whole - total(placement.values()),) if placement else _units(demand, policy, scope)
    for unit in missing:
        for index, amount in _spread(free, unit):
            free[index] -= amount
            found[index] = found.get(index, NOTHING) + amount
    return found


def _units(demand: Demand, policy: str, scope: str) -> Sequence[Amount]:
    """What goes together: the pod or each container; without a policy nothing is aligned with anything."""
    if policy == "none":
        return [part for container in demand.containers for part in container.parts]
    return [demand.whole] if scope == "pod" else demand.containers


def _spread(free: Sequence[Amount], unit: Amount) -> Iterator[tuple[int, Amount]]:
    """What to take from which zones; where there is not enough of one resource, each is looked for by itself."""
    for part in (unit,) if total(free).covers(unit) else unit.parts:
        left = part
        for index in _best(free, part):
            amount = left.up_to(free[index])
            if amount != NOTHING:
                left -= amount
                yield index, amount


def _best(free: Sequence[Amount], unit: Amount) -> Sequence[int]:
    """The first set of zones that has room for a unit; all zones where there is no room."""
    everything = range(len(free))
    if not total(free).covers(unit):
        return everything
    return next(zones for zones in _sets(len(free)) if total(free[index] for index in zones).covers(unit))


@lru_cache
def _sets(zones: int) -> tuple[Sequence[int], ...]:
    """Sets of zones, the smallest first, and those with the lowest zones first among sets of a size."""
    if zones > EXHAUSTIVE:
        return (*((index,) for index in range(zones)), *(range(count) for count in range(2, zones + 1)))
    masks = sorted(range(1, 1 << zones), key=lambda mask: (mask.bit_count(), mask))
    return tuple(tuple(index for index in range(zones) if mask >> index & 1) for mask in masks)
