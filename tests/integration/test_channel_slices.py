"""The channel slices of simulated nodes on a real control plane: what is published, and when it goes or stays."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.localcluster import ControllerProcess, delete_nodes, node_manifest
from hack.localcluster.nodes import POOL_LABEL
from tests.integration.conftest import PoolNodes, unique
from tests.integration.scenario import EAST, Cluster, Manifest

DRIVER = "compute-domain.nvidia.com"
DEVICES = [
    {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}},
    {"name": "daemon-0", "attributes": {"type": {"string": "daemon"}, "id": {"int": 0}}},
]


class Slices:
    """The slices of our driver, and nodes that are made one by one."""

    def __init__(self, controller: ControllerProcess) -> None:
        self.cluster = Cluster(controller.environment, "default")
        self.made: list[str] = []

    def make_node(self, node: Manifest) -> str:
        """Creates or changes a node; it is deleted after the test."""
        name: str = node["metadata"]["name"]
        self.made.append(name)
        self.cluster.apply(node)
        return name

    def get(self, node: str) -> Manifest | None:
        return self.cluster.get("resourceslices", f"{node}-{DRIVER}")

    def wait(self, node: str, generation: int = 1, *, owner: str | None = None, not_uid: str = "") -> Manifest:
        """Waits for a node's slice in a pool generation, with a certain owner, or beside the one with a certain uid."""

        def published() -> Manifest | None:
            found = self.get(node)
            if found is None or found["metadata"]["uid"] == not_uid:
                return None
            owners = [reference["uid"] for reference in found["metadata"].get("ownerReferences", ())]
            right = found["spec"]["pool"]["generation"] == generation and owner in (None, *owners)
            return found if right else None

        return self.cluster.wait(published, lambda: f"a slice of {node}, generation {generation}: {self.get(node)}")

    def wait_gone(self, node: str) -> None:
        self.cluster.wait_gone("resourceslices", f"{node}-{DRIVER}")

    def of_nodes(self, *names: str) -> list[str]:
        """Those of the nodes that have a slice of any name."""
        slices = self.cluster.list("resourceslices")
        return sorted({s["spec"]["nodeName"] for s in slices if s["spec"]["driver"] == DRIVER} & set(names))

    def json_patch(self, node: str, *operations: dict[str, Any]) -> None:
        """Changes a slice as a person would."""
        patch = f"--patch={json.dumps(operations)}"
        self.cluster.environment.kubectl("patch", "resourceslices", f"{node}-{DRIVER}", "--type=json", patch)


@pytest.fixture
def slices(controller: ControllerProcess) -> Iterator[Slices]:
    slices = Slices(controller)
    yield slices
    delete_nodes(controller.environment, slices.made)


def node_name() -> str:
    return f"node-{unique()}"


