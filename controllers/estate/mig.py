"""MIG: the instances into which one GPU of a model can be partitioned."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from controllers.estate.reading import Attempts, Node, shown

NO_MIG: Final = "none"
DYNAMIC_MIG: Final = "dynamic"
MIG_MODES: Final = (NO_MIG, DYNAMIC_MIG)
"""Whether GPUs are whole, or partitioned by whoever allocates them: every instance that could be made is on offer."""

MAX_SLICES: Final = 16  # memory slices of one GPU; no GPU has more than 8 today
MAX_INSTANCES: Final = 63
"""Instances of one GPU: with the whole GPU they have to fit into one ResourceSlice, which takes 64 such devices."""

MAX_ENGINES: Final = 1024
MAX_MEMORY: Final = 2**31 - 1  # MiB of one instance

_NAME = re.compile(r"[1-9][0-9]{0,2}g\.[1-9][0-9]{0,4}gb([+-][a-z0-9.]{1,16})?")
_COUNTS = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
_FIELDS = ("name", "id", "starts", "slices", "memory_mb", *_COUNTS)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size of instance, and where on the GPU it may begin."""

    name: str  # as the driver spells it, such as 1g.5gb+me
    id: int  # of the GPU instance profile, as `nvidia-smi mig -lgip` lists it
    starts: tuple[int, ...]  # memory slices at which an instance may begin
    slices: int  # memory slices of an instance
    memory: int  # MiB
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0

    @property
    def reach(self) -> int:
        """How many memory slices a GPU needs so that the last instance has room."""
        return max(self.starts) + self.slices


def slices_of(profiles: Iterable[MigProfile]) -> int:
    """The memory slices of a GPU: the largest instance has all of them."""
    return max((profile.slices for profile in profiles), default=0)


def read_mig(node: Node) -> tuple[MigProfile, ...]:
    """The list ``mig.profiles`` of a GPU profile; none where there is no such list. Raises Mistake."""
    attempt = Attempts()
    read = [attempt(partial(_profile, entry), None) for entry in node.list()]
    attempt.finish()
    found = tuple(profile for profile in read if profile is not None)
    _refuse_twice(node, found)
    for entry, profile in zip(node.list(), found, strict=True):
        if profile.reach > slices_of(found):
            why = f"an instance reaches slice {profile.reach}, and the largest one has {slices_of(found)}"
            raise entry.get("starts").mistake(why, "correct starts or slices")
    if (count := sum(len(profile.starts) for profile in found)) > MAX_INSTANCES:
        raise node.mistake(f"a GPU would have {count} instances", f"list at most {MAX_INSTANCES} places in all")
    return found


def _profile(node: Node) -> MigProfile:
    attempt = Attempts()
    attempt(lambda: node.refuse_unknown(_FIELDS), None)
    profile = MigProfile(
        name=attempt(lambda: _name(node.get("name")), ""),
        id=attempt(lambda: node.get("id").whole_number(0, 255), 0),
        starts=attempt(lambda: _starts(node.get("starts")), (0,)),
        slices=attempt(lambda: node.get("slices").whole_number(1, MAX_SLICES), 1),
        memory=attempt(lambda: node.get("memory_mb").whole_number(1, MAX_MEMORY), 1),
        **{name: attempt(partial(_count, node.get(name)), 0) for name in _COUNTS},
    )
    attempt.finish()
    return profile


def _name(node: Node) -> str:
    name = node.text()
    if not _NAME.fullmatch(name):
        raise node.mistake(f"{shown(name)} is not the name of a MIG profile", "write it as 1g.5gb")
    return name


def _count(node: Node) -> int:
    return node.whole_number(0, MAX_ENGINES, default=0)


def _starts(node: Node) -> tuple[int, ...]:
    starts = tuple(entry.whole_number(0, MAX_SLICES - 1) for entry in node.list())
    if not starts or len(set(starts)) != len(starts):
        raise node.mistake(
            f"{shown(list(starts))} is not a list of different slices", "list the first slice of each place"
        )
    return starts


def _refuse_twice(node: Node, profiles: Sequence[MigProfile]) -> None:
    for index, profile in enumerate(profiles):
        for earlier in profiles[:index]:
            if profile.id == earlier.id or device_part(profile.name) == device_part(earlier.name):
                why = f"it has the id or the name of {earlier.name}"
                raise Node(None, f"{node.path}[{index}]", node.pool).mistake(why, "keep one of them")


def device_part(name: str) -> str:
    """A profile's name as part of a device's, which is a DNS label: ``1g.5gb+me`` is ``1g5gb-me`` there."""
    return re.sub(r"[^a-z0-9-]", "-", name.replace(".", "")).strip("-")


# -- what the built-in profiles have --------------------------------------------------------------------------------

