"""Topology documents: what is read from them, and what is said of those that are wrong."""

import ast
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import controllers.estate
from controllers.estate import DRA, EXTENDED_RESOURCE, FAKE, MOCK, Pool, load
from controllers.estate.estate import DEFAULT_POOL_LABEL, MAX_POOLS
from controllers.estate.profile import GIB
from tests.unit.estate.documents import (
    CHART_DEFAULT,
    CUSTOM_PROFILE,
    LEGACY,
    MIXED,
    NEW,
    pool,
    pools,
    refused,
    values,
    wrong,
)

KNOWN_IMPORTS = {*sys.stdlib_module_names, "yaml", "msgspec"}


def test_the_model_imports_nothing_that_talks_to_a_cluster() -> None:
    folder = Path(controllers.estate.__file__).parent
    modules = sorted(folder.glob("*.py"))
    assert len(modules) > 8
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                pure = name.partition(".")[0] in KNOWN_IMPORTS or name.startswith("controllers.estate")
                assert pure or name == "controllers.api.quantity", (module, name)


# -- documents for fake-gpu-operator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [CHART_DEFAULT, LEGACY, NEW, MIXED])
def test_documents_of_fake_gpu_operator_have_no_problem(document: str) -> None:
    estate = load(document)
    assert estate.problems == ()
    assert estate.pools


def test_the_chart_s_default_is_one_pool_of_the_older_format() -> None:
    estate = load(CHART_DEFAULT)
    assert estate.pool_label == DEFAULT_POOL_LABEL
    assert list(estate.pools) == ["default"]
    default = estate.pools["default"]
    assert values(default) == {"count": 2, "product": "Tesla-K80", "memory": 11441, "driver": ""}
    assert (default.backend, default.mig_strategy, default.offered) == (FAKE, "mixed", EXTENDED_RESOURCE)


def test_other_devices_of_the_older_format_are_resources() -> None:
    assert load(LEGACY).pools["default"].resources == {"nvidia.com/mig-1g.5gb": 7, "rdma/hca": 1}


def test_a_pool_of_the_newer_format_has_its_profile_with_overrides() -> None:
    estate = load(NEW)
    assert estate.pool_label == "example.com/pool"
    training = estate.pools["training"]
    assert values(training) == {"count": 4, "product": "NVIDIA H100 80GB HBM3", "memory": 95232, "driver": "550.163.01"}
    assert training.gpu.compute_capability == "9.0"
    assert training.numa is not None
    assert training.numa.gpus_per_zone(4) == (3, 1)
    assert (training.numa.policy, training.numa.scope, training.numa.remote_distance) == ("restricted", "pod", 32)
    assert estate.pools["mocked"].backend == MOCK
    assert values(estate.pools["plain"]) == {"count": 2, "product": "Tesla-K80", "memory": 11441, "driver": ""}


def test_the_gpu_resource_in_a_list_of_resources_is_ignored_whatever_its_count_is() -> None:
    assert load(NEW).pools["training"].resources == {"example.com/nic": 2, "rdma/hca": 1}
    assert pool("{resources: [{nvidia.com/gpu: lots}, {nvidia.com/gpu: 1}]}").resources == {}
    assert pool("{otherDevices: [{name: nvidia.com/gpu, count: 3}]}").resources == {}


def test_formats_may_be_mixed_pool_by_pool() -> None:
    estate = load(MIXED)
    assert {name: each.gpu_count for name, each in estate.pools.items()} == {"default": 2, "highend": 8}


def test_the_format_of_a_pool_does_not_depend_on_the_order_of_anything() -> None:
    blocks = [
        "  a: {gpuProduct: Tesla-K80, gpuCount: 2, gpuMemory: 11441}\n",
        "  b: {gpu: {profile: t4}}\n",
        "  c: {otherDevices: [{name: rdma/hca, count: 1}]}\n",
        "  d: {resources: [{rdma/hca: 2}]}\n",
        "  e: {}\n",
    ]
    expected = pools("".join(blocks))
    assert expected.problems == ()
    assert [each.gpu_count for each in expected.pools.values()] == [2, 4, 0, 0, 0]
    for seed in range(50):
        assert pools("".join(random.Random(seed).sample(blocks, len(blocks)))).pools == expected.pools


def test_a_pool_of_the_older_format_may_have_numa_zones_and_racks() -> None:
    block = "{gpuCount: 7, gpuProduct: x, numa: {zones: 2}, fabric: {clusterUUID: %s, nodesPerClique: 4}}"
    legacy = pool(block % "11111111-1111-1111-1111-111111111111")
    assert legacy.numa is not None
    assert legacy.numa.gpus_per_zone(legacy.gpu_count) == (4, 3)
    assert legacy.fabric is not None


