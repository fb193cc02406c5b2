"""What a pod takes from the zones of its node for itself alone, as a kubelet with static managers gives it out.

Devices are always a pod's own. Cores are it where the pod is of class Guaranteed and the container asks for whole ones;
memory where the pod is Guaranteed. Everything else runs where there is room, on what all share, and takes nothing from
a zone. Init containers that end are over by the time that a pod runs; those that restart run beside the others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from controllers.api.core import Container, Pod, Resources
from controllers.estate import quantity
from controllers.estate.estate import GPU_RESOURCE

CPU, MEMORY = "cpu", "memory"
RESOURCES = (GPU_RESOURCE, CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of each resource that zones have."""

    gpus: int = 0
    cpu: int = 0  # thousandths of a core
    memory: int = 0  # bytes

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.gpus + other.gpus, self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.gpus - other.gpus, self.cpu - other.cpu, self.memory - other.memory)

    def covers(self, other: "Amount") -> bool:
        """Whether there is at least as much of everything."""
        return self.gpus >= other.gpus and self.cpu >= other.cpu and self.memory >= other.memory

    def up_to(self, other: "Amount") -> "Amount":
        """The smaller amount of each resource."""
        return Amount(min(self.gpus, other.gpus), min(self.cpu, other.cpu), min(self.memory, other.memory))

    @property
    def parts(self) -> tuple["Amount", ...]:
        """Each resource by itself."""
        return Amount(gpus=self.gpus), Amount(cpu=self.cpu), Amount(memory=self.memory)


NOTHING = Amount()


def total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, NOTHING)


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod, and what each of its containers takes."""

    uid: str
    containers: tuple[Amount, ...]

    @property
    def whole(self) -> Amount:
        return total(self.containers)


def demands(pods: Iterable[Pod]) -> list[Demand]:
    """What the pods of a node take, the oldest pod first; pods that take nothing are left out."""
    found = [Demand(pod.uid, tuple(filter(NOTHING.__ne__, amounts_of(pod)))) for pod in sorted(pods, key=_age)]
    return [demand for demand in found if demand.containers]


def _age(pod: Pod) -> tuple[str, str, str]:
    return pod.metadata.creation_timestamp, pod.namespace, pod.name


def amounts_of(pod: Pod) -> Iterator[Amount]:
    """What each container takes that runs as long as the pod does."""
    exclusive = is_guaranteed(pod)
    for container in _lasting(pod):
        requests = container.resources.requests
        gpus, cores, memory = (number(requests.get(name, "0")) for name in RESOURCES)
        whole_cores = exclusive and cores.denominator == 1
        yield Amount(int(gpus), int(cores * 1000) if whole_cores else 0, int(memory) if exclusive else 0)


def has_exclusive_resources(pod: Pod) -> bool:
    """Whether scheduler-plugins counts the pod among those with exclusive resources."""
    devices = any(GPU_RESOURCE in container.resources.requests for container in _lasting(pod))
    return devices or any(amount != NOTHING for amount in amounts_of(pod))


def is_guaranteed(pod: Pod) -> bool:
    """Whether a pod is of that class: cores and memory are limited everywhere, and requested up to the limit.

    What the pod says as a whole comes before what its containers say.
    """
    if pod.spec.resources != Resources():
        return _is_reserved(pod.spec.resources)
    return all(_is_reserved(container.resources) for container in (*pod.spec.containers, *pod.spec.init_containers))


def _is_reserved(resources: Resources) -> bool:
    limits = [number(resources.limits.get(name, "0")) for name in (CPU, MEMORY)]
    requests = [number(resources.requests.get(name, "0")) for name in (CPU, MEMORY)]
    return all(limits) and requests == limits


def _lasting(pod: Pod) -> Iterator[Container]:
    yield from (container for container in pod.spec.init_containers if container.restart_policy == "Always")
    yield from pod.spec.containers


@lru_cache(maxsize=4096)
def number(text: str) -> Fraction:
    """A quantity as a number; one that makes no sense counts as none, since the server has let it through."""
    try:
        return max(quantity.parse(text), Fraction())
    except ValueError:
        return Fraction()
