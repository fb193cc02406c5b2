"""Dynamic resource allocation: resource.k8s.io in whichever version the cluster serves.

This is the one place that knows how v1, v1beta2 and v1beta1 differ. A controller asks ``served_api`` once and then uses
the kinds and builders of the answer.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from controllers.runtime import Client, Key, KubeObject, Manager, NotFound, Projection, Resource, logs
from controllers.runtime.errors import ApiError, TransportError
from controllers.runtime.names import fitting_name

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The versions that are understood, best first; Kubernetes 1.32 serves v1beta1, 1.33 v1beta2, 1.34 v1."""


class OpaqueConfig(Projection, frozen=True, kw_only=True):
    driver: str
    parameters: Any = None


class AllocatedConfig(Projection, frozen=True, kw_only=True):
    """A driver configuration and the requests it is for; no requests means all of them."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class AllocatedDevice(Projection, frozen=True, kw_only=True):
    """One device that the scheduler gave to a claim."""

    request: str
    driver: str
    pool: str
    device: str

    @property
    def main_request(self) -> str:
        """The request without the chosen alternative: ``gpu/small`` is an answer to ``gpu``."""
        return self.request.partition("/")[0]


class AllocatedDevices(Projection, frozen=True, kw_only=True):
    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfig, ...] = ()


class Allocation(Projection, frozen=True, kw_only=True):
    devices: AllocatedDevices = AllocatedDevices()


class ResourceClaimStatus(Projection, frozen=True, kw_only=True):
    allocation: Allocation | None = None


class ResourceClaim(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceclaims", "ResourceClaim", namespaced=True)

    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplate(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
    )

    spec: Mapping[str, Any] = {}


class ResourceSlice(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False)

    spec: Mapping[str, Any] = {}

    @property
    def driver(self) -> str:
        return str(self.spec.get("driver", ""))

    @property
    def node_name(self) -> str:
        """The node whose devices these are; "" for slices that are of no single node."""
        return str(self.spec.get("nodeName") or "")

    @property
    def pool_generation(self) -> int:
        return int(self.spec.get("pool", {}).get("generation", 0))


@dataclass(frozen=True, slots=True)
class DraApi:
    """The kinds and the shapes of one served version."""

    version: str
    claims: type[ResourceClaim]
    templates: type[ResourceClaimTemplate]
    slices: type[ResourceSlice]

    def slices_of(self, driver: str) -> type[ResourceSlice]:
        """The kind of one driver's slices: several controllers of a process select slices, each those of its driver."""
        return _slices_of(self.slices, driver)

    def request(self, name: str, device_class: str) -> dict[str, Any]:
        """A request for exactly one device of a class, with the server's defaults written out."""
        wanted = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
        return {"name": name, **wanted} if self.version == "v1beta1" else {"name": name, "exactly": wanted}

    def device(
        self,
        name: str,
        attributes: Mapping[str, Mapping[str, Any]],
        capacity: Mapping[str, str] | None = None,
        consumed: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """A device of a slice, with attributes in the API's form such as ``{"id": {"int": 0}}``, capacity as text.

        ``consumed`` are counters that it draws on, in the API's form.
        """
        body: dict[str, Any] = {"attributes": dict(attributes)}
        if capacity:
            body["capacity"] = {key: {"value": value} for key, value in capacity.items()}
        if consumed:
            body["consumesCounters"] = list(consumed)
        return {"name": name, "basic": body} if self.version == "v1beta1" else {"name": name, **body}


MAX_DEVICES = 128
"""Devices in a slice at most."""


def slice_name(node: str, driver: str, number: int | None = None) -> str:
    """A slice's name: ``<node>-<driver>``, with a number where a node has several slices of a driver.

    Where that is too long it is cut, and has a hash of the node's name.
    """
    suffix = f"-{driver}" if number is None else f"-{driver}-{number}"
    return fitting_name(node, suffix, unique=node)


def node_of(entry: ResourceSlice) -> Sequence[Key]:
    """The key of the node whose devices a slice has, for watches; none where they are of no single node."""
    return (Key("", entry.node_name),) if entry.node_name else ()


DISCOVERY_INTERVAL = 10.0
"""Seconds between two looks for an API that is not served yet."""

logger = logs.get_logger(__name__)

K = TypeVar("K", bound=KubeObject)


def dra_api(version: str) -> DraApi:
    """The API in one version. Raises ValueError for a version that is not understood."""
    if version not in VERSIONS:
        raise ValueError(f"resource.k8s.io/{version} is not one of {', '.join(VERSIONS)}")
    return DraApi(
        version,
        _in_version(ResourceClaim, version),
        _in_version(ResourceClaimTemplate, version),
        _in_version(ResourceSlice, version),
    )


def best_version(served: Sequence[str]) -> str | None:
    """The best understood version among those a server offers."""
    return next((version for version in VERSIONS if version in served), None)


async def served_api(client: Client) -> DraApi | None:
    """Asks the server; None where it serves no version that is understood."""
    try:
        group = await client.get_json(f"/apis/{GROUP}")
    except NotFound:
        return None
    version = best_version([entry["version"] for entry in group["versions"]])
    return dra_api(version) if version else None


async def wait_for_dra(manager: Manager) -> DraApi:
    """Asks until the server has an answer; meanwhile the manager's readiness says what it waits for."""
    waiting_for = ["asking the server for resource.k8s.io"]
    manager.readiness.add("dra", lambda: waiting_for[0] if waiting_for else None, public=True)
    while True:
        try:
            found = await served_api(manager.client)
        except (ApiError, TransportError) as error:
            waiting_for[0] = f"cannot ask for {GROUP}: {error}"
        else:
            if found is not None:
                waiting_for.clear()
                return found
            waiting_for[0] = (
                f"the cluster serves none of {', '.join(VERSIONS)} of {GROUP}: switch DRA on (1.32 or newer)"
            )
        logger.warning("waiting for dynamic resource allocation", reason=waiting_for[0], seconds=DISCOVERY_INTERVAL)
        await manager.clock.sleep(DISCOVERY_INTERVAL)


def _in_version(kind: type[K], version: str) -> type[K]:
    if kind.resource.version == version:
        return kind
    return _derived(kind, version, kind.resource.at(version))


@functools.cache
def _slices_of(kind: type[ResourceSlice], driver: str) -> type[ResourceSlice]:
    return _derived(kind, driver, kind.resource)


def _derived(kind: type[K], distinction: str, resource: Resource) -> type[K]:
    body = {"resource": resource, "__module__": __name__, "__annotations__": {}}
    made = types.new_class(
        f"{kind.__name__}_{distinction}",
        (kind,),
        {"frozen": True, "kw_only": True},
        lambda namespace: namespace.update(body),
    )
    return cast("type[K]", made)