# -- the document as a whole ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "path", "part"),
    [
        ("", "topology.yml", "empty"),
        (" \n# nothing\n", "topology.yml", "empty"),
        ("null", "topology.yml", "empty"),
        ("nodePools: [", "topology.yml", "line "),
        ("a: b: c", "topology.yml", "line 1"),
        ("- a", "topology.yml", "not a map"),
        ("just text", "topology.yml", "not a map"),
        ("nodePools: {}\n---\nnodePools: {}", "topology.yml", "second document"),
        ("nodePools: {a: {}}\nnodePools: {b: {}}", "nodePools", "twice, again in line 2"),
        ("migStrategy: none\nmigStrategy: single\nnodePools: {}", "migStrategy", "twice"),
        ("gpuOperator: {values: {a: 1, a: 2}}\nnodePools: {}", "gpuOperator.values.a", "twice"),
        ("migStrategy: none", "nodePools", "no pools"),
        ("nodePools: null", "nodePools", "no pools"),
        ("nodePools: [a]", "nodePools", "not a map"),
        ("nodePools: {[a]: {}}", "topology.yml", "not text"),
        ("nodePools: &a {b: *a}", "topology.yml", "complete"),
        ("nodePools: \x00", "topology.yml", "cannot be read"),
        ("nodePools: \ud800", "topology.yml", "cannot be read"),
    ],
)
def test_a_mistake_in_the_document_as_a_whole_leaves_no_pool(document: str, path: str, part: str) -> None:
    estate = load(document)
    assert dict(estate.pools) == {}
    assert [(problem.path, problem.pool) for problem in estate.problems] == [(path, "")]
    assert part in str(estate.problems[0])


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("migStrategy: sometimes", "migStrategy"),
        ("migStrategy: [none]", "migStrategy"),
        ("nodePoolLabelKey: 'not a key'", "nodePoolLabelKey"),
        ("nodePoolLabelKey: a..b/c", "nodePoolLabelKey"),
        ("nodePoolLabelKey: 7", "nodePoolLabelKey"),
        ("nodepools: {}", "nodepools"),
    ],
)
def test_a_mistake_beside_the_pools_is_reported_and_costs_no_pool(line: str, path: str) -> None:
    estate = load(f"{line}\nnodePools: {{p: {{gpu: {{profile: t4}}}}}}")
    assert [problem.path for problem in estate.problems] == [path]
    assert list(estate.pools) == ["p"]
    assert (estate.pool_label, estate.pools["p"].mig_strategy) == (DEFAULT_POOL_LABEL, "none")


def test_pools_are_as_many_as_anybody_needs_and_no_more() -> None:
    blocks = [f"  p{number}: {{gpu: {{profile: h100}}, numa: {{zones: 2}}}}\n" for number in range(MAX_POOLS + 1)]
    assert len(pools("".join(blocks[:-1])).pools) == MAX_POOLS
    estate = pools("".join(blocks))
    assert (dict(estate.pools), [problem.path for problem in estate.problems]) == ({}, ["nodePools"])


def test_an_empty_map_of_pools_is_an_empty_estate() -> None:
    estate = load("nodePools: {}")
    assert (dict(estate.pools), estate.problems) == ({}, ())


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["", "null", "{}", "{gpu: null}", "{gpu: {}}", "{gpu: {profile: '', backend: ''}}"])
def test_a_pool_that_says_nothing_is_one_of_nodes_without_gpus(block: str) -> None:
    assert pool(block) == Pool("p")


@pytest.mark.parametrize("name", ["1", "1.0", "010", "on", "null", "2020-01-01", "0x10", "a" * 63, "A_b.c-1"])
def test_a_pool_has_the_name_that_is_written_whatever_type_it_looks_like(name: str) -> None:
    assert list(pools(f"  {name}: {{gpu: {{profile: t4}}}}\n").pools) == [name]


@pytest.mark.parametrize("name", ["a" * 64, "-a", "a b", "é", "''", "~", '"a\\nb"', "a/b", "x" * 100_000])
def test_a_pool_whose_name_cannot_be_a_label_value_costs_no_other(name: str) -> None:
    estate = pools(f"  ? {name}\n  : {{}}\n  neighbour: {{}}\n")
    assert list(estate.pools) == ["neighbour"]
    assert "cannot be the value of a label" in estate.problems[0].why
    assert estate.problems[0].path.startswith("nodePools.")
    assert len(str(estate.problems[0])) < 400
    assert len(estate.problems[0].pool) < 80


