"""The group resource.nvidia.com: ComputeDomain, ComputeDomainClique and the opaque channel configuration.

The projections are laxer than the CRDs' schema: either CRD may be installed, an old one may have let something in, and
a domain that cannot be served must still be read so that its owner can be told why.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from controllers.runtime import KubeObject, Projection, Resource

GROUP = "resource.nvidia.com"
VERSION = "v1beta1"
DRIVER = "compute-domain.nvidia.com"
"""The DRA driver whose devices are IMEX channels and daemons."""

DOMAIN_KEY = "resource.nvidia.com/computeDomain"
"""Finalizer of domains and templates, and label of templates, cliques and nodes; as a label its value is the uid."""

TARGET_LABEL = "resource.nvidia.com/computeDomainTarget"
CLIQUE_ID_LABEL = "resource.nvidia.com/computeDomain.cliqueID"
NODE_CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""On a node: ``<cluster UUID>.<clique number>`` of its NVLink fabric, as GPU feature discovery writes it."""

CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
DAEMON_CLASS = "compute-domain-daemon.nvidia.com"
CHANNEL_REQUEST = "channel"
ALLOCATION_MODES = ("Single", "All")

READY = "Ready"
NOT_READY = "NotReady"
NO_CLIQUE_INDEX = -1
"""The index of a member that is in no clique."""


class TemplateReference(Projection, frozen=True, kw_only=True):
    name: str = ""


class ChannelSpec(Projection, frozen=True, kw_only=True):
    resource_claim_template: TemplateReference = TemplateReference()
    allocation_mode: str = "Single"


class ComputeDomainSpec(Projection, frozen=True, kw_only=True):
    num_nodes: int = 0
    channel: ChannelSpec = ChannelSpec()


class DomainNode(Projection, frozen=True, kw_only=True):
    """One entry of ``status.nodes``."""

    name: str
    ip_address: str = ""
    clique_id: str = msgspec.field(name="cliqueID", default="")
    index: int = NO_CLIQUE_INDEX
    status: str = NOT_READY


class ComputeDomainStatus(Projection, frozen=True, kw_only=True):
    status: str = ""
    nodes: tuple[DomainNode, ...] = ()


class ComputeDomain(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(GROUP, VERSION, "computedomains", "ComputeDomain", namespaced=True)

    spec: ComputeDomainSpec | None = None
    status: ComputeDomainStatus = ComputeDomainStatus()

    @property
    def template_name(self) -> str:
        return self.spec.channel.resource_claim_template.name if self.spec else ""


class Daemon(Projection, frozen=True, kw_only=True):
    """One entry of a clique."""

    node_name: str
    ip_address: str = ""
    clique_id: str = msgspec.field(name="cliqueID", default="")
    index: int = NO_CLIQUE_INDEX
    status: str = NOT_READY


class ComputeDomainClique(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "computedomaincliques", "ComputeDomainClique", namespaced=True
    )

    daemons: tuple[Daemon, ...] = ()

    @property
    def domain_uid(self) -> str:
        return self.metadata.labels.get(DOMAIN_KEY, "")

    @property
    def clique_id(self) -> str:
        return self.metadata.labels.get(CLIQUE_ID_LABEL, "")


class ChannelConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The opaque parameters of a channel claim, decoded strictly as the real driver does."""

    api_version: str
    kind: str
    domain_id: str = msgspec.field(name="domainID")
    allocation_mode: str = "Single"


CHANNEL_CONFIG_KIND = "ComputeDomainChannelConfig"
DAEMON_CONFIG_KIND = "ComputeDomainDaemonConfig"


def channel_parameters(domain_uid: str, allocation_mode: str) -> Mapping[str, Any]:
    """The opaque parameters that a generated template carries."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": CHANNEL_CONFIG_KIND,
        "domainID": domain_uid,
        "allocationMode": allocation_mode,
    }
