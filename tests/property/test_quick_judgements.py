"""What finds an object in order quickly agrees with what finds every fault in it."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controllers.sandbox import apply, crd, fieldset, typeschema, validation
from controllers.sandbox.typeschema import MISSING, TypeSchema, builtin

CRDS = Path(__file__).parents[2] / "crds"
KINDS = (
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("apps", "v1", "Deployment"),
    ("resource.k8s.io", "v1", "ResourceClaim"),
    ("resource.k8s.io", "v1", "ResourceSlice"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
)
SAMPLES: dict[str, tuple[Any, ...]] = {
    "string": ("", "a", "b", "x" * 70, "2026-01-01T00:00:00Z", "Allocatable", "All"),
    "integer": (0, 1, -5, 2**40, 1.0, 1.5, True),
    "number": (0, 1, 0.5, True),
    "boolean": (True, False, 0),
    "": ("1", 1, 1.5, True, {"a": "b"}, ["a"], None),
}
NOISE: tuple[Any, ...] = (None, "", "a", 0, 1, 1.5, True, [], {}, ["a", "a"], [1, True, 1.0], {"a": None}, [{}, {}])
LIMITED = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 5},
                "mode": {"type": "string", "enum": ["a", "b"], "minLength": 1},
                "port": {"x-kubernetes-int-or-string": True},
                "when": {"type": "string", "format": "date-time"},
                "free": {"type": "object", "minProperties": 1, "x-kubernetes-preserve-unknown-fields": True},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "either": {"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
                "parts": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string", "nullable": True}, "n": {"type": "number"}},
                    },
                },
            },
        }
    },
}


@cache
def schemas() -> list[TypeSchema]:
    manifests = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("compute*.yaml"))]
    custom = [crd.compile(manifest).storage.schema for manifest in manifests]
    assert custom
    # The one that has all sorts of limits is drawn as often as all others together.
    limited = [typeschema.custom(LIMITED, status_apart=True)] * len(KINDS)
    return [*(builtin(*kind) for kind in KINDS), *custom, *limited]


def value(schema: TypeSchema, random: Random, depth: int = 0) -> Any:
    """Something that may stand where the schema is asked for; in one place of thirty it is something else."""
    if random.random() < 0.03 or depth > 6:
        return deepcopy(random.choice(NOISE))
    if schema.type == "array":
        return [value(schema.element(), random, depth + 1) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    if schema.type == "object" or schema.properties:
        return members(schema, random, depth)
    return deepcopy(random.choice(schema.limits.enum or SAMPLES[schema.type]))


def members(schema: TypeSchema, random: Random, depth: int) -> dict[str, Any]:
    names = {name for name in schema.limits.required if random.random() < 0.97}
    if schema.properties:
        names |= set(random.sample(sorted(schema.properties), min(len(schema.properties), random.randint(0, 4))))
    if schema.values is not None or random.random() < 0.02:
        names |= {random.choice(("a", "example.com/b"))}
    return {name: value(schema.field(name), random, depth + 1) for name in sorted(names)}


def objects(random: Random) -> tuple[dict[str, Any], TypeSchema]:
    schema = random.choice(schemas())
    made = members(schema, random, 0)
    metadata = {"name": "a", "labels": {"x": "y"}, "finalizers": random.choice(([], ["a.b/c"], ["a.b/c", "a.b/c"]))}
    return {**made, "apiVersion": "v1", "kind": "Thing", "metadata": metadata}, schema


def faults(obj: dict[str, Any], schema: TypeSchema) -> list[Any]:
    return [*validation._check(obj, MISSING, schema, ""), *validation._duplicates(obj, MISSING, schema, "")]


@given(st.integers(0, 2**32).map(Random))
@settings(deadline=None, max_examples=1000)
def test_object_that_is_found_sound_has_no_fault(random: Random) -> None:
    obj, schema = objects(random)
    if validation._sound_object(obj, schema):
        assert faults(obj, schema) == []


def test_most_objects_without_fault_are_found_sound() -> None:
    random = Random(1)
    sound, faultless = 0, 0
    for _ in range(2000):
        obj, schema = objects(random)
        if not faults(obj, schema):
            faultless += 1
            sound += validation._sound_object(obj, schema)
    assert faultless > 200
    assert sound > 0.6 * faultless


@given(st.integers(0, 2**32).map(Random))
@example(Random(594036))  # an empty list where an object should be
@settings(deadline=None, max_examples=1000)
def test_object_is_declared_where_nothing_is_pruned(random: Random) -> None:
    obj, schema = objects(random)
    declared = validation._declared(obj, schema)
    assert declared == (list(validation._prune(obj, schema, "")) == [])


ELEMENTS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', "v:1", "i:0", "f:.", "f:é"])
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.just({}), lambda inner: st.dictionaries(ELEMENTS | st.just("."), inner, max_size=4)
)


def in_order(tree: dict[str, Any]) -> list[Any]:
    """The nodes in the order of the server: by the sort of element, then by its text."""
    below = sorted(fieldset.children(tree), key=fieldset._order)
    own: list[Any] = [(".", [])] if "." in tree else []
    return own + [(element, in_order(child)) for element, child in below]


def listed(tree: dict[str, Any]) -> list[Any]:
    return [(element, listed(child)) for element, child in tree.items()]


@given(TREES)
def test_canonical_set_is_in_the_order_of_the_server(tree: dict[str, Any]) -> None:
    assert listed(fieldset.canonical(tree)) == in_order(tree)


CONTENTS = st.fixed_dictionaries(
    {"data": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"))},
    optional={
        "labels": st.dictionaries(st.sampled_from("x"), st.sampled_from("12")),
        "owners": st.lists(st.sampled_from("uv"), unique=True),
        "entries": st.sampled_from([[], [{}]]),
    },
)
MANAGERS = st.sampled_from(["one", "one", "two"])
SUBRESOURCES = st.sampled_from(["", "", "", "status"])
UPDATES = st.lists(st.tuples(st.booleans(), MANAGERS, SUBRESOURCES, CONTENTS), min_size=2, max_size=6)


def changed(obj: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid} for uid in content.get("owners", ())]
    metadata = {**obj["metadata"], "labels": content.get("labels", {}), "ownerReferences": owners}
    if "entries" in content:
        metadata["managedFields"] = content["entries"]
    return {**obj, "metadata": metadata, "data": content.get("data", {})}


def applied(live: dict[str, Any] | None, content: dict[str, Any], now: str, common: Any) -> dict[str, Any]:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": content["data"]}
    return apply.apply(live, config, force=True, now=now, **common)


@given(UPDATES)
@settings(max_examples=500)
def test_entries_that_are_only_renewed_are_those_that_would_be_made_anew(updates: list[Any]) -> None:
    schema = builtin("", "v1", "ConfigMap")
    live: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "1"}}
    old: dict[str, Any] | None = None
    for second, (applies, manager, subresource, content) in enumerate(updates):
        common: Any = {"manager": manager, "api_version": "v1", "subresource": subresource, "schema": schema}
        now = f"2026-01-01T00:00:0{second}Z"
        if applies:
            old = live = applied(old, content, now, common)
            continue
        new = changed(live, content)
        quick = apply.track_write(old, new, now=now, **common)
        with patch.object(apply, "_renewed", return_value=[]):
            assert quick == apply.track_write(old, new, now=now, **common)
        old = live = quick


OWNERS: Any = {"api_version": "v1", "subresource": "", "schema": builtin("", "v1", "ConfigMap")}


def owners_after(*steps: tuple[str, str, dict[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Who owns what of the data, in the order of the entries, after steps of a manager, what it does, and the data."""
    live: dict[str, Any] | None = None
    for second, (manager, what, data) in enumerate(steps):
        common, now = {**OWNERS, "manager": manager}, f"2026-01-01T00:00:0{second}Z"
        if what == "apply":
            live = applied(live, {"data": data}, now, common)
        else:
            new = {"apiVersion": "v1", "kind": "ConfigMap", **(live or {"metadata": {"name": "a"}}), "data": data}
            live = apply.track_write(live, new, now=now, **common)
    assert live is not None
    entries = live["metadata"]["managedFields"]
    return [(e["manager"], e.get("time", "")[-3:-1], sorted(e["fieldsV1"]["f:data"].keys() - {"."})) for e in entries]


