"""The controllers' binaries, as the project declares them."""

import importlib
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "gpu-mirage-"


@dataclass(frozen=True)
class Binary:
    """One console script of a controller."""

    name: str  # without the prefix, as its manifests and its page of the documentation are called
    entry: str  # module:function

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(self.entry.partition(":")[0])

    @property
    def main(self) -> Callable[[Sequence[str]], int]:
        found: Callable[[Sequence[str]], int] = getattr(self.module, self.entry.partition(":")[2])
        return found

    @property
    def package(self) -> Path:
        return ROOT / "controllers" / self.entry.split(".")[1]

    @property
    def page(self) -> Path:
        return ROOT / "docs" / f"{self.name}.md"


def declared() -> list[Binary]:
    """All but the sandbox, which is no controller and is deployed nowhere."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    found = [Binary(name.removeprefix(PREFIX), entry) for name, entry in sorted(scripts.items())]
    return [binary for binary in found if binary.name != "sandbox"]


BINARIES = declared()
