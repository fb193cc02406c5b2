"""Typed objects."""

import gc
from typing import Any

import msgspec
import pytest

from controllers.runtime.errors import DecodeError
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, Resource, owner_reference, without_nulls

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS

    size: int = 0
    colours: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (THINGS, (), "/apis/example.com/v1/things"),
        (THINGS, ("a",), "/apis/example.com/v1/namespaces/a/things"),
        (THINGS, ("a", "x"), "/apis/example.com/v1/namespaces/a/things/x"),
        (THINGS, ("a", "x", "status"), "/apis/example.com/v1/namespaces/a/things/x/status"),
        (NODES, ("ignored", "n"), "/api/v1/nodes/n"),
        (NODES, (None, "n", "status"), "/api/v1/nodes/n/status"),
    ],
)
def test_paths(resource: Resource, arguments: tuple[str, ...], path: str) -> None:
    assert resource.path(*arguments) == path


def test_a_resource_names_itself_as_kubectl_does() -> None:
    assert (str(THINGS), str(NODES)) == ("things.example.com", "nodes")
    assert (THINGS.api_version, NODES.api_version) == ("example.com/v1", "v1")
    assert THINGS.at("v2").api_version == "example.com/v2"


def test_fields_that_nobody_reads_cost_nothing_and_harm_nothing() -> None:
    thing = Thing.decode(b'{"metadata":{"name":"x","managedFields":[{"deep":[1]}]},"size":3,"other":{"a":null}}')
    assert (thing.name, thing.size) == ("x", 3)


def test_nulls_count_as_absent_at_any_depth() -> None:
    thing = Thing.decode(b'{"metadata":{"name":"x","labels":{"a":null,"b":"c"},"ownerReferences":null},"colours":null}')
    assert thing == Thing(metadata=ObjectMeta(name="x", labels={"b": "c"}))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"metadata":{"name":"x","namespace":"a"},"size":"huge"}', "Thing a/x: .*size"),
        (b'{"metadata":{"name":"x","namespace":"a"},"size":"huge","colours":null}', "Thing a/x: .*size"),
        (b'{"metadata":null}', "Thing .no readable name."),
        (b"{", "Thing: not JSON"),
        (b"7", "Thing"),
    ],
)
def test_what_cannot_be_read_is_named(raw: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        Thing.decode(raw)


def test_objects_cannot_be_changed() -> None:
    thing = Thing(metadata=ObjectMeta(name="x"))
    for target in (thing, thing.metadata):
        with pytest.raises(AttributeError):
            setattr(target, "name", "y")  # noqa: B010 - the type checker would refuse the plain form


def test_shortcuts_read_the_metadata() -> None:
    thing = Thing(metadata=ObjectMeta(name="x", namespace="a", uid="u", deletion_timestamp="2030-01-01T00:00:00Z"))
    assert (thing.key, thing.uid, thing.deleting) == (Key("a", "x"), "u", True)
    assert not Thing(metadata=ObjectMeta(name="x")).deleting
    assert (str(Key("a", "x")), str(Key("", "x"))) == ("a/x", "x")


def test_an_owner_reference_controls_and_does_not_block_deletion() -> None:
    assert owner_reference(Thing(metadata=ObjectMeta(name="x", namespace="a", uid="u"))) == {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "name": "x",
        "uid": "u",
        "controller": True,
    }


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ({"a": None, "b": [None, {"c": None}], "d": 0, "e": "", "f": False}, {"b": [{}], "d": 0, "e": "", "f": False}),
        (None, None),
        ([None], []),
    ],
)
def test_without_nulls_takes_out_nulls_and_nothing_else(value: Any, left: Any) -> None:
    assert without_nulls(value) == left


def test_the_wire_form_is_camel_case_without_defaults() -> None:
    meta = ObjectMeta(name="x", resource_version="5")
    assert msgspec.json.encode(meta) == b'{"name":"x","resourceVersion":"5"}'


def test_the_garbage_collector_passes_over_what_is_cached() -> None:
    labels, owners = '{"a":"b"}', '[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]'
    raw = f'{{"metadata":{{"name":"x","labels":{labels},"ownerReferences":{owners}}},"colours":["red"]}}'
    thing = Thing.decode(raw.encode())
    assert thing.metadata.owner_references[0].name == "n"
    assert not gc.is_tracked(thing)
    assert not gc.is_tracked(thing.metadata)
    assert not gc.is_tracked(thing.metadata.labels)
    assert not gc.is_tracked(thing.metadata.owner_references[0])