def test_two_pools_of_one_name_are_both_left_out() -> None:
    estate = pools("  p: {gpu: {profile: t4}}\n  q: {}\n  p: {gpu: {profile: h100}}\n")
    assert list(estate.pools) == ["q"]
    assert [str(problem) for problem in estate.problems] == [
        "nodePools.p: it is there twice, again in line 4: keep one of them"
    ]
    assert estate.problems[0].pool == "p"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("{gpu: {profile: t4, profile: h100}}", "nodePools.p.gpu.profile"),
        ("{resources: [{a.b/c: 1}, {a.b/d: 1, a.b/d: 1}]}", "nodePools.p.resources[1].a.b/d"),
        ("{gpu: {overrides: {nvlink: {a: 1, a: 1}}}}", "nodePools.p.gpu.overrides.nvlink.a"),
    ],
)
def test_a_name_that_is_twice_in_a_pool_costs_that_pool(block: str, path: str) -> None:
    assert refused(block) == (path, "it is there twice, again in line 2", "keep one of them")


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("[]", "nodePools.p"),
        ("text", "nodePools.p"),
        ("{gpus: {}}", "nodePools.p.gpus"),
        ("{gpu: null, gpuCount: 2}", "nodePools.p.gpuCount"),
        ("{gpu: {profile: t4}, gpuProduct: x}", "nodePools.p.gpuProduct"),
        ("{gpuCount: 2, resources: []}", "nodePools.p.resources"),
        ("{gpu: t4}", "nodePools.p.gpu"),
        ("{gpu: {profiles: t4}}", "nodePools.p.gpu.profiles"),
        ("{gpu: {backend: real}}", "nodePools.p.gpu.backend"),
        ("{gpu: {profile: 4}}", "nodePools.p.gpu.profile"),
        ("{gpu: {overrides: []}}", "nodePools.p.gpu.overrides"),
        ("{gpuCount: -1}", "nodePools.p.gpuCount"),
        ("{gpuCount: 1025}", "nodePools.p.gpuCount"),
        ("{gpuCount: true}", "nodePools.p.gpuCount"),
        ("{gpuCount: 1.5}", "nodePools.p.gpuCount"),
        ("{gpuCount: .nan}", "nodePools.p.gpuCount"),
        ("{gpuCount: .inf}", "nodePools.p.gpuCount"),
        ("{gpuCount: 1.0e+300}", "nodePools.p.gpuCount"),
        ("{gpuCount: " + "9" * 250 + "}", "nodePools.p.gpuCount"),
        ("{gpuCount: " + "9" * 5000 + "}", "nodePools.p.gpuCount"),
        ("{gpuCount: 2020-01-01}", "nodePools.p.gpuCount"),
        ("{gpuMemory: -1}", "nodePools.p.gpuMemory"),
        ("{gpuProduct: [x]}", "nodePools.p.gpuProduct"),
        ("{gpuProduct: " + "x" * 254 + "}", "nodePools.p.gpuProduct"),
        ("{numa: {}}", "nodePools.p.numa.zones"),
        ("{numa: []}", "nodePools.p.numa"),
        ("{fabric: {nodesPerClique: 4}}", "nodePools.p.fabric.clusterUUID"),
    ],
)
def test_a_mistake_in_a_pool_is_reported_with_its_path_and_costs_no_other(block: str, path: str) -> None:
    assert wrong(block) == path


def test_what_is_quoted_in_a_problem_is_cut() -> None:
    huge = "[" + ",".join(["{a: [1, 2, 3]}"] * 5000) + "]"
    for block in (f"{{gpuCount: {huge}}}", "{gpuCount: {" + "k" * 1000 + ": 1}}", "{" + "k" * 1000 + ": 1}"):
        assert sum(map(len, refused(block))) < 400


# -- resources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "path"),
    [
        ("[nic: 1]", "[0].nic"),
        ("[cpu: 1]", "[0].cpu"),
        ("[kubernetes.io/nic: 1]", "[0].kubernetes.io/nic"),
        ("[node.kubernetes.io/nic: 1]", "[0].node.kubernetes.io/nic"),
        ("[requests.example.com/nic: 1]", "[0].requests.example.com/nic"),
        ("[example..com/nic: 1]", "[0].example..com/nic"),
        ("[example.com/-nic: 1]", "[0].example.com/-nic"),
        ("[example.com/nic: -1]", "[0].example.com/nic"),
        ("[example.com/nic: 1.5]", "[0].example.com/nic"),
        ("[example.com/nic: 2147483648]", "[0].example.com/nic"),
        ("[example.com/nic: null]", "[0].example.com/nic"),
        ("[example.com/nic: 1, example.com/nic: 2]", "[1].example.com/nic"),
        ("[text]", "[0]"),
        ("{example.com/nic: 1}", ""),
    ],
)
def test_resources_that_no_node_can_offer_are_refused(resources: str, path: str) -> None:
    assert wrong(f"{{resources: {resources}}}") == f"nodePools.p.resources{path}"


