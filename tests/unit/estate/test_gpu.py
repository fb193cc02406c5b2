"""Who a node's GPUs are, and where they sit."""

import uuid

import pytest

from controllers.estate import Gpu, Numa, Pool, gpu_id, gpus_of


@pytest.mark.parametrize(
    ("node", "identity"),
    [
        ("fake-node", "GPU-db9f4e6e-e6a8-5da4-8a8b-08b968db6904"),
        ("kwok-gpu-node-1", "GPU-481abdb7-ab2c-5617-b3b6-adf4d6298ccd"),
    ],
)
def test_ids_are_those_of_fake_gpu_operator(node: str, identity: str) -> None:
    assert gpu_id(node, 0) == identity


def test_an_id_is_a_version_5_uuid_that_depends_on_node_and_index_only() -> None:
    identity = uuid.UUID(gpu_id("n1", 3).removeprefix("GPU-"))
    assert (identity.version, identity.variant) == (5, uuid.RFC_4122)
    other = Pool("other", gpu_count=8, numa=Numa(4))
    assert [gpu.uuid for gpu in gpus_of("n1", Pool("p", gpu_count=8))] == [gpu.uuid for gpu in gpus_of("n1", other)]


def test_a_node_of_a_pool_without_gpus_has_none() -> None:
    assert gpus_of("n1", Pool("p")) == ()


def test_gpus_are_numbered_from_0_and_have_places_that_look_like_pci() -> None:
    gpus = gpus_of("n1", Pool("p", gpu_count=2))
    assert gpus[0] == Gpu(0, gpu_id("n1", 0), "0000:0a:00.0", "pci0000:00", 0)
    assert gpus[1] == Gpu(1, gpu_id("n1", 1), "0000:0b:00.0", "pci0000:00", 0)


def test_gpus_of_a_zone_follow_each_other_and_share_a_root() -> None:
    gpus = gpus_of("n1", Pool("p", gpu_count=4, numa=Numa(3, explicit=(3, 0, 1))))
    assert [gpu.numa_node for gpu in gpus] == [0, 0, 0, 2]
    assert [gpu.pcie_root for gpu in gpus] == ["pci0000:00"] * 3 + ["pci0002:00"]
    assert gpus[3].pci_bus_id == "0002:0d:00.0"


def test_the_largest_node_has_a_place_for_each_gpu() -> None:
    gpus = gpus_of("n1", Pool("p", gpu_count=1024, numa=Numa(64)))
    assert len({gpu.pci_bus_id for gpu in gpus}) == 1024
    assert len({(gpu.pcie_root, gpu.numa_node) for gpu in gpus}) == len({gpu.pcie_root for gpu in gpus})
    assert all(len(gpu.pci_bus_id) == len("0000:0a:00.0") for gpu in gpus)
