"""The NodeResourceTopology of a node as it is written."""

from typing import Any

import msgspec
import pytest

from controllers.api.topology import NodeResourceTopology
from controllers.estate import Numa
from controllers.node_resource_topology.fingerprint import fingerprint
from controllers.node_resource_topology.manifest import is_current, is_marked, manifest
from tests.unit.node_resource_topology.builders import BIG, burstable, guaranteed, node, numa, pod

Json = dict[str, Any]


def published(wanted: Json, uid: str = "nrt1") -> NodeResourceTopology:
    """What a server gives back for what was written."""
    return NodeResourceTopology.decode(
        msgspec.json.encode({**wanted, "metadata": {**wanted["metadata"], "uid": uid, "resourceVersion": "1"}})
    )


def available(wanted: Json) -> list[dict[str, str]]:
    """What is left in each zone, by resource."""
    return [{entry["name"]: entry["available"] for entry in zone["resources"]} for zone in wanted["zones"]]


def attributes(wanted: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in wanted["attributes"]}


def test_a_node_without_pods_has_all_of_its_zones() -> None:
    assert manifest(node(), numa(), [], None) == {
        "metadata": {
            "name": "n1",
            "labels": {"app.kubernetes.io/managed-by": "gpu-mirage"},
            "annotations": {"gpu-mirage/placements": "{}"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}],
        },
        "topologyPolicies": ["SingleNUMANodeContainerLevel"],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "container"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"},
            {"name": "nodeTopologyPodsFingerprintMethod", "value": "with-exclusive-resources"},
        ],
        "zones": [
            {
                "name": name,
                "type": "Node",
                "costs": [{"name": "node-0", "value": costs[0]}, {"name": "node-1", "value": costs[1]}],
                "resources": [
                    {"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "4"},
                    {"name": "cpu", "capacity": "16", "allocatable": "16", "available": "16"},
                    {"name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "64Gi"},
                ],
            }
            for name, costs in (("node-0", (10, 21)), ("node-1", (21, 10)))
        ],
    }


@pytest.mark.parametrize(
    ("policy", "scope", "word"),
    [
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("none", "pod", "None"),
    ],
)
def test_policy_and_scope_are_told_in_both_ways(policy: str, scope: str, word: str) -> None:
    wanted = manifest(node(), numa(topologyManagerPolicy=policy, topologyManagerScope=scope), [], None)

    assert wanted["topologyPolicies"] == [word]
    assert attributes(wanted)["topologyManagerPolicy"] == policy
    assert attributes(wanted)["topologyManagerScope"] == scope


def test_distances_are_those_of_the_pool() -> None:
    wanted = manifest(node(), numa(distances={"self": 11, "remote": 40}), [], None)

    assert [[cost["value"] for cost in zone["costs"]] for zone in wanted["zones"]] == [[11, 40], [40, 11]]


@pytest.mark.parametrize(("zones", "told"), [(8, None), (9, "9"), (64, "64")])
def test_schedulers_are_told_of_more_zones_than_they_expect(zones: int, told: str | None) -> None:
    wanted = manifest(node({"cpu": "64"}), Numa(zones), [], None)

    assert attributes(wanted).get("topologyManagerMaxNUMANodes") == told
    assert [zone["name"] for zone in wanted["zones"]] == [f"node-{index}" for index in range(zones)]


def test_a_zone_lists_only_what_it_has() -> None:
    wanted = manifest(node({"nvidia.com/gpu": "8", "cpu": "3m"}), numa(zones=4, gpusPerZone=[4, 4, 0, 0]), [], None)

    names = [[resource["name"] for resource in zone["resources"]] for zone in wanted["zones"]]
    assert names == [["nvidia.com/gpu", "cpu"], ["nvidia.com/gpu", "cpu"], ["cpu"], []]


def test_pods_lower_what_is_available_and_nothing_else() -> None:
    wanted = manifest(node(), numa(), [pod("a", guaranteed(3, "2", "8Gi")), pod("b", burstable(2))], None)

    assert available(wanted) == [
        {"nvidia.com/gpu": "1", "cpu": "14", "memory": "56Gi"},
        {"nvidia.com/gpu": "2", "cpu": "16", "memory": "64Gi"},
    ]
    assert {entry["allocatable"] for zone in wanted["zones"] for entry in zone["resources"]} == {"4", "16", "64Gi"}


def test_what_is_used_up_is_told_as_zero() -> None:
    wanted = manifest(node(), numa(), [pod("a", guaranteed(4, "16", "64Gi"))], None)

    assert available(wanted)[0] == {"nvidia.com/gpu": "0", "cpu": "0", "memory": "0"}


def test_a_pod_stays_where_the_published_topology_has_it() -> None:
    first, second = pod("a", burstable(4), age=2), pod("b", burstable(4), age=1)
    before = manifest(node(), numa(), [first, second], None)

    after = manifest(node(), numa(), [second], published(before))

    assert [zone["nvidia.com/gpu"] for zone in available(after)] == ["4", "0"]
    assert after["metadata"]["annotations"] == {"gpu-mirage/placements": '{"uid-b":[[1,4,0,0]]}'}


def test_without_a_published_topology_pods_are_placed_by_their_age() -> None:
    pods = [pod("a", burstable(4), age=1), pod("b", burstable(4), age=2)]

    wanted = manifest(node(), numa(), pods, None)

    assert wanted["metadata"]["annotations"]["gpu-mirage/placements"] == '{"uid-b":[[0,4,0,0]],"uid-a":[[1,4,0,0]]}'
    assert manifest(node(), numa(), pods[::-1], None) == wanted


def test_the_fingerprint_counts_exclusive_pods_that_run() -> None:
    pods = [
        pod("guaranteed", guaranteed()),
        pod("gpu", burstable(1)),
        pod("shared", burstable()),
        pod("waiting", guaranteed(), phase="Pending"),
    ]

    found = attributes(manifest(node(), numa(), pods, None))["nodeTopologyPodsFingerprint"]

    assert found == fingerprint([("default", "gpu"), ("default", "guaranteed")])


# -- whether something is to be written -------------------------------------------------------------------------------


def test_what_was_written_is_current() -> None:
    wanted = manifest(node(), numa(), [pod("a", guaranteed(1))], None)

    assert is_current(wanted, published(wanted))
    assert is_marked(published(wanted))


def without(wanted: Json, key: str) -> Json:
    return {**wanted, "metadata": {name: value for name, value in wanted["metadata"].items() if name != key}}


@pytest.mark.parametrize("key", ["labels", "annotations", "ownerReferences"])
def test_lost_metadata_is_written_again(key: str) -> None:
    wanted = manifest(node(), numa(), [], None)

    assert not is_current(wanted, published(without(wanted, key)))


def test_what_others_add_to_the_metadata_is_none_of_our_business() -> None:
    wanted = manifest(node(), numa(), [], None)
    metadata = {**wanted["metadata"], "labels": {**wanted["metadata"]["labels"], "team": "a"}}

    assert is_current(wanted, published({**wanted, "metadata": metadata}))


@pytest.mark.parametrize(
    "change",
    [
        {"topologyPolicies": []},
        {"attributes": []},
        {"zones": []},
        {"zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": 4}]}]},
    ],
)
def test_content_that_differs_is_written_again(change: Json) -> None:
    wanted = manifest(node(), numa(), [], None)

    assert not is_current(wanted, published({**wanted, **change}))


def test_a_node_that_was_made_again_becomes_the_owner() -> None:
    before = manifest(node(), numa(), [], None)

    assert not is_current(manifest(node(uid="u2"), numa(), [], None), published(before))


def test_an_object_without_our_labels_is_not_marked() -> None:
    assert not is_marked(published(without(manifest(node(BIG), numa(), [], None), "labels")))