@pytest.mark.parametrize(
    ("devices", "path"),
    [
        ("[{name: nic, count: 1}]", "[0].name"),
        ("[{count: 1}]", "[0].name"),
        ("[{name: a.b/c}]", "[0].count"),
        ("[{name: a.b/c, count: 1}, {name: a.b/c, count: 1}]", "[1].name"),
        ("[{name: a.b/c, number: 1}]", "[0].number"),
    ],
)
def test_other_devices_that_no_node_can_offer_are_refused(devices: str, path: str) -> None:
    assert wrong(f"{{otherDevices: {devices}}}") == f"nodePools.p.otherDevices{path}"


def test_a_resource_may_have_the_count_0() -> None:
    assert pool("{resources: [example.com/nic: 0]}").resources == {"example.com/nic": 0}


# -- how GPUs are offered ---------------------------------------------------------------------------------------------


def test_gpus_are_offered_in_one_way_only() -> None:
    assert pool("{gpu: {profile: t4, offered: dra}}").offered == DRA
    path, why, fix = refused("{gpu: {profile: t4, offered: [dra, extended-resource]}}")
    assert path == "nodePools.p.gpu.offered"
    assert "in one way" in why
    assert fix == "use either extended-resource or dra"
    assert wrong("{gpu: {offered: both}}") == "nodePools.p.gpu.offered"


# -- racks ------------------------------------------------------------------------------------------------------------


def test_two_pools_may_not_fill_the_same_racks() -> None:
    uuid = "1111111a-1111-1111-1111-111111111111"

    def block(cluster: str, first: int) -> str:
        return f"{{fabric: {{clusterUUID: {cluster}, nodesPerClique: 4, firstClique: {first}}}}}"

    assert pools(f"  a: {block(uuid, 0)}\n  b: {block(uuid, 10)}\n").problems == ()
    estate = pools(f"  a: {block(uuid, 2)}\n  b: {block(uuid.upper(), 2)}\n")
    assert list(estate.pools) == ["a"]
    assert [(problem.path, problem.pool) for problem in estate.problems] == [("nodePools.b.fabric.firstClique", "b")]


# -- custom profiles --------------------------------------------------------------------------------------------------


def test_a_custom_profile_comes_before_a_built_in_one_and_takes_overrides() -> None:
    custom = pool("{gpu: {profile: h100, overrides: {device_count: 8.0}}}", h100=CUSTOM_PROFILE)
    assert values(custom) == {"count": 8, "product": "Custom GPU", "memory": 1024, "driver": "570.1.2"}
    assert (custom.gpu.compute_capability, custom.gpu.brand) == ("9.1", "Nvidia")
    assert pool("{gpu: {profile: mine}}", mine=CUSTOM_PROFILE).gpu_count == 3


@pytest.mark.parametrize(
    ("overrides", "count"),
    [("{devices: [{}, {}]}", 2), ("{device_count: 3}", 3), ("{device_count: 0}", 8), ("{devices: []}", 0), ("{}", 8)],
)
def test_overrides_may_count_the_devices_of_a_built_in_profile_in_either_way(overrides: str, count: int) -> None:
    assert pool(f"{{gpu: {{profile: h100, overrides: {overrides}}}}}").gpu_count == count


def test_without_a_profile_overrides_say_everything() -> None:
    block = "{gpu: {overrides: {system: {driver_version: 1.2.3}, device_defaults: {name: x}, device_count: 1}}}"
    assert values(pool(block)) == {"count": 1, "product": "x", "memory": 0, "driver": "1.2.3"}


@pytest.mark.parametrize(
    ("text", "path", "part"),
    [
        ("a: [", "", "line "),
        ("", "", "empty"),
        ("- a", "", "not a map"),
        ("a: 1\na: 2", ".a", "twice"),
        ("device_count: -1", ".device_count", "whole number"),
        ("system: {cuda_version: 12.4}", ".system.cuda_version", "quotes"),
        ("device_defaults: []", ".device_defaults", "not a map"),
        ("device_defaults: {memory: {total_bytes: 80Gi}}", ".device_defaults.memory.total_bytes", "whole number"),
        ("devices: {}", ".devices", "not a list"),
    ],
)
@pytest.mark.parametrize("overrides", ["", ", overrides: {another: {name: x}}"])
def test_a_mistake_in_a_custom_profile_names_its_config_map(text: str, path: str, part: str, overrides: str) -> None:
    found = refused(f"{{gpu: {{profile: mine{overrides}}}}}", mine=text)
    assert found[0] == f"ConfigMap gpu-profile-mine[profile.yaml]{path}"
    assert part in " ".join(found)


