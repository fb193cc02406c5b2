"""What a cluster should show: pools, nodes and domains as they are asked for, and how far the cluster is from that."""

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from controllers.estate import load
from hack.localcluster import node_manifest
from hack.localcluster.controllers import NAMESPACE
from hack.localcluster.nodes import CLIQUE_LABEL, POOL_LABEL
from tests.chaos.audit import Child
from tests.contract.api_server import ApiServer, Reply
from tests.integration.scenario import DOMAIN_KEY, Manifest, domain, worker
from tests.integration.test_estate import CHANNELS, GPUS, POOLS, differences, model, seen

PATIENCE = 90.0  # seconds; a busy machine, not the controllers, decides how much of it is needed
INTERVAL = 0.1  # seconds between two looks, and between two attempts
DOMAIN_NAMESPACE = "default"
NODES_PER_CLIQUE = 2
FABRIC: Manifest = {**POOLS["racks"]["fabric"], "nodesPerClique": NODES_PER_CLIQUE}
BASE_POOLS: Manifest = {**POOLS, "racks": {**POOLS["racks"], "fabric": FABRIC}}
HOME = ("racks-0", "racks-1", "racks-2", "racks-3")
"""The nodes that domains use; no schedule moves or deletes them."""
BASE_NODES = {**dict.fromkeys(HOME, "racks"), "hall-0": "hall", "old-0": "old", "mocked-0": "mocked"}

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
UNANSWERED = frozenset({403, 429, 500, 502, 503, 504})
"""Codes of a server that is in trouble; one that has just started does not know anybody's rights yet."""
DRA = "/apis/resource.k8s.io/v1"
NVIDIA = "/apis/resource.nvidia.com/v1beta1"
PLACES = {
    "nodes": ("/api/v1", ""),
    "configmaps": ("/api/v1", NAMESPACE),
    "pods": ("/api/v1", DOMAIN_NAMESPACE),
    "resourceslices": (DRA, ""),
    "resourceclaimtemplates": (DRA, DOMAIN_NAMESPACE),
    "noderesourcetopologies": ("/apis/topology.node.k8s.io/v1alpha2", ""),
    "computedomains": (NVIDIA, DOMAIN_NAMESPACE),
    "computedomaincliques": (NVIDIA, NAMESPACE),
}
"""The group's path and the namespace of each kind that schedules deal with."""
MODELLED = {
    "nodes": "Node",
    "resourceslices": "ResourceSlice",
    "configmaps": "ConfigMap",
    "noderesourcetopologies": "NodeResourceTopology",
}
"""What the model of an estate looks at; objects in lists do not say their kind themselves."""

Objects = dict[str, list[Manifest]]


def path(resource: str, name: str = "") -> str:
    prefix, namespace = PLACES[resource]
    scope = ["namespaces", namespace] if namespace else []
    return "/".join([prefix, *scope, resource, *([name] if name else [])])


