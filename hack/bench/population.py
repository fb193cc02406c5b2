"""The nodes of a simulated estate, half of them in racks and half in a hall, and what is published for each."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import yaml
from msgspec.structs import replace

from controllers.api import dra, nvidia
from controllers.api.core import POOL_LABEL, ConfigMap, Node
from controllers.api.topology import NodeResourceTopology
from controllers.channel_slices.slices import desired_slice
from controllers.estate import DRA, EXTENDED_RESOURCE, Pool, gpus_of, load, node_labels
from controllers.estate.estate import GPU_RESOURCE
from controllers.extended_resource import capacity
from controllers.gpu_fractioning import condition
from controllers.gpu_slices.contents import contents
from controllers.gpu_slices.devices import DRIVER
from controllers.gpu_slices.plan import desired
from controllers.node_pool.config_map import desired_config_map, name_of
from controllers.node_resource_topology.manifest import manifest as zones_of_node
from controllers.runtime import Resource
from controllers.runtime.client import APPLY_PATCH
from controllers.topology import TopologyOptions
from hack.bench.lanes import Target
from hack.bench.manifests import DRA as API
from hack.localcluster.nodes import CLUSTER_UUID, clique, node_manifest

RACKS, HALL = "racks", "hall"
RACK_SIZE = 18
DOCUMENT: Final = yaml.safe_dump(
    {
        "nodePools": {
            RACKS: {
                "gpu": {"profile": "gb200", "offered": DRA},
                "fabric": {"clusterUUID": CLUSTER_UUID, "nodesPerClique": RACK_SIZE},
                "numa": {"zones": 2},
            },
            HALL: {"gpu": {"profile": "h100", "offered": EXTENDED_RESOURCE}, "numa": {"zones": 2}},
        }
    }
)
OPTIONS = TopologyOptions()
POOLS: Mapping[str, Pool] = load(DOCUMENT, {}).pools

Manifest = dict[str, Any]


def topology_config() -> Manifest:
    """The ConfigMap with the pools."""
    metadata = {"name": OPTIONS.name, "namespace": OPTIONS.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"topology.yml": DOCUMENT}}


def pool_of(number: int) -> Pool:
    """Every other node is in the racks."""
    return POOLS[HALL if number % 2 else RACKS]


def pool_nodes(names: list[str]) -> list[Manifest]:
    """Nodes that say which pool they are in, and nothing more of their GPUs."""
    return [node_manifest(name, pool=pool_of(number).name) for number, name in enumerate(names)]


def plain_nodes(names: list[str]) -> list[Manifest]:
    """The same nodes where no controller looks at them."""
    found = pool_nodes(names)
    for manifest in found:
        del manifest["metadata"]["labels"][POOL_LABEL]
    return found


def object_names(node: str) -> tuple[str, ...]:
    """The names of everything that is written for a node."""
    return (node, name_of(node, OPTIONS), dra.slice_name(node, nvidia.DRIVER), dra.slice_name(node, DRIVER))


def bare_writes(target: Target, node: Node, number: int) -> list[bytes]:
    """The fewest requests that publish all of a node, each as its controller would send it."""

    def apply(controller: str, resource: Resource, body: Mapping[str, Any], subresource: str = "") -> bytes:
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        query = f"fieldManager=gpu-mirage%2F{controller}&force=false"
        return target.request("PATCH", f"{path}?{query}", whole, APPLY_PATCH)

    pool, slices = pool_of(number), API.slices.resource
    identity = {"name": node.name, "uid": node.uid}
    labels = node_labels(pool, clique(number // 2 // RACK_SIZE) if pool.fabric else "")
    requests = [
        apply("node-pool", Node.resource, {"metadata": {**identity, "labels": labels}}),
        apply("node-pool", ConfigMap.resource, desired_config_map(node, pool, None, OPTIONS)),
        apply("channel-slices", slices, desired_slice(node, API, 1)),
    ]
    if pool.offered == DRA:
        held = contents(API, pool, gpus_of(node.name, pool))
        requests += [apply("gpu-slices", slices, part) for part in desired(node, held, 1)]
    else:
        resources, ready = capacity.fields({GPU_RESOURCE: pool.gpu_count}), condition.fields(datetime.now(UTC))
        requests += [
            apply("extended-resource", Node.resource, {"metadata": identity, **resources}, "status"),
            apply("gpu-fractioning", Node.resource, {"metadata": identity, **ready}, "status"),
        ]
        node = _with_gpus(node, pool.gpu_count)
    assert pool.numa is not None
    zones = zones_of_node(node, pool.numa, (), None)
    requests.append(apply("node-resource-topology", NodeResourceTopology.resource, zones))
    return requests


def _with_gpus(node: Node, count: int) -> Node:
    gpus = {GPU_RESOURCE: str(count)}
    capacity_, allocatable = {**node.status.capacity, **gpus}, {**node.status.allocatable, **gpus}
    return replace(node, status=replace(node.status, capacity=capacity_, allocatable=allocatable))
