"""Writes which members of built-in types the real server leaves out where they are zero, and which it always writes.

That is in the tags of its types and in no document that it serves. `python -m hack.extract_zeros` reads the sources of
the pinned modules, which `go mod download` puts into Go's cache, and writes `controllers/sandbox/data/zeros.json`.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parents[1] / "controllers" / "sandbox" / "data" / "zeros.json"
SCHEMAS = OUTPUT.with_name("builtin.json")
SCALARS: Mapping[str, Any] = {
    **dict.fromkeys(("string",), ""),
    **dict.fromkeys(("int", "int32", "int64", "uint8", "uint32", "float64"), 0),
    "bool": False,
}
TIMES = frozenset({"metav1.Time", "metav1.MicroTime", "Time", "MicroTime"})
QUANTITIES = frozenset({"resource.Quantity", "Quantity"})
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
ALIAS = re.compile(r"^type (\w+) (?:=\s*)?([\w.\[\]*]+)$", re.MULTILINE)
FIELD = re.compile(r'^\t(?:(\w+)\s+)?([\w.\[\]*]+)\s+`json:"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """The structs and the other named types of one directory of Go sources."""

    structs: Mapping[str, str]
    aliases: Mapping[str, str]

    @classmethod
    def read(cls, directory: Path) -> "Package":
        text = "\n".join(path.read_text() for path in sorted(directory.glob("*types*.go")))
        return cls(dict(STRUCT.findall(text)), dict(ALIAS.findall(text)))


def directory_of(modules: Path, version: str, package: str) -> Path:
    """Where the sources of an OpenAPI package name are: `io.k8s.api.core.v1` is `api@<version>/core/v1`."""
    module, *rest = package.removeprefix("io.k8s.").split(".")
    return modules.joinpath(f"{module}@{version}", *rest)


def zeros_of(package: Package, struct: str) -> dict[str, Any]:
    """`dropped` members, and `written` ones with what is written for nothing."""
    dropped, written = [], {}
    for name, kind, options in _members(package, struct):
        zero = _zero(package, kind)
        if "omitzero" in options or zero is _NO_VALUE:
            continue
        if "omitempty" not in options or zero == {} or kind in TIMES | QUANTITIES:
            written[name] = zero
        elif zero is not None:
            dropped.append(name)
    return {"dropped": dropped, "written": written}


_NO_VALUE = object()


def _members(package: Package, struct: str) -> Iterator[tuple[str, str, set[str]]]:
    for _, kind, tag in FIELD.findall(package.structs[struct]):
        name, *options = tag.split(",")
        if name:
            yield name, kind, set(options)
        elif kind in package.structs:
            yield from _members(package, kind)


def _zero(package: Package, kind: str) -> Any:
    """What a Go type is without a value, as JSON; `_NO_VALUE` for pointers, which may be left out or null."""
    if kind.startswith("*"):
        return _NO_VALUE
    if kind.startswith(("[]", "map[")):
        return None
    if kind in TIMES:
        return None
    if kind in QUANTITIES:
        return "0"
    if kind in SCALARS:
        return SCALARS[kind]
    if kind in package.aliases:
        return _zero(package, package.aliases[kind])
    if kind.startswith("types.") or kind.endswith(("ConditionStatus", "ConditionType", "LabelSelectorOperator")):
        return ""
    if kind.endswith("ResourceList"):
        return None
    if kind in {"intstr.IntOrString", "runtime.RawExtension"}:
        return 0 if kind.startswith("intstr") else None
    return {}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.extract_zeros", description="write what zero members become")
    parser.add_argument("--modules", type=Path, default=Path.home() / "go/pkg/mod/k8s.io", help="Go's module cache")
    parser.add_argument("--version", default="v0.37.2", help="of the modules (v0.37.2)")
    options = parser.parse_args(arguments)
    types = json.loads(SCHEMAS.read_text())["types"]
    packages: dict[str, Package] = {}
    found: dict[str, Any] = {}
    for name in types:
        package, _, struct = name.rpartition(".")
        directory = directory_of(options.modules, options.version, package)
        if package not in packages and directory.is_dir():
            packages[package] = Package.read(directory)
        if package in packages and struct in packages[package].structs:
            zeros = zeros_of(packages[package], struct)
            found[name] = {part: value for part, value in zeros.items() if value}
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(zeros, separators=(',', ':'))}"
        for name, zeros in sorted(found.items())
        if zeros
    )
    OUTPUT.write_text("{\n" + lines + "\n}\n")
    print(f"{len(found)} of {len(types)} types: {OUTPUT.stat().st_size >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
