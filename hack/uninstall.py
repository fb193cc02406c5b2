"""Removes from a cluster all that this project put there, and nothing that is anybody else's.

`python -m hack.uninstall` works whether or not a controller runs. What was written is told from what others wrote by
its field manager, what was installed by its labels. The users' ComputeDomains stay; our finalizer and our status on
them go, so that they can be deleted. Events are left: they expire within an hour.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from controllers.all_in_one import PARTS
from controllers.api.core import Namespace, Node
from controllers.api.dra import served_api
from controllers.api.nvidia import DOMAIN_KEY, ComputeDomain, ComputeDomainClique
from controllers.api.topology import NodeResourceTopology
from controllers.channel_slices.setup import FIELD_MANAGER as CHANNEL_SLICE_MANAGER
from controllers.compute_domain.declaration import FIELD_MANAGER as DOMAIN_MANAGER
from controllers.estate import label_keys
from controllers.extended_resource.capacity import PLACES, extended, removal
from controllers.extended_resource.setup import DECLARATION as EXTENDED_RESOURCE
from controllers.gpu_fractioning import condition as fractioning
from controllers.gpu_fractioning.setup import DECLARATION as GPU_FRACTIONING
from controllers.gpu_slices.setup import DECLARATION as GPU_SLICES
from controllers.node_pool.kinds import NodeTopology
from controllers.node_pool.setup import DECLARATION as NODE_POOL
from controllers.node_resource_topology import DECLARATION as TOPOLOGY
from controllers.runtime import patch
from controllers.runtime.client import EVERYTHING, Client, ClientOptions, Selection
from controllers.runtime.errors import ApiError, ConfigurationError, Conflict, NotFound, ObjectGone, TransportError
from controllers.runtime.lease import Lease
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.transport import AiohttpTransport, Credentials

INSTALLED = "app.kubernetes.io/part-of=gpu-mirage,app.kubernetes.io/managed-by=gpu-mirage"

SPEC = ("f:spec",)
STATUS = ("f:status",)
DATA = ("f:data",)
ZONES = ("f:zones",)
LABEL = ("f:metadata", "f:labels", f"f:{DOMAIN_KEY}")
FINALIZER = ("f:metadata", "f:finalizers", f'v:"{DOMAIN_KEY}"')

HOLDER = ("f:spec", "f:holderIdentity")

BINARIES = tuple(f"gpu-mirage-{part}" for part in (*PARTS, "all-in-one"))
"""Each binary is the field manager of its own Leases."""

NODE_POOL_MANAGER = f"gpu-mirage/{NODE_POOL.name}"
TOPOLOGY_MANAGER = f"gpu-mirage/{TOPOLOGY.name}"
CAPACITY_MANAGER = f"gpu-mirage/{EXTENDED_RESOURCE.name}"
CONDITION_MANAGER = f"gpu-mirage/{GPU_FRACTIONING.name}"
SLICE_MANAGERS = (CHANNEL_SLICE_MANAGER, f"gpu-mirage/{GPU_SLICES.name}")

ATTEMPTS = 5  # times that a write is tried on an object that somebody else changes meanwhile
GONE_TIMEOUT = 60.0  # seconds for the controller's pods, and for what an object owns, to go
POLL_INTERVAL = 0.5  # seconds

RBAC = "rbac.authorization.k8s.io"


class Deployment(KubeObject, frozen=True, kw_only=True):
    resource = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)


class Pod(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "pods", "Pod", namespaced=True)


class Service(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "services", "Service", namespaced=True)


class ServiceAccount(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)


class PodDisruptionBudget(KubeObject, frozen=True, kw_only=True):
    resource = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)


class Role(KubeObject, frozen=True, kw_only=True):
    resource = Resource(RBAC, "v1", "roles", "Role", namespaced=True)


class RoleBinding(KubeObject, frozen=True, kw_only=True):
    resource = Resource(RBAC, "v1", "rolebindings", "RoleBinding", namespaced=True)


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    resource = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)


class ClusterRole(KubeObject, frozen=True, kw_only=True):
    resource = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)


class ClusterRoleBinding(KubeObject, frozen=True, kw_only=True):
    resource = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


class DeviceClass(KubeObject, frozen=True, kw_only=True):
    resource = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)


class CustomResourceDefinition(KubeObject, frozen=True, kw_only=True):
    resource = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )


DEFINED: tuple[type[KubeObject], ...] = (ComputeDomainClique, ComputeDomain, NodeResourceTopology)
RIGHTS: tuple[type[KubeObject], ...] = (ClusterRoleBinding, RoleBinding, ClusterRole, Role, ServiceAccount)
NAMESPACED_EXTRAS: tuple[type[KubeObject], ...] = (Service, PodDisruptionBudget, ConfigMap)
# Every namespace has these without anybody's doing, and these kinds only speak of other objects.
BUILT_IN = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})
DERIVED = frozenset({"events", "endpoints"})

T = TypeVar("T", bound=KubeObject)


@dataclass
class Report:
    """What was done, printed as it happens, and what was left."""

    left: list[str] = field(default_factory=list)

    def did(self, what: str, item: KubeObject) -> None:
        print(f"{what} {describe(item)}", flush=True)

    def leave(self, what: str, why: str) -> None:
        self.left.append(f"left {what}: {why}")


def describe(item: KubeObject) -> str:
    return f"{item.resource.kind} {item.key}"


class Uninstaller:
    """The steps of an uninstallation, each of which may be repeated after a failure at any point."""

    def __init__(self, client: Client, driver_namespace: str) -> None:
        self._client = client
        self._namespace = driver_namespace
        self.report = Report()

    async def run(self) -> None:
        """Removes everything. Raises ApiError where a right is missing, TimeoutError where something does not go."""
        await self.stop_controllers()
        await self.remove_leases()
        await self.remove_slices()
        await self.remove_topologies()
        await self.remove_templates()
        await self.release_nodes()
        await self.release_node_statuses()
        await self.remove_cliques()
        await self.release_domains()
        await self.remove_definitions()
        await self.remove_namespace()

    # -- the controllers ----------------------------------------------------------------------------------------------

    async def stop_controllers(self) -> None:
        """Ends the controllers before anything else, since they would make again what is removed.

        Their rights go too: that stops a process outside the cluster which works under the same account.
        """
        for deployment in await self._installed(Deployment):
            await self._delete(deployment)
        await self._until(self._no_pods, f"the controllers' pods in namespace {self._namespace} to end")
        for kind in (*RIGHTS, *NAMESPACED_EXTRAS):
            for item in await self._installed(kind):
                await self._delete(item)

    async def _no_pods(self) -> bool:
        return not await self._installed(Pod)

    # -- what the controllers wrote -----------------------------------------------------------------------------------

    async def remove_leases(self) -> None:
        """Leases of elections and shards; nobody holds them once their controllers have ended."""
        for item in await self._list(Lease, Selection(self._namespace)):
            if await self._owns(item, BINARIES, HOLDER, "holder"):
                await self._delete(item)

    async def remove_slices(self) -> None:
        """ResourceSlices of simulated nodes."""
        api = await served_api(self._client)
        for item in await self._list(api.slices) if api else ():
            if await self._owns(item, SLICE_MANAGERS, SPEC, "spec"):
                await self._delete(item)

    async def remove_topologies(self) -> None:
        """NodeResourceTopologies of simulated nodes."""
        for item in await self._list(NodeResourceTopology):
            if await self._owns(item, (TOPOLOGY_MANAGER,), ZONES, "zones"):
                await self._delete(item)

    async def remove_templates(self) -> None:
        """Workload templates, with their finalizer. Claims that were made from them stay."""
        api = await served_api(self._client)
        for item in await self._list(api.templates, Selection(labels=DOMAIN_KEY)) if api else ():
            if await self._owns(item, (DOMAIN_MANAGER,), SPEC, "spec"):
                await self._delete(item)
                await self._drop_finalizer(item)

    async def release_nodes(self) -> None:
        """Our labels on nodes, and the ConfigMaps that describe nodes."""
        for node in await self._list(Node):
            for key in sorted({DOMAIN_KEY, *label_keys()} & node.labels.keys()):
                await self._release_label(node, key)
        for item in await self._list(NodeTopology, Selection(self._namespace, "node-topology=true")):
            if await self._owns(item, (NODE_POOL_MANAGER,), DATA, "data"):
                await self._delete(item)

    async def _release_label(self, node: Node, key: str) -> None:
        path = ("f:metadata", "f:labels", f"f:{key}")
        owned = await self._owns(node, (DOMAIN_MANAGER, NODE_POOL_MANAGER), path, f"label {key}")
        if owned and await self._remove(node, "metadata", "labels", key):
            self.report.did(f"removed label {key} from", node)

    async def release_node_statuses(self) -> None:
        """Our condition on nodes, and then the resources that it speaks of, where they are ours."""
        for node in await self._list(Node):
            if node.condition(fractioning.READY) is not None:
                await self._release_condition(node)
            for name in sorted(extended(node.status)):
                await self._release_resource(node, name)

    async def _release_condition(self, node: Node) -> None:
        what = f"condition {fractioning.READY}"

        async def remove(current: Node) -> None:
            if current.condition(fractioning.READY) is not None:
                await self._client.json_patch(current, fractioning.removal(current), subresource="status")

        owned = await self._owns(node, (CONDITION_MANAGER,), fractioning.FIELD, what, "status")
        if owned and await self._on_newest(node, remove):
            self.report.did(f"removed {what} from", node)

    async def _release_resource(self, node: Node, name: str) -> None:
        """Takes it away in both places at once, so that nobody sees it in one alone."""
        paths = {place: ("f:status", f"f:{place}", f"f:{name}") for place in PLACES}
        owned = [p for p in PLACES if await self._owns(node, (CAPACITY_MANAGER,), paths[p], f"{p} {name}", "status")]

        async def remove(current: Node) -> None:
            there = [(place, name) for place in owned if name in getattr(current.status, place)]
            await self._client.json_patch(current, removal(there), subresource="status")

        if owned and await self._on_newest(node, remove):
            self.report.did(f"removed resource {name} from", node)

    async def remove_cliques(self) -> None:
        """Cliques, which live in the driver namespace and have no owner.

        The label tells their maker, since nobody owns a list of members that is empty.
        """
        for item in await self._list(ComputeDomainClique, Selection(self._namespace, DOMAIN_KEY)):
            if await self._owns(item, (DOMAIN_MANAGER,), LABEL, f"label {DOMAIN_KEY}"):
                await self._delete(item)

    async def release_domains(self) -> None:
        """Status and finalizer of the users' domains."""
        for domain in await self._list(ComputeDomain):
            owned = await self._owns(domain, (DOMAIN_MANAGER,), STATUS, "status", "status")
            if owned and await self._remove(domain, "status", subresource="status"):
                self.report.did("removed status from", domain)
            if await self._owns(domain, (DOMAIN_MANAGER,), FINALIZER, "finalizer"):
                await self._drop_finalizer(domain)

    # -- what was installed -------------------------------------------------------------------------------------------

    async def remove_definitions(self) -> None:
        """Device classes, and those CRDs of which no object remains."""
        for item in await self._installed(DeviceClass):
            await self._delete(item)
        installed = {crd.name: crd for crd in await self._installed(CustomResourceDefinition)}
        for kind in DEFINED:
            crd = installed.get(str(kind.resource))
            if crd is None:
                continue
            if remaining := await self._list(kind):
                self.report.leave(describe(crd), f"it has objects of others: {_names(remaining)}; delete them first")
            else:
                await self._delete(crd)

    async def remove_namespace(self) -> None:
        """The driver namespace, if it was installed by us and nobody else uses it."""
        for namespace in await self._installed(Namespace):
            if namespace.name != self._namespace:
                self.report.leave(describe(namespace), "it is not the driver namespace; name it: --driver-namespace")
            elif foreign := await self._foreign_objects():
                self.report.leave(describe(namespace), f"it holds objects of others: {', '.join(foreign)}")
            else:
                await self._delete(namespace)

    async def _foreign_objects(self) -> list[str]:
        """Objects in the driver namespace; those with an owner are left out, since they go or stay with it."""
        found = []
        for resource in await self._namespaced_resources():
            for item in await self._list(_kind_of(resource), Selection(self._namespace)):
                built_in = resource.plural in DERIVED or (resource.plural, item.name) in BUILT_IN
                if not (built_in or item.deleting or item.metadata.owner_references):
                    found.append(describe(item))
        return found

    async def _namespaced_resources(self) -> list[Resource]:
        """Every namespaced resource that the server can list and delete, in its preferred version."""
        groups = (await self._client.get_json("/apis"))["groups"]
        versions = [("", "v1"), *((group["name"], group["preferredVersion"]["version"]) for group in groups)]
        return [resource for version in versions for resource in await self._resources_of(*version)]

    async def _resources_of(self, group: str, version: str) -> list[Resource]:
        try:
            listed = await self._client.get_json(f"/apis/{group}/{version}" if group else f"/api/{version}")
        except NotFound:  # a group goes with its last CRD, which may just have been deleted
            return []
        return [
            Resource(group, version, entry["name"], entry["kind"], namespaced=True)
            for entry in listed["resources"]
            if entry["namespaced"] and {"list", "delete"} <= set(entry["verbs"])
        ]

    # -- small steps --------------------------------------------------------------------------------------------------

    async def _list(self, kind: type[T], selection: Selection = EVERYTHING) -> tuple[T, ...]:
        try:
            return await self._client.list(kind, selection)
        except NotFound:  # the kind is not served here
            return ()

    async def _installed(self, kind: type[T]) -> tuple[T, ...]:
        namespace = self._namespace if kind.resource.namespaced else ""
        return await self._list(kind, Selection(namespace, INSTALLED))

    async def _owns(
        self, item: KubeObject, ours: Iterable[str], path: Iterable[str], what: str, subresource: str = ""
    ) -> bool:
        """Whether managers of ours alone own a field; one that they share with others is reported."""
        ownership = await self._client.get_ownership(type(item), item.name, item.namespace)
        if ownership is None or ownership.uid != item.uid:
            return False
        managers = ownership.managers_of(*path, subresource=subresource)
        others = managers - set(ours)
        if others and others != managers:
            self.report.leave(f"{what} of {describe(item)}", f"{', '.join(sorted(others))} owns it too")
        return bool(managers) and not others

    async def _delete(self, item: KubeObject) -> None:
        if item.deleting:
            return
        await self._client.delete(item)
        self.report.did("deleted", item)

    async def _drop_finalizer(self, item: KubeObject) -> None:
        async def drop(current: KubeObject) -> None:
            await self._client.remove_finalizer(current, DOMAIN_KEY)

        if await self._on_newest(item, drop):
            self.report.did("removed finalizer from", item)

    async def _remove(self, item: KubeObject, *path: str, subresource: str = "") -> bool:
        async def remove(current: KubeObject) -> None:
            await self._client.json_patch(current, [patch.removal(*path)], subresource=subresource)

        return await self._on_newest(item, remove)

    async def _on_newest(self, item: T, write: Callable[[T], Awaitable[None]]) -> bool:
        """Runs a guarded write on the object as it is now; False where it is gone.

        Raises Conflict where somebody changes it ``ATTEMPTS`` times in a row.
        """
        for attempt in range(1, ATTEMPTS + 1):
            current = await self._client.find(type(item), item.name, item.namespace)
            if current is None or current.uid != item.uid:
                return False
            try:
                await write(current)
            except ObjectGone:
                return False
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                return True
        return False

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(GONE_TIMEOUT):
                while True:
                    if await condition():
                        return
                    await asyncio.sleep(POLL_INTERVAL)
        except TimeoutError:
            raise TimeoutError(
                f"waited {GONE_TIMEOUT:.0f} s for {what}: see why they do not, and run this again"
            ) from None


