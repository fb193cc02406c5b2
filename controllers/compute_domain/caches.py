"""Cached reads of everything that a decision about domains needs, with their indexes."""

from collections.abc import Iterable
from dataclasses import dataclass

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import DraApi, ResourceClaim, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique
from controllers.compute_domain.membership import domains_of, nodes_of
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.runtime import KubeObject, Manager, Selection
from controllers.runtime.cache import Reader

BY_DOMAIN = "domain"
"""Of claims by the uids of their domains, of cliques and nodes by the uid in their label."""

BY_NODE = "node"
"""Of claims by the nodes on which they hold a channel."""

BY_UID = "uid"
"""Of domains by their uid."""

BY_TEMPLATE = "template"
"""Of domains by namespace/name of the template that they ask for."""

BY_MEMBER = "member"
"""Of domains by the nodes in their status."""


@dataclass(frozen=True, slots=True)
class Caches:
    """One reader per kind."""

    domains: Reader[ComputeDomain]
    templates: Reader[ResourceClaimTemplate]
    claims: Reader[ResourceClaim]
    nodes: Reader[Node]
    cliques: Reader[ComputeDomainClique]


def caches(manager: Manager, dra: DraApi, options: ComputeDomainOptions) -> Caches:
    """Makes the informers of a manager, selections and indexes included."""
    domains = manager.informer(ComputeDomain, Selection(labels=options.domain_selector)).store
    domains.add_index(BY_TEMPLATE, lambda domain: (f"{domain.namespace}/{domain.template_name}",))
    domains.add_index(BY_MEMBER, lambda domain: {node.name for node in domain.status.nodes})
    domains.add_index(BY_UID, lambda domain: (domain.uid,))
    claims = manager.informer(dra.claims).store
    claims.add_index(BY_DOMAIN, domains_of)
    claims.add_index(BY_NODE, nodes_of)
    nodes = manager.informer(Node).store
    nodes.add_index(BY_DOMAIN, domain_label)
    cliques = manager.informer(ComputeDomainClique, Selection(namespace=options.driver_namespace)).store
    cliques.add_index(BY_DOMAIN, domain_label)
    return Caches(domains, manager.informer(dra.templates).store, claims, nodes, cliques)


def domain_label(labelled: KubeObject) -> Iterable[str]:
    """The uid in an object's domain label, if it has one."""
    uid = labelled.metadata.labels.get(nvidia.DOMAIN_KEY)
    return (uid,) if uid else ()
