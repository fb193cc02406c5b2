"""What the slices of a node hold, each by itself: devices, or counters of what devices of other slices share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from controllers.api.dra import MAX_DEVICES, DraApi
from controllers.estate import DYNAMIC_MIG, Gpu, Pool
from controllers.gpu_slices import partitions
from controllers.gpu_slices.devices import devices

MAX_COUNTER_SETS = 8
"""Counter sets in a slice at most."""

Content = Mapping[str, Any]
"""``devices`` or ``sharedCounters``, as the spec of a slice has them; since Kubernetes 1.35 never both of them."""

T = TypeVar("T")


def contents(api: DraApi, pool: Pool, gpus: Sequence[Gpu]) -> list[Content]:
    """The slices of a node of a pool, in the order in which they are written.

    Where GPUs can be partitioned the counters come first, and each GPU has a slice of its own with all that it can be.
    """
    if pool.mig != DYNAMIC_MIG:
        return [{"devices": list(part)} for part in _parts(devices(api, pool.gpu, gpus), MAX_DEVICES)]
    sets = (partitions.counter_set(pool.gpu, gpu) for gpu in gpus)
    counters: list[Content] = [{"sharedCounters": list(part)} for part in _parts(sets, MAX_COUNTER_SETS)]
    return counters + [{"devices": partitions.devices(api, pool.gpu, gpu)} for gpu in gpus]


def counted(spec: Mapping[str, Any]) -> tuple[int, int]:
    """How many counter sets a slice has, and how many of its devices draw on any."""
    drawing = [body for device in spec.get("devices") or () if (body := device.get("basic", device))]
    return len(spec.get("sharedCounters") or ()), sum("consumesCounters" in body for body in drawing)


def _parts(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    every = list(items)
    return (every[start : start + size] for start in range(0, len(every), size))
