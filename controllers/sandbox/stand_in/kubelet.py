"""Plays the kubelets of simulated nodes: nodes become Ready, their pods run, and what should end does."""

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from controllers.runtime import Client, Key, Manager
from controllers.runtime.cache import Reader
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.sandbox.stand_in.kinds import Body, Node, Pod, condition, replaced
from controllers.sandbox.stand_in.moment import Now

BY_NODE = "node"
RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "250"}
"""What a node has that does not say what it has."""

JOB_DURATION = 1.0  # seconds that a pod of a Job runs; KWOK's default, too
POD_NETWORK = ipaddress.ip_network("10.64.0.0/10")
NODE_NETWORK = ipaddress.ip_network("10.32.0.0/12")


class NodeStarter:
    """Makes one node Ready."""

    def __init__(self, client: Client, nodes: Reader[Node], now: Now) -> None:
        self._client = client
        self._nodes = nodes
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        node = self._nodes.get(request)
        if node is not None and node.simulated and not node.deleting and not node.ready:
            await self._client.json_patch(node, replaced(running_node(node, self._now())), subresource="status")
        return DONE


class PodRunner:
    """Runs one pod, and ends it."""

    def __init__(self, client: Client, pods: Reader[Pod], nodes: Reader[Node], now: Now) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._now = now

    async def reconcile(self, request: Request) -> Result:
        pod = self._pods.get(request)
        if pod is None or not pod.node:
            return DONE
        node = self._nodes.get(Key("", pod.node))
        if node is None:
            await self._forget(pod)
        elif pod.deleting:
            if node.simulated:
                await self._client.delete(pod, grace_period=0)
        elif node.simulated and node.ready:
            return await self._run(pod, node)
        return DONE

    async def _forget(self, pod: Pod) -> None:
        """Deletes a pod whose node is gone; the cache of nodes may only be behind, so that is looked at first."""
        if await self._client.find(Node, pod.node) is None:
            await self._client.delete(pod, grace_period=0)

    async def _run(self, pod: Pod, node: Node) -> Result:
        if pod.phase == "Pending":
            status = running_pod(pod, node, self._now())
            pod = await self._client.json_patch(pod, replaced(status), subresource="status")
            return Result(JOB_DURATION) if _is_of_job(pod) else DONE
        if pod.phase == "Running" and _is_of_job(pod):
            await self._client.json_patch(pod, replaced(succeeded(pod, self._now())), subresource="status")
        return DONE


def _is_of_job(pod: Pod) -> bool:
    return any(owner.kind == "Job" and owner.controller for owner in pod.metadata.owner_references)


def running_node(node: Node, now: str) -> Body:
    """The status of a node that is well."""
    quiet = [_condition(kind, "False", now, reason) for kind, reason in _PRESSURES]
    ready = _condition("Ready", "True", now, "KubeletReady", message="kubelet is posting ready status")
    given = {key: value for key, value in node.status.items() if key != "conditions"}
    system = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "stand-in"}
    return {
        "allocatable": RESOURCES,
        "capacity": RESOURCES,
        "addresses": [{"type": "InternalIP", "address": address(NODE_NETWORK, node.name)}],
        "nodeInfo": {**_NODE_INFO, **system},
        **given,
        "phase": "Running",
        "conditions": [*quiet, ready],
    }


_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory"),
    ("DiskPressure", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "KubeletHasSufficientPID"),
)
_NODE_INFO = dict.fromkeys(
    ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID", "osImage", "systemUUID"), ""
)


def running_pod(pod: Pod, node: Node, now: str) -> Body:
    """The status of a pod all of whose containers run."""
    own = address(POD_NETWORK, pod.uid)
    scheduled = condition(pod.status, "PodScheduled") or _condition("PodScheduled", "True", now)
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    started = {"running": {"startedAt": now}}
    return {
        **pod.status,
        "phase": "Running",
        "conditions": [*(_condition(kind, "True", now) for kind in kinds), scheduled],
        "containerStatuses": [_container(entry, started, ready=True) for entry in pod.spec["containers"]],
        "hostIP": _internal_address(node),
        "podIP": own,
        "podIPs": [{"ip": own}],
        "startTime": now,
    }


def succeeded(pod: Pod, now: str) -> Body:
    """The status of a pod all of whose containers have done their work."""
    times = {"startedAt": pod.status["startTime"], "finishedAt": now}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    done = {"Ready", "ContainersReady"}
    conditions = [
        _condition(entry["type"], "False", now, "PodCompleted") if entry["type"] in done else entry
        for entry in pod.status["conditions"]
    ]
    containers = [_container(entry, ended, ready=False) for entry in pod.spec["containers"]]
    return {**pod.status, "phase": "Succeeded", "conditions": conditions, "containerStatuses": containers}


def _condition(kind: str, status: str, now: str, reason: str = "", *, message: str = "") -> Body:
    texts = {key: text for key, text in (("reason", reason), ("message", message)) if text}
    return {"type": kind, "status": status, "lastTransitionTime": now, **texts}


def _container(entry: Mapping[str, Any], state: Body, *, ready: bool) -> Body:
    name, image = entry["name"], entry.get("image", "")
    return {"name": name, "image": image, "imageID": "", "ready": ready, "restartCount": 0, "state": state}


def _internal_address(node: Node) -> str:
    found = (entry["address"] for entry in node.status.get("addresses", ()) if entry["type"] == "InternalIP")
    return next(found, address(NODE_NETWORK, node.name))


def address(network: ipaddress.IPv4Network | ipaddress.IPv6Network, name: str) -> str:
    """An address that goes with a name; nobody listens there, so that two of them may be the same."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return str(network[1 + number % (network.num_addresses - 2)])


def setup(manager: Manager, now: Now) -> None:
    """Declares both controllers."""
    pods = manager.informer(Pod).store
    pods.add_index(BY_NODE, lambda pod: (pod.node,) if pod.node else ())
    nodes = manager.reader(Node)

    def on(node: Node) -> Iterable[Request]:
        return [pod.key for pod in pods.by_index(BY_NODE, node.name)]

    (
        manager.controller("stand-in-nodes")
        .for_(Node, when=changed(lambda node: (node.ready, node.simulated)))
        .reconciles_with(NodeStarter(manager.client, nodes, now))
    )
    (
        manager.controller("stand-in-pods")
        .for_(Pod)
        .watches(Node, maps_to=on, when=changed(lambda node: (node.ready, node.simulated)))
        .reconciles_with(PodRunner(manager.client, pods, nodes, now))
    )
