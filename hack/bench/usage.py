"""What a process has used, as the kernel counts it."""

from dataclasses import dataclass

import psutil

MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since the start, and resident memory in MiB, of one process."""

    cpu: float
    resident: float


def usage_of(pid: int) -> Usage:
    """Raises psutil.NoSuchProcess where the process is gone."""
    process = psutil.Process(pid)
    with process.oneshot():
        times = process.cpu_times()
        return Usage(times.user + times.system, process.memory_info().rss / MIB)


def child_named(name: str) -> int:
    """The pid of a process below this one. Raises LookupError where there is none."""
    for process in psutil.Process().children(recursive=True):
        if process.name() == name:
            return int(process.pid)
    raise LookupError(f"no process {name} was started from here")
