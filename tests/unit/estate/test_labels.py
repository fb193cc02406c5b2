"""The labels of a node."""

import pytest

from controllers.estate import BUILT_IN, GpuModel, Pool, label_keys, load, node_labels
from tests.unit.estate.documents import CHART_DEFAULT, pool


def test_a_node_has_the_labels_of_gpu_feature_discovery() -> None:
    named = load("migStrategy: mixed\nnodePools: {p: {gpu: {profile: h100}}}").pools["p"]
    assert node_labels(named, "0a1b2c3d-0000-4000-8000-000000000001.3") == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/cuda.driver-version.full": "550.163.01",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "163",
        "nvidia.com/cuda.driver-version.revision": "01",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "163",
        "nvidia.com/cuda.driver.rev": "01",
        "nvidia.com/cuda.runtime-version.full": "12.4",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "4",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "4",
        "nvidia.com/gpu.clique": "0a1b2c3d-0000-4000-8000-000000000001.3",
        "nvidia.com/gpu.deploy.dcgm-exporter": "true",
        "run.ai/fake.gpu": "true",
    }


def test_what_a_pool_does_not_say_has_no_label() -> None:
    assert node_labels(load(CHART_DEFAULT).pools["default"]) == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.product": "Tesla-K80",
        "nvidia.com/gpu.memory": "11441",
        "nvidia.com/gpu.deploy.dcgm-exporter": "true",
        "run.ai/fake.gpu": "true",
    }


def test_the_family_has_the_spelling_of_gpu_feature_discovery() -> None:
    assert node_labels(pool("{gpu: {profile: l40s}}"))["nvidia.com/gpu.family"] == "ada-lovelace"


@pytest.mark.parametrize("block", ["{}", "{gpu: {backend: mock, profile: h100}}", "{resources: [a.b/c: 1]}"])
def test_a_node_without_gpus_of_ours_has_no_labels(block: str) -> None:
    assert node_labels(pool(block), "c.1") == {}


def test_a_product_that_is_no_label_value_becomes_one_or_none() -> None:
    assert node_labels(Pool("p", gpu=GpuModel("GPU (Test Edition)"), gpu_count=1))["nvidia.com/gpu.product"] == (
        "GPU--Test-Edition"
    )
    assert "nvidia.com/gpu.product" not in node_labels(Pool("p", gpu=GpuModel("é"), gpu_count=1))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_label_that_a_pool_can_have_is_among_the_keys(name: str) -> None:
    labels = node_labels(pool(f"{{gpu: {{profile: {name}}}}}"), "c.1")
    without = set() if "nvidia.com/mig.capable" in labels else {"nvidia.com/mig.capable"}
    assert labels.keys() | without == label_keys()


def test_only_gpus_that_can_be_partitioned_are_labelled_so() -> None:
    capable = {
        name for name in BUILT_IN if "nvidia.com/mig.capable" in node_labels(pool(f"{{gpu: {{profile: {name}}}}}"))
    }
    assert capable == {"a100", "h100", "h200", "b200", "gb200", "gb300"}
