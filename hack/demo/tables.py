"""Objects as aligned tables, for what kubectl has no good columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GPU = "nvidia.com/gpu"
FRACTIONING = "gpu-fractioning.nvidia.com/Ready"

Manifest = dict[str, Any]


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, three spaces apart as kubectl has them."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def nodes(items: Iterable[Manifest], slices: Iterable[Manifest], zones: Iterable[Manifest]) -> str:
    """Nodes with their GPUs and how these are offered, with the racks and the NUMA zones that they are in."""
    devices = {item["spec"]["nodeName"]: len(item["spec"]["devices"]) for item in slices}
    places = {item["metadata"]["name"]: _per_zone(item) for item in zones}
    return aligned(
        ("NODE", "PRODUCT", "RACK", "GPUS", "OFFERED AS", "GPUS PER ZONE", "FRACTIONING"),
        (_node_row(item, devices, places) for item in items),
    )


def counted_gpus(node: Manifest) -> int:
    """How many GPUs a node has to count, 0 where it has none."""
    return int(node["status"].get("allocatable", {}).get(GPU, 0))


def _node_row(node: Manifest, devices: Mapping[str, int], places: Mapping[str, str]) -> list[str]:
    name, labels = node["metadata"]["name"], node["metadata"]["labels"]
    counted = counted_gpus(node)
    fractioning = [c["status"] for c in node["status"].get("conditions", []) if c["type"] == FRACTIONING]
    return [
        name,
        labels.get("nvidia.com/gpu.product", "-"),
        labels.get("nvidia.com/gpu.clique", "-").rpartition(".")[2] or "-",
        str(counted or devices.get(name, 0)),
        GPU if counted else "ResourceSlice" if name in devices else "-",
        places.get(name, "-"),
        *(fractioning or ["-"]),
    ]


def _per_zone(topology: Manifest) -> str:
    """The free GPUs of each zone."""
    return " + ".join(
        next((resource["available"] for resource in zone["resources"] if resource["name"] == GPU), "0")
        for zone in topology["zones"]
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
