"""What integration tests say to a cluster: manifests as literals, and waiting for what should come."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hack.localcluster import Environment

EAST = "11111111-2222-3333-4444-555555555555.1"
WEST = "11111111-2222-3333-4444-555555555555.2"
TIMEOUT = 30.0  # seconds; a busy machine, not the controller, decides how much of it is needed

DOMAIN_KEY = "resource.nvidia.com/computeDomain"
DRIVER_NAMESPACE = "gpu-mirage"

Manifest = dict[str, Any]
T = TypeVar("T")


def domain(
    namespace: str, name: str = "pair", *, nodes: int = 4, template: str | None = None, mode: str | None = None
) -> Manifest:
    """A ComputeDomain that asks for a template named ``<name>-channel``."""
    channel: Manifest = {"resourceClaimTemplate": {"name": template or f"{name}-channel"}}
    if mode is not None:
        channel["allocationMode"] = mode
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"numNodes": nodes, "channel": channel},
    }


def worker(namespace: str, name: str, *, template: str = "pair-channel", node: str | None = None) -> Manifest:
    """A pod with a claim from a template; ``node`` lets the scheduler choose only that one."""
    spec: Manifest = {
        "containers": [{"name": "main", "image": "worker", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": template}],
        "terminationGracePeriodSeconds": 0,
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def gpu_pod(namespace: str, name: str, count: int, node: str | None = None, cel: str | None = None) -> list[Manifest]:
    """A pod and the template of its claim for some GPUs."""
    exactly: Manifest = {"deviceClassName": "gpu.nvidia.com", "count": count, "allocationMode": "ExactCount"}
    if cel is not None:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }
    spec: Manifest = {
        "containers": [{"name": "main", "image": "worker", "resources": {"claims": [{"name": "gpus"}]}}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": name}],
        "terminationGracePeriodSeconds": 0,
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return [template, pod]


def channel_parameters(domain_uid: str, **changes: Any) -> Manifest:
    """The opaque configuration of a generated template; ``changes`` replace or add fields."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain_uid,
        "allocationMode": "Single",
        **changes,
    }


def channel_claim(namespace: str, name: str, parameters: Manifest, *, version: str = "v1") -> Manifest:
    """A ResourceClaim for one channel that nobody schedules, with an opaque configuration of the caller's."""
    exactly = {"deviceClassName": "compute-domain-default-channel.nvidia.com"}
    request = {"name": "channel", **exactly} if version == "v1beta1" else {"name": "channel", "exactly": exactly}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request], "config": [channel_configuration(parameters)]}},
    }


def channel_configuration(parameters: Manifest) -> Manifest:
    return {"requests": ["channel"], "opaque": {"driver": "compute-domain.nvidia.com", "parameters": parameters}}