class Admin:
    """Says what should be, and says it again where the server has not answered."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api

    def send(self, method: str, where: str, body: Any = None, content_type: str = "application/json") -> Reply:
        """Sends a request that may be done twice. Fails where the server gives no answer within PATIENCE."""
        whole = f"{where}?fieldManager=admin&force=true" if content_type == APPLY else where
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                reply = self.api.send(method, whole, body, content_type=content_type)
            except (OSError, http.client.HTTPException) as error:
                reply = Reply(503, str(error))
            if reply.code not in UNANSWERED:
                return reply
            assert time.monotonic() < deadline, f"{method} {where}: {reply}"
            time.sleep(INTERVAL)

    def apply(self, where: str, manifest: Manifest) -> Manifest:
        reply = self.send("PATCH", where, manifest, APPLY)
        assert reply.code in (200, 201), reply
        applied: Manifest = reply.body
        return applied

    def delete(self, where: str) -> None:
        reply = self.send("DELETE", where, {"propagationPolicy": "Background"})
        assert reply.code in (200, 202, 404), reply

    def list(self, resource: str) -> list[Manifest]:
        reply = self.send("GET", path(resource))
        assert reply.code == 200, reply
        items: list[Manifest] = reply.body["items"]
        return items


@dataclass
class World:
    """The desired state of a cluster. What a schedule adds to it has names that nothing had before."""

    admin: Admin
    pools: Manifest = field(default_factory=lambda: dict(BASE_POOLS))
    nodes: dict[str, str] = field(default_factory=dict)
    domains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    allowed: dict[Child, int] = field(default_factory=dict)
    """How often each child may have been made since the schedule began."""

    # -- changes ------------------------------------------------------------------------------------------------------

    def set_pools(self, pools: Manifest) -> None:
        """Makes the pools these; whatever a node has of its pool may have to be made anew."""
        self.pools = pools
        document = yaml.safe_dump({"nodePools": pools})
        metadata = {"name": "topology", "namespace": NAMESPACE}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"topology.yml": document}}
        self.admin.apply(path("configmaps", "topology"), manifest)
        for name in self.nodes:
            self._allow_contents(name)

    def add_node(self, name: str, pool: str) -> None:
        self.nodes[name] = pool
        self.admin.apply(path("nodes", name), node_manifest(name, pool=pool))
        self._allow_all(name)

    def move_node(self, name: str, pool: str) -> None:
        self.nodes[name] = pool
        reply = self.admin.send("PATCH", path("nodes", name), {"metadata": {"labels": {POOL_LABEL: pool}}}, MERGE)
        assert reply.code == 200, reply
        self._allow_contents(name)

    def delete_node(self, name: str) -> None:
        """What a node owns may be made once more: that it is collected can be heard of before the node's own end."""
        del self.nodes[name]
        self._allow_all(name)
        self.admin.delete(path("nodes", name))

    def add_domain(self, name: str, nodes: tuple[str, ...]) -> None:
        """A domain with a worker on each of these nodes."""
        self.domains[name] = nodes
        manifest = domain(DOMAIN_NAMESPACE, name, nodes=len(nodes))
        uid = self.uids[name] = self.admin.apply(path("computedomains", name), manifest)["metadata"]["uid"]
        self._allow("resourceclaimtemplates", f"{name}-channel")
        for place, node in enumerate(nodes):
            pod = worker(DOMAIN_NAMESPACE, f"{name}-{place}", template=f"{name}-channel", node=node)
            self.admin.apply(path("pods", f"{name}-{place}"), pod)
        for rack in self.racks().values():
            self._allow("computedomaincliques", f"{uid}.{rack}")

    def delete_domain(self, name: str) -> None:
        """Deletes a domain together with its workers."""
        for place, _ in enumerate(self.domains.pop(name)):
            self.admin.delete(path("pods", f"{name}-{place}"))
        self.admin.delete(path("computedomains", name))

    def racks(self) -> dict[str, str]:
        """The rack of each node that domains use."""
        labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in self.admin.list("nodes")}
        return {name: labels[name].get(CLIQUE_LABEL, "") for name in HOME}

    def _allow(self, resource: str, name: str) -> None:
        self.allowed[resource, name] = self.allowed.get((resource, name), 0) + 1

    def _allow_all(self, node: str) -> None:
        self._allow("resourceslices", f"{node}-{CHANNELS}")
        self._allow("configmaps", f"topology-{node}")
        self._allow_contents(node)

    def _allow_contents(self, node: str) -> None:
        """What a node has only in some pools."""
        self._allow("resourceslices", f"{node}-{GPUS}")
        self._allow("noderesourcetopologies", node)

    # -- comparison ---------------------------------------------------------------------------------------------------

    def wait_reached(self) -> None:
        """Waits until the cluster shows what it should. Fails with what differs."""
        deadline = time.monotonic() + PATIENCE
        while problems := self.problems():
            assert time.monotonic() < deadline, f"after {PATIENCE:g} s these still differ: {problems}"
            time.sleep(INTERVAL)

    def problems(self) -> list[str]:
        """How the cluster differs from what it should show."""
        found = {resource: self.admin.list(resource) for resource in PLACES}
        young = [node["metadata"]["name"] for node in found["nodes"] if not node["status"].get("conditions")]
        if young:
            return [f"nodes without a kubelet: {young}"]
        return [*self._estate_problems(found), *self._rack_problems(found), *self._domain_problems(found)]

    def _estate_problems(self, found: Objects) -> list[str]:
        objects = [{**each, "kind": kind} for resource, kind in MODELLED.items() for each in found[resource]]
        pools = load(json.dumps({"nodePools": self.pools}), {}).pools
        wanted = {name: model(name, pools[pool]) for name, pool in self.nodes.items()}
        return [f"{what}: {values}" for what, values in differences(seen(objects), wanted).items()]

    def _rack_problems(self, found: Objects) -> list[str]:
        members: dict[str, list[str]] = {}
        for node in found["nodes"]:
            if rack := node["metadata"]["labels"].get(CLIQUE_LABEL):
                members.setdefault(rack, []).append(node["metadata"]["name"])
        return [f"rack {rack} is too full: {names}" for rack, names in members.items() if len(names) > NODES_PER_CLIQUE]

    def _domain_problems(self, found: Objects) -> list[str]:
        present = {each["metadata"]["name"]: each for each in found["computedomains"]}
        problems = [f"domain {name} is there" for name in present.keys() - self.domains.keys()]
        for name, nodes in self.domains.items():
            wanted = {"Ready": True, "members": members(nodes, found["nodes"])}
            status = present.get(name, {}).get("status", {})
            entries = {entry["name"]: entry["cliqueID"] for entry in status.get("nodes", [])}
            if {"Ready": status.get("status") == "Ready", "members": entries} != wanted:
                problems.append(f"domain {name}: {status}, not {wanted}")
        return [*problems, *self._mark_problems(found)]

    def _mark_problems(self, found: Objects) -> list[str]:
        """Which objects belong to a domain that they should not belong to, or do not where they should."""
        marked = {
            (resource, each["metadata"]["name"], each["metadata"]["labels"][DOMAIN_KEY])
            for resource in ("nodes", "resourceclaimtemplates", "computedomaincliques")
            for each in found[resource]
            if DOMAIN_KEY in each["metadata"].get("labels", {})
        }
        wanted = set()
        for name, nodes in self.domains.items():
            uid = self.uids[name]
            racks = set(members(nodes, found["nodes"]).values())
            wanted |= {("nodes", node, uid) for node in nodes}
            wanted |= {("computedomaincliques", f"{uid}.{rack}", uid) for rack in racks}
            wanted.add(("resourceclaimtemplates", f"{name}-channel", uid))
        return [f"of a domain, or not: {each}" for each in sorted(marked ^ wanted)]


def members(names: tuple[str, ...], nodes: list[Manifest]) -> Mapping[str, str | None]:
    """The racks of some nodes."""
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    return {name: labels.get(name, {}).get(CLIQUE_LABEL) for name in names}