_SEVENTHS: Final = (
    # Id, places, memory slices: the same on every GPU that has seven slices of compute.
    (19, range(7), 1),  # 1g
    (20, range(7), 1),  # 1g with the media extensions, of which a GPU has one set
    (15, range(0, 8, 2), 2),  # 1g with twice the memory
    (14, range(0, 6, 2), 2),  # 2g
    (9, range(0, 8, 4), 4),  # 3g
    (5, range(1), 4),  # 4g
    (0, range(1), 8),  # 7g
)


def _sevenths(*rows: tuple[str, int, int, int, int, int, int]) -> list[dict[str, Any]]:
    """Profiles as a GPU profile lists them.

    A row has the name, the memory in MiB, and how many multiprocessors, copy engines, decoders, JPEG and OFA engines.
    """
    return [
        {
            "name": name,
            "id": id_,
            "starts": list(starts),
            "slices": slices,
            "memory_mb": memory,
            "multiprocessors": multiprocessors,
            "copy_engines": copy,
            "decoders": decoders,
            "jpeg_engines": jpeg,
            "ofa_engines": ofa,
        }
        for (id_, starts, slices), (name, memory, multiprocessors, copy, decoders, jpeg, ofa) in zip(
            _SEVENTHS, rows, strict=True
        )
    ]


A100: Final = _sevenths(
    ("1g.5gb", 4864, 14, 1, 0, 0, 0),
    ("1g.5gb+me", 4864, 14, 1, 1, 1, 1),
    ("1g.10gb", 9856, 14, 1, 1, 0, 0),
    ("2g.10gb", 9856, 28, 2, 1, 0, 0),
    ("3g.20gb", 19968, 42, 3, 2, 0, 0),
    ("4g.20gb", 19968, 56, 4, 2, 0, 0),
    ("7g.40gb", 40192, 98, 7, 5, 1, 1),
)
H100: Final = _sevenths(
    ("1g.10gb", 9984, 16, 1, 1, 1, 0),
    ("1g.10gb+me", 9984, 16, 1, 1, 1, 1),
    ("1g.20gb", 20096, 26, 1, 1, 1, 0),
    ("2g.20gb", 20096, 32, 2, 2, 2, 0),
    ("3g.40gb", 40448, 60, 3, 3, 3, 0),
    ("4g.40gb", 40448, 64, 4, 4, 4, 0),
    ("7g.80gb", 81152, 132, 8, 7, 7, 1),
)
H200: Final = _sevenths(
    ("1g.18gb", 16384, 16, 1, 1, 1, 0),
    ("1g.18gb+me", 16384, 16, 1, 1, 1, 1),
    ("1g.35gb", 33024, 26, 1, 1, 1, 0),
    ("2g.35gb", 33024, 32, 2, 2, 2, 0),
    ("3g.71gb", 71168, 60, 3, 3, 3, 0),
    ("4g.71gb", 71168, 64, 4, 4, 4, 0),
    ("7g.141gb", 143360, 132, 8, 7, 7, 1),
)
B200: Final = _sevenths(
    ("1g.23gb", 22528, 18, 2, 1, 1, 0),
    ("1g.23gb+me", 22528, 18, 2, 1, 1, 1),
    ("1g.45gb", 45312, 30, 2, 1, 1, 0),
    ("2g.45gb", 45312, 36, 4, 2, 2, 0),
    ("3g.90gb", 90624, 70, 6, 3, 3, 0),
    ("4g.90gb", 90624, 72, 8, 4, 4, 0),
    ("7g.180gb", 181248, 148, 16, 7, 7, 1),
)
GB200: Final = _sevenths(
    ("1g.23gb", 22528, 18, 2, 1, 1, 0),
    ("1g.23gb+me", 22528, 18, 2, 1, 1, 1),
    ("1g.47gb", 46592, 32, 2, 1, 1, 0),
    ("2g.47gb", 46592, 38, 4, 2, 2, 0),
    ("3g.93gb", 93184, 74, 6, 3, 3, 0),
    ("4g.93gb", 93184, 76, 8, 4, 4, 0),
    ("7g.186gb", 186368, 152, 16, 7, 7, 1),
)
GB300: Final = _sevenths(
    ("1g.35gb", 35584, 18, 2, 1, 1, 0),
    ("1g.35gb+me", 35584, 18, 2, 1, 1, 1),
    ("1g.70gb", 71168, 32, 2, 1, 1, 0),
    ("2g.70gb", 71168, 38, 4, 2, 2, 0),
    ("3g.139gb", 142336, 74, 6, 3, 3, 0),
    ("4g.139gb", 142336, 76, 8, 4, 4, 0),
    ("7g.278gb", 284672, 152, 16, 7, 7, 1),
)
"""Names, ids and places are those of the driver, from NVIDIA's MIG guide and the default layouts of mig-parted.

So are memory and engines of A100, H100 and H200, and of the sizes below 3g of B200 and GB200, from published output of
``nvidia-smi mig -lgip``. Where nothing is published, as for the larger ones of Blackwell, memory is that of the slices,
and engines grow with them.
"""