def test_overrides_may_mend_a_profile_or_break_it() -> None:
    broken = "device_count: -1"
    assert pool("{gpu: {profile: mine, overrides: {device_count: 2}}}", mine=broken).gpu_count == 2
    assert wrong("{gpu: {profile: t4, overrides: {device_defaults: 7}}}") == "nodePools.p.gpu.overrides.device_defaults"
    mended = "{gpu: {profile: mine, overrides: {device_count: 2, system: 7}}}"
    assert wrong(mended, mine=broken) == "nodePools.p.gpu.overrides.system"
    assert wrong("{gpu: {profile: t4, overrides: {device_count: -2}}}") == "nodePools.p.gpu.overrides.device_count"


def test_an_unknown_profile_is_reported_with_those_that_there_are() -> None:
    path, why, fix = refused("{gpu: {profile: h1000}}", mine=CUSTOM_PROFILE)
    assert (path, why) == ("nodePools.p.gpu.profile", "there is no profile 'h1000'")
    assert "a100, b200, gb200, gb300, h100, h200, l40s, mine, t4" in fix
    assert "gpu-profile-h1000" in fix


# -- documents that are made to exhaust their reader ------------------------------------------------------------------


def _doubling(line: Callable[[int], str]) -> str:
    return "a0: &a0 {x: 1}\n" + "".join(line(number) for number in range(1, 40)) + "nodePools: {p: *a39}\n"


@pytest.mark.parametrize(
    "document",
    [
        _doubling(lambda number: f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n"),
        _doubling(lambda number: f"a{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}]}}\n"),
        "nodePools: " + "[" * 100_000,
        "nodePools: " + "{a: " * 100_000,
        "nodePools: [" + "1," * 400_000 + "]",
    ],
)
def test_a_document_that_grows_beyond_all_bounds_is_refused(document: str) -> None:
    estate = load(document)
    assert [problem.path for problem in estate.problems] == ["topology.yml"]
    assert len(str(estate.problems[0])) < 300


def test_aliases_and_merge_keys_work_as_usual() -> None:
    estate = load(
        "nodePools:\n"
        "  a: &a {gpu: &gpu {profile: h100, overrides: {device_count: 2}}}\n"
        "  b: *a\n"
        "  c: {gpu: {<<: *gpu, profile: t4}}\n"
        "  d: {gpu: {<<: [{profile: a100}, *gpu]}}\n"
    )
    assert estate.problems == ()
    models = {name: (each.gpu.memory // GIB, each.gpu_count) for name, each in estate.pools.items()}
    assert models == {"a": (80, 2), "b": (80, 2), "c": (16, 2), "d": (40, 2)}


def test_all_that_is_wrong_with_a_pool_is_reported_at_once() -> None:
    estate = pools(
        "  p:\n"
        "    gpu: {backend: real, profile: h100, offered: twice, overrides: {device_defaults: {brand: [], name: 7}}}\n"
        "    resources: [{a.b/c: -1, d: 1}, 5]\n"
        "    numa: {zones: 2, topologyManagerScope: rack}\n"
        "    fabric: {nodesPerClique: 99}\n"
        "    extra: 1\n"
        "  q: {gpu: {profile: h100}, numa: {zones: 99, topologyManagerPolicy: strict, distances: {self: 0}}}\n"
    )
    assert [problem.path.removeprefix("nodePools.") for problem in estate.problems] == [
        "p.extra",
        "p.gpu.overrides.device_defaults.name",
        "p.gpu.overrides.device_defaults.brand",
        "p.gpu.offered",
        "p.gpu.backend",
        "p.resources[0].a.b/c",
        "p.resources[0].d",
        "p.resources[1]",
        "p.fabric.clusterUUID",
        "p.fabric.nodesPerClique",
        "p.numa.topologyManagerScope",
        "q.numa.zones",
        "q.numa.topologyManagerPolicy",
        "q.numa.distances.self",
    ]


def test_the_same_mistake_is_reported_once_however_many_fields_meet_it() -> None:
    assert [problem.path for problem in pools("  p: {gpu: 7}\n").problems] == ["nodePools.p.gpu"]
