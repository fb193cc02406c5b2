"""The estate of the demo: racks of GPUs that are claimed as devices, and a hall of nodes with counted GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hack.localcluster.nodes import CLUSTER_UUID, clique, node_manifest

HALL_NODES = 2
NAMESPACE = "gpu-mirage"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Estate:
    """Pools and nodes, all of whose names begin with `prefix`."""

    prefix: str
    racks: int
    nodes_per_rack: int

    @property
    def rack_pool(self) -> str:
        return self.prefix

    @property
    def hall_pool(self) -> str:
        return f"{self.prefix}-hall"

    @property
    def rack_nodes(self) -> list[str]:
        racks, size = range(self.racks), range(self.nodes_per_rack)
        return [f"{self.prefix}-rack-{rack}-{node}" for rack in racks for node in size]

    @property
    def hall_nodes(self) -> list[str]:
        return [f"{self.prefix}-hall-{node}" for node in range(HALL_NODES)]

    @property
    def nodes(self) -> list[str]:
        return [*self.rack_nodes, *self.hall_nodes]

    def node_manifests(self) -> list[Manifest]:
        """Nodes that only say which pool they are in."""
        racks = [node_manifest(name, pool=self.rack_pool) for name in self.rack_nodes]
        return [*racks, *(node_manifest(name, pool=self.hall_pool) for name in self.hall_nodes)]

    def racked_node_manifests(self) -> list[Manifest]:
        """The nodes of racks with their places, for a cluster whose controllers have a topology of their own."""
        cliques = [clique(rack) for rack in range(self.racks) for _ in range(self.nodes_per_rack)]
        places = zip(self.rack_nodes, cliques, strict=True)
        return [node_manifest(name, clique=place, pool=self.rack_pool) for name, place in places]

    def topology(self, name: str) -> Manifest:
        """The ConfigMap that says what the pools consist of."""
        text = yaml.safe_dump({"nodePools": self._pools()}, sort_keys=False)
        metadata = {"name": name, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"topology.yml": text}}

    def _pools(self) -> Mapping[str, Any]:
        fabric = {"clusterUUID": CLUSTER_UUID, "nodesPerClique": self.nodes_per_rack}
        racks = {"gpu": {"profile": "gb200", "offered": "dra", "overrides": {"device_count": 4}}, "fabric": fabric}
        hall = {"gpu": {"profile": "h100", "offered": "extended-resource"}, "numa": {"zones": 2}}
        return {self.rack_pool: racks, self.hall_pool: hall}
