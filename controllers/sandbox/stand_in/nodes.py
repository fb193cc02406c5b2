"""Simulated nodes become Ready, and every node has the taints that its state calls for."""

import hashlib
import ipaddress
from collections.abc import Mapping
from typing import Any

from controllers.runtime import Client, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import Body, Node, replaced
from controllers.sandbox.stand_in.matching import LIFECYCLE_TAINTS, lifecycle_taints
from controllers.sandbox.stand_in.moment import Now
from controllers.sandbox.stand_in.patience import Patient

RESOURCES = {"cpu": "1k", "memory": "1Ti", "pods": "1M"}
"""What a node has that does not say what it has; KWOK's numbers."""

NODE_NETWORK = ipaddress.ip_network("10.32.0.0/12")
VERSION = "stand-in"
"""Version of what nodes say that they run."""


class NodeKeeper:
    """Looks after one node."""

    def __init__(self, client: Client, nodes: Reader[Node], now: Now) -> None:
        self._client = client
        self._nodes = nodes
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        if node is None or node.deleting:
            return DONE
        if node.simulated and not node.ready:
            node = await self._client.json_patch(node, replaced(running(node, self._now())), subresource="status")
        taints = tainted(node)
        if taints != list(node.spec.get("taints", ())):
            await self._client.json_patch(node, [{"op": "add", "path": "/spec/taints", "value": taints}])
        return DONE


def tainted(node: Node) -> list[Body]:
    """A node's taints, with those of others as they are and those that follow its state as they should be."""
    wanted = lifecycle_taints(node) if node.status.get("conditions") or node.spec.get("unschedulable") else []
    keys = {taint["key"] for taint in wanted}
    present: list[Body] = list(node.spec.get("taints", ()))
    others = [taint for taint in present if taint["key"] not in LIFECYCLE_TAINTS or taint["effect"] != "NoSchedule"]
    kept = [taint for taint in present if taint not in others and taint["key"] in keys]
    new = [taint for taint in wanted if taint["key"] not in {one["key"] for one in kept}]
    return [*others, *kept, *new]


def running(node: Node, now: str) -> Body:
    """The status of a node that is well."""
    given = {key: value for key, value in node.status.items() if key not in {"conditions", "nodeInfo"}}
    own = {"architecture": "amd64", "operatingSystem": "linux"}
    own |= dict.fromkeys(("containerRuntimeVersion", "kernelVersion", "kubeletVersion", "kubeProxyVersion"), VERSION)
    told = {key: value for key, value in node.status.get("nodeInfo", {}).items() if value}
    well = [_well(*entry, now) for entry in _CONDITIONS]
    played = {entry["type"] for entry in well}
    others = [entry for entry in node.status.get("conditions", ()) if entry["type"] not in played]
    return {
        "allocatable": RESOURCES,
        "capacity": RESOURCES,
        "addresses": [{"type": "InternalIP", "address": address(NODE_NETWORK, node.name)}],
        **given,
        "nodeInfo": {**dict.fromkeys(("bootID", "machineID", "osImage", "systemUUID"), ""), **own, **told},
        "phase": "Running",
        "conditions": [*well, *others],
    }


def _well(kind: str, status: str, reason: str, message: str, now: str) -> Body:
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


_CONDITIONS = (
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "False", "RouteCreated", "RouteController created a route"),
)


def internal_address(status: Mapping[str, Any], name: str) -> str:
    """The address of a node with that status and name."""
    found = (str(entry["address"]) for entry in status.get("addresses", ()) if entry["type"] == "InternalIP")
    return next(found, address(NODE_NETWORK, name))


def address(network: ipaddress.IPv4Network | ipaddress.IPv6Network, name: str) -> str:
    """An address that goes with a name; nobody listens there, so that two of them may be the same."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return str(network[1 + number % (network.num_addresses - 2)])


def setup(manager: Manager, now: Now) -> None:
    """Declares the controller."""
    keeper = NodeKeeper(manager.client, manager.reader(Node), now)
    (
        manager.controller("stand-in-nodes")
        .for_(Node, when=changed(lambda node: (node.simulated, node.spec, lifecycle_taints(node))))
        .reconciles_with(Patient(keeper))
    )
