"""Serves ComputeDomains: template, members, cliques, status, and the way back when a domain is deleted."""

from collections.abc import Callable, Iterable
from enum import Enum

from cachetools import LRUCache

from controllers.api import nvidia
from controllers.api.core import Namespace, Node
from controllers.api.dra import DraApi, ResourceClaim, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique, ComputeDomainStatus, Daemon, DomainNode
from controllers.compute_domain import membership, status
from controllers.compute_domain.caches import BY_DOMAIN, Caches
from controllers.compute_domain.cleanup import Cleanup
from controllers.compute_domain.membership import Membership, Rules
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.compute_domain.ownership import FOREIGN_RECHECK, Ownership
from controllers.compute_domain.template import TemplateState, desired_template, problems, state_of
from controllers.runtime import Client, Key, logs
from controllers.runtime.concurrency import settle
from controllers.runtime.errors import AlreadyExists, FieldConflict, NamespaceTerminating, ObjectGone
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.recorder import EventRecorder

REMEMBERED = 100_000
"""Domains of which it is known that they had a template; one that is forgotten costs at most one template too many."""

logger = logs.get_logger(__name__)


class Template(Enum):
    """How it stands with a domain's template after a reconcile has looked after it."""

    STANDS = "stands"
    MADE = "made just now"
    ABSENT = "absent"


