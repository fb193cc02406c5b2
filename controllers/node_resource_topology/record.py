"""Placements as text, for an annotation of the object that they explain: so they survive this process."""

from collections.abc import Mapping
from itertools import accumulate, takewhile

import msgspec

from controllers.node_resource_topology.demand import Amount
from controllers.node_resource_topology.placement import Placement

ANNOTATION = "gpu-mirage/placements"

MAX_LENGTH = 200_000
"""Characters; all annotations of an object may have 256 KiB."""

Rows = dict[str, list[tuple[int, int, int, int]]]
"""Zone, GPUs, thousandths of a core and bytes, by the uid of the pod."""


def written(placements: Mapping[str, Placement]) -> str:
    """The text; pods that do not fit into it any more, the last ones, are left out and placed anew each time."""
    rows: Rows = {
        uid: [(index, amount.gpus, amount.cpu, amount.memory) for index, amount in sorted(placement.items())]
        for uid, placement in placements.items()
    }
    lengths = accumulate(len(msgspec.json.encode(entry)) for entry in rows.items())
    fitting = takewhile(lambda pair: pair[1] <= MAX_LENGTH, zip(rows, lengths, strict=True))
    return msgspec.json.encode({uid: rows[uid] for uid, _ in fitting}).decode()


def read(text: str) -> dict[str, Placement]:
    """The placements in a text; none where somebody has put something else there."""
    try:
        rows = msgspec.json.decode(text, type=Rows)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return {
        uid: {row[0]: Amount(*row[1:]) for row in entries}
        for uid, entries in rows.items()
        if all(number >= 0 for row in entries for number in row)
    }
