"""Nodes as controllers see them."""

from typing import Any

import msgspec
import pytest

from controllers.api.core import Container, Namespace, Node, Pod, Resources
from controllers.runtime import Key


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


def pod(name: str) -> Pod:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": None}}]
    metadata = {"name": name, "namespace": "n", "labels": {"a": name}, "annotations": {"b": name}}
    spec = {"nodeName": "n1", "containers": containers, "initContainers": [{"restartPolicy": "Always"}]}
    return Pod.decode(msgspec.json.encode({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}))


def test_a_pod_says_where_it_is_and_what_it_asks_for() -> None:
    found = pod("a")

    assert (found.key, found.node_name, found.running) == (Key("n", "a"), "n1", True)
    assert found.spec.containers == (Container(resources=Resources(requests={"cpu": "1"})),)
    assert found.spec.init_containers == (Container(restart_policy="Always"),)


def test_pods_of_one_sort_share_what_they_ask_for_and_carry_no_metadata_that_nobody_reads() -> None:
    first, second = pod("a"), pod("b")

    assert first.spec.containers is second.spec.containers
    assert (first.metadata.labels, first.metadata.annotations) == ({}, {})


def test_a_pod_that_is_bound_to_no_node_can_be_read() -> None:
    bare = Pod.decode(b'{"metadata":{"name":"p"}}')
    assert (bare.node_name, bare.running, bare.spec.containers) == ("", False, ())


def test_nodes_of_one_type_share_what_they_offer_and_their_conditions() -> None:
    def decoded(name: str, memory: str) -> Node:
        conditions = [{"type": "Ready", "status": "True", "reason": f"as {name} says"}]
        status = {"capacity": {"cpu": "64", "memory": memory}, "conditions": conditions}
        return Node.decode(msgspec.json.encode({"metadata": {"name": name}, "status": status}))

    first, second, other = decoded("a", "1Gi"), decoded("b", "1Gi"), decoded("c", "2Gi")
    assert first.status is second.status
    assert first.status.capacity == {"cpu": "64", "memory": "1Gi"}
    assert (first.ready, other.ready) == (True, True)
    assert other.status.capacity == {"cpu": "64", "memory": "2Gi"}
    assert other.status.conditions is first.status.conditions