class ComputeDomainReconciler:
    """Brings one domain and everything derived from it to the desired state."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        dra: DraApi,
        ownership: Ownership,
        cleanup: Cleanup,
        recorder: EventRecorder,
        options: ComputeDomainOptions,
        sweep: Callable[[], None],
    ) -> None:
        self._client = client
        self._caches = caches
        self._dra = dra
        self._ownership = ownership
        self._cleanup = cleanup
        self._recorder = recorder
        self._options = options
        self._sweep = sweep
        self._had_template: LRUCache[str, bool] = LRUCache(REMEMBERED)

    async def reconcile(self, request: Request) -> Result:
        domain = self._caches.domains.get(request)
        if domain is None:
            # It may have gone between two of our writes, before its finalizer stood.
            self._sweep()
            return DONE
        foreign = await self._ownership.foreign_writer(domain)
        if domain.deleting and (foreign is None or not foreign.finalizer_managers):
            # Whoever wrote the status will not take our finalizer off, and the domain would never go.
            return await self._retire(domain)
        if foreign is None:
            try:
                return await self._serve(domain)
            except FieldConflict:
                foreign = await self._ownership.look_for_foreign_writer(domain)
                if foreign is None:
                    raise
        self._warn(
            domain,
            "ForeignController",
            f"also served by {', '.join(foreign.managers)}: standing down. Stop one of the two controllers, or keep "
            "this domain from one of them with --namespaces or --domain-selector",
        )
        return Result(requeue_after=FOREIGN_RECHECK)

    # -- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self, domain: ComputeDomain) -> Result:
        wrong = problems(domain)
        if wrong:
            # No members, whatever claims say: labels need the finalizer, and such a domain never gets it.
            for problem in wrong:
                self._warn(domain, "InvalidSpec", problem)
            await self._ensure_status(domain, status.desired_status(domain, (), servable=False))
            return DONE
        template = await self._ensure_template(domain)
        if template is Template.MADE and nvidia.DOMAIN_KEY not in domain.metadata.finalizers:
            # Pods wait for templates and nobody waits for the rest: in a burst every domain's template comes before
            # any domain's finalizer and first status. A domain that goes in between leaves its template to the sweeper.
            return Result(requeue_after=0.0)
        await self._ensure_finalizer(domain)
        planned = await self._label_members(domain)
        for refusal in planned.refused:
            self._warn(domain, refusal.reason, refusal.note)
        await self._unlabel_others(domain, planned.members)
        desired = status.desired_status(domain, planned.members, servable=template is not Template.ABSENT)
        await settle(self._ensure_cliques(domain, planned.members), self._ensure_status(domain, desired))
        return DONE

    async def _ensure_finalizer(self, domain: ComputeDomain) -> None:
        if nvidia.DOMAIN_KEY not in domain.metadata.finalizers:
            await self._client.apply(domain, {"metadata": {"finalizers": [nvidia.DOMAIN_KEY]}})
            self._ownership.remember(domain)

    async def _ensure_template(self, domain: ComputeDomain) -> Template:
        template = self._caches.templates.get(Key(domain.namespace, domain.template_name))
        match state_of(template, domain, self._dra):
            case TemplateState.OURS:
                return Template.STANDS
            case TemplateState.MISSING:
                return await self._create_template(domain)
            case TemplateState.OURS_TERMINATING if template is not None:
                # It still hands out claims while a finalizer holds it, so it must go at once; its deletion wakes us.
                await self._client.remove_finalizer(template, nvidia.DOMAIN_KEY)
                return Template.ABSENT
        self._warn_of_taken_name(domain, template)
        return Template.ABSENT

    async def _create_template(self, domain: ComputeDomain) -> Template:
        if await self._namespace_is_going(domain):
            return Template.ABSENT
        if domain.uid in self._had_template:
            await self._demand_alive(domain)
        try:
            made = await self._client.create(self._dra.templates, desired_template(domain, self._dra))
        except NamespaceTerminating:
            return Template.ABSENT
        except AlreadyExists:
            live = await self._client.find(self._dra.templates, domain.template_name, domain.namespace)
            if state_of(live, domain, self._dra) is TemplateState.OURS:
                return Template.STANDS
            self._warn_of_taken_name(domain, live)
            return Template.ABSENT
        self._ownership.remember(made)
        self._had_template[domain.uid] = True
        logger.info("template created", template=made.name)
        return Template.MADE

    async def _demand_alive(self, domain: ComputeDomain) -> None:
        """Demands that a domain whose template went still exists, by a live look.

        Garbage collection takes the template of a domain that is gone, and is quicker than a watch that has become
        half-open: without the look, both would go on for as long as that watch is silent.
        """
        live = await self._client.find(ComputeDomain, domain.name, domain.namespace)
        if live is None or live.uid != domain.uid:
            raise ObjectGone(f"ComputeDomain {domain.key} is deleted: its template is not made again")

    async def _namespace_is_going(self, domain: ComputeDomain) -> bool:
        """Whether a template that is missing again went with its namespace; a fresh domain needs no look."""
        if nvidia.DOMAIN_KEY not in domain.metadata.finalizers:
            return False
        namespace = await self._client.find(Namespace, domain.namespace)
        return namespace is None or namespace.deleting

    def _warn_of_taken_name(self, domain: ComputeDomain, template: ResourceClaimTemplate | None) -> None:
        holder = template.metadata.labels.get(nvidia.DOMAIN_KEY) if template is not None else None
        whose = f"belongs to the ComputeDomain with uid {holder}" if holder else "was not made for this domain"
        self._warn(
            domain,
            "TemplateNameTaken",
            f"ResourceClaimTemplate {domain.template_name} exists and {whose}: delete it, or make this domain again "
            "with another spec.channel.resourceClaimTemplate.name",
        )

    def _plan(self, domain: ComputeDomain) -> Membership:
        claimed = {
            channel.node
            for claim in self._claims_of(domain)
            for channel in membership.channels_of(claim)
            if isinstance(channel, membership.ChannelClaim) and channel.domain_uid == domain.uid
        }
        nodes = {name: self._caches.nodes.get(Key("", name)) for name in claimed}
        previous = (*status.entries_of(self._cliques_of(domain)), *domain.status.nodes)
        template = self._caches.templates.get(Key(domain.namespace, domain.template_name))
        rules = Rules(
            self._options.pool_label,
            self._options.max_nodes_per_clique,
            admits_new=template is None or not template.deleting,
        )
        return membership.plan(domain, claimed, nodes, previous, rules)

    def _claims_of(self, domain: ComputeDomain) -> list[ResourceClaim]:
        claims = self._caches.claims.by_index(BY_DOMAIN, domain.uid)
        return [claim for claim in claims if claim.namespace == domain.namespace]

    def _cliques_of(self, domain: ComputeDomain) -> tuple[ComputeDomainClique, ...]:
        return self._caches.cliques.by_index(BY_DOMAIN, domain.uid)

    async def _label_members(self, domain: ComputeDomain) -> Membership:
        """Labels the nodes of the domain's members, and returns the plan that holds once all are labelled.

        The claims of a domain are allocated within milliseconds of each other: those that come while labels are being
        written join the same write of clique and status.
        """
        labelled: set[str] = set()
        while True:
            planned = self._plan(domain)
            waiting = [member.name for member in planned.members if member.name not in labelled]
            if not waiting:
                return planned
            await settle(*(self._ensure_label(domain, name) for name in waiting))
            labelled.update(waiting)

    async def _ensure_label(self, domain: ComputeDomain, name: str) -> None:
        node = self._caches.nodes.get(Key("", name))
        if node is None or node.labels.get(nvidia.DOMAIN_KEY) == domain.uid:
            return
        # Two domains may reach for one node at the same time under one field manager, so that apply alone would let
        # the second overwrite the first. The observed resourceVersion makes one of them fail and look again.
        guard = {"resourceVersion": node.metadata.resource_version, "labels": {nvidia.DOMAIN_KEY: domain.uid}}
        self._ownership.remember(await self._client.apply(node, {"metadata": guard}))

    async def _unlabel_others(self, domain: ComputeDomain, members: tuple[DomainNode, ...]) -> None:
        names = {member.name for member in members}
        labelled = self._caches.nodes.by_index(BY_DOMAIN, domain.uid)
        await self._remove_labels(node for node in labelled if node.name not in names)

    async def _remove_labels(self, nodes: Iterable[Node]) -> None:
        await settle(*(self._cleanup.remove_label(node) for node in nodes))

    async def _ensure_cliques(self, domain: ComputeDomain, members: tuple[DomainNode, ...]) -> None:
        desired = status.desired_cliques(domain, members)
        present = {clique.name: clique for clique in self._cliques_of(domain)}
        await settle(
            *(self._ensure_clique(domain, name, daemons, present.get(name)) for name, daemons in desired.items()),
            *(self._cleanup.delete_clique(clique) for name, clique in present.items() if name not in desired),
        )

    async def _ensure_clique(
        self, domain: ComputeDomain, name: str, daemons: tuple[Daemon, ...], present: ComputeDomainClique | None
    ) -> None:
        if present is not None and present.daemons == daemons and present.clique_id == daemons[0].clique_id:
            return
        body = status.clique_body(name, self._options.driver_namespace, domain.uid, daemons)
        try:
            self._ownership.remember(await self._client.apply_owned(ComputeDomainClique, body, force=False))
        except FieldConflict as error:
            self._warn(
                domain,
                "CliqueTaken",
                f"ComputeDomainClique {name} in namespace {self._options.driver_namespace} is also written by somebody "
                f"else and is left alone: delete it ({error.message})",
            )

    async def _ensure_status(self, domain: ComputeDomain, desired: ComputeDomainStatus) -> None:
        if domain.status == desired:
            return
        await self._client.apply(domain, status.status_body(desired), subresource="status")
        self._ownership.remember(domain)
        logger.info("status written", status=desired.status, members=len(desired.nodes))
        if domain.status.status != desired.status and (desired.status == nvidia.READY or domain.status.status):
            self._recorder.event(domain, "Normal", desired.status, f"{len(desired.nodes)} member nodes", "Reconcile")

    # -- retiring -----------------------------------------------------------------------------------------------------

    async def _retire(self, domain: ComputeDomain) -> Result:
        """Takes back everything that is ours, the domain's finalizer last; every partial state converges."""
        if nvidia.DOMAIN_KEY not in domain.metadata.finalizers:
            return DONE
        in_use = self._claims_of(domain)
        if in_use:
            self._warn(
                domain,
                "DeletedInUse",
                f"deleted while {len(in_use)} ResourceClaims of it are allocated; their pods keep running",
            )
        await self._delete_template(domain)
        await self._remove_labels(self._caches.nodes.by_index(BY_DOMAIN, domain.uid))
        await settle(*(self._cleanup.delete_clique(clique) for clique in self._cliques_of(domain)))
        await self._client.remove_finalizer(domain, nvidia.DOMAIN_KEY)
        logger.info("everything of the domain is taken back")
        return DONE

    async def _delete_template(self, domain: ComputeDomain) -> None:
        template = self._caches.templates.get(Key(domain.namespace, domain.template_name))
        state = state_of(template, domain, self._dra)
        if template is None or state not in (TemplateState.OURS, TemplateState.OURS_TERMINATING):
            return
        await self._cleanup.delete_template(template)

    def _warn(self, domain: ComputeDomain, reason: str, note: str) -> None:
        self._recorder.event(domain, "Warning", reason, note, "Reconcile")
