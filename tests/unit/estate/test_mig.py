"""MIG profiles: those that are built in, and those that a GPU profile lists."""

from typing import Any

import pytest

from controllers.estate import BUILT_IN, load, slices_of
from controllers.estate.mig import MAX_INSTANCES, MigProfile, device_part, read_mig
from controllers.estate.problem import Mistake
from controllers.estate.reading import Node

PARTITIONED = sorted(name for name, profile in BUILT_IN.items() if profile["mig"]["profiles"])
SMALL: dict[str, Any] = {"name": "1g.5gb", "id": 1, "starts": [0, 1], "slices": 1, "memory_mb": 4864}
LARGE: dict[str, Any] = {"name": "2g.10gb", "id": 0, "starts": [0], "slices": 2, "memory_mb": 9856}


def read(*entries: Any) -> tuple[MigProfile, ...]:
    return read_mig(Node(list(entries), "mig.profiles", "p"))


def built_in(name: str) -> tuple[MigProfile, ...]:
    return load(f"nodePools: {{p: {{gpu: {{profile: {name}}}}}}}").pools["p"].gpu.mig


def test_gpus_with_and_without_mig_are_those_that_nvidia_lists() -> None:
    assert PARTITIONED == ["a100", "b200", "gb200", "gb300", "h100", "h200"]


@pytest.mark.parametrize("name", PARTITIONED)
def test_a_built_in_gpu_has_seven_sevenths_and_eight_memory_slices(name: str) -> None:
    profiles = built_in(name)

    assert [(profile.id, len(profile.starts), profile.slices) for profile in profiles] == [
        (19, 7, 1),
        (20, 7, 1),
        (15, 4, 2),
        (14, 3, 2),
        (9, 2, 4),
        (5, 1, 4),
        (0, 1, 8),
    ]
    assert slices_of(profiles) == 8
    assert [profile.name.split("g.")[0] for profile in profiles] == ["1", "1", "1", "2", "3", "4", "7"]


@pytest.mark.parametrize("name", PARTITIONED)
@pytest.mark.parametrize("layout", ["1111111", "22", "33", "322", "43", "7"], ids="layout-{}".format)
def test_the_layouts_that_nvidia_supports_fit_into_a_built_in_gpu(name: str, layout: str) -> None:
    whole = built_in(name)[-1]
    by_size = {"1": 0, "2": 3, "3": 4, "4": 5, "7": 6}
    parts = [built_in(name)[by_size[size]] for size in layout]

    for count in ("memory", "multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"):
        assert sum(getattr(part, count) for part in parts) <= getattr(whole, count), count


def test_a_gpu_has_media_extensions_for_one_instance() -> None:
    for name in PARTITIONED:
        profiles = built_in(name)
        assert profiles[1].name == f"{profiles[0].name}+me"
        assert profiles[1].ofa_engines == profiles[-1].ofa_engines == 1


def test_a_profile_of_the_user_lists_its_own() -> None:
    (small, large) = read(SMALL | {"multiprocessors": 14}, LARGE)

    assert (small.name, small.starts, small.multiprocessors, small.decoders) == ("1g.5gb", (0, 1), 14, 0)
    assert large.reach == 2


@pytest.mark.parametrize(
    ("entries", "path", "why"),
    [
        ([7], "mig.profiles[0]", "is not a map"),
        ([SMALL | {"name": "1g.5GB"}], "mig.profiles[0].name", "not the name of a MIG profile"),
        ([SMALL | {"name": None}], "mig.profiles[0].name", "it is missing"),
        ([SMALL | {"size": 1}], "mig.profiles[0].size", "this field is not known here"),
        ([SMALL | {"starts": []}], "mig.profiles[0].starts", "not a list of different slices"),
        ([SMALL | {"starts": [0, 0]}], "mig.profiles[0].starts", "not a list of different slices"),
        ([SMALL | {"starts": [-1]}], "mig.profiles[0].starts[0]", "-1 is not a whole number from 0 to 15"),
        ([SMALL | {"slices": 0}], "mig.profiles[0].slices", "0 is not a whole number from 1 to 16"),
        ([SMALL | {"memory_mb": 10**12}], "mig.profiles[0].memory_mb", "is not a whole number"),
        ([SMALL | {"decoders": -1}], "mig.profiles[0].decoders", "-1 is not a whole number"),
        ([SMALL], "mig.profiles[0].starts", "reaches slice 2, and the largest one has 1"),
        ([LARGE, SMALL, SMALL], "mig.profiles[2]", "the id or the name of 1g.5gb"),
        ([LARGE, SMALL, LARGE | {"name": "3g.1gb"}], "mig.profiles[2]", "the id or the name of 2g.10gb"),
    ],
)
def test_a_mistake_names_its_place(entries: list[Any], path: str, why: str) -> None:
    with pytest.raises(Mistake) as raised:
        read(*entries)

    assert raised.value.problem.path == path
    assert why in raised.value.problem.why


