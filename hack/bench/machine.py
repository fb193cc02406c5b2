"""What a figure was measured on."""

import os
import platform
from importlib import metadata
from typing import Any

import psutil

from hack.bench.usage import MIB

PACKAGES = ("aiohttp", "kubernetes", "msgspec", "uvloop")


def facts() -> dict[str, Any]:
    """Cores, load and memory now, and the versions that matter."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "memory MiB": round(psutil.virtual_memory().total / MIB),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
    }


def text(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
