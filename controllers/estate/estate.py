"""The whole estate, from a topology document and the profiles that it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from controllers.estate.document import Duplicate, Unreadable
from controllers.estate.document import read as read_yaml
from controllers.estate.fabric import Fabric, read_fabric
from controllers.estate.mig import MIG_MODES, NO_MIG
from controllers.estate.names import is_extended_resource, is_label_key, is_name
from controllers.estate.numa import MAX_GPUS, read_numa
from controllers.estate.pool import BACKENDS, DRA, EXTENDED_RESOURCE, FAKE, Pool
from controllers.estate.problem import Mistake, Problem
from controllers.estate.profile import MAX_MEMORY, MIB, Extract, GpuModel, Profiles, extract, merged
from controllers.estate.reading import Attempts, Node, collected, joined, shown, twice

DEFAULT_POOL_LABEL = "run.ai/simulated-gpu-node-pool"
MIG_STRATEGIES = ("none", "single", "mixed")
GPU_RESOURCE = "nvidia.com/gpu"
MAX_RESOURCE = 2**31 - 1  # of one resource on one node
MAX_POOLS = 2000
DOCUMENT = "topology.yml"

TOP_LEVEL = ("nodePoolLabelKey", "migStrategy", "nodePools", "gpuOperator")
POOL_FIELDS = ("gpu", "resources", "numa", "fabric")
LEGACY_ONLY = ("gpuProduct", "gpuCount", "gpuMemory", "otherDevices")
"""Any of these makes a pool one of the older format, unless it has a ``gpu`` block."""

LEGACY_FIELDS = (*LEGACY_ONLY, "numa", "fabric")
GPU_FIELDS = ("backend", "profile", "overrides", "offered", "mig")


@dataclass(frozen=True, slots=True)
class Estate:
    """All pools that are sound, and what is wrong with the others."""

    pool_label: str = DEFAULT_POOL_LABEL
    pools: Mapping[str, Pool] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def load(document: str, profiles: Mapping[str, str] | None = None) -> Estate:
    """Reads a topology document in either format, or in both of them, pool by pool.

    ``profiles`` are the texts of custom profiles by name; they come before those that are built in. A mistake in a pool
    costs that pool alone; one in the document as a whole leaves no pool. All are in ``problems``.
    """
    problems: list[Problem] = []
    read = collected(problems, lambda: _document(document))
    if read is None:
        return Estate(problems=tuple(problems))
    top, duplicates = read
    collected(problems, lambda: top.refuse_unknown(TOP_LEVEL))
    label = collected(problems, lambda: _pool_label(top.get("nodePoolLabelKey")))
    strategy = collected(problems, lambda: top.get("migStrategy").choice(MIG_STRATEGIES, "none"))
    context = _Context(Profiles(profiles or {}), strategy or "none", duplicates)
    pools: dict[str, Pool] = {}
    for node in collected(problems, lambda: _pool_nodes(top.get("nodePools"))) or ():
        pool = collected(problems, partial(_pool, node, context))
        if pool is not None:
            pools[pool.name] = pool
    return Estate(label or DEFAULT_POOL_LABEL, pools, tuple(problems))


@dataclass(frozen=True, slots=True)
class _Context:
    """What pools are read with besides their own blocks."""

    profiles: Profiles
    mig_strategy: str
    duplicates: Mapping[str, Duplicate]  # by pool
    racks: dict[tuple[str, int], str] = field(default_factory=dict)  # the pools by the first rack of each


def _document(text: str) -> tuple[Node, Mapping[str, Duplicate]]:
    """The top of the document, and what is there twice in pools. Raises Mistake."""
    whole = Node(None, DOCUMENT)
    try:
        document = read_yaml(text)
    except Unreadable as error:
        raise whole.mistake(f"it cannot be read: {error}", "correct it there") from None
    if document.value is None:
        raise whole.mistake("the document is empty", "list pools under nodePools")
    top = Node(document.value, DOCUMENT)
    top.map()
    pools: dict[str, Duplicate] = {}
    for duplicate in document.duplicates:
        if len(duplicate.path) < 2 or duplicate.path[0] != "nodePools":
            raise twice(duplicate, "")
        pools.setdefault(str(duplicate.path[1]), duplicate)
    return Node(document.value, ""), pools


def _pool_label(node: Node) -> str:
    label = node.text(DEFAULT_POOL_LABEL, most=317)
    if not is_label_key(label):
        raise node.mistake(f"{shown(label)} is not the key of a label", f"use a name such as {DEFAULT_POOL_LABEL}")
    return label


def _pool_nodes(pools: Node) -> list[Node]:
    """The pools, each by itself: whatever is wrong with one, even with its name, costs no other."""
    if pools.absent:
        raise pools.mistake("there are no pools", "list pools under nodePools")
    if len(pools.map()) > MAX_POOLS:
        raise pools.mistake(f"{len(pools.map())} pools are too many", f"list at most {MAX_POOLS}")
    return [Node(content, joined(pools.path, name), _quoted(name)) for name, content in pools.map().items()]


def _quoted(name: str) -> str:
    return name if is_name(name) else shown(name)


def _pool(node: Node, context: _Context) -> Pool:
    """A pool. Raises Mistake with everything that is wrong with it."""
    name = node.pool
    if not is_name(name):
        why = f"{name} cannot be the value of a label, by which nodes choose their pool"
        raise node.mistake(why, "use at most 63 characters of a-z, A-Z, 0-9, '-', '_' and '.'")
    if name in context.duplicates:
        raise twice(context.duplicates[name], name)
    legacy = "gpu" not in node.map() and any(key in node.map() for key in LEGACY_ONLY)
    gpu, numa = node.get("gpu"), node.get("numa")
    attempt = Attempts()
    attempt(lambda: node.refuse_unknown(LEGACY_FIELDS if legacy else POOL_FIELDS), None)
    attempt(lambda: gpu.refuse_unknown(GPU_FIELDS), None)
    content = attempt(lambda: _legacy_gpu(node) if legacy else _gpu(gpu, context.profiles), None)
    offered = attempt(lambda: _offered(gpu.get("offered")), EXTENDED_RESOURCE)
    pool = Pool(
        name=name,
        backend=attempt(lambda: gpu.get("backend").choice(BACKENDS, FAKE), FAKE),
        offered=offered,
        resources=attempt(
            lambda: _devices(node.get("otherDevices")) if legacy else _resources(node.get("resources")), {}
        ),
        fabric=attempt(lambda: _fabric(node.get("fabric"), context.racks), None),
        mig_strategy=context.mig_strategy,
    )
    count = None if content is None else content.count
    zones = attempt(lambda: None if numa.absent else read_numa(numa, count), None)
    if content is not None:
        mig = attempt(lambda: _mig(gpu.get("mig"), content.model, offered), NO_MIG)
        pool = replace(pool, gpu=content.model, gpu_count=content.count, numa=zones, mig=mig)
    attempt.finish()
    return pool


def _fabric(node: Node, racks: dict[tuple[str, int], str]) -> Fabric | None:
    """A pool's racks, which are no other pool's: each pool fills its own, and two would overfill them."""
    if node.absent:
        return None
    fabric = read_fabric(node)
    owner = racks.setdefault((fabric.cluster_uuid, fabric.first), node.pool)
    if owner != node.pool:
        why = f"pool {owner} starts with the same rack of the same cluster"
        raise node.get("firstClique").mistake(why, "give each pool racks of its own, or another clusterUUID")
    return fabric


def _offered(node: Node) -> str:
    if isinstance(node.value, list):
        why = "the GPUs of a node are offered in one way, as two would be counted as twice as many GPUs"
        raise node.mistake(why, f"use either {EXTENDED_RESOURCE} or {DRA}")
    return node.choice((EXTENDED_RESOURCE, DRA), EXTENDED_RESOURCE)


def _mig(node: Node, model: GpuModel, offered: str) -> str:
    mode = node.choice(MIG_MODES, NO_MIG)
    if mode == NO_MIG:
        return mode
    if offered != DRA:
        raise node.mistake("only devices of ResourceSlices can be partitioned", f"add offered: {DRA}, or take mig away")
    if not model.mig:
        why = f"{model.product or 'the GPU'} has no MIG profiles"
        raise node.mistake(why, "take mig away, or list mig.profiles in the GPU's profile")
    for profile in model.mig:
        if profile.memory > model.memory_mib:
            why = f"an instance {profile.name} has {profile.memory} MiB, and the GPU {model.memory_mib} MiB"
            raise node.mistake(why, "correct mig.profiles, or device_defaults.memory.total_bytes, of the GPU's profile")
    return mode


# -- GPUs -------------------------------------------------------------------------------------------------------------


def _gpu(gpu: Node, profiles: Profiles) -> Extract:
    """The GPUs of a pool: those of its profile, with what the pool says otherwise. Raises Mistake."""
    named, overrides = gpu.get("profile"), gpu.get("overrides")
    base = Node({}, named.path, gpu.pool) if named.value in (None, "") else profiles.find(named)
    try:
        return extract(Node(merged(base.map(), overrides.map()), overrides.path, gpu.pool))
    except Mistake as mistake:
        raise _at_home(mistake, base, overrides.path) from None


def _at_home(mistake: Mistake, base: Node, overrides: str) -> Mistake:
    """The mistakes in merged content, those with their path in the profile that are there already."""
    there: dict[str, Problem] = {}
    try:
        extract(base)
    except Mistake as own:
        there = {problem.path.removeprefix(base.path): problem for problem in own.problems}
    return Mistake(*(there.get(problem.path.removeprefix(overrides), problem) for problem in mistake.problems))


def _legacy_gpu(node: Node) -> Extract:
    """The GPUs of a pool in the older format."""
    attempt = Attempts()
    memory = attempt(lambda: node.get("gpuMemory").whole_number(0, MAX_MEMORY // MIB, default=0), 0)
    product = attempt(lambda: node.get("gpuProduct").text("", most=253), "")
    count = attempt(lambda: node.get("gpuCount").whole_number(0, MAX_GPUS, default=0), 0)
    attempt.finish()
    profile = {"device_defaults": {"name": product, "memory": {"total_bytes": memory * MIB}}, "device_count": count}
    return extract(Node(profile, node.path, node.pool))


# -- other resources --------------------------------------------------------------------------------------------------


def _resources(node: Node) -> dict[str, int]:
    """A list of maps of resources, as the newer format has it."""
    found: dict[str, int] = {}
    attempt = Attempts()
    nothing: Mapping[str, Any] = {}
    for entry in node.list():
        for name in attempt(entry.map, nothing):
            attempt(partial(_add, found, name, entry.get(name), entry.get(name)), None)
    attempt.finish()
    return found


def _devices(node: Node) -> dict[str, int]:
    """A list of names with counts, as the older format has it."""
    found: dict[str, int] = {}
    attempt = Attempts()
    for entry in node.list():
        attempt(partial(_add_device, found, entry), None)
    attempt.finish()
    return found


def _add_device(found: dict[str, int], entry: Node) -> None:
    entry.refuse_unknown(("name", "count"))
    _add(found, entry.get("name").text(), entry.get("name"), entry.get("count"))


def _add(found: dict[str, int], name: str, named: Node, count: Node) -> None:
    """Adds a resource; ``nvidia.com/gpu`` is left out whatever its count is, as GPUs come from the profile.

    That is no mistake: documents for fake-gpu-operator often have it, and it does the same.
    """
    if name == GPU_RESOURCE:
        return
    if not is_extended_resource(name):
        why = f"{shown(name)} is not the name of an extended resource"
        raise named.mistake(why, "use a name such as example.com/nic, with a domain that is not of kubernetes.io")
    if name in found:
        raise named.mistake(f"{name} is there twice", "keep one of them")
    found[name] = count.whole_number(0, MAX_RESOURCE)
