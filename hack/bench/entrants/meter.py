"""What every entrant measures of itself, and how it tells."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Mapping

from hack.bench.objects import DUE
from hack.bench.statistics import percentile


class Meter:
    """CPU seconds of this process, and seconds, since it was made; starts without garbage."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def figures(self) -> dict[str, float]:
        return {"cpu": time.process_time() - self._cpu, "seconds": time.perf_counter() - self._began}


def age(annotations: Mapping[str, str] | None) -> float | None:
    """Seconds since the server sent this state of an object; None where it came with the list."""
    sent = (annotations or {}).get(DUE)
    return (time.monotonic_ns() - int(sent)) / 1e9 if sent else None


class Ages:
    """How old what an entrant is told of is: counted are first the objects of the list, and then the changes."""

    def __init__(self, objects: int, events: int) -> None:
        self.ages: list[float] = []
        self.listed, self.told = asyncio.Event(), asyncio.Event()
        self._left = objects
        self._events = events

    def note(self, annotations: Mapping[str, str] | None) -> None:
        old = age(annotations)
        if old is None:
            self._left -= 1
            if self._left == 0:
                self.listed.set()
        else:
            self.ages.append(old)
            if len(self.ages) == self._events:
                self.told.set()


def delays(ages: list[float]) -> dict[str, float]:
    return {"p50": percentile(ages, 0.5), "p99": percentile(ages, 0.99)}


def report(figures: Mapping[str, float]) -> None:
    print(json.dumps(figures), flush=True)


def finish(figures: Mapping[str, float]) -> None:
    """Reports without garbage in memory, and stands still until the process is ended."""
    gc.collect()
    report(figures)
    sys.stdin.read()
