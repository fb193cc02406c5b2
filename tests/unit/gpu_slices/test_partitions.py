"""GPUs that can be partitioned, as devices that draw on counters."""

from typing import Any

from controllers.api.dra import dra_api
from controllers.estate import Gpu, Pool, gpus_of, load
from controllers.gpu_slices.partitions import counter_set, devices

V1 = dra_api("v1")


def pool_of(profile: str) -> Pool:
    return load(f"nodePools: {{p: {{gpu: {{profile: {profile}, offered: dra, mig: dynamic}}}}}}").pools["p"]


def first(profile: str) -> tuple[Pool, Gpu]:
    pool = pool_of(profile)
    return pool, gpus_of("fake-node", pool)[0]


def named(profile: str) -> dict[str, Any]:
    pool, gpu = first(profile)
    return {device["name"]: device for device in devices(V1, pool.gpu, gpu)}


def test_an_instance_is_what_the_real_driver_announces() -> None:
    assert named("a100")["gpu-0-mig-2g10gb-14-2"] == {
        "name": "gpu-0-mig-2g10gb-14-2",
        "attributes": {
            "type": {"string": "mig"},
            "parentUUID": {"string": "GPU-db9f4e6e-e6a8-5da4-8a8b-08b968db6904"},
            "profile": {"string": "2g.10gb"},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Ampere"},
            "cudaComputeCapability": {"version": "8.0.0"},
            "cudaDriverVersion": {"version": "12.4.0"},
            "driverVersion": {"version": "550.163.1"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        },
        "capacity": {
            "multiprocessors": {"value": "28"},
            "copyEngines": {"value": "2"},
            "decoders": {"value": "1"},
            "encoders": {"value": "0"},
            "jpegEngines": {"value": "0"},
            "ofaEngines": {"value": "0"},
            "memory": {"value": "9856Mi"},
        },
        "consumesCounters": [
            {
                "counterSet": "gpu-0-counter-set",
                "counters": {
                    "multiprocessors": {"value": "28"},
                    "copy-engines": {"value": "2"},
                    "decoders": {"value": "1"},
                    "encoders": {"value": "0"},
                    "jpeg-engines": {"value": "0"},
                    "ofa-engines": {"value": "0"},
                    "memory": {"value": "9856Mi"},
                    "memory-slice-2": {"value": "1"},
                    "memory-slice-3": {"value": "1"},
                },
            }
        ],
    }


def test_every_instance_has_a_device_at_each_place() -> None:
    names = list(named("a100"))

    assert len(names) == 25
    assert [name for name in names if "-9-" in name] == ["gpu-0-mig-3g20gb-9-0", "gpu-0-mig-3g20gb-9-4"]
    assert "gpu-0-mig-1g5gb-me-20-6" in names


def test_a_whole_gpu_is_on_offer_where_mig_needs_no_reset_and_takes_everything() -> None:
    assert "gpu-0" not in named("a100")
    for profile in ("h100", "gb200"):
        pool, gpu = first(profile)
        whole = named(profile)["gpu-0"]
        everything = counter_set(pool.gpu, gpu)
        assert whole["consumesCounters"] == [{"counterSet": everything["name"], "counters": everything["counters"]}]
        assert whole["attributes"]["uuid"] == {"string": gpu.uuid}
        assert (
            whole["capacity"].keys()
            == named(profile)["gpu-0-mig-1g" + pool.gpu.mig[0].name[3:] + "-19-0"]["capacity"].keys()
        )


def test_no_device_draws_on_more_than_the_gpu_has() -> None:
    for profile in ("a100", "h100", "h200", "b200", "gb200", "gb300"):
        pool, gpu = first(profile)
        counters = counter_set(pool.gpu, gpu)["counters"]
        assert {f"memory-slice-{number}" for number in range(8)} <= counters.keys()
        for device in devices(V1, pool.gpu, gpu):
            (consumed,) = device["consumesCounters"]
            assert consumed["counters"].keys() <= counters.keys()


def test_the_api_takes_so_many_counters_attributes_and_capacities() -> None:
    for device in named("gb300").values():
        assert len(device["attributes"]) + len(device["capacity"]) <= 32
        assert len(device["name"]) <= 63
        assert len(device["consumesCounters"][0]["counters"]) <= 32


def test_the_oldest_version_nests_what_a_device_draws_on() -> None:
    pool, gpu = first("h100")

    device = devices(dra_api("v1beta1"), pool.gpu, gpu)[0]

    assert set(device) == {"name", "basic"}
    assert set(device["basic"]) == {"attributes", "capacity", "consumesCounters"}
