"""Who wrote an object: a live look at managedFields before anything is taken away, and before a domain is served.

Labels and names prove nothing, since anybody can put them on. The answer for an object never changes while its uid
lives and we keep writing it, so it is remembered.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass

from cachetools import LRUCache, TTLCache

from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.dra import ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique
from controllers.compute_domain.declaration import FIELD_MANAGER
from controllers.runtime import Client, KubeObject
from controllers.runtime.clock import Clock

REMEMBERED = 20_000
"""Objects whose owner is remembered: beyond any estate that one controller serves, and a few MiB at most."""

FOREIGN_RECHECK = 600.0
"""Seconds after which a domain that somebody else served is looked at again."""

_NODE_LABEL = ("f:metadata", "f:labels", f"f:{nvidia.DOMAIN_KEY}")
_FINALIZER = ("f:metadata", "f:finalizers", f'v:"{nvidia.DOMAIN_KEY}"')


@dataclass(frozen=True, slots=True)
class Foreign:
    """Other field managers that serve a domain: all of them, and those that hold its finalizer."""

    managers: tuple[str, ...]
    finalizer_managers: tuple[str, ...] = ()


class Ownership:
    """Answers from memory where it can, else by one GET."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._ours: MutableMapping[tuple[str, str], bool] = LRUCache(REMEMBERED)
        self._foreign: MutableMapping[str, Foreign] = TTLCache(REMEMBERED, FOREIGN_RECHECK, clock.monotonic)

    def remember(self, written: KubeObject) -> None:
        """Notes that we have just written the fields of this object that matter here."""
        self._ours[(written.resource.plural, written.uid)] = True

    def forget(self, observed: KubeObject) -> None:
        """Notes that the fields of this object are ours no longer."""
        self._ours.pop((observed.resource.plural, observed.uid), None)

    async def wrote_label(self, node: Node) -> bool:
        """Whether the domain label of a node is ours alone."""
        return await self._wrote(node, *_NODE_LABEL)

    async def wrote_template(self, template: ResourceClaimTemplate) -> bool:
        """Whether we made a template."""
        return await self._wrote(template, "f:spec")

    async def wrote_clique(self, clique: ComputeDomainClique) -> bool:
        """Whether the members of a clique are ours."""
        return await self._wrote(clique, "f:daemons")

    async def foreign_writer(self, domain: ComputeDomain) -> Foreign | None:
        """Who else serves a domain: another manager of its status or of the finalizer.

        A domain with neither is fresh, and nobody serves it yet: no look is needed.
        """
        known = self._foreign.get(domain.uid)
        if known is not None:
            return known
        untouched = not domain.status.status and nvidia.DOMAIN_KEY not in domain.metadata.finalizers
        if untouched or (domain.resource.plural, domain.uid) in self._ours:
            return None
        return await self.look_for_foreign_writer(domain)

    async def look_for_foreign_writer(self, domain: ComputeDomain) -> Foreign | None:
        """The same by a live look, whatever is remembered."""
        live = await self._client.get_ownership(ComputeDomain, domain.name, domain.namespace)
        if live is None or live.uid != domain.uid:
            return None
        of_finalizer = live.managers_of(*_FINALIZER) - {FIELD_MANAGER}
        of_status = live.managers_of("f:status", subresource="status") - {FIELD_MANAGER}
        if not of_finalizer | of_status:
            self.remember(domain)
            return None
        self.forget(domain)
        self._foreign[domain.uid] = Foreign(tuple(sorted(of_finalizer | of_status)), tuple(sorted(of_finalizer)))
        return self._foreign[domain.uid]

    async def _wrote(self, observed: KubeObject, *path: str) -> bool:
        key = (observed.resource.plural, observed.uid)
        if key in self._ours:
            return True
        live = await self._client.get_ownership(type(observed), observed.name, observed.namespace)
        if live is None or live.uid != observed.uid or live.managers_of(*path) != {FIELD_MANAGER}:
            return False
        self._ours[key] = True
        return True
