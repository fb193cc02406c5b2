"""The whole estate, from a topology document and the profiles that it names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import yaml

from controllers.estate.fabric import read_fabric
from controllers.estate.numa import read_numa
from controllers.estate.pool import BACKENDS, DRA, EXTENDED_RESOURCE, FAKE, Pool
from controllers.estate.problem import Mistake, Problem
from controllers.estate.profile import BUILT_IN, MAX_GPUS, MAX_MEMORY, MIB, Extract, Profile, extract, merged
from controllers.estate.reading import Node, collected, shown

DEFAULT_POOL_LABEL = "run.ai/simulated-gpu-node-pool"
MIG_STRATEGIES = ("none", "single", "mixed")
GPU_RESOURCE = "nvidia.com/gpu"
MAX_RESOURCE = 2**31 - 1  # of one resource on one node

TOP_LEVEL = ("nodePoolLabelKey", "migStrategy", "nodePools", "gpuOperator")
POOL_FIELDS = ("gpu", "resources", "numa", "fabric")
LEGACY_FIELDS = ("gpuProduct", "gpuCount", "gpuMemory", "otherDevices", "numa", "fabric")
GPU_FIELDS = ("backend", "profile", "overrides", "offered")

_POOL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


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
    top = collected(problems, lambda: _document(document))
    if top is None:
        return Estate(problems=tuple(problems))
    label = collected(problems, lambda: _pool_label(top.get("nodePoolLabelKey")))
    strategy = collected(problems, lambda: top.get("migStrategy").choice(MIG_STRATEGIES, "none"))
    collected(problems, lambda: top.refuse_unknown(TOP_LEVEL))
    pools: dict[str, Pool] = {}
    for node in collected(problems, lambda: _pool_nodes(top.get("nodePools"))) or ():
        pool = collected(problems, partial(_pool, node, profiles or {}, strategy or "none"))
        if pool is not None:
            pools[pool.name] = pool
    return Estate(label or DEFAULT_POOL_LABEL, pools, tuple(problems))


def _document(text: str) -> Node:
    if not text.strip():
        raise _mistake("topology.yml", "the document is empty", "list pools under nodePools")
    return Node(_yaml(text, "topology.yml"), "")


def _yaml(text: str, path: str, pool: str = "") -> Any:
    """The content of a text. Raises Mistake with the line of the mistake."""
    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _mistake(path, f"it is not YAML: {where}{error.problem}", "correct the syntax", pool) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _mistake(path, f"it is not YAML: {shown(str(error))}", "correct the syntax", pool) from None
    if not isinstance(content, dict):
        raise _mistake(path, f"{shown(content)} is not a map", "write it as `name: value` lines", pool)
    return content


def _mistake(path: str, why: str, fix: str, pool: str = "") -> Mistake:
    return Mistake(Problem(path, why, fix, pool))


def _pool_label(node: Node) -> str:
    label = node.text(DEFAULT_POOL_LABEL, most=317)
    if not _QUALIFIED.fullmatch(label):
        raise node.mistake(f"{label!r} is not the key of a label", "use a name such as run.ai/simulated-gpu-node-pool")
    return label


def _pool_nodes(pools: Node) -> list[Node]:
    """The pools, each by itself: whatever is wrong with one, even with its name, costs no other."""
    if pools.absent:
        raise pools.mistake("there are no pools", "list pools under nodePools")
    if not isinstance(pools.value, dict):
        raise pools.mistake(f"{shown(pools.value)} is not a map of pools", "write it as `name: …` blocks")
    return [Node(content, f"nodePools.{_name(key)}", _name(key)) for key, content in pools.value.items()]


def _name(key: object) -> str:
    """A pool's name as it is written, where YAML takes it for a number; marked where it is something else."""
    return str(key) if isinstance(key, str | int) and not isinstance(key, bool) else f"<{key}>"


