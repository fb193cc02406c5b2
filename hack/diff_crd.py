"""Compares a CustomResourceDefinition of ours with an upstream file and allows nothing but words and columns to differ.

`python -m hack.diff_crd ours.yaml upstream.yaml` prints each difference by its path and exits 1; it exits 0 when the
schemas are the same. Descriptions, printer columns, labels and annotations are no part of a schema and are ignored.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# Lists whose order the API gives no meaning to, so that only a difference of content counts.
UNORDERED = frozenset({"enum", "required", "x-kubernetes-list-map-keys", "shortNames", "categories"})


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.diff_crd", description="compare the schemas of two CRD files")
    parser.add_argument("ours", type=Path)
    parser.add_argument("upstream", type=Path)
    options = parser.parse_args(arguments)
    found = differences(load(options.ours), load(options.upstream))
    for line in found:
        print(line)
    return 1 if found else 0


def load(path: Path) -> Any:
    """The one YAML document of a file."""
    return yaml.safe_load(path.read_text())


def differences(ours: Any, upstream: Any) -> list[str]:
    """Every difference between two parsed definitions, one line each, ordered by path."""
    return sorted(_compare("$", without_words(ours), without_words(upstream)))


def without_words(crd: dict[str, Any]) -> dict[str, Any]:
    """A copy of a definition without all that is not schema."""
    metadata = {key: value for key, value in crd["metadata"].items() if key not in ("annotations", "labels")}
    versions = [_schema_of(version) for version in crd["spec"]["versions"]]
    return {**crd, "metadata": metadata, "spec": {**crd["spec"], "versions": versions}}


def _schema_of(version: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in version.items() if key != "additionalPrinterColumns"}
    return {**kept, "schema": {"openAPIV3Schema": _without_descriptions(version["schema"]["openAPIV3Schema"])}}


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _descend(key, value) for key, value in schema.items() if key != "description"}


def _descend(key: str, value: Any) -> Any:
    # Below "properties" the keys are names of fields, and a field may well be called "description".
    if key == "properties":
        return {field: _without_descriptions(schema) for field, schema in value.items()}
    return _without_descriptions(value)


def _compare(path: str, ours: Any, upstream: Any) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(upstream, dict):
        yield from _compare_maps(path, ours, upstream)
    elif isinstance(ours, list) and isinstance(upstream, list):
        yield from _compare_lists(path, ours, upstream)
    elif type(ours) is not type(upstream) or ours != upstream:
        yield f"{path}: ours has {json.dumps(ours)}, upstream {json.dumps(upstream)}"


def _compare_maps(path: str, ours: dict[str, Any], upstream: dict[str, Any]) -> Iterator[str]:
    for key in sorted(ours.keys() | upstream.keys()):
        inner = f"{path}.{key}" if key.replace("-", "").isalnum() else f"{path}[{json.dumps(key)}]"
        if key not in upstream:
            yield f"{inner}: only ours has it: {json.dumps(ours[key])}"
        elif key not in ours:
            yield f"{inner}: only upstream has it: {json.dumps(upstream[key])}"
        elif key in UNORDERED:
            yield from _compare(inner, sorted(ours[key]), sorted(upstream[key]))
        else:
            yield from _compare(inner, ours[key], upstream[key])


def _compare_lists(path: str, ours: list[Any], upstream: list[Any]) -> Iterator[str]:
    if len(ours) != len(upstream):
        yield f"{path}: ours has {json.dumps(ours)}, upstream {json.dumps(upstream)}"
        return
    for position, (mine, theirs) in enumerate(zip(ours, upstream, strict=True)):
        yield from _compare(f"{path}[{position}]", mine, theirs)


if __name__ == "__main__":
    sys.exit(main())