class Cluster:
    """A control plane as one test sees it: its own namespace by default."""

    def __init__(self, environment: Environment, namespace: str) -> None:
        self.environment = environment
        self.namespace = namespace

    def apply(self, *objects: Manifest) -> None:
        """Creates or changes objects as the admin."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.environment.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listing))

    def get(self, kind: str, name: str, namespace: str | None = None) -> Manifest | None:
        """One object, or None. Cluster-scoped kinds ignore the namespace."""
        found = self.environment.kubectl(
            "get", kind, name, "-n", namespace or self.namespace, "--ignore-not-found", "--output=json"
        )
        return json.loads(found) if found else None

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Manifest]:
        arguments = ["get", kind, "-n", namespace or self.namespace, *([f"--selector={selector}"] if selector else [])]
        items: list[Manifest] = self.environment.kubectl_json(*arguments)["items"]
        return items

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Deletes without waiting."""
        self.environment.kubectl("delete", kind, name, "-n", namespace or self.namespace, "--wait=false")

    def patch(self, kind: str, name: str, patch: Manifest, *, subresource: str = "") -> None:
        """Merge patch."""
        extra = [f"--subresource={subresource}"] if subresource else []
        self.environment.kubectl(
            "patch", kind, name, "-n", self.namespace, "--type=merge", f"--patch={json.dumps(patch)}", *extra
        )

    def allocate(self, claim: Manifest, node: str) -> None:
        """Creates a claim and allocates it on a node by hand, as a scheduler would and whatever stands against it."""
        self.apply(claim)
        result = {"request": "channel", "driver": "compute-domain.nvidia.com", "pool": node, "device": "channel-0"}
        (configuration,) = claim["spec"]["devices"]["config"]
        devices = {"results": [result], "config": [{"source": "FromClaim", **configuration}]}
        status = {"status": {"allocation": {"devices": devices}}}
        self.patch("resourceclaims", claim["metadata"]["name"], status, subresource="status")

    def status(self, name: str = "pair") -> Manifest:
        """A domain's status; {} where there is none yet."""
        found = self.get("computedomains", name)
        status: Manifest = (found or {}).get("status", {})
        return status

    def wait_status(self, wanted: str, name: str = "pair", *, members: int | None = None) -> Manifest:
        """Waits for a domain's global status, and for a number of members where it is given; returns the status."""

        def reached() -> Manifest | None:
            status = self.status(name)
            right = status.get("status") == wanted and members in (None, len(status.get("nodes", [])))
            return status if right else None

        return self.wait(reached, lambda: f"domain {name} to be {wanted} with {members} members: {self.status(name)}")

    def bring_up(self, nodes: Sequence[str], name: str = "pair") -> str:
        """Makes a domain with one worker ``<domain>-<node>`` on each node; returns its uid once it is Ready."""
        template = f"{name}-channel"
        workers = (worker(self.namespace, f"{name}-{node}", template=template, node=node) for node in nodes)
        self.apply(domain(self.namespace, name, nodes=len(nodes)), *workers)
        self.wait_status("Ready", name, members=len(nodes))
        return self.uid("computedomains", name)

    def uid(self, kind: str, name: str) -> str:
        """The uid of an object that exists."""
        found = self.get(kind, name)
        assert found is not None, f"{kind} {name} does not exist"
        uid: str = found["metadata"]["uid"]
        return uid

    def domain_label(self, node: str) -> str | None:
        """The uid in a node's domain label, None without one."""
        found = self.get("nodes", node)
        labels: dict[str, str] = (found or {}).get("metadata", {}).get("labels", {})
        return labels.get(DOMAIN_KEY)

    def wait_domain_label(self, node: str, uid: str | None) -> None:
        self.wait(
            lambda: self.domain_label(node) == uid or None,
            lambda: f"node {node} to have the domain label {uid}: {self.domain_label(node)}",
        )

    def clique_daemons(self, uid: str) -> Manifest:
        """The entries of a domain's cliques, by the name of the clique object."""
        cliques = self.list("computedomaincliques", DRIVER_NAMESPACE, f"{DOMAIN_KEY}={uid}")
        return {clique["metadata"]["name"]: clique["daemons"] for clique in cliques}

    def leftovers(self, name: str, uid: str) -> set[str]:
        """What is there of a domain in this namespace, itself included, as ``Kind name``."""
        domain = self.get("computedomains", name)
        kinds = "resourceclaimtemplates,computedomaincliques,nodes"
        selector = f"--selector={DOMAIN_KEY}={uid}"
        marked = self.environment.kubectl_json("get", kinds, "--all-namespaces", selector)["items"]
        own = [domain] if domain is not None and domain["metadata"]["uid"] == uid else []
        return {f"{found['kind']} {found['metadata']['name']}" for found in (*own, *marked)}

    def wait_phase(self, pod: str, phase: str) -> Manifest:
        """Waits until a pod is in a phase; returns it."""

        def reached() -> Manifest | None:
            found = self.get("pods", pod) or {}
            return found if found.get("status", {}).get("phase") == phase else None

        return self.wait(reached, lambda: f"pod {pod} to be {phase}: {self.get('pods', pod)}")

    def wait_unschedulable(self, pod: str) -> None:
        """Waits until the scheduler has said that it finds no node for a pod."""

        def refused() -> bool | None:
            conditions = (self.get("pods", pod) or {}).get("status", {}).get("conditions", [])
            return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions) or None

        self.wait(refused, lambda: f"pod {pod} to be unschedulable: {self.get('pods', pod)}")

    def wait_gone(self, kind: str, name: str, namespace: str | None = None) -> None:
        self.wait(
            lambda: self.get(kind, name, namespace) is None or None,
            lambda: f"{kind} {name} to go: {self.get(kind, name, namespace)}",
        )

    def wait_event(self, reason: str, regarding: str, namespace: str | None = None, *, about: str = "") -> Manifest:
        """Waits for an Event with a reason about an object of that name; by default in the test's namespace.

        ``about`` is in its note: an object that tests share may have Events of others with the same reason.
        """
        kind = "events.events.k8s.io"

        def found() -> Manifest | None:
            events = [event for event in self.list(kind, namespace) if about in event.get("note", "")]
            return next((e for e in events if e["reason"] == reason and e["regarding"]["name"] == regarding), None)

        return self.wait(found, lambda: f"an Event {reason} about {regarding}: {self.list(kind, namespace)}")

    def wait(self, look: Callable[[], T | None], what: Callable[[], str], timeout: float = TIMEOUT) -> T:
        """Looks until there is an answer; fails with a description of what did not come."""
        deadline = time.monotonic() + timeout
        while (answer := look()) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:g} s for {what()}")
            time.sleep(0.1)
        return answer
