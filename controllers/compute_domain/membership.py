"""Which nodes are members of a domain: derived from the claims that the scheduler allocated, never chosen by us."""

import hashlib
import ipaddress
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import AllocatedDevice, AllocatedDevices, ResourceClaim
from controllers.api.nvidia import ChannelConfig, ComputeDomain, DomainNode

_CLIQUE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+")
_NO_FABRIC = re.compile(r"[0.-]*")
ADDRESS_PREFIX = ipaddress.IPv6Network("fd67:7075:6d69::/48")
"""Synthetic member addresses: a unique local prefix (RFC 4193) with the letters "gpumi" in it, then 80 bits of hash."""


@dataclass(frozen=True, slots=True)
class ChannelClaim:
    """One channel that the scheduler gave to a claim of a domain."""

    domain_uid: str
    node: str


@dataclass(frozen=True, slots=True)
class BadClaim:
    """A claim on our driver that cannot be understood: a reason for machines, a note for people."""

    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claimed node that does not become a member."""

    node: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a domain in order of their names, and the nodes that were refused."""

    members: tuple[DomainNode, ...]
    refused: tuple[Refusal, ...] = ()


def channels_of(claim: ResourceClaim) -> tuple[ChannelClaim | BadClaim, ...]:
    """What a claim's allocation says of domains; empty while it is not allocated or has no device of our driver."""
    if claim.status.allocation is None:
        return ()
    devices = claim.status.allocation.devices
    found = (_channel(result, devices) for result in devices.results if result.driver == nvidia.DRIVER)
    return tuple(channel for channel in found if channel is not None)


def domains_of(claim: ResourceClaim) -> Iterable[str]:
    """The uids of the domains that a claim takes part in: an index."""
    return {channel.domain_uid for channel in channels_of(claim) if isinstance(channel, ChannelClaim)}


def nodes_of(claim: ResourceClaim) -> Iterable[str]:
    """The nodes on which a claim holds a channel: an index."""
    return {channel.node for channel in channels_of(claim) if isinstance(channel, ChannelClaim)}


def _channel(result: AllocatedDevice, devices: AllocatedDevices) -> ChannelClaim | BadClaim | None:
    parameters = _parameters(result, devices)
    if parameters is None:
        return BadClaim(
            "MissingChannelConfig",
            f"device {result.device} of node {result.pool} is claimed without an opaque configuration of driver "
            f"{nvidia.DRIVER}: use the ResourceClaimTemplate that a ComputeDomain generates",
        )
    if isinstance(parameters, Mapping) and parameters.get("kind") == nvidia.DAEMON_CONFIG_KIND:
        return None
    try:
        config = msgspec.convert(parameters, type=ChannelConfig)
    except msgspec.ValidationError as error:
        return BadClaim(
            "InvalidChannelConfig",
            f"request {result.request}: the opaque configuration is not a {nvidia.CHANNEL_CONFIG_KIND}: {error}",
        )
    return _checked(config, result)


def _parameters(result: AllocatedDevice, devices: AllocatedDevices) -> Any:
    """The last configuration that covers the request wins, as in the real driver; no requests means all of them."""
    for config in reversed(devices.config):
        covers = not config.requests or result.request in config.requests or result.main_request in config.requests
        if covers and config.opaque is not None and config.opaque.driver == nvidia.DRIVER:
            return config.opaque.parameters
    return None


def _checked(config: ChannelConfig, result: AllocatedDevice) -> ChannelClaim | BadClaim:
    expected = f"{nvidia.GROUP}/{nvidia.VERSION}"
    if (config.api_version, config.kind) != (expected, nvidia.CHANNEL_CONFIG_KIND):
        return BadClaim(
            "InvalidChannelConfig",
            f"request {result.request}: the opaque configuration is {config.api_version[:60]} {config.kind[:60]}, "
            f"not {expected} {nvidia.CHANNEL_CONFIG_KIND}",
        )
    if config.allocation_mode not in nvidia.ALLOCATION_MODES:
        return BadClaim(
            "InvalidChannelConfig",
            f"request {result.request}: allocationMode {config.allocation_mode[:60]!r} is unknown: use Single or All",
        )
    if not _is_uid(config.domain_id):
        return BadClaim(
            "InvalidDomainID",
            f"request {result.request}: domainID {config.domain_id[:60]!r} is not the uid of a ComputeDomain",
        )
    return ChannelClaim(config.domain_id, result.pool)


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def clique_of(node: Node) -> str:
    """The clique that a node's label names; "" without NVLink fabric (no label, all zero, or not a clique id)."""
    label = node.labels.get(nvidia.NODE_CLIQUE_LABEL, "")
    cluster = label.partition(".")[0]
    return label if _CLIQUE_ID.fullmatch(label) and not _NO_FABRIC.fullmatch(cluster) else ""


