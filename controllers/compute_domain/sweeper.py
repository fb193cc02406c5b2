"""Finds what domains left behind that no longer live: templates, cliques and node labels.

Leftovers come from domains that were deleted while nobody ran, whose finalizer somebody took off, or that went between
two of our writes. The cache only makes a suspect; a live list of all domains and a live look at who wrote the object
decide.
"""

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from controllers.api import nvidia
from controllers.api.dra import ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain
from controllers.compute_domain.caches import Caches
from controllers.compute_domain.cleanup import Cleanup
from controllers.runtime import Client, KubeObject, logs
from controllers.runtime.concurrency import settle
from controllers.runtime.errors import RuntimeFault

T = TypeVar("T", bound=KubeObject)

RETRY_DELAY = 10.0
"""Seconds until the next try after a sweep that failed."""

SETTLE_DELAY = 1.0
"""Seconds between a wake and its sweep, so that a burst of deletions costs one sweep and caches have caught up."""

logger = logs.get_logger(__name__)


class Sweeper:
    """Sweeps at start, when woken and every ``interval`` seconds."""

    def __init__(self, client: Client, caches: Caches, cleanup: Cleanup, interval: float) -> None:
        self._client = client
        self._caches = caches
        self._cleanup = cleanup
        self._interval = interval
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Asks for a sweep soon; any number of calls until then make one."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            delay = await self._attempt()
            try:
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLE_DELAY)

    async def _attempt(self) -> float:
        try:
            await self.sweep()
        except RuntimeFault as error:
            logger.warning("sweep failed, trying again", reason=str(error), seconds=RETRY_DELAY)
            return RETRY_DELAY
        return self._interval

    async def sweep(self) -> None:
        """Removes every leftover. Raises the first failure once all have been tried."""
        suspects = self._suspects({domain.uid for domain in self._caches.domains.list()})
        if not suspects:
            return
        # After the suspects are known: what a domain made that came in between is not among them.
        living = {domain.uid for domain in await self._client.list(ComputeDomain)}
        leftovers = _orphans(suspects, living)
        if leftovers:
            logger.info("removing leftovers of domains that no longer live", leftovers=len(leftovers))
        await settle(*(self._cleanup.remove(leftover) for leftover in leftovers))

    def _suspects(self, living: set[str]) -> list[KubeObject]:
        caches = self._caches
        return [
            *_orphans(caches.templates.list(), living),
            *_orphans(caches.cliques.list(), living),
            *_orphans(caches.nodes.list(), living),
        ]


def _orphans(objects: Iterable[T], living: set[str]) -> list[T]:
    return [candidate for candidate in objects if (uids := domain_uids(candidate)) and not uids & living]


def domain_uids(candidate: KubeObject) -> set[str]:
    """The domains that an object claims to belong to: by its label, and a template also by its owner, since the label
    may have been taken off."""
    label = candidate.metadata.labels.get(nvidia.DOMAIN_KEY)
    uids = {label} if label else set()
    if isinstance(candidate, ResourceClaimTemplate) and nvidia.DOMAIN_KEY in candidate.metadata.finalizers:
        owners = candidate.metadata.owner_references
        uids |= {owner.uid for owner in owners if owner.kind == ComputeDomain.resource.kind}
    return uids
