"""GPU profiles: what a GPU of some product is, built in or given, with overrides on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from controllers.estate import mig
from controllers.estate.document import Document, Unreadable, read
from controllers.estate.mig import MigProfile, read_mig
from controllers.estate.numa import MAX_GPUS
from controllers.estate.reading import Attempts, Node, shown, twice

PROFILE_KEY: Final = "profile.yaml"
"""The data key of a ConfigMap ``gpu-profile-<name>``."""

MIB: Final = 2**20
GIB: Final = 2**30
MAX_MEMORY: Final = 2**50  # bytes of one GPU

MAX_KNOWN: Final = 20  # profiles that are named to a user who names none of them

HOPPER: Final = 9  # major compute capability
ADDRESSING_MODES: Final = ("HMM", "ATS", "None")  # as the driver's library names them

BRANDS: Final = ("nvidia", "tesla", "quadro", "grid", "titan")

Profile = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What all GPUs of a pool are."""

    product: str = ""
    architecture: str = ""
    compute_capability: str = ""  # major.minor; "" where the profile does not say
    memory: int = 0  # bytes
    driver_version: str = ""
    cuda_version: str = ""
    brand: str = "Nvidia"  # as the driver's library spells it
    addressing_mode: str = ""  # how the GPU reaches memory of the host; "" where it does so in no special way
    mig: tuple[MigProfile, ...] = ()  # the instances it can be partitioned into; none where it has no MIG

    @property
    def memory_mib(self) -> int:
        """Memory in whole MiB, as labels and the node's topology have it."""
        return self.memory // MIB

    @property
    def partitioned_at_will(self) -> bool:
        """Whether MIG goes on and off without a reset, as from Hopper on: then whole GPUs are on offer, too."""
        return int(self.compute_capability.partition(".")[0] or 0) >= HOPPER


@dataclass(frozen=True, slots=True)
class Extract:
    """A model, and how many GPUs of it a node has."""

    model: GpuModel = field(default_factory=GpuModel)
    count: int = 0


def _profile(
    name: str,
    architecture: str,
    capability: str,
    memory: int,
    driver: str,
    cuda: str,
    count: int = 8,
    instances: Sequence[Profile] = (),
    **defaults: str,
) -> Profile:
    major, _, minor = capability.partition(".")
    return {
        "system": {"driver_version": driver, "cuda_version": cuda},
        "device_defaults": {
            "name": name,
            "architecture": architecture,
            "compute_capability": {"major": int(major), "minor": int(minor)},
            "memory": {"total_bytes": memory * GIB},
            **defaults,
        },
        "mig": {"profiles": list(instances)},
        "devices": [{} for _ in range(count)],  # so that overrides may have a list of their own, or device_count
    }


