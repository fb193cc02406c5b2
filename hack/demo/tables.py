"""Objects as aligned tables, for what kubectl has no good columns."""

from collections.abc import Iterable, Sequence
from typing import Any

Manifest = dict[str, Any]


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, three spaces apart as kubectl has them."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def members(domain: Manifest) -> str:
    """The entries of a domain's status, clique by clique."""
    nodes = domain.get("status", {}).get("nodes", [])
    rows = sorted(nodes, key=lambda node: (node["cliqueID"], node["index"], node["name"]))
    return aligned(
        ("NODE", "CLIQUE", "INDEX", "ADDRESS", "STATUS"),
        ([node["name"], node["cliqueID"], str(node["index"]), node["ipAddress"], node["status"]] for node in rows),
    )


def claims(items: Iterable[Manifest]) -> str:
    """Claims with what the scheduler gave them and for whom."""
    return aligned(("CLAIM", "NODE", "DEVICE", "RESERVED FOR"), (row for item in items for row in _claim_rows(item)))


def slices(items: Iterable[Manifest]) -> str:
    """ResourceSlices with the devices that they offer."""
    return aligned(
        ("SLICE", "NODE", "DEVICES"),
        (
            [
                item["metadata"]["name"],
                item["spec"]["nodeName"],
                ", ".join(device["name"] for device in item["spec"]["devices"]),
            ]
            for item in items
        ),
    )


def allocated(claim: Manifest) -> list[Manifest]:
    """The devices that a claim has; none before it is allocated."""
    results: list[Manifest] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results


def _claim_rows(claim: Manifest) -> list[list[str]]:
    name = claim["metadata"]["name"]
    consumers = ", ".join(user["name"] for user in claim.get("status", {}).get("reservedFor", [])) or "-"
    devices = allocated(claim)
    if not devices:
        return [[name, "-", "not allocated", consumers]]
    return [[name, device["pool"], device["device"], consumers] for device in devices]
