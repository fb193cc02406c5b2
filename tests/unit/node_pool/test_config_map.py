"""The ConfigMap of a node."""

from typing import Any

import msgspec

from controllers.api.core import Node
from controllers.estate import gpu_id, load
from controllers.node_pool.config_map import desired_config_map, is_as, name_of
from controllers.node_pool.kinds import NodeTopology
from controllers.runtime import ObjectMeta
from controllers.topology import TopologyOptions

HERE = TopologyOptions()
NODE = Node(metadata=ObjectMeta(name="n1", uid="u1", annotations={"kwok.x-k8s.io/node": "fake"}))
PAIR = load("nodePools: {p: {gpu: {profile: t4, overrides: {device_count: 2}}}}").pools["p"]
ONE = load("nodePools: {p: {gpu: {profile: a100, overrides: {device_count: 1}}}}").pools["p"]


def written(body: Any, version: str = "7") -> NodeTopology:
    metadata = {**body["metadata"], "uid": "c1", "resourceVersion": version}
    return NodeTopology.decode(msgspec.json.encode({**body, "metadata": metadata}))


def test_it_is_found_by_its_labels_and_goes_with_its_node() -> None:
    metadata = desired_config_map(NODE, PAIR, None, HERE)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("topology-n1", "gpu-mirage")
    assert metadata["labels"] == {"node-topology": "true", "node-name": "n1"}
    assert metadata["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert metadata["ownerReferences"][0]["uid"] == "u1"
    assert "resourceVersion" not in metadata


def test_what_was_written_is_as_it_should_be() -> None:
    body = desired_config_map(NODE, PAIR, None, HERE)
    present = written(body)
    assert is_as(present, desired_config_map(NODE, PAIR, present, HERE))
    assert not is_as(None, body)
    assert not is_as(present, desired_config_map(NODE, ONE, present, HERE))
    again = Node(metadata=ObjectMeta(name="n1", uid="u2", annotations=NODE.metadata.annotations))
    assert not is_as(present, desired_config_map(again, PAIR, present, HERE))


def test_usage_of_gpus_that_stay_is_kept_over_a_change_of_the_pool() -> None:
    body = desired_config_map(NODE, PAIR, None, HERE)
    used = body["data"]["topology.yml"].replace('pod: ""', "pod: worker", 2)
    assert used.count("pod: worker") == 2
    present = written({**body, "data": {"topology.yml": used}})

    after = desired_config_map(NODE, ONE, present, HERE)

    assert after["metadata"]["resourceVersion"] == "7"
    assert after["data"]["topology.yml"].count("pod: worker") == 1
    assert gpu_id("n1", 0) in after["data"]["topology.yml"]
    assert "A100" in after["data"]["topology.yml"]


def test_the_longest_name_of_a_node_has_a_name_of_its_own() -> None:
    one, two = "n" * 253, "n" * 252 + "m"
    assert len(name_of(one, HERE)) <= 253
    assert name_of(one, HERE) != name_of(two, HERE)
    assert name_of("n" * 244, HERE) == "topology-" + "n" * 244
