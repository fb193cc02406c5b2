"""Tells the owner of a claim why it takes part in no domain. Writes nothing but Events."""

from controllers.api.dra import ResourceClaim
from controllers.api.nvidia import ComputeDomain
from controllers.compute_domain.caches import BY_UID
from controllers.compute_domain.membership import BadClaim, ChannelClaim, channels_of
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.runtime.cache import Reader
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder


class ClaimChecker:
    """Looks at each claim on our driver once per change."""

    def __init__(
        self,
        claims: Reader[ResourceClaim],
        domains: Reader[ComputeDomain],
        recorder: EventRecorder,
        options: ComputeDomainOptions,
    ) -> None:
        self._claims = claims
        self._domains = domains
        self._recorder = recorder
        self._options = options

    async def reconcile(self, request: Request) -> Result:
        claim = self._claims.get(request)
        if claim is None or claim.deleting or not self._options.serves(claim.namespace):
            return DONE
        for channel in channels_of(claim):
            bad = channel if isinstance(channel, BadClaim) else self._misplaced(claim, channel)
            if bad is not None:
                self._recorder.event(claim, "Warning", bad.reason, bad.note, "CheckClaim")
        return DONE

    def _misplaced(self, claim: ResourceClaim, channel: ChannelClaim) -> BadClaim | None:
        domain = next(iter(self._domains.by_index(BY_UID, channel.domain_uid)), None)
        if domain is None:
            if self._options.domain_selector:
                # Another controller may serve it: only those that the selector matches are known here.
                return None
            return BadClaim(
                "UnknownDomain", f"domainID {channel.domain_uid} is the uid of no ComputeDomain that is served here"
            )
        if domain.namespace != claim.namespace:
            return BadClaim(
                "DomainInOtherNamespace",
                f"domainID {channel.domain_uid} is a ComputeDomain of another namespace: a claim takes part only in "
                "domains of its own namespace",
            )
        return None