def _kind_of(resource: Resource) -> type[KubeObject]:
    """Just the metadata of objects of a resource that is known only at run time."""
    found = resource

    class Found(KubeObject, frozen=True, kw_only=True):
        resource = found

    return Found


def _names(items: Iterable[KubeObject], most: int = 5) -> str:
    names = [str(item.key) for item in items]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@asynccontextmanager
async def connected(credentials: Credentials) -> AsyncIterator[Client]:
    """A client that may do whatever the credentials allow."""
    transport = AiohttpTransport(credentials, user_agent="gpu-mirage-uninstall")
    try:
        yield Client(transport, ClientOptions(field_manager="gpu-mirage/uninstall"))
    finally:
        await transport.close()


async def uninstall(kubeconfig: str | None, driver_namespace: str, *, confirmed: bool) -> int:
    """Asks unless ``confirmed``, removes everything, says what was left; returns the exit code."""
    credentials = Credentials(kubeconfig)
    server = (await credentials.load()).host
    if not (confirmed or _confirm(server)):
        print("nothing was changed")
        return 1
    async with connected(credentials) as client:
        uninstaller = Uninstaller(client, driver_namespace)
        await uninstaller.run()
    for line in uninstaller.report.left:
        print(line)
    return 0


def _confirm(server: str) -> bool:
    if not sys.stdin.isatty():
        print("this is no terminal to ask on: use --yes", file=sys.stderr)
        return False
    return input(f"Remove gpu-mirage from {server}? [y/N] ").strip().lower() in ("y", "yes")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.uninstall", description="remove gpu-mirage from a cluster")
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, then ~/.kube/config")
    parser.add_argument("--driver-namespace", default="gpu-mirage", help="where the controller lives (%(default)s)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(uninstall(options.kubeconfig, options.driver_namespace, confirmed=options.yes))
    except (ApiError, ConfigurationError, TransportError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
