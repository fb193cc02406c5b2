"""GPUs as devices, in the spelling of the real driver."""

import pytest

from controllers.api.dra import dra_api
from controllers.estate import GpuModel, gpus_of, load
from controllers.gpu_slices.devices import devices, semantic_version

V1 = dra_api("v1")


def test_a_gpu_has_every_attribute_of_the_real_drivers_devices() -> None:
    pool = load("nodePools: {p: {gpu: {profile: h100}, numa: {zones: 2}}}").pools["p"]

    found = devices(V1, pool.gpu, gpus_of("fake-node", pool))

    assert [device["name"] for device in found] == [f"gpu-{index}" for index in range(8)]
    assert found[0] == {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-db9f4e6e-e6a8-5da4-8a8b-08b968db6904"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "cudaDriverVersion": {"version": "12.4.0"},
            "driverVersion": {"version": "550.163.1"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }
    roots = [device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] for device in found]
    assert roots == ["pci0000:00"] * 4 + ["pci0001:00"] * 4


def test_gpus_that_share_memory_with_their_cpu_say_how() -> None:
    for profile, mode in (("gb200", {"string": "ATS"}), ("b200", None)):
        pool = load(f"nodePools: {{p: {{gpu: {{profile: {profile}}}}}}}").pools["p"]
        found = devices(V1, pool.gpu, gpus_of("n", pool))[0]
        assert found["attributes"].get("addressingMode") == mode


def test_what_a_profile_does_not_say_is_left_out() -> None:
    pool = load("nodePools: {p: {gpu: {overrides: {device_count: 1}}}}").pools["p"]

    (found,) = devices(V1, pool.gpu, gpus_of("n", pool))

    assert set(found["attributes"]) == {
        "type",
        "uuid",
        "brand",
        "resource.kubernetes.io/pciBusID",
        "resource.kubernetes.io/pcieRoot",
    }
    assert "capacity" not in found


def test_the_oldest_version_nests_what_a_device_has() -> None:
    pool = load("nodePools: {p: {gpu: {profile: t4}}}").pools["p"]

    found = devices(dra_api("v1beta1"), pool.gpu, gpus_of("n", pool))[0]

    assert set(found) == {"name", "basic"}
    assert set(found["basic"]) == {"attributes", "capacity"}


def test_a_text_is_cut_to_what_the_api_takes() -> None:
    pool = load("nodePools: {p: {gpu: {overrides: {device_count: 1}}}}").pools["p"]

    (found,) = devices(V1, GpuModel(product="x" * 65), gpus_of("n", pool))

    assert found["attributes"]["productName"] == {"string": "x" * 64}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.163.01", "550.163.1"),
        ("12.4", "12.4.0"),
        ("9", "9.0.0"),
        ("560.35.03.5", "560.35.3"),
        ("r550", "550.0.0"),
        ("", ""),
        ("none", ""),
    ],
)
def test_a_version_has_three_numbers_without_leading_zeros(text: str, version: str) -> None:
    assert semantic_version(text) == version