def test_repeated_update_renews_the_time_of_its_entry_and_its_place() -> None:
    steps = [("one", "update", {"a": "1"}), ("two", "update", {"a": "1", "b": "1"})]
    assert owners_after(*steps) == [("one", "00", ["f:a"]), ("two", "01", ["f:b"])]
    steps.append(("one", "update", {"a": "2", "b": "1"}))
    assert owners_after(*steps) == [("two", "01", ["f:b"]), ("one", "02", ["f:a"])]


def test_update_of_what_an_applier_owns_too_takes_it() -> None:
    steps = [("one", "update", {"a": "1", "b": "1"}), ("two", "apply", {"a": "1", "b": "1"})]
    assert owners_after(*steps) == [("two", "", ["f:a", "f:b"]), ("one", "00", ["f:a", "f:b"])]
    steps.append(("one", "update", {"a": "2", "b": "1"}))
    assert owners_after(*steps) == [("two", "", ["f:b"]), ("one", "02", ["f:a", "f:b"])]


@pytest.mark.parametrize("names", [["a", "a"], ["a", "b"], ["a", 1], [1, True], [None, "a"]])
def test_items_are_evidently_unique_only_where_their_texts_differ(names: list[Any]) -> None:
    schema = TypeSchema(type="array", list_kind="map", map_keys=("name",), items=TypeSchema(type="object"))
    assert validation._evidently_unique([{"name": name} for name in names], schema) == (names == ["a", "b"])