def test_a_gpu_has_no_more_instances_than_a_slice_has_devices() -> None:
    many = [
        {"name": f"1g.{number}gb", "id": number, "starts": list(range(16)), "slices": 1, "memory_mb": 1}
        for number in range(1, 5)
    ]
    whole = {"name": "7g.99gb", "id": 0, "starts": [0], "slices": 16, "memory_mb": 1}

    assert sum(len(profile.starts) for profile in read(whole, *many[:3])) == 49 <= MAX_INSTANCES
    with pytest.raises(Mistake, match="a GPU would have 65 instances"):
        read(whole, *many)


@pytest.mark.parametrize(
    ("name", "part"), [("1g.5gb", "1g5gb"), ("1g.5gb+me", "1g5gb-me"), ("1g.24gb+me.all", "1g24gb-meall")]
)
def test_the_name_of_a_profile_in_that_of_a_device_is_a_dns_label(name: str, part: str) -> None:
    assert device_part(name) == part


@pytest.mark.parametrize(
    ("gpu", "path", "why"),
    [
        ("{profile: h100, mig: dynamic}", "mig", "only devices of ResourceSlices can be partitioned"),
        ("{profile: t4, offered: dra, mig: dynamic}", "mig", "NVIDIA T4 has no MIG profiles"),
        ("{profile: h100, offered: dra, mig: static}", "mig", "'static' is not known"),
        ("{profile: h100, offered: dra, mig: true}", "mig", "True is not known"),
        (
            (
                "{profile: h100, offered: dra, "
                "overrides: {mig: {profiles: [{name: 1g.5gb, starts: [0], slices: 1, memory_mb: 1}]}}}"
            ),
            "overrides.mig.profiles[0].id",
            "it is missing",
        ),
    ],
)
def test_a_pool_that_cannot_be_partitioned_is_refused_and_others_go_on(gpu: str, path: str, why: str) -> None:
    estate = load(f"nodePools: {{p: {{gpu: {gpu}}}, q: {{gpu: {{profile: a100, offered: dra, mig: dynamic}}}}}}")

    (problem,) = estate.problems
    assert problem.path == f"nodePools.p.gpu.{path}"
    assert why in problem.why
    assert estate.pools["q"].mig == "dynamic"


def test_an_instance_is_no_larger_than_its_gpu() -> None:
    memory = "device_defaults: {memory: {total_bytes: 1073741824}}"
    (problem,) = load(
        f"nodePools: {{p: {{gpu: {{profile: h100, offered: dra, mig: dynamic, overrides: {{{memory}}}}}}}}}"
    ).problems

    assert problem.path == "nodePools.p.gpu.mig"
    assert problem.why == "an instance 1g.10gb has 9984 MiB, and the GPU 1024 MiB"


def test_all_that_is_wrong_with_a_profile_is_told_at_once() -> None:
    with pytest.raises(Mistake) as raised:
        read({"name": "x", "id": -1, "starts": [], "slices": 0, "decoders": "many", "size": 1})

    assert [problem.path.removeprefix("mig.profiles[0].") for problem in raised.value.problems] == [
        "size",
        "name",
        "id",
        "starts",
        "slices",
        "memory_mb",
        "decoders",
    ]


def test_gpus_are_whole_unless_a_pool_says_otherwise() -> None:
    for gpu in ("{profile: h100}", "{profile: h100, offered: dra, mig: none}", "{profile: t4, mig: ''}"):
        assert load(f"nodePools: {{p: {{gpu: {gpu}}}}}").pools["p"].mig == "none"
