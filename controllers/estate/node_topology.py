"""What a ConfigMap ``topology-<node>`` says of a node's GPUs, byte by byte as fake-gpu-operator writes it.

Its readers are exporters and device plugins; whoever counts usage writes into the same text, and that is kept.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import yaml

from controllers.estate.document import Unreadable, read
from controllers.estate.gpu import gpu_id
from controllers.estate.names import MAX_NAME
from controllers.estate.pool import Pool
from controllers.estate.problem import Mistake
from controllers.estate.reading import Node

DATA_KEY = "topology.yml"
MAX_NUMBER = 2**31 - 1  # of what is read back: MiB and per cent


@dataclass(frozen=True, slots=True)
class Usage:
    """What one pod does with a GPU."""

    least: int = 0  # utilisation in per cent, of which readers take a value from least to most
    most: int = 0
    memory: int = 0  # MiB
    knative: bool = False  # whether readers ask Prometheus for the utilisation instead


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Who has a GPU, and what pods do with it, by their UIDs."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    usage: Mapping[str, Usage] = field(default_factory=dict)


FREE = GpuStatus()


def config_map_labels(node: str) -> dict[str, str]:
    """The labels by which readers find the ConfigMap of a node.

    A name that is too long for a label is cut there, and has a hash for what is cut; the ConfigMap's name has it whole.
    """
    digest = hashlib.sha256(node.encode()).hexdigest()[:8]
    value = node if len(node) <= MAX_NAME else f"{node[: MAX_NAME - 9].rstrip('-.')}-{digest}"
    return {"node-topology": "true", "node-name": value}


def topology_text(node: str, pool: Pool, statuses: Mapping[str, GpuStatus] | None = None) -> str:
    """The text of ``topology.yml`` for a node of a pool, with the statuses of its GPUs by their ids.

    Statuses of other GPUs are left out; a GPU without one is free.
    """
    known = statuses or {}
    ids = [gpu_id(node, index) for index in range(pool.gpu_count)]
    lines = [
        f"gpuMemory: {pool.gpu.memory_mib}",
        f"gpuProduct: {scalar(pool.gpu.product)}",
        *_unless_empty("driverVersion", pool.gpu.driver_version),
        *_unless_empty("cudaVersion", pool.gpu.cuda_version),
        "gpus:" if ids else "gpus: []",
        *(_gpu(each, known.get(each, FREE)) for each in ids),
        f"migStrategy: {scalar(pool.mig_strategy)}",
        *_devices(pool.resources),
    ]
    return "\n".join(lines) + "\n"


def _unless_empty(key: str, value: str) -> list[str]:
    return [f"{key}: {scalar(value)}"] if value else []


def _devices(resources: Mapping[str, int]) -> list[str]:
    devices = [f"    - name: {scalar(name)}\n      count: {count}" for name, count in sorted(resources.items())]
    return ["otherDevices:", *devices] if devices else []


def _gpu(identity: str, status: GpuStatus) -> str:
    return (
        f"    - id: {identity}\n"
        "      status:\n"
        "        allocatedBy:\n"
        f"            namespace: {scalar(status.namespace)}\n"
        f"            pod: {scalar(status.pod)}\n"
        f"            container: {scalar(status.container)}\n"
        f"        podGpuUsageStatus:{_usages(status.usage)}"
    )


def _usages(usages: Mapping[str, Usage]) -> str:
    """In the order given, so that what another writer has sorted stays as it is."""
    return "".join(_usage(uid, usage) for uid, usage in usages.items()) or " {}"


def _usage(uid: str, usage: Usage) -> str:
    return (
        f"\n            {scalar(uid)}:\n"
        "                utilization:\n"
        f"                    min: {usage.least}\n"
        f"                    max: {usage.most}\n"
        f"                fbUsed: {usage.memory}\n"
        f"                useKnativeUtilization: {'true' if usage.knative else 'false'}"
    )


# -- reading it back --------------------------------------------------------------------------------------------------


def statuses_of(text: str) -> dict[str, GpuStatus]:
    """The statuses of GPUs by id, out of what a ConfigMap has. What is broken there reads as free GPUs."""
    try:
        gpus = Node(read(text).value, DATA_KEY).get("gpus").list()
    except (Unreadable, Mistake):
        return {}
    found: dict[str, GpuStatus] = {}
    for gpu in gpus:
        try:
            found[gpu.get("id").text()] = _status(gpu.get("status"))
        except Mistake:
            continue
    return found


def _status(node: Node) -> GpuStatus:
    owner, usages = node.get("allocatedBy"), node.get("podGpuUsageStatus")
    return GpuStatus(
        namespace=owner.get("namespace").text(""),
        pod=owner.get("pod").text(""),
        container=owner.get("container").text(""),
        usage={uid: _read_usage(usages.get(uid)) for uid in usages.map()},
    )


def _read_usage(node: Node) -> Usage:
    utilization = node.get("utilization")
    return Usage(
        least=utilization.get("min").whole_number(-MAX_NUMBER, MAX_NUMBER, default=0),
        most=utilization.get("max").whole_number(-MAX_NUMBER, MAX_NUMBER, default=0),
        memory=node.get("fbUsed").whole_number(-MAX_NUMBER, MAX_NUMBER, default=0),
        knative=node.get("useKnativeUtilization").value is True,
    )


# -- text as go-yaml writes it ----------------------------------------------------------------------------------------

_ORDINARY = re.compile(r"[A-Za-z][A-Za-z0-9._/()-]*( [A-Za-z0-9._/()-]+)*")
_OTHER_TYPES = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?0([xX][0-9a-fA-F]+|[oO]?[0-7]+|[bB][01]+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_SPECIAL = re.compile(r"[-?:]( .*)?|---.*|\.\.\.|[\s,\[\]{}#&*!|>'\"%@`].*|.*(:|\s)|.*(: | #).*")


@lru_cache(maxsize=1024)
def scalar(text: str) -> str:
    """Text as a YAML value, quoted only where go-yaml quotes it, and in the way it does.

    Line breaks and what cannot be printed are an exception: they are escaped, where go-yaml keeps them.
    """
    lower = text.lower()
    if _ORDINARY.fullmatch(text) and lower not in _OTHER_TYPES:
        return text
    # PyYAML, unlike go-yaml, reads a lone "=" as something else than text.
    if (
        not text
        or text in {"~", "="}
        or (lower in _OTHER_TYPES and text in _spellings(lower))
        or _looks_like_number(text)
    ):
        return f'"{text}"'
    if not text.isprintable() or any(ord(character) > 0xFFFF for character in text):
        return str(yaml.safe_dump(text, default_style='"', width=2**31)).removesuffix("\n")
    return "'" + text.replace("'", "''") + "'" if _SPECIAL.fullmatch(text) else text


def _spellings(lower: str) -> tuple[str, str, str]:
    return lower, lower.capitalize(), lower.upper()


def _looks_like_number(text: str) -> bool:
    plain = text.replace("_", "") if text[0] in "+-0123456789" else text
    return any((_NUMBER.fullmatch(plain), _SEXAGESIMAL.fullmatch(text), _DATE.fullmatch(text)))