def has_bad_clique_label(node: Node) -> bool:
    """Whether a node's clique label is neither a clique id nor one of the ways to say "no fabric"."""
    label = node.labels.get(nvidia.NODE_CLIQUE_LABEL, "")
    return not _NO_FABRIC.fullmatch(label.partition(".")[0]) and not _CLIQUE_ID.fullmatch(label)


def address_of(node: str) -> str:
    """The synthetic address of a member: the same for a node name everywhere and always.

    Simulated nodes share one real address. The odds that two of 100,000 names get the same one are below 1e-14.
    """
    digest = hashlib.sha256(node.encode()).digest()[:10]
    return str(ADDRESS_PREFIX[int.from_bytes(digest, "big")])


@dataclass(frozen=True, slots=True)
class Rules:
    """What membership depends on beside claims and nodes."""

    pool_label: str
    max_nodes_per_clique: int
    admits_new: bool = True


def plan(
    domain: ComputeDomain,
    claimed: Iterable[str],
    nodes: Mapping[str, Node | None],
    previous: Iterable[DomainNode],
    rules: Rules,
) -> Membership:
    """The members that a domain should have.

    ``claimed`` are the nodes on which the domain's claims hold a channel, ``nodes`` those nodes as they are (None:
    gone) and ``previous`` the entries written before, best source first. A member keeps its index while it stays in its
    clique; a new one gets the smallest free index.
    """
    present = _present_entries(previous)
    admitted: list[Node] = []
    refused: list[Refusal] = []
    for name in sorted(set(claimed)):
        node = nodes.get(name)
        if node is None or (not rules.admits_new and name not in present):
            continue
        refusal = _refusal(node, domain, rules)
        if refusal is None:
            admitted.append(node)
        else:
            refused.append(refusal)
    members, full = _with_indices(admitted, present, rules)
    return Membership(members, tuple(sorted((*refused, *full), key=lambda refusal: refusal.node)))


def _present_entries(previous: Iterable[DomainNode]) -> dict[str, list[DomainNode]]:
    entries: dict[str, list[DomainNode]] = {}
    for entry in previous:
        entries.setdefault(entry.name, []).append(entry)
    return entries


def _refusal(node: Node, domain: ComputeDomain, rules: Rules) -> Refusal | None:
    if rules.pool_label not in node.labels:
        return Refusal(
            node.name,
            "NodeNotSimulated",
            f"node {node.name} has no label {rules.pool_label}, so it does not become a member",
        )
    other = node.labels.get(nvidia.DOMAIN_KEY, domain.uid)
    if other != domain.uid:
        return Refusal(
            node.name,
            "NodeInOtherDomain",
            f"node {node.name} belongs to the ComputeDomain with uid {other} (label {nvidia.DOMAIN_KEY}), so it does "
            "not become a member",
        )
    return None


def _with_indices(
    nodes: list[Node], present: Mapping[str, list[DomainNode]], rules: Rules
) -> tuple[tuple[DomainNode, ...], list[Refusal]]:
    taken = _kept_indices(nodes, present, rules)
    full: list[Refusal] = []
    members: list[DomainNode] = []
    for node in nodes:
        clique = clique_of(node)
        if not clique:
            members.append(_entry(node, clique, nvidia.NO_CLIQUE_INDEX))
            continue
        index = _take_index(node.name, taken.setdefault(clique, {}), rules.max_nodes_per_clique)
        if index is None:
            full.append(_full(node.name, clique, rules))
        else:
            members.append(_entry(node, clique, index))
    return tuple(members), full


def _take_index(node: str, holders: dict[int, str], limit: int) -> int | None:
    """The index that the node holds, else the smallest free one, which it then holds; None where all are taken."""
    for index, holder in holders.items():
        if holder == node:
            return index
    free = next((index for index in range(limit) if index not in holders), None)
    if free is not None:
        holders[free] = node
    return free


def _kept_indices(
    nodes: list[Node], present: Mapping[str, list[DomainNode]], rules: Rules
) -> dict[str, dict[int, str]]:
    """Per clique the indices that members already hold, by the first source that says so."""
    taken: dict[str, dict[int, str]] = {}
    for node in nodes:
        clique = clique_of(node)
        for entry in present.get(node.name, ()) if clique else ():
            holders = taken.setdefault(clique, {})
            if (
                entry.clique_id == clique
                and 0 <= entry.index < rules.max_nodes_per_clique
                and entry.index not in holders
            ):
                holders[entry.index] = node.name
                break
    return taken


def _full(node: str, clique: str, rules: Rules) -> Refusal:
    return Refusal(
        node,
        "CliqueFull",
        f"clique {clique} already has {rules.max_nodes_per_clique} members in this domain, so node {node} does not "
        "become one until a member leaves",
    )


def _entry(node: Node, clique: str, index: int) -> DomainNode:
    return DomainNode(
        name=node.name,
        ip_address=address_of(node.name),
        clique_id=clique,
        index=index,
        status=nvidia.READY if node.ready else nvidia.NOT_READY,
    )
