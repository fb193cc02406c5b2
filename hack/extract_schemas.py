"""Writes what the sandbox knows of the built-in kinds from the OpenAPI documents of a real API server.

`python -m hack.extract_schemas` starts a control plane, reads its `/openapi/v3` documents and writes
`controllers/sandbox/data/builtin.json`; `--kubeconfig` reads them from a running cluster instead.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hack.localcluster import ControlPlane, Options, find_binaries

OUTPUT = Path(__file__).resolve().parents[1] / "controllers" / "sandbox" / "data" / "builtin.json"
REFERENCE = "#/components/schemas/"
DOCUMENTS = (
    "api/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/apiregistration.k8s.io/v1",
    "apis/apps/v1",
    "apis/authentication.k8s.io/v1",
    "apis/authorization.k8s.io/v1",
    "apis/batch/v1",
    "apis/coordination.k8s.io/v1",
    "apis/discovery.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/node.k8s.io/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/resource.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/storage.k8s.io/v1",
)
NO_RESOURCES = ("List", "Options", "WatchEvent", "Status", "APIGroup", "APIVersions", "Scale")
KEPT = frozenset(
    (
        *("type", "format", "default", "required", "properties", "items", "additionalProperties", "allOf", "$ref"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
        *("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key"),
    )
)

Fetch = Callable[[str], Mapping[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.extract_schemas", description="write the built-in schemas")
    parser.add_argument("--kubeconfig", type=Path, help="read from this cluster (default: a new control plane)")
    options = parser.parse_args(arguments)
    if options.kubeconfig:
        document = extract(lambda path: _get(options.kubeconfig, path))
    else:
        with (
            tempfile.TemporaryDirectory() as directory,
            ControlPlane(Path(directory), Options(start_kwok=False)) as plane,
        ):
            document = extract(lambda path: _get(plane.admin_kubeconfig, path))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(render(document))
    print(f"{len(document['kinds'])} kinds, {len(document['types'])} types: {OUTPUT.stat().st_size >> 10} KiB")
    return 0


def extract(fetch: Fetch) -> dict[str, Any]:
    """The kinds, by group, version and kind, and every type that they consist of."""
    schemas: dict[str, Any] = {}
    for path in DOCUMENTS:
        schemas |= fetch(f"/openapi/v3/{path}")["components"]["schemas"]
    kinds = dict(sorted(_kinds(schemas)))
    types: dict[str, Any] = {}
    waiting = sorted(set(kinds.values()))
    while waiting:
        name = waiting.pop()
        if name not in types:
            types[name] = _trim(schemas[name])
            waiting.extend(_references(types[name]))
    return {"kinds": kinds, "types": dict(sorted(types.items()))}


def render(document: Mapping[str, Any]) -> str:
    """The file's text: one line for each kind and type, so that a change reads well in a diff."""
    parts = [f"{json.dumps(part)}: {{\n{_lines(document[part])}\n}}" for part in ("kinds", "types")]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(entries: Mapping[str, Any]) -> str:
    return ",\n".join(
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}" for name, entry in entries.items()
    )


def _kinds(schemas: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, schema in schemas.items():
        for entry in schema.get("x-kubernetes-group-version-kind", ()):
            if not entry["kind"].endswith(NO_RESOURCES):
                parts = (entry["group"], entry["version"], entry["kind"])
                yield "/".join(filter(None, parts)), name


def _trim(node: Mapping[str, Any]) -> dict[str, Any]:
    """A schema node without texts, and with the types it names by their bare names."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key not in KEPT:
            continue
        if key == "properties":
            kept[key] = {name: _trim(member) for name, member in value.items()}
        elif key == "allOf":
            kept |= _trim(value[0])
        elif key == "$ref":
            kept[key] = value.removeprefix(REFERENCE)
        elif key in ("items", "additionalProperties"):
            kept[key] = _trim(value) if isinstance(value, dict) else value
        else:
            kept[key] = value
    if kept.get("type") == "object" and kept.keys().isdisjoint(("properties", "additionalProperties")):
        # An object without a declared member carries foreign JSON (RawExtension).
        kept["x-kubernetes-preserve-unknown-fields"] = True
    return kept


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)


def _get(kubeconfig: Path, path: str) -> Mapping[str, Any]:
    command = [str(find_binaries().kubectl), f"--kubeconfig={kubeconfig}", "get", f"--raw={path}"]
    answer: Mapping[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
