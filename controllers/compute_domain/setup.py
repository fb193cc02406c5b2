"""Puts the controller together: what it watches, what wakes it, what it decides with."""

from collections.abc import Iterable
from functools import partial

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import DraApi, ResourceClaim, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique
from controllers.compute_domain.caches import BY_MEMBER, BY_NODE, BY_TEMPLATE, BY_UID, Caches, caches, domain_label
from controllers.compute_domain.claims import ClaimChecker
from controllers.compute_domain.cleanup import Cleanup
from controllers.compute_domain.declaration import DECLARATION, NAME
from controllers.compute_domain.membership import domains_of
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.compute_domain.ownership import Ownership
from controllers.compute_domain.reconciler import ComputeDomainReconciler
from controllers.compute_domain.sweeper import Sweeper
from controllers.runtime import Key, Manager
from controllers.runtime.predicate import changed
from controllers.runtime.reconcile import Request


def setup(manager: Manager, dra: DraApi, options: ComputeDomainOptions) -> None:
    """Declares the compute-domain controller on a manager."""
    client = manager.client_for(DECLARATION)
    cached = caches(manager, dra, options)
    recorder = manager.recorder(NAME)
    ownership = Ownership(client, manager.clock)
    cleanup = Cleanup(client, ownership)
    sweeper = Sweeper(client, cached, cleanup, options.sweep_interval)
    wake = Wakers(cached, options)
    (
        manager.controller(NAME)
        .for_(ComputeDomain, when=lambda change: wake.serves(change.subject))
        .watches(dra.templates, maps_to=wake.by_template)
        .watches(dra.claims, maps_to=wake.by_claim, when=changed(lambda claim: claim.status.allocation))
        .watches(Node, maps_to=wake.by_node, when=changed(_what_matters_of_a_node))
        .watches(ComputeDomainClique, maps_to=wake.by_clique)
        .reconciles_with(
            ComputeDomainReconciler(client, cached, dra, ownership, cleanup, recorder, options, sweeper.wake)
        )
    )
    (
        manager.controller(f"{NAME}-claims")
        .for_(dra.claims, when=changed(lambda claim: claim.status.allocation))
        .reconciles_with(ClaimChecker(cached.claims, cached.domains, recorder, options))
    )
    manager.add(f"{NAME}-sweeper", sweeper.run)
    _count_domains(manager, cached)


def _count_domains(manager: Manager, cached: Caches) -> None:
    """NVIDIA's gauge under its own name, but read from the cache at each scrape, so that a restart loses nothing."""
    gauge = manager.metrics.gauge("nvidia_dra_compute_domain_info", "Number of ComputeDomains by status.", ("status",))

    def count(status: str) -> float:
        return sum(domain.status.status == status for domain in cached.domains.list())

    for status in (nvidia.READY, nvidia.NOT_READY):
        gauge.labels(status).set_function(partial(count, status))


def _what_matters_of_a_node(node: Node) -> object:
    """Heartbeats change a node every few seconds; only these parts of it can change a domain."""
    return node.ready, node.labels, node.deleting


class Wakers:
    """Which domains a change may concern."""

    def __init__(self, caches: Caches, options: ComputeDomainOptions) -> None:
        self._caches = caches
        self._options = options

    def serves(self, domain: ComputeDomain) -> bool:
        return self._options.serves(domain.namespace)

    def by_template(self, template: ResourceClaimTemplate) -> Iterable[Request]:
        """Those that ask for its name, be it theirs or in their way."""
        return self._keys(self._caches.domains.by_index(BY_TEMPLATE, f"{template.namespace}/{template.name}"))

    def by_claim(self, claim: ResourceClaim) -> Iterable[Request]:
        """Those whose channel it holds."""
        return self._by_uids(domains_of(claim))

    def by_node(self, node: Node) -> Iterable[Request]:
        """Those with it as a member, and those that wait for it."""
        waiting = {uid for claim in self._caches.claims.by_index(BY_NODE, node.name) for uid in domains_of(claim)}
        members = self._keys(self._caches.domains.by_index(BY_MEMBER, node.name))
        return {*members, *self._by_uids({*waiting, *domain_label(node)})}

    def by_clique(self, clique: ComputeDomainClique) -> Iterable[Request]:
        return self._by_uids(domain_label(clique))

    def _by_uids(self, uids: Iterable[str]) -> Iterable[Request]:
        return [key for uid in uids for key in self._keys(self._caches.domains.by_index(BY_UID, uid))]

    def _keys(self, domains: Iterable[ComputeDomain]) -> list[Key]:
        return [domain.key for domain in domains if self.serves(domain)]
