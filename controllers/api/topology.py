"""The group topology.node.k8s.io: what the NUMA zones of a node have, as topology-aware schedulers read it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec
from msgspec.structs import replace

from controllers.api.sharing import shared
from controllers.runtime import Client, KubeObject, Manager, NotFound, Projection, Resource, logs
from controllers.runtime.errors import ApiError, TransportError

GROUP = "topology.node.k8s.io"
VERSION = "v1alpha2"

POLICY = "topologyManagerPolicy"
SCOPE = "topologyManagerScope"
MAX_ZONES = "topologyManagerMaxNUMANodes"
FINGERPRINT = "nodeTopologyPodsFingerprint"
FINGERPRINT_METHOD = "nodeTopologyPodsFingerprintMethod"
"""Names of attributes, as scheduler-plugins reads them."""

DISCOVERY_INTERVAL = 10.0
"""Seconds between two looks for an API that is not served yet."""

logger = logs.get_logger(__name__)


class Attribute(Projection, frozen=True, kw_only=True):
    name: str
    value: str = ""


class Cost(Projection, frozen=True, kw_only=True):
    """The distance to another zone."""

    name: str
    value: int


class ZoneResource(Projection, frozen=True, kw_only=True):
    """What a zone has of a resource; quantities are texts, or numbers where somebody wrote them so."""

    name: str
    capacity: str | int = ""
    allocatable: str | int = ""
    available: str | int = ""


class Zone(Projection, frozen=True, kw_only=True):
    name: str
    type: str = ""
    parent: str = ""
    costs: tuple[Cost, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    resources: tuple[ZoneResource, ...] = ()


class NodeResourceTopology(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "noderesourcetopologies", "NodeResourceTopology", namespaced=False
    )

    topology_policies: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    zones: tuple[Zone, ...] = ()

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Self:
        """Keeps equal zones once: in a pool many nodes have the same ones."""
        found = super().decode(raw)
        return replace(found, attributes=shared(found.attributes), zones=shared(found.zones))


def attributes(values: Mapping[str, str]) -> list[dict[str, str]]:
    """A list of attributes as the API writes it."""
    return [{"name": name, "value": value} for name, value in values.items()]


async def wait_for_topology(manager: Manager) -> None:
    """Asks until the server knows the kind; meanwhile the manager's readiness says what it waits for."""
    waiting_for = [f"asking the server for {GROUP}"]
    manager.readiness.add("noderesourcetopology", lambda: waiting_for[0] if waiting_for else None, public=True)
    while True:
        try:
            missing = await _missing(manager.client)
        except (ApiError, TransportError) as error:
            missing = f"cannot ask for {GROUP}: {error}"
        if missing is None:
            waiting_for.clear()
            return
        waiting_for[0] = missing
        logger.warning("waiting for NodeResourceTopology", reason=missing, seconds=DISCOVERY_INTERVAL)
        await manager.clock.sleep(DISCOVERY_INTERVAL)


async def _missing(client: Client) -> str | None:
    """Why objects of the kind cannot be written, None where they can."""
    resource = NodeResourceTopology.resource
    advice = f"the cluster does not serve {resource} in {VERSION}: install the CRD, such as crds/noderesourcetopology"
    try:
        served: dict[str, Any] = await client.get_json(f"/apis/{GROUP}/{VERSION}")
    except NotFound:
        return advice
    return None if any(entry["name"] == resource.plural for entry in served["resources"]) else advice
