"""Nodes as controllers see them."""

from typing import Any

import msgspec
import pytest

from controllers.api.core import Namespace, Node


def node(conditions: Any = None, **metadata: Any) -> Node:
    return Node.decode(
        msgspec.json.encode({"metadata": {"name": "n", **metadata}, "status": {"conditions": conditions}})
    )


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        (None, False),
        ([], False),
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "Ready"}], False),
        ([{"type": "DiskPressure", "status": "True"}], False),
        ([{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True", "extra": 1}], True),
    ],
)
def test_a_node_is_ready_where_its_condition_says_so(conditions: Any, ready: bool) -> None:
    assert node(conditions).ready is ready


def test_a_node_without_status_or_labels_can_be_read() -> None:
    bare = Node.decode(b'{"metadata":{"name":"n"}}')
    assert (bare.ready, dict(bare.labels)) == (False, {})


def test_labels_are_those_of_the_metadata() -> None:
    assert dict(node(labels={"a": "b"}).labels) == {"a": "b"}


def test_a_namespace_tells_whether_it_is_going() -> None:
    going = Namespace.decode(b'{"metadata":{"name":"n","deletionTimestamp":"2030-01-01T00:00:00Z"}}')
    assert going.deleting
    assert going.resource.path(name="n") == "/api/v1/namespaces/n"
