"""Objects for tests of the compute-domain controller, and a small server in memory to reconcile them against."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from controllers.api import nvidia
from controllers.api.core import POOL_LABEL, Namespace, Node
from controllers.api.dra import ResourceClaim, ResourceClaimTemplate, dra_api
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique, DomainNode
from controllers.compute_domain.caches import caches
from controllers.compute_domain.cleanup import Cleanup
from controllers.compute_domain.declaration import FIELD_MANAGER
from controllers.compute_domain.membership import address_of
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.compute_domain.ownership import Ownership
from controllers.compute_domain.reconciler import ComputeDomainReconciler
from controllers.compute_domain.status import clique_body, desired_cliques, status_body
from controllers.compute_domain.template import desired_template
from controllers.runtime import Client, ClientOptions, Key, KubeObject, Manager, ObjectMeta
from controllers.runtime.cache import Store
from controllers.runtime.client import FieldsEntry, LiveOwnership
from controllers.runtime.clock import SystemClock
from controllers.runtime.options import ManagerOptions
from controllers.runtime.reconcile import Result
from controllers.runtime.recorder import FakeRecorder
from controllers.runtime.testing import ScriptedTransport, run_virtual

T = TypeVar("T", bound=KubeObject)
Json = dict[str, Any]

UID = "0f6f2a0e-8b57-4c5c-9d0e-3d9c1f8a7b21"
OTHER_UID = "7c1d2b3a-0000-4000-8000-00000000beef"
FABRIC = "11111111-2222-4333-8444-555555555555"
CLIQUE = f"{FABRIC}.1"
DRIVER_NAMESPACE = "gpu-mirage"
GONE_AT = "2030-01-01T00:00:00Z"
V1 = dra_api("v1")


def domain(
    name: str = "d",
    uid: str = UID,
    *,
    nodes: int = 0,
    template: str = "t",
    mode: str = "Single",
    spec: Json | None = None,
    status: Json | None = None,
    **metadata: Any,
) -> ComputeDomain:
    wanted = {"numNodes": nodes, "channel": {"resourceClaimTemplate": {"name": template}, "allocationMode": mode}}
    return _decoded(
        ComputeDomain,
        {"name": name, "namespace": "a", "uid": uid, "resourceVersion": "1", **metadata},
        spec=wanted if spec is None else spec,
        status=status or {},
    )


def node(
    name: str = "n1", *, pool: bool = True, clique: str = CLIQUE, owner: str = "", ready: bool = True, **metadata: Any
) -> Node:
    labels = {POOL_LABEL: "default"} if pool else {}
    labels |= {nvidia.NODE_CLIQUE_LABEL: clique} if clique else {}
    labels |= {nvidia.DOMAIN_KEY: owner} if owner else {}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return _decoded(
        Node,
        {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels, **metadata},
        status={"conditions": conditions},
    )


def parameters(uid: str = UID, **changes: Any) -> Json:
    return {**nvidia.channel_parameters(uid, "Single"), **changes}


def config(content: Any, *requests: str, driver: str = nvidia.DRIVER) -> Json:
    return {"requests": list(requests), "opaque": {"driver": driver, "parameters": content}}


def result(node_name: str = "n1", request: str = "channel", driver: str = nvidia.DRIVER) -> Json:
    return {"request": request, "driver": driver, "pool": node_name, "device": "channel-0"}


def allocated(results: Sequence[Json], configs: Sequence[Json], name: str = "c", namespace: str = "a") -> ResourceClaim:
    allocation = {"devices": {"results": list(results), "config": list(configs)}}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return _decoded(ResourceClaim, metadata, status={"allocation": allocation})


def claim(node_name: str = "n1", uid: str = UID, *, name: str = "", namespace: str = "a") -> ResourceClaim:
    """A claim as the scheduler leaves it: one channel of that domain on that node."""
    return allocated([result(node_name)], [config(parameters(uid), "channel")], name or f"c-{node_name}", namespace)


def entry(name: str, index: int, clique: str = CLIQUE, *, ready: bool = True) -> DomainNode:
    status = nvidia.READY if ready else nvidia.NOT_READY
    return DomainNode(name=name, ip_address=address_of(name), clique_id=clique, index=index, status=status)


def template_of(owner: ComputeDomain, **metadata: Any) -> ResourceClaimTemplate:
    """The template that a domain makes, as the server gives it back."""
    body = desired_template(owner, V1)
    spec = {"spec": body["spec"]["spec"], "metadata": {}}
    identity = {"uid": f"uid-{body['metadata']['name']}", "resourceVersion": "1"}
    return _decoded(ResourceClaimTemplate, {**body["metadata"], **identity, **metadata}, spec=spec)


def clique_of_members(owner: ComputeDomain, *members: DomainNode) -> ComputeDomainClique:
    ((name, daemons),) = desired_cliques(owner, members).items()
    body = clique_body(name, DRIVER_NAMESPACE, owner.uid, daemons)
    identity = {"uid": f"uid-{name}", "resourceVersion": "1"}
    return _decoded(ComputeDomainClique, {**body["metadata"], **identity}, daemons=body["daemons"])


def served(owner: ComputeDomain, *members: DomainNode, ready: bool = True) -> ComputeDomain:
    """The domain with finalizer and status as after a reconcile."""
    status = nvidia.READY if ready else nvidia.NOT_READY
    wanted = nvidia.ComputeDomainStatus(status=status, nodes=members)
    raw = msgspec.to_builtins(owner)
    raw["metadata"]["finalizers"] = [nvidia.DOMAIN_KEY]
    return ComputeDomain.decode(msgspec.json.encode({**raw, **status_body(wanted)}))


def _decoded(kind: type[T], metadata: Json, **fields: Any) -> T:
    return kind.decode(msgspec.json.encode({"metadata": metadata, **fields}))


FIELDS: Mapping[str, tuple[Json, str]] = {
    "nodes": ({"f:metadata": {"f:labels": {f"f:{nvidia.DOMAIN_KEY}": {}}}}, ""),
    "resourceclaimtemplates": ({"f:spec": {}}, ""),
    "computedomaincliques": ({"f:daemons": {}}, ""),
    "computedomains": ({"f:status": {"f:status": {}}}, "status"),
}
"""What a manager owns of an object of each kind, and through which subresource."""

FINALIZER: Json = {"f:metadata": {"f:finalizers": {f'v:"{nvidia.DOMAIN_KEY}"': {}}}}


class FakeClient:
    """The part of the client that the controller uses; a write shows in the caches at once.

    ``calls`` tells what was asked, ``refuse`` makes a verb on a resource fail, ``managers`` says who wrote an object
    and ``finalizer_managers`` who put our finalizer on it.
    """

    def __init__(self, stores: Mapping[str, Store[Any]]) -> None:
        self.stores = stores
        self.calls: list[str] = []
        self.forced: list[str] = []
        self.refuse: dict[str, Exception] = {}
        self.managers: dict[str, set[str]] = {}
        self.finalizer_managers: set[str] = {FIELD_MANAGER}
        self.namespace_deleting = False
        self.living: tuple[ComputeDomain, ...] = ()
        self._version = 100

    @property
    def writes(self) -> list[str]:
        return [call for call in self.calls if call.split()[0] not in ("get", "find", "list")]

    async def create(self, kind: type[T], body: Mapping[str, Any]) -> T:
        self._called("create", kind.resource.plural, body["metadata"]["name"])
        return self._stored(kind, dict(body["metadata"]), {k: v for k, v in body.items() if k != "metadata"})

    async def apply(self, observed: T, fields: Mapping[str, Any], *, subresource: str = "", force: bool = False) -> T:
        plural = observed.resource.plural + (f"/{subresource}" if subresource else "")
        self._called("apply", plural, observed.name, force)
        raw = msgspec.to_builtins(self.stores[observed.resource.plural].get(observed.key) or observed)
        metadata, wanted = raw.pop("metadata"), fields.get("metadata", {})
        if "finalizers" in wanted:
            metadata["finalizers"] = wanted["finalizers"]
        if isinstance(observed, Node):
            assert wanted["resourceVersion"] == observed.metadata.resource_version
            others = {k: v for k, v in metadata["labels"].items() if k != nvidia.DOMAIN_KEY}
            metadata["labels"] = {**others, **wanted.get("labels", {})}
        return self._stored(type(observed), metadata, {**raw, **{k: v for k, v in fields.items() if k == "status"}})

    async def apply_owned(self, kind: type[T], body: Mapping[str, Any], *, force: bool = True) -> T:
        self._called("apply", kind.resource.plural, body["metadata"]["name"], force)
        return self._stored(kind, dict(body["metadata"]), {k: v for k, v in body.items() if k != "metadata"})

    async def remove_finalizer(self, observed: T, finalizer: str) -> T | None:
        if finalizer not in observed.metadata.finalizers:
            return observed
        self._called("remove-finalizer", observed.resource.plural, observed.name)
        left = [each for each in observed.metadata.finalizers if each != finalizer]
        if observed.deleting and not left:
            self.stores[observed.resource.plural].remove(observed.key)
            return observed
        raw = msgspec.to_builtins(observed)
        return self._stored(type(observed), {**raw.pop("metadata"), "finalizers": left}, raw)

    async def delete(self, observed: KubeObject) -> None:
        self._called("delete", observed.resource.plural, observed.name)
        self.stores[observed.resource.plural].remove(observed.key)

    async def find(self, kind: type[T], name: str, namespace: str = "") -> T | None:
        self._called("find", kind.resource.plural, name)
        if kind is Namespace:
            at = GONE_AT if self.namespace_deleting else ""
            return cast("T", Namespace(metadata=ObjectMeta(name=name, deletion_timestamp=at)))
        return cast("T | None", self.stores[kind.resource.plural].get(Key(namespace, name)))

    async def list(self, kind: type[T]) -> tuple[T, ...]:
        assert kind is ComputeDomain
        self._called("list", kind.resource.plural)
        return cast("tuple[T, ...]", self.living)

    async def get_ownership(self, kind: type[KubeObject], name: str, namespace: str = "") -> LiveOwnership | None:
        self._called("get", kind.resource.plural, name)
        live = self.stores[kind.resource.plural].get(Key(namespace, name))
        if live is None:
            return None
        fields, subresource = FIELDS[kind.resource.plural]
        managers = self.managers.get(name, {FIELD_MANAGER})
        entries = [FieldsEntry(manager, "Apply", subresource, fields) for manager in sorted(managers)]
        if nvidia.DOMAIN_KEY in live.metadata.finalizers:
            entries += [FieldsEntry(manager, "Apply", "", FINALIZER) for manager in sorted(self.finalizer_managers)]
        return LiveOwnership(live.uid, tuple(entries))

    def _called(self, verb: str, plural: str, name: str = "", force: bool = False) -> None:
        assert not force, "nothing of this controller's is ever forced"
        self.calls.append(f"{verb} {plural} {name}".strip())
        error = self.refuse.get(f"{verb} {plural}")
        if error is not None:
            raise error

    def _stored(self, kind: type[T], metadata: Json, fields: Json) -> T:
        self._version += 1
        metadata = {"uid": f"uid-{metadata['name']}", **metadata, "resourceVersion": str(self._version)}
        stored = _decoded(kind, metadata, **fields)
        self.stores[kind.resource.plural].put(stored)
        return stored


class World:
    """A reconciler over caches that hold these objects."""

    def __init__(self, *objects: KubeObject, options: ComputeDomainOptions | None = None) -> None:
        options = options or ComputeDomainOptions()
        transport = ScriptedTransport(())
        self.manager = Manager(Client(transport, ClientOptions("tests")), ManagerOptions())
        self.caches = caches(self.manager, V1, options)
        readers = (
            self.caches.domains,
            self.caches.templates,
            self.caches.claims,
            self.caches.nodes,
            self.caches.cliques,
        )
        plurals = ("computedomains", "resourceclaimtemplates", "resourceclaims", "nodes", "computedomaincliques")
        self.stores = {plural: cast("Store[Any]", reader) for plural, reader in zip(plurals, readers, strict=True)}
        for item in objects:
            self.put(item)
        self.fake = FakeClient(self.stores)
        self.client = cast(Client, self.fake)
        self.recorder = FakeRecorder()
        self.ownership = Ownership(self.client, SystemClock())
        self.cleanup = Cleanup(self.client, self.ownership)
        self.sweeps = 0
        self.reconciler = ComputeDomainReconciler(
            self.client, self.caches, V1, self.ownership, self.cleanup, self.recorder, options, self._sweep
        )

    def put(self, item: KubeObject) -> None:
        self.stores[item.resource.plural].put(item)

    def reconcile(self, name: str = "d") -> Result:
        """One reconcile, and those that it asks for at once, as a worker would run them."""
        result = self.reconcile_once(name)
        while result.requeue_after == 0.0:
            result = self.reconcile_once(name)
        return result

    def reconcile_once(self, name: str = "d") -> Result:
        return run_virtual(self.reconciler.reconcile(Key("a", name)))

    def writes_of_a_reconcile(self) -> list[str]:
        self.fake.calls.clear()
        self.reconcile()
        return self.fake.writes

    def domain(self, name: str = "d") -> ComputeDomain:
        found = self.caches.domains.get(Key("a", name))
        assert found is not None
        return found

    def label_of(self, name: str) -> str | None:
        found = self.caches.nodes.get(Key("", name))
        assert found is not None
        return found.labels.get(nvidia.DOMAIN_KEY)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.events]

    def _sweep(self) -> None:
        self.sweeps += 1
