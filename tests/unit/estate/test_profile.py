"""Profiles: those that are built in, how overrides are merged on them, and what is read from them."""

from dataclasses import replace
from typing import Any

import pytest

from controllers.estate import BUILT_IN, GpuModel, merged
from controllers.estate.numa import MAX_GPUS
from controllers.estate.problem import Mistake
from controllers.estate.profile import Extract, extract
from controllers.estate.reading import Node
from tests.unit.estate.documents import pool


def extracted(**profile: Any) -> Extract:
    return extract(Node(profile, "profile"))


def mistaken(**profile: Any) -> str:
    with pytest.raises(Mistake) as caught:
        extracted(**profile)
    return caught.value.problem.path


@pytest.mark.parametrize(
    ("name", "product", "architecture", "memory", "count", "driver", "cuda", "capability"),
    [
        ("a100", "NVIDIA A100-SXM4-40GB", "ampere", 40960, 8, "550.163.01", "12.4", "8.0"),
        ("h100", "NVIDIA H100 80GB HBM3", "hopper", 81920, 8, "550.163.01", "12.4", "9.0"),
        ("h200", "NVIDIA H200", "hopper", 144384, 8, "550.163.01", "12.4", "9.0"),
        ("b200", "NVIDIA B200", "blackwell", 196608, 8, "560.35.03", "12.6", "10.0"),
        ("gb200", "NVIDIA GB200 NVL", "blackwell", 196608, 8, "560.35.03", "12.6", "10.0"),
        ("gb300", "NVIDIA GB300 NVL", "blackwell", 294912, 8, "570.124.06", "12.8", "10.3"),
        ("l40s", "NVIDIA L40S", "ada_lovelace", 49152, 8, "550.163.01", "12.4", "8.9"),
        ("t4", "NVIDIA T4", "turing", 16384, 4, "550.163.01", "12.4", "7.5"),
    ],
)
def test_built_in_profiles_are_what_these_products_are(
    name: str, product: str, architecture: str, memory: int, count: int, driver: str, cuda: str, capability: str
) -> None:
    named = pool(f"{{gpu: {{profile: {name}}}}}")
    assert named.gpu_count == count
    plain = replace(named.gpu, addressing_mode="", mig=())  # which have tests of their own
    assert plain == GpuModel(product, architecture, capability, memory * 2**20, driver, cuda)
    assert named.gpu.memory_mib == memory


def test_the_table_of_built_in_profiles_is_complete() -> None:
    assert sorted(BUILT_IN) == ["a100", "b200", "gb200", "gb300", "h100", "h200", "l40s", "t4"]


@pytest.mark.parametrize(
    ("base", "overrides", "expected"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3, "z": 4}}, {"a": {"x": 1, "y": 3, "z": 4}}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ],
)
def test_maps_are_merged_and_everything_else_is_replaced(
    base: dict[str, Any], overrides: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert merged(base, overrides) == expected


def test_an_empty_profile_is_no_gpu() -> None:
    assert extracted() == Extract(GpuModel(), 0)


@pytest.mark.parametrize(
    ("profile", "count"),
    [
        ({"device_count": 3}, 3),
        ({"device_count": 8.0}, 8),
        ({"device_count": 0, "devices": [{}, {}]}, 2),
        ({"device_count": 1, "devices": [{}, {}]}, 1),
        ({"devices": [None] * 3}, 3),
        ({"device_count": None, "devices": None}, 0),
        ({"device_count": MAX_GPUS}, MAX_GPUS),
    ],
)
def test_the_count_is_device_count_or_else_the_length_of_devices(profile: dict[str, Any], count: int) -> None:
    assert extracted(**profile).count == count


@pytest.mark.parametrize(
    ("profile", "path"),
    [
        ({"device_count": -1}, "device_count"),
        ({"device_count": 1.5}, "device_count"),
        ({"device_count": "8"}, "device_count"),
        ({"device_count": True}, "device_count"),
        ({"device_count": MAX_GPUS + 1}, "device_count"),
        ({"devices": [{}] * (MAX_GPUS + 1)}, "devices"),
        ({"devices": 8}, "devices"),
        ({"system": []}, "system"),
        ({"system": {"driver_version": 550}}, "system.driver_version"),
        ({"device_defaults": {"name": 1}}, "device_defaults.name"),
        ({"device_defaults": {"memory": 80}}, "device_defaults.memory"),
        ({"device_defaults": {"memory": {"total_bytes": 2**50 + 1}}}, "device_defaults.memory.total_bytes"),
        ({"device_defaults": {"memory": {"total_bytes": float("nan")}}}, "device_defaults.memory.total_bytes"),
        ({"device_defaults": {"compute_capability": "9.0"}}, "device_defaults.compute_capability"),
        ({"device_defaults": {"compute_capability": {"minor": 1}}}, "device_defaults.compute_capability.major"),
    ],
)
def test_a_mistake_in_a_profile_is_reported_with_its_path(profile: dict[str, Any], path: str) -> None:
    assert mistaken(**profile) == f"profile.{path}"


def test_memory_in_mib_leaves_the_rest_out() -> None:
    assert GpuModel(memory=11441 * 2**20 + 2**20 - 1).memory_mib == 11441


def test_a_compute_capability_without_minor_is_a_whole_one_and_none_is_empty() -> None:
    assert extracted(device_defaults={"compute_capability": {"major": 9}}).model.compute_capability == "9.0"
    assert extracted(device_defaults={"name": "x"}).model.compute_capability == ""


@pytest.mark.parametrize(
    ("text", "brand"),
    [(None, "Nvidia"), ("nvidia", "Nvidia"), ("tesla", "Tesla"), ("geforce", "GeForce"), ("nvs", "NVS"), ("My", "My")],
)
def test_brands_have_the_capitals_that_drivers_report(text: str | None, brand: str) -> None:
    assert extracted(device_defaults={"brand": text}).model.brand == brand


def test_a_product_that_can_be_no_label_value_is_kept_as_it_is() -> None:
    assert extracted(device_defaults={"name": "GPU (Test Edition) é"}).model.product == "GPU (Test Edition) é"