def foreign_slice(node: str) -> Manifest:
    """A slice under the name that ours would have, as another publisher of the same driver might write it."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 7, "resourceSliceCount": 1},
            "devices": [{"name": "channel-1", "attributes": {"type": {"string": "channel"}, "id": {"int": 1}}}],
        },
    }


def test_every_simulated_node_gets_one_slice_that_it_owns(slices: Slices, pool_nodes: PoolNodes) -> None:
    first, second = pool_nodes({EAST: 1, "": 1})

    for node in (first, second):
        published = slices.wait(node)
        assert published["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": node,
                "uid": slices.cluster.uid("nodes", node),
                "controller": True,
            }
        ]
        assert published["spec"] == {
            "driver": "compute-domain.nvidia.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": DEVICES,
        }
    found = [s["spec"].get("nodeName") for s in slices.cluster.list("resourceslices")]
    assert (found.count(first), found.count(second)) == (1, 1)


def test_a_deleted_slice_is_published_again(slices: Slices) -> None:
    node = slices.make_node(node_manifest(node_name()))
    published = slices.wait(node)

    slices.cluster.delete("resourceslices", f"{node}-{DRIVER}")

    again = slices.wait(node, not_uid=published["metadata"]["uid"])
    assert again["spec"] == published["spec"]


def test_an_edited_slice_is_repaired_in_a_higher_generation(slices: Slices) -> None:
    node = slices.make_node(node_manifest(node_name()))
    slices.wait(node)

    slices.json_patch(node, {"op": "remove", "path": "/spec/devices/1"})

    assert slices.wait(node, generation=2)["spec"]["devices"] == DEVICES

    slices.json_patch(node, {"op": "replace", "path": "/spec/devices/0/attributes/id/int", "value": 9})

    assert slices.wait(node, generation=3)["spec"]["devices"] == DEVICES


def test_nodes_that_are_not_simulated_get_no_slice(slices: Slices) -> None:
    real = node_manifest(f"outside-{unique()}")
    real["metadata"]["annotations"] = {}
    elsewhere = node_manifest(f"outside-{unique()}")
    del elsewhere["metadata"]["labels"][POOL_LABEL]
    others = [slices.make_node(real), slices.make_node(elsewhere)]

    # Nodes are looked at in the order of their events, so the others have been looked at once this one has a slice.
    last = slices.make_node(node_manifest(node_name()))
    slices.wait(last)

    assert slices.of_nodes(*others, last) == [last]


def test_the_slice_goes_when_the_node_leaves_its_pool_and_comes_back_with_it(slices: Slices) -> None:
    node = slices.make_node(node_manifest(node_name()))
    slices.wait(node)

    slices.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: None}}})
    slices.wait_gone(node)
    slices.cluster.patch("nodes", node, {"metadata": {"labels": {POOL_LABEL: "default"}}})

    assert slices.wait(node)["spec"]["devices"] == DEVICES


def test_the_slice_goes_with_its_node(slices: Slices) -> None:
    node = slices.make_node(node_manifest(node_name()))
    slices.wait(node)

    slices.cluster.delete("nodes", node)

    slices.wait_gone(node)


def test_a_node_made_again_under_its_name_owns_the_slice(slices: Slices) -> None:
    name = node_name()
    slices.make_node(node_manifest(name))
    slices.wait(name)
    slices.cluster.environment.kubectl("delete", "node", name)

    slices.make_node(node_manifest(name))

    owner = slices.cluster.uid("nodes", name)
    published = slices.wait(name, owner=owner)
    assert [reference["uid"] for reference in published["metadata"]["ownerReferences"]] == [owner]
    assert published["spec"]["devices"] == DEVICES


def test_somebody_elses_slice_is_left_alone_until_it_goes(slices: Slices) -> None:
    node = node_name()
    slices.cluster.apply(foreign_slice(node))
    foreign = slices.get(node)
    assert foreign is not None

    slices.make_node(node_manifest(node))
    event = slices.cluster.wait_event("ForeignResourceSlice", node, "default")

    assert event["type"] == "Warning"
    assert event["note"].startswith(f"ResourceSlice {node}-{DRIVER} is written by somebody else and is left alone")
    assert slices.get(node) == foreign

    slices.cluster.delete("resourceslices", f"{node}-{DRIVER}")
    assert slices.wait(node)["spec"]["devices"] == DEVICES


def test_somebody_elses_slice_of_a_node_that_leaves_is_not_withdrawn(slices: Slices) -> None:
    node, witness = node_name(), node_name()
    slices.cluster.apply(foreign_slice(node))
    foreign = slices.get(node)
    slices.make_node(node_manifest(node))
    slices.make_node(node_manifest(witness))
    slices.cluster.wait_event("ForeignResourceSlice", node, "default")
    slices.wait(witness)

    slices.cluster.environment.kubectl("delete", "node", node, witness)
    slices.wait_gone(witness)

    assert slices.get(node) == foreign
    slices.cluster.delete("resourceslices", f"{node}-{DRIVER}")


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("long-" + 58 * "n", "long-" + 58 * "n" + "-compute-domain.nvidia.com"),
        ("long-" + 248 * "n", "long-" + 205 * "n" + "-05df537bccb299ad-compute-domain.nvidia.com"),
    ],
    ids=["63", "253"],
)
def test_long_node_names_fit_into_a_slice(slices: Slices, node: str, name: str) -> None:
    manifest = node_manifest(node)
    manifest["metadata"]["labels"]["kubernetes.io/hostname"] = "long"  # a label's value has 63 characters at most
    slices.make_node(manifest)

    published = slices.cluster.wait(lambda: slices.cluster.get("resourceslices", name), lambda: f"the slice {name}")

    assert published["spec"]["nodeName"] == node
    assert published["spec"]["pool"] == {"name": node, "generation": 1, "resourceSliceCount": 1}
