"""What the compute-domain controller may do; the client enforces it and config/ has RBAC generated from it."""

from controllers.api.core import Namespace, Node
from controllers.api.dra import ResourceClaim, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique
from controllers.runtime.rbac import READ_CACHED, Declaration, permissions
from controllers.runtime.recorder import PERMISSIONS as RECORD_EVENTS

NAME = "compute-domain"
FIELD_MANAGER = f"gpu-mirage/{NAME}"

DECLARATION = Declaration(
    name=NAME,
    cluster=(
        permissions(ComputeDomain, *READ_CACHED, "patch")
        | permissions(ComputeDomain, "patch", subresource="status")
        | permissions(ResourceClaimTemplate, *READ_CACHED, "create", "patch", "delete")
        | permissions(ResourceClaim, "list", "watch")
        | permissions(Node, *READ_CACHED, "patch")
        | permissions(Namespace, "get")
        | RECORD_EVENTS
    ),
    driver_namespace=permissions(ComputeDomainClique, *READ_CACHED, "create", "patch", "delete"),
)
