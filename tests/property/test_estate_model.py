"""Whatever a topology document says, the model of the estate keeps its promises."""

import copy
from collections import Counter
from fractions import Fraction
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from controllers.estate import (
    BUILT_IN,
    DRA,
    EXTENDED_RESOURCE,
    Estate,
    Fabric,
    GpuModel,
    GpuStatus,
    Numa,
    Pool,
    Usage,
    assign_cliques,
    gpus_of,
    load,
    merged,
    node_labels,
    quantity,
    statuses_of,
    topology_text,
    zones_of,
)
from controllers.estate.names import MAX_NAME, is_extended_resource, is_name
from controllers.estate.node_topology import scalar
from controllers.estate.numa import MAX_GPUS, MAX_ZONES

# -- documents --------------------------------------------------------------------------------------------------------

FIELDS = (
    *("nodePoolLabelKey", "migStrategy", "nodePools", "gpuOperator", "gpu", "resources", "numa", "fabric", "backend"),
    *("gpuProduct", "gpuCount", "gpuMemory", "otherDevices", "profile", "overrides", "offered", "name", "count"),
    *("zones", "gpusPerZone", "topologyManagerPolicy", "topologyManagerScope", "cpuPerZone", "memPerZone", "self"),
    *("distances", "remote", "clusterUUID", "nodesPerClique", "firstClique", "device_defaults", "device_count"),
    *("devices", "memory", "total_bytes", "system", "driver_version", "compute_capability", "major", "minor"),
)
WORDS = (
    *("fake", "mock", "dra", "extended-resource", "h100", "t4", "mine", "none", "mixed", "single-numa-node", "pod"),
    *("11111111-1111-1111-1111-111111111111", "64Gi", "500m", "nvidia.com/gpu", "example.com/nic", ""),
)
NUMBERS = st.integers(-2, 70) | st.integers() | st.floats() | st.sampled_from((1024, 2**31, 2**63, 10**40))
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=8)
KEYS = st.sampled_from(FIELDS) | st.text(max_size=8) | st.integers(0, 9)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5))


ODD = st.dictionaries(
    KEYS, st.binary(max_size=4) | st.dates() | st.datetimes() | st.sets(st.integers(0, 9), max_size=2)
)
"""What YAML has and JSON has not."""


def written(value: Any) -> str:
    return str(
        yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True, sort_keys=False)
    )