BUILT_IN: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "a100": _profile("NVIDIA A100-SXM4-40GB", "ampere", "8.0", 40, "550.163.01", "12.4", instances=mig.A100),
        "h100": _profile("NVIDIA H100 80GB HBM3", "hopper", "9.0", 80, "550.163.01", "12.4", instances=mig.H100),
        "h200": _profile("NVIDIA H200", "hopper", "9.0", 141, "550.163.01", "12.4", instances=mig.H200),
        "b200": _profile("NVIDIA B200", "blackwell", "10.0", 192, "560.35.03", "12.6", instances=mig.B200),
        "gb200": _profile(
            "NVIDIA GB200 NVL",
            "blackwell",
            "10.0",
            192,
            "560.35.03",
            "12.6",
            instances=mig.GB200,
            addressing_mode="ATS",
        ),
        "gb300": _profile(
            "NVIDIA GB300 NVL",
            "blackwell",
            "10.3",
            288,
            "570.124.06",
            "12.8",
            instances=mig.GB300,
            addressing_mode="ATS",
        ),
        "l40s": _profile("NVIDIA L40S", "ada_lovelace", "8.9", 48, "550.163.01", "12.4"),
        "t4": _profile("NVIDIA T4", "turing", "7.5", 16, "550.163.01", "12.4", count=4),
    }
)
"""The profiles that need no ConfigMap; names, memory and versions are those of fake-gpu-operator's profiles.

H200, which that one has not, and the compute capability of GB300 are from NVIDIA's product pages. GPUs that share a
coherent link with their CPU, those of GB200 and GB300, reach its memory by address translation services (ATS).
"""


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with overrides on it: maps are merged, everything else is replaced. Neither is changed."""
    result = dict(base)
    for key, value in overrides.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


class Profiles:
    """Profiles by name: given ones, of which each is read but once, before those that are built in."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._read: dict[str, Document | Unreadable] = {}

    def find(self, named: Node) -> Node:
        """The profile that a pool names, with a path that starts anew. Raises Mistake."""
        name = named.text()
        if name in self._texts:
            return self._given(name, named.pool)
        if name not in BUILT_IN:
            known = ", ".join(sorted({*BUILT_IN, *self._texts})[:MAX_KNOWN])
            fix = f"use one of {known}, or make the ConfigMap gpu-profile-{name}"
            raise named.mistake(f"there is no profile {shown(name)}", fix)
        return Node(dict(BUILT_IN[name]), named.path, named.pool)

    def _given(self, name: str, pool: str) -> Node:
        path = f"ConfigMap gpu-profile-{name}[{PROFILE_KEY}]"
        if name not in self._read:
            self._read[name] = _readable(self._texts[name])
        document = self._read[name]
        if isinstance(document, Unreadable):
            raise Node(None, path, pool).mistake(f"it cannot be read: {document}", "correct it there")
        for duplicate in document.duplicates:
            raise twice(duplicate, pool, path)
        profile = Node(document.value, path, pool)
        if profile.absent:
            raise profile.mistake("the profile is empty", "write device_defaults and device_count")
        profile.map()
        return profile


def _readable(text: str) -> Document | Unreadable:
    try:
        return read(text)
    except Unreadable as error:
        return error


def extract(profile: Node) -> Extract:
    """What a merged profile says. Raises Mistake with everything that is wrong with it.

    A count of 0 means that it is not set, and then the length of ``devices`` counts, as in fake-gpu-operator.
    """
    attempt = Attempts()
    defaults, system = profile.get("device_defaults"), profile.get("system")
    model = GpuModel(
        product=attempt(lambda: defaults.get("name").text(""), ""),
        architecture=attempt(lambda: defaults.get("architecture").text(""), ""),
        compute_capability=attempt(lambda: _capability(defaults.get("compute_capability")), ""),
        memory=attempt(lambda: defaults.get("memory").get("total_bytes").whole_number(0, MAX_MEMORY, default=0), 0),
        driver_version=attempt(lambda: system.get("driver_version").text(""), ""),
        cuda_version=attempt(lambda: system.get("cuda_version").text(""), ""),
        brand=attempt(lambda: _brand(defaults.get("brand").text("nvidia")), ""),
        addressing_mode=attempt(lambda: defaults.get("addressing_mode").choice(ADDRESSING_MODES, ""), ""),
        mig=attempt(lambda: read_mig(profile.get("mig").get("profiles")), ()),
    )
    count = attempt(lambda: _count(profile), 0)
    attempt.finish()
    return Extract(model, count)


def _count(profile: Node) -> int:
    count = profile.get("device_count").whole_number(0, MAX_GPUS, default=0)
    devices = profile.get("devices").list()
    if count == 0 and len(devices) > MAX_GPUS:
        raise profile.get("devices").mistake(f"{len(devices)} devices are too many", f"list at most {MAX_GPUS}")
    return count or len(devices)


def _brand(text: str) -> str:
    """Profiles have brands in lower case, and drivers report them with capitals."""
    return {"geforce": "GeForce", "nvs": "NVS"}.get(text, text.capitalize() if text in BRANDS else text)


def _capability(node: Node) -> str:
    if node.absent:
        return ""
    attempt = Attempts()
    major = attempt(lambda: node.get("major").whole_number(0, 99), 0)
    minor = attempt(lambda: node.get("minor").whole_number(0, 99, default=0), 0)
    attempt.finish()
    return f"{major}.{minor}"