def _pool(node: Node, profiles: Mapping[str, str], strategy: str) -> Pool:
    name = node.pool
    if not _POOL_NAME.fullmatch(name):
        why = f"{shown(name)} cannot be the value of a label, by which nodes choose their pool"
        fix = "use at most 63 characters of a-z, A-Z, 0-9, '-', '_' and '.', in quotes where YAML reads another type"
        raise node.mistake(why, fix)
    legacy = "gpu" not in node.map() and any(key in node.map() for key in ("gpuProduct", "gpuCount"))
    node.refuse_unknown(LEGACY_FIELDS if legacy else POOL_FIELDS)
    gpu = node.get("gpu")
    gpu.refuse_unknown(GPU_FIELDS)
    content = _legacy_gpu(node) if legacy else _gpu(gpu, profiles)
    numa, fabric = node.get("numa"), node.get("fabric")
    return Pool(
        name=name,
        backend=gpu.get("backend").choice(BACKENDS, FAKE),
        gpu=content.model,
        gpu_count=content.count,
        offered=_offered(gpu.get("offered")),
        resources=_devices(node.get("otherDevices")) if legacy else _resources(node.get("resources")),
        numa=None if numa.absent else read_numa(numa, content.count),
        fabric=None if fabric.absent else read_fabric(fabric),
        mig_strategy=strategy,
    )


def _offered(node: Node) -> str:
    if isinstance(node.value, list):
        why = "the GPUs of a node are offered in one way, as two would be counted as twice as many GPUs"
        raise node.mistake(why, f"use either {EXTENDED_RESOURCE} or {DRA}")
    return node.choice((EXTENDED_RESOURCE, DRA), EXTENDED_RESOURCE)


# -- GPUs -------------------------------------------------------------------------------------------------------------


def _gpu(gpu: Node, profiles: Mapping[str, str]) -> Extract:
    overrides = gpu.get("overrides").map()
    base: Profile = {} if gpu.get("profile").absent else _profile(gpu.get("profile"), profiles)
    try:
        content = merged(base, overrides)
    except RecursionError:
        raise gpu.get("overrides").mistake("it contains itself", "write it without aliases") from None
    return extract(Node(content, f"{gpu.path}.overrides" if overrides else f"{gpu.path}.profile", gpu.pool))


def _profile(node: Node, profiles: Mapping[str, str]) -> Profile:
    name = node.text()
    if name in profiles:
        content: Profile = _yaml(profiles[name], f"ConfigMap gpu-profile-{name}, profile.yaml", node.pool)
        return content
    if name not in BUILT_IN:
        known = ", ".join(sorted({*BUILT_IN, *profiles}))
        raise node.mistake(
            f"there is no profile {name!r}", f"use one of {known}, or make the ConfigMap gpu-profile-{name}"
        )
    return BUILT_IN[name]


def _legacy_gpu(node: Node) -> Extract:
    """The GPUs of a pool in the older format."""
    memory = node.get("gpuMemory").whole_number(0, MAX_MEMORY // MIB, default=0)
    product = node.get("gpuProduct").text("", most=253)
    count = node.get("gpuCount").whole_number(0, MAX_GPUS, default=0)
    profile = {"device_defaults": {"name": product, "memory": {"total_bytes": memory * MIB}}, "device_count": count}
    return extract(Node(profile, node.path, node.pool))


# -- other resources --------------------------------------------------------------------------------------------------


def _resources(node: Node) -> dict[str, int]:
    """A list of maps of resources, as the newer format has it. ``nvidia.com/gpu`` is none: GPUs come from ``gpu``."""
    found: dict[str, int] = {}
    for entry in node.list():
        for name in entry.map():
            _add(found, name, entry.get(name), entry.get(name))
    found.pop(GPU_RESOURCE, None)
    return found


def _devices(node: Node) -> dict[str, int]:
    """A list of names with counts, as the older format has it."""
    found: dict[str, int] = {}
    for entry in node.list():
        entry.refuse_unknown(("name", "count"))
        _add(found, entry.get("name").text(), entry.get("name"), entry.get("count"))
    return found


def _add(found: dict[str, int], name: str, named: Node, count: Node) -> None:
    if not _QUALIFIED.fullmatch(name) or "/" not in name:
        raise named.mistake(
            f"{shown(name)} is not the name of an extended resource", "use a name such as example.com/nic"
        )
    if name in found:
        raise named.mistake(f"{name} is there twice", "keep one of them")
    found[name] = count.whole_number(0, MAX_RESOURCE)