def blocks(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Maps of some of the fields, of which each is what it should be more often than not."""
    return st.fixed_dictionaries({}, optional={name: value | value | value | TREES for name, value in fields.items()})


PROFILES = blocks(
    device_defaults=blocks(name=st.sampled_from(WORDS), memory=blocks(total_bytes=NUMBERS)),
    system=blocks(driver_version=st.just("550.1"), cuda_version=st.just("12.4")),
    device_count=st.integers(0, 9),
    devices=st.lists(st.just({}), max_size=3),
)
GPUS = blocks(
    backend=st.sampled_from(("fake", "mock")),
    profile=st.sampled_from(("h100", "t4", "mine")),
    overrides=PROFILES,
    offered=st.sampled_from((EXTENDED_RESOURCE, DRA)),
)
NUMAS = blocks(
    zones=st.integers(0, 5),
    gpusPerZone=st.lists(st.integers(0, 4), max_size=4),
    cpuPerZone=st.sampled_from((1, "2", "500m", 1.5)),
    distances=blocks(self=st.just(10), remote=st.integers(9, 40)),
)
FABRICS = blocks(
    clusterUUID=st.just("11111111-1111-1111-1111-111111111111"),
    nodesPerClique=st.integers(1, 18),
    firstClique=st.integers(0, 3),
)
RESOURCES = st.lists(
    st.dictionaries(st.sampled_from(("a.b/c", "a.b/d", "nvidia.com/gpu")), st.integers(0, 9)), max_size=3
)


@st.composite
def sound_pools(draw: st.DrawFn) -> dict[str, Any]:
    """Pools without a mistake, in either format."""
    count, zones = draw(st.integers(0, 9)), draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(("a.b/c", "a.b/d", "rdma/hca")), unique=True))
    cut = draw(st.integers(0, count))
    per_zone = [cut, count - cut, 0, 0][:zones] if zones > 1 else [count]
    numa = draw(st.sampled_from(({"zones": zones}, {"zones": zones, "gpusPerZone": per_zone})))
    common: dict[str, Any] = draw(st.sampled_from(({}, {"numa": numa})))
    if draw(st.booleans()):
        devices = [{"name": name, "count": count} for name in names]
        return {"gpuProduct": "Tesla-K80", "gpuCount": count, "otherDevices": devices, **common}
    overrides = {"device_count": count, "devices": [{}] * count}
    gpu: dict[str, Any] = {"profile": draw(st.sampled_from(sorted(BUILT_IN))), "overrides": overrides}
    gpu |= draw(st.sampled_from(({}, {"backend": "mock"}, {"offered": DRA})))
    return {"gpu": gpu, "resources": [{name: count} for name in names], **common}


SOUND = sound_pools()
WRONG = blocks(gpu=GPUS, resources=RESOURCES, numa=NUMAS, fabric=FABRICS) | blocks(
    gpuProduct=st.just("Tesla-K80"), gpuCount=st.integers(0, 9), gpuMemory=st.integers(0, 99), numa=NUMAS
)
POOLS = SOUND | WRONG
DOCUMENTS = st.fixed_dictionaries(
    {"nodePools": st.dictionaries(st.sampled_from("abcd") | st.text(max_size=8), POOLS | TREES, max_size=5)},
    optional={"migStrategy": st.sampled_from(("none", "mixed"))},
)


def is_sound(estate: Estate) -> None:
    """Everything that whoever uses an estate relies on."""
    for name, pool in estate.pools.items():
        assert name == pool.name
        assert is_name(name)
        assert 0 <= pool.gpu_count <= MAX_GPUS
        assert all(is_extended_resource(resource) and count >= 0 for resource, count in pool.resources.items())
        assert "nvidia.com/gpu" not in pool.resources
        assert pool.numa is None or sum(pool.numa.gpus_per_zone(pool.gpu_count)) == pool.gpu_count
        assert len(gpus_of("n", pool)) == pool.gpu_count
    for problem in estate.problems:
        assert problem.path
        assert problem.why
        assert problem.fix
        assert problem.pool not in estate.pools
        assert len(str(problem)) < 1000


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOCUMENTS | TREES | ODD, PROFILES | TREES)
def test_any_document_loads_and_each_problem_names_a_path(document: Any, profile: Any) -> None:
    text = written(document)
    estate = load(text, {"mine": written(profile)})
    is_sound(estate)
    assert load(text, {"mine": written(profile)}) == estate


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), SOUND))
def test_whatever_is_sound_is_read_without_a_problem(pools: dict[str, Any]) -> None:
    estate = load(written({"nodePools": pools}))
    assert estate.problems == ()
    assert set(estate.pools) == set(pools)
    for name, block in pools.items():
        pool = estate.pools[name]
        assert pool.gpu_count == (
            block["gpuCount"] if "gpuCount" in block else len(block["gpu"]["overrides"]["devices"])
        )
        assert (pool.numa is None) == ("numa" not in block)
        assert len(pool.resources) == len(block.get("resources", block.get("otherDevices")))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text("{}[]-:,&*<!|>'\"ab1\n #%?~", max_size=60))
@example("nodePools: {<<: *a}")
def test_any_text_loads(text: str) -> None:
    is_sound(load(text))
    is_sound(load("nodePools: {p: {gpu: {profile: mine}}}", {"mine": text}))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), POOLS, min_size=2), st.randoms())
def test_no_pool_depends_on_the_order_of_pools_and_fields(pools: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(inner)) for key, inner in value.items()]
        random.shuffle(items)
        return dict(items)

    for pool in pools.values():
        pool.pop("fabric", None)  # of two pools that want the same racks the first gets them
    text = written({"nodePools": pools})
    again = written({"nodePools": shuffled(pools)})
    assert load(text).pools == load(again).pools


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), POOLS), st.dictionaries(st.sampled_from("uvwxyz"), POOLS | TREES))
def test_no_pool_depends_on_what_is_wrong_with_another(pools: dict[str, Any], others: dict[str, Any]) -> None:
    alone = load(written({"nodePools": pools}))
    beside = load(written({"nodePools": {**pools, **others}}))
    assert {name: pool for name, pool in beside.pools.items() if name in pools} == alone.pools


# -- profiles ---------------------------------------------------------------------------------------------------------

MAPS = st.recursive(
    st.integers(0, 3) | st.none() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
).filter(lambda tree: isinstance(tree, dict))


@given(MAPS, MAPS)
def test_merging_changes_neither_side_and_follows_the_rule(base: dict[str, Any], overrides: dict[str, Any]) -> None:
    before = copy.deepcopy((base, overrides))
    result = merged(base, overrides)
    assert (base, overrides) == before
    assert set(result) == {*base, *overrides}
    for key, value in result.items():
        if key not in overrides:
            assert value == base[key]
        elif isinstance(base.get(key), dict) and isinstance(overrides[key], dict):
            assert value == merged(base[key], overrides[key])
        else:
            assert value == overrides[key]


@given(MAPS, MAPS, MAPS)
def test_merging_is_associative_and_takes_nothing_in_vain(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]
) -> None:
    assert merged(first, {}) == first
    assert merged({}, first) == first
    assert merged(first, first) == first
    scalar_clash = merged(merged(first, second), third) != merged(first, merged(second, third))
    # A map on a scalar on a map forgets what was below, unless the last two are merged before.
    assert not scalar_clash or any(not isinstance(value, dict) for value in _values(second))


def _values(tree: Any) -> list[Any]:
    return (
        [tree] if not isinstance(tree, dict) else [tree, *(leaf for value in tree.values() for leaf in _values(value))]
    )


@given(st.sampled_from(sorted(BUILT_IN)), MAPS)
def test_built_in_profiles_never_change(name: str, overrides: dict[str, Any]) -> None:
    before = copy.deepcopy(dict(BUILT_IN[name]))
    load(written({"nodePools": {"p": {"gpu": {"profile": name, "overrides": overrides}}}}))
    assert BUILT_IN[name] == before


# -- places -----------------------------------------------------------------------------------------------------------


@st.composite
def numa_pools(draw: st.DrawFn) -> Pool:
    zones = draw(st.integers(1, MAX_ZONES))
    count = draw(st.integers(0, 24) | st.integers(0, MAX_GPUS))
    explicit: tuple[int, ...] = ()
    if draw(st.booleans()):
        chosen = Counter(draw(st.lists(st.integers(0, zones - 1), min_size=min(count, 24), max_size=min(count, 24))))
        explicit = tuple(chosen[zone] for zone in range(zones))
        count = sum(explicit)
    return Pool("p", gpu_count=count, numa=Numa(zones, explicit=explicit if count else ()))


@settings(deadline=None)
@given(numa_pools(), st.text(min_size=1, max_size=10))
def test_no_two_gpus_of_a_node_share_id_or_place(pool: Pool, node: str) -> None:
    gpus = gpus_of(node, pool)
    assert [gpu.index for gpu in gpus] == list(range(pool.gpu_count))
    assert len({gpu.uuid for gpu in gpus}) == pool.gpu_count
    assert len({gpu.pci_bus_id for gpu in gpus}) == pool.gpu_count
    assert pool.numa is not None
    zones = Counter(gpu.numa_node for gpu in gpus)
    assert tuple(zones[zone] for zone in range(pool.numa.zones)) == pool.numa.gpus_per_zone(pool.gpu_count)
    assert len({(gpu.pcie_root, gpu.numa_node) for gpu in gpus}) == len({gpu.pcie_root for gpu in gpus})
    assert all(gpu.pcie_root == f"pci{gpu.pci_bus_id[:4]}:00" for gpu in gpus)


@given(numa_pools(), st.fractions(0, 4096, max_denominator=1000), st.integers(0, 2**52))
def test_zones_sum_up_to_the_node(pool: Pool, cpu: Fraction, memory: int) -> None:
    assert pool.numa is not None
    zones = zones_of(pool.numa, pool.gpu_count, cpu, Fraction(memory))
    assert [zone.index for zone in zones] == list(range(pool.numa.zones))
    assert sum(zone.gpus for zone in zones) == pool.gpu_count
    assert sum(zone.cpu for zone in zones) == int(cpu * 1000)
    assert sum(zone.memory for zone in zones) == memory
    assert max(zone.cpu for zone in zones) - min(zone.cpu for zone in zones) <= 1


CLUSTERS = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
CLIQUES = (
    st.just("")
    | st.builds(lambda cluster, number: f"{cluster}.{number}", st.sampled_from(CLUSTERS), st.integers(-1, 6))
    | st.sampled_from((f"{CLUSTERS[0]}.02", "garbage", f"{CLUSTERS[0]}."))
)
ESTATES = st.dictionaries(st.sampled_from([f"n{number}" for number in range(30)]), CLIQUES)
FABRIC = st.builds(Fabric, st.just(CLUSTERS[0]), st.integers(1, 4), st.integers(0, 3))


@given(FABRIC, ESTATES)
def test_each_node_has_a_rack_with_room_and_nobody_moves_without_need(fabric: Fabric, present: dict[str, str]) -> None:
    assigned = assign_cliques(fabric, present)
    names = [fabric.clique(number) for number in range(64)]
    assert set(assigned) == set(present)
    assert set(assigned.values()) <= set(names)
    taken = Counter(assigned.values())
    assert all(count <= fabric.nodes_per_clique for count in taken.values())
    for clique in names:
        before = {node for node, was in present.items() if was == clique}
        stayed = {node for node in before if assigned[node] == clique}
        assert len(stayed) == min(len(before), fabric.nodes_per_clique)
        assert max(stayed, default="") <= min(before - stayed, default="~")
    moved = [node for node in present if assigned[node] != present[node]]
    for node in moved:  # into the first rack that had a place
        earlier = names[: names.index(assigned[node])]
        assert all(taken[clique] == fabric.nodes_per_clique for clique in earlier)
    assert assign_cliques(fabric, assigned) == assigned


@given(FABRIC, ESTATES, st.randoms())
def test_racks_do_not_depend_on_the_order_of_nodes(fabric: Fabric, present: dict[str, str], random: Any) -> None:
    items = list(present.items())
    random.shuffle(items)
    assert assign_cliques(fabric, dict(items)) == assign_cliques(fabric, present)


# -- quantities -------------------------------------------------------------------------------------------------------

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+5")
DIGITS = st.from_regex(r"[+-]?([0-9]{1,9}(\.[0-9]{0,6})?|\.[0-9]{1,6})", fullmatch=True)


@given(DIGITS, st.sampled_from(SUFFIXES))
def test_quantities_agree_with_the_kubernetes_package(digits: str, suffix: str) -> None:
    assert quantity.parse(digits + suffix) == Fraction(parse_quantity(digits + suffix))


@given(st.fractions(0, 2**62, max_denominator=10**6))
def test_quantities_that_are_written_mean_what_is_left_of_the_number(number: Fraction) -> None:
    assert quantity.parse(quantity.milli(number)) == Fraction(int(number * 1000), 1000)
    assert quantity.parse(quantity.binary(number)) == int(number)


@given(st.from_regex(r"[+-]?[0-9.]{1,6}([eE][+-]?[0-9]{0,2})?[numkKMGTPEi]{0,2}", fullmatch=True))
def test_what_is_a_quantity_here_is_the_same_to_the_kubernetes_package(text: str) -> None:
    try:
        number = quantity.parse(text)
    except ValueError:
        return
    assert number == Fraction(parse_quantity(text))


# -- what nodes get ---------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=80) | st.from_regex(r"[-+~.0-9eExyYnNtT:_ #'\"]{0,8}", fullmatch=True)
MODELS = st.builds(GpuModel, TEXTS, TEXTS, TEXTS, st.integers(0, 2**50), TEXTS, TEXTS)
GPU_POOLS = st.builds(Pool, st.just("p"), gpu=MODELS, gpu_count=st.integers(0, 3), resources=st.just({"a.b/c": 1}))
USAGES = st.builds(Usage, st.integers(-5, 200), st.integers(0, 200), st.integers(0, 2**20), st.booleans())
STATUSES = st.builds(
    GpuStatus, TEXTS, TEXTS, TEXTS, st.dictionaries(TEXTS.filter(lambda uid: uid != "<<"), USAGES, max_size=3)
)


@given(GPU_POOLS, TEXTS)
def test_labels_always_have_valid_values(pool: Pool, clique: str) -> None:
    for key, value in node_labels(pool, clique).items():
        assert is_name(value), key
        assert len(value) <= MAX_NAME


@given(TEXTS.filter(lambda text: len(text) <= 80))
def test_text_is_read_back_by_any_yaml_reader_as_it_was_written(text: str) -> None:
    assert yaml.safe_load(f"k: {scalar(text)}\n") == {"k": text}
    assert yaml.safe_load(f"{scalar(text)}: 1\n") == {text: 1}


@settings(deadline=None)
@given(GPU_POOLS, st.lists(STATUSES, min_size=3, max_size=3))
def test_a_node_s_text_means_what_was_rendered_and_renders_again(pool: Pool, statuses: list[GpuStatus]) -> None:
    ids = [gpu.uuid for gpu in gpus_of("n", pool)]
    known = dict(zip(ids, statuses, strict=False))
    text = topology_text("n", pool, known)
    content = yaml.safe_load(text)
    assert content["gpuProduct"] == pool.gpu.product
    assert content["gpuMemory"] == pool.gpu.memory_mib
    assert content.get("driverVersion", "") == pool.gpu.driver_version
    assert content.get("cudaVersion", "") == pool.gpu.cuda_version
    assert content["otherDevices"] == [{"name": "a.b/c", "count": 1}]
    assert [gpu["id"] for gpu in content["gpus"]] == ids
    assert statuses_of(text) == known
    assert topology_text("n", pool, statuses_of(text)) == text
