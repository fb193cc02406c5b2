"""How many pods each ReplicaSet of a Deployment should have next: pure arithmetic, the one of a real cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controllers.sandbox.stand_in.kinds import Deployment, ReplicaSet


@dataclass(frozen=True, slots=True)
class Rule:
    """What a Deployment allows on the way from one template to the next."""

    wanted: int
    surge: int  # pods above the wanted number
    unavailable: int  # pods below it
    recreate: bool  # all old pods go before the first new one comes

    @property
    def most(self) -> int:
        """The number of pods that must not be exceeded."""
        return self.wanted + self.surge


def rule_of(deployment: Deployment) -> Rule:
    """The rule of a Deployment. Raises ValueError for a percentage that is none."""
    wanted = int(deployment.spec.get("replicas", 1))
    strategy = deployment.spec.get("strategy", {})
    if strategy.get("type") == "Recreate":
        return Rule(wanted, 0, 0, recreate=True)
    rolling = strategy.get("rollingUpdate", {})
    surge = _share(rolling.get("maxSurge", "25%"), wanted, up=True)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    # With neither there would be no first step.
    return Rule(wanted, surge, unavailable if surge or unavailable else 1, recreate=False)


def _share(value: int | str, of: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%")) * of
    return -(-percent // 100) if up else percent // 100


def next_sizes(rule: Rule, current: ReplicaSet, old: Sequence[ReplicaSet]) -> Mapping[str, int]:
    """The sizes by the names of the ReplicaSets, one step on; ``old`` is sorted, the oldest first."""
    sizes = {entry.name: size(entry) for entry in (current, *old)}
    if rule.recreate:
        sizes |= {entry.name: 0 for entry in old}
        sizes[current.name] = 0 if any(count(entry, "replicas") for entry in old) else rule.wanted
        return sizes
    if size(current) > rule.wanted or not any(size(entry) for entry in old):
        sizes[current.name] = rule.wanted
    else:
        room = max(0, rule.most - sum(sizes.values()))
        sizes[current.name] = min(rule.wanted, size(current) + room)
    if sizes[current.name] == size(current):
        sizes |= _shrunk(rule, current, old)
    return sizes


def _shrunk(rule: Rule, current: ReplicaSet, old: Sequence[ReplicaSet]) -> Mapping[str, int]:
    """The sizes of the old ones: first those pods go that do not run, then as many as may be missing."""
    least = rule.wanted - rule.unavailable
    sizes = {entry.name: size(entry) for entry in old}
    missing = size(current) - count(current, "availableReplicas")
    budget = sum(sizes.values()) + size(current) - least - missing
    for entry in old:
        idle = max(0, min(budget, size(entry) - count(entry, "availableReplicas")))
        sizes[entry.name] -= idle
        budget -= idle
    spare = sum(count(entry, "availableReplicas") for entry in (current, *old)) - least
    for entry in old:
        gone = max(0, min(spare, budget, sizes[entry.name]))
        sizes[entry.name] -= gone
        spare -= gone
        budget -= gone
    return sizes


def size(entry: ReplicaSet) -> int:
    """How many pods a ReplicaSet is to have."""
    return int(entry.spec.get("replicas", 1))


def count(entry: ReplicaSet | None, name: str) -> int:
    """A number in a ReplicaSet's status; 0 where there is none."""
    return int(entry.status.get(name, 0)) if entry is not None else 0
