"""The controllers that can share a process, and what each of them must have before it is declared."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from controllers import (
    channel_slices,
    compute_domain,
    extended_resource,
    gpu_fractioning,
    gpu_slices,
    node_pool,
    node_resource_topology,
)
from controllers.api.dra import DraApi, wait_for_dra
from controllers.api.topology import wait_for_topology
from controllers.channel_slices.options import channel_slices_options
from controllers.compute_domain.options import compute_domain_options
from controllers.node_pool.options import node_pool_options
from controllers.runtime import Manager
from controllers.topology import TopologySource, topology_options


@dataclass(frozen=True, slots=True)
class Context:
    """What parts are declared with; ``dra`` and ``topology`` are there where a part needs them."""

    manager: Manager
    arguments: argparse.Namespace
    dra: DraApi | None = None
    topology: TopologySource | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One controller."""

    declare: Callable[[Context], None]
    needs_dra: bool = False
    needs_topology: bool = False
    needs_zones: bool = False  # the CRD NodeResourceTopology, which no installation of ours brings


def _compute_domain(context: Context) -> None:
    assert context.dra is not None
    compute_domain.setup(context.manager, context.dra, compute_domain_options(context.arguments))


def _channel_slices(context: Context) -> None:
    assert context.dra is not None
    channel_slices.setup(context.manager, context.dra, channel_slices_options(context.arguments))


def _gpu_slices(context: Context) -> None:
    assert context.dra is not None
    assert context.topology is not None
    gpu_slices.setup(context.manager, context.dra, context.topology)


def _node_pool(context: Context) -> None:
    assert context.topology is not None
    node_pool.setup(context.manager, context.topology, node_pool_options(context.arguments))


def _node_resource_topology(context: Context) -> None:
    assert context.topology is not None
    node_resource_topology.setup(context.manager, context.topology)


def _extended_resource(context: Context) -> None:
    assert context.topology is not None
    extended_resource.setup(context.manager, context.topology)


def _gpu_fractioning(context: Context) -> None:
    assert context.topology is not None
    gpu_fractioning.setup(context.manager, context.topology)


PARTS: Final[Mapping[str, Part]] = MappingProxyType(
    {
        "compute-domain": Part(_compute_domain, needs_dra=True),
        "channel-slices": Part(_channel_slices, needs_dra=True),
        "gpu-slices": Part(_gpu_slices, needs_dra=True, needs_topology=True),
        "node-pool": Part(_node_pool, needs_topology=True),
        "node-resource-topology": Part(_node_resource_topology, needs_topology=True, needs_zones=True),
        "extended-resource": Part(_extended_resource, needs_topology=True),
        "gpu-fractioning": Part(_gpu_fractioning, needs_topology=True),
    }
)
"""All controllers by the names of their binaries."""

DEFAULT = tuple(name for name, part in PARTS.items() if not part.needs_zones)
"""Those that run where none are named: the others would hold all of them up in clusters that lack a CRD."""


async def declare(manager: Manager, names: Iterable[str], arguments: argparse.Namespace) -> None:
    """Declares some of the controllers on a manager, once the APIs that they need are served."""
    parts = [PARTS[name] for name in names]
    if any(part.needs_zones for part in parts):
        await wait_for_topology(manager)
    context = Context(
        manager,
        arguments,
        dra=await wait_for_dra(manager) if any(part.needs_dra for part in parts) else None,
        topology=(
            TopologySource(manager, topology_options(arguments)) if any(part.needs_topology for part in parts) else None
        ),
    )
    for part in parts:
        part.declare(context)
