"""The reconciler against a small server in memory."""

import pytest

from controllers.api import nvidia
from controllers.api.nvidia import ComputeDomain
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.compute_domain.ownership import FOREIGN_RECHECK
from controllers.runtime import KubeObject
from controllers.runtime.errors import AlreadyExists, Conflict, FieldConflict, NamespaceTerminating, ObjectGone
from controllers.runtime.reconcile import DONE, Result
from tests.unit.compute_domain.world import (
    CLIQUE,
    GONE_AT,
    OTHER_UID,
    UID,
    World,
    claim,
    clique_of_members,
    domain,
    entry,
    node,
    served,
    template_of,
)

CLIQUE_NAME = f"{UID}.{CLIQUE}"


def converged(*others: KubeObject, nodes: int = 1) -> World:
    """A domain with one member where all is done."""
    owner, member = domain(nodes=nodes), entry("n1", 0)
    return World(
        served(owner, member),
        template_of(owner),
        node("n1", owner=UID),
        claim("n1"),
        clique_of_members(owner, member),
        *others,
    )


def settled(world: World, limit: int = 5) -> World:
    """Reconciles until nothing is written any more."""
    for _ in range(limit):
        if not world.writes_of_a_reconcile():
            return world
    raise AssertionError(f"still writing after {limit} reconciles: {world.fake.writes}")


# -- serving ----------------------------------------------------------------------------------------------------------


def test_nothing_is_written_when_nothing_differs() -> None:
    world = converged()
    assert world.writes_of_a_reconcile() == []
    assert world.reconcile() == DONE
    assert world.reasons == []


def test_once_ownership_is_known_an_idle_reconcile_asks_the_server_nothing() -> None:
    world = converged()
    world.reconcile()
    assert world.fake.calls == ["get computedomains d"]
    world.fake.calls.clear()
    world.reconcile()
    assert world.fake.calls == []


def test_a_fresh_domain_gets_its_template_first_and_asks_for_the_rest_at_once() -> None:
    world = World(domain())
    assert world.reconcile_once() == Result(requeue_after=0.0)
    assert world.fake.calls == ["create resourceclaimtemplates t"]


def test_a_fresh_domain_gets_template_finalizer_and_status() -> None:
    world = World(domain())
    assert world.writes_of_a_reconcile() == [
        "create resourceclaimtemplates t",
        "apply computedomains d",
        "apply computedomains/status d",
    ]
    assert world.fake.calls == world.fake.writes
    assert world.domain().status.status == nvidia.NOT_READY
    assert world.writes_of_a_reconcile() == []


def test_template_and_finalizer_stand_before_any_label_and_labels_before_cliques_and_status() -> None:
    world = World(domain(nodes=2), claim("n1"), claim("n2"), node("n1"), node("n2"))
    writes = world.writes_of_a_reconcile()
    assert writes[:2] == ["create resourceclaimtemplates t", "apply computedomains d"]
    assert set(writes[2:4]) == {"apply nodes n1", "apply nodes n2"}
    assert set(writes[4:]) == {f"apply computedomaincliques {CLIQUE_NAME}", "apply computedomains/status d"}
    assert world.domain().status == nvidia.ComputeDomainStatus(
        status=nvidia.READY, nodes=(entry("n1", 0), entry("n2", 1))
    )
    assert world.writes_of_a_reconcile() == []


def test_no_label_is_written_where_the_finalizer_could_not_be() -> None:
    world = World(domain(), claim("n1"), node("n1"))
    world.fake.refuse["apply computedomains"] = Conflict("changed", code=409)
    with pytest.raises(Conflict):
        world.reconcile()
    assert not [call for call in world.fake.writes if "nodes" in call or "cliques" in call]


def test_a_domain_that_cannot_be_served_gets_a_status_and_a_warning_and_nothing_else() -> None:
    world = World(domain(mode="Some"), claim("n1"), node("n1"))
    assert world.writes_of_a_reconcile() == ["apply computedomains/status d"]
    assert world.reasons == ["InvalidSpec"]
    assert "Some" in world.recorder.events[0].note


def test_a_domain_without_spec_gets_the_same() -> None:
    bare = ComputeDomain.decode(b'{"metadata":{"name":"d","namespace":"a","uid":"' + UID.encode() + b'"}}')
    world = World(bare, claim("n1"), node("n1"))
    assert world.writes_of_a_reconcile() == ["apply computedomains/status d"]
    assert world.reasons == ["InvalidSpec"]


def test_a_leaving_node_loses_its_label_and_its_entry() -> None:
    world = converged()
    world.stores["resourceclaims"].remove(claim("n1").key)
    settled(world)
    assert world.label_of("n1") is None
    assert world.caches.cliques.list() == ()
    assert world.domain().status == nvidia.ComputeDomainStatus(status=nvidia.NOT_READY)


def test_a_node_that_becomes_unready_makes_the_domain_so() -> None:
    world = converged()
    world.put(node("n1", owner=UID, ready=False))
    settled(world)
    assert (world.domain().status.status, world.domain().status.nodes) == ("NotReady", (entry("n1", 0, ready=False),))
    assert world.reasons == ["NotReady"]


def test_getting_ready_is_told() -> None:
    world = World(domain(), claim("n1"), node("n1"))
    settled(world)
    assert [(event.type, event.reason, event.note) for event in world.recorder.events] == [
        ("Normal", "Ready", "1 member nodes")
    ]


def test_a_label_that_somebody_took_off_comes_back() -> None:
    world = converged()
    world.put(node("n1"))
    assert world.writes_of_a_reconcile() == ["apply nodes n1"]
    assert world.label_of("n1") == UID


def test_a_label_that_somebody_else_put_on_a_node_that_is_no_member_stays() -> None:
    world = converged(node("n2", owner=UID))
    world.fake.managers["n2"] = {"kubectl"}
    assert world.writes_of_a_reconcile() == []
    assert world.label_of("n2") == UID


def test_refused_nodes_are_named_and_not_touched() -> None:
    world = converged(
        claim("real"), node("real", pool=False), claim("taken"), node("taken", owner=OTHER_UID), claim("nowhere")
    )
    assert world.writes_of_a_reconcile() == []
    assert sorted(world.reasons) == ["NodeInOtherDomain", "NodeNotSimulated"]


def test_a_full_clique_gives_the_next_node_a_warning_until_a_slot_frees() -> None:
    objects = [item for number in range(3) for item in (claim(f"n{number}"), node(f"n{number}"))]
    world = settled(World(domain(), *objects, options=ComputeDomainOptions(max_nodes_per_clique=2)))
    assert (world.label_of("n2"), len(world.domain().status.nodes)) == (None, 2)
    assert "CliqueFull" in world.reasons
    world.stores["resourceclaims"].remove(claim("n0").key)
    settled(world)
    assert world.domain().status.nodes == (entry("n1", 1), entry("n2", 0))


def test_a_claim_in_another_namespace_does_not_count() -> None:
    world = World(domain(), node("n1"), claim("n1", namespace="b"))
    settled(world)
    assert (world.label_of("n1"), world.domain().status.nodes) == (None, ())


def test_the_entry_of_a_clique_goes_before_the_status_for_the_index() -> None:
    owner = domain()
    world = World(
        served(owner, entry("n1", 3)),
        template_of(owner),
        node("n1", owner=UID),
        claim("n1"),
        clique_of_members(owner, entry("n1", 7)),
    )
    settled(world)
    assert world.domain().status.nodes == (entry("n1", 7),)


def test_a_domain_that_is_gone_is_left_to_the_sweeper() -> None:
    world = World()
    assert world.reconcile() == DONE
    assert (world.sweeps, world.fake.calls) == (1, [])


def test_an_object_that_went_meanwhile_makes_it_look_again() -> None:
    world = World(domain(), claim("n1"), node("n1"))
    world.fake.refuse["apply nodes"] = ObjectGone("n1 is gone")
    with pytest.raises(ObjectGone):
        world.reconcile()
    assert "apply computedomains/status d" not in world.fake.writes


# -- the template -----------------------------------------------------------------------------------------------------


def test_a_foreign_template_is_left_alone_and_named() -> None:
    foreign = template_of(domain(), labels={})
    world = settled(World(domain(), foreign))
    assert world.caches.templates.list() == (foreign,)
    assert world.domain().status.status == nvidia.NOT_READY
    assert set(world.reasons) == {"TemplateNameTaken"}
    assert "was not made for this domain" in world.recorder.events[0].note


def test_the_template_of_another_domain_names_that_domain() -> None:
    world = settled(World(domain(), template_of(domain("other", OTHER_UID))))
    assert OTHER_UID in world.recorder.events[0].note


def test_once_the_foreign_template_is_gone_the_domain_is_served() -> None:
    foreign = template_of(domain(), labels={})
    world = settled(World(domain(), foreign))
    world.stores["resourceclaimtemplates"].remove(foreign.key)
    assert "create resourceclaimtemplates t" in world.writes_of_a_reconcile()


def test_a_template_that_the_cache_does_not_show_yet_is_recognised() -> None:
    world = World(domain())
    world.fake.refuse["create resourceclaimtemplates"] = AlreadyExists("taken", code=409)
    ours = template_of(domain())

    async def find(*_: object) -> object:
        return ours

    world.fake.find = find  # type: ignore[method-assign, assignment]
    world.reconcile()
    assert world.reasons == []


def test_a_foreign_template_that_the_cache_does_not_show_yet_is_named() -> None:
    world = World(domain())
    world.fake.refuse["create resourceclaimtemplates"] = AlreadyExists("taken", code=409)
    world.reconcile()
    assert world.reasons == ["TemplateNameTaken"]


def test_a_template_that_the_user_deletes_is_made_again() -> None:
    world = converged()
    world.put(template_of(domain(), deletionTimestamp=GONE_AT))
    assert "remove-finalizer resourceclaimtemplates t" in world.writes_of_a_reconcile()
    assert world.caches.templates.list() == ()
    assert "create resourceclaimtemplates t" in world.writes_of_a_reconcile()


@pytest.mark.parametrize("live", [None, domain(uid="u-of-a-namesake")])
def test_the_template_of_a_domain_that_is_gone_is_not_made_again_however_late_that_is_heard_of(
    live: ComputeDomain | None,
) -> None:
    world = World(domain())
    world.reconcile_once()
    world.stores["resourceclaimtemplates"].remove(template_of(domain()).key)

    async def find(*_: object) -> object:
        return live

    world.fake.find = find  # type: ignore[method-assign, assignment]
    with pytest.raises(ObjectGone):
        world.reconcile_once()
    assert world.fake.writes == ["create resourceclaimtemplates t"]


def test_while_the_template_terminates_members_stay_and_nobody_new_is_admitted() -> None:
    world = converged(claim("n2"), node("n2"))
    world.put(template_of(domain(), deletionTimestamp=GONE_AT, finalizers=[nvidia.DOMAIN_KEY, "other/x"]))
    world.reconcile()
    assert (world.label_of("n1"), world.label_of("n2")) == (UID, None)
    assert world.domain().status.nodes == (entry("n1", 0),)


@pytest.mark.parametrize("announced", [True, False])
def test_no_template_is_made_again_in_a_namespace_that_is_going(announced: bool) -> None:
    world = converged()
    world.stores["resourceclaimtemplates"].remove(template_of(domain()).key)
    world.fake.namespace_deleting = announced
    world.fake.refuse["create resourceclaimtemplates"] = NamespaceTerminating("going", code=403)
    world.reconcile()
    assert ("create resourceclaimtemplates t" in world.fake.calls) is not announced
    assert world.domain().status.status == nvidia.NOT_READY


# -- standing down ----------------------------------------------------------------------------------------------------


def test_a_domain_that_another_controller_serves_is_left_alone_and_reported() -> None:
    world = converged()
    world.stores["resourceclaimtemplates"].remove(template_of(domain()).key)
    world.fake.managers["d"] = {"compute-domain-controller"}
    assert world.reconcile() == Result(requeue_after=FOREIGN_RECHECK)
    assert world.fake.writes == []
    assert world.reasons == ["ForeignController"]
    assert "compute-domain-controller" in world.recorder.events[0].note


def test_a_field_conflict_makes_it_look_and_stand_down() -> None:
    world = World(domain())
    world.fake.refuse["apply computedomains/status"] = FieldConflict("theirs", code=409)
    world.fake.managers["d"] = {"nvidia", "gpu-mirage/compute-domain"}
    assert world.reconcile() == Result(requeue_after=FOREIGN_RECHECK)
    assert world.reasons == ["ForeignController"]
    assert "nvidia" in world.recorder.events[0].note
    world.fake.calls.clear()
    assert world.reconcile() == Result(requeue_after=FOREIGN_RECHECK)
    assert world.fake.calls == []


def test_a_field_conflict_about_something_else_is_an_error() -> None:
    world = World(domain(), claim("n1"), node("n1"))
    world.fake.refuse["apply nodes"] = FieldConflict("label", code=409)
    with pytest.raises(FieldConflict):
        world.reconcile()
    assert "ForeignController" not in world.reasons


def test_a_foreign_domain_that_is_deleted_is_left_to_its_controller() -> None:
    world = converged()
    world.put(going(world.domain()))
    world.fake.finalizer_managers = {"nvidia"}
    world.reconcile()
    assert world.fake.writes == []


def test_a_domain_of_ours_whose_status_somebody_else_wrote_is_still_taken_back() -> None:
    world = converged()
    world.put(going(world.domain()))
    world.fake.managers["d"] = {"kubectl-edit"}
    world.reconcile()
    assert world.caches.domains.list() == ()


# -- retiring ---------------------------------------------------------------------------------------------------------


def going(living: ComputeDomain) -> ComputeDomain:
    return domain(
        finalizers=list(living.metadata.finalizers), deletionTimestamp=GONE_AT, status={"status": living.status.status}
    )


def test_a_deleted_domain_is_taken_back_with_its_finalizer_last() -> None:
    world = converged()
    world.stores["resourceclaims"].remove(claim("n1").key)
    world.put(going(world.domain()))
    assert world.writes_of_a_reconcile() == [
        "remove-finalizer resourceclaimtemplates t",
        "delete resourceclaimtemplates t",
        "apply nodes n1",
        f"delete computedomaincliques {CLIQUE_NAME}",
        "remove-finalizer computedomains d",
    ]
    assert (world.caches.domains.list(), world.label_of("n1"), world.reasons) == ((), None, [])


@pytest.mark.parametrize("done", [1, 2, 3])
def test_deletion_goes_on_from_every_partial_state(done: int) -> None:
    world = converged()
    world.put(going(world.domain()))
    world.stores["resourceclaimtemplates"].remove(template_of(domain()).key)
    if done > 1:
        world.put(node("n1"))
    if done > 2:
        world.stores["computedomaincliques"].replace(())
    world.reconcile()
    assert world.fake.writes[-1] == "remove-finalizer computedomains d"
    assert (world.caches.domains.list(), world.caches.cliques.list(), world.label_of("n1")) == ((), (), None)


@pytest.mark.parametrize("failing", ["delete resourceclaimtemplates", "apply nodes", "delete computedomaincliques"])
def test_the_finalizer_stays_while_anything_of_ours_does(failing: str) -> None:
    world = converged()
    world.put(going(world.domain()))
    world.fake.refuse[failing] = Conflict("not now", code=409)
    with pytest.raises(Conflict):
        world.reconcile()
    assert "remove-finalizer computedomains d" not in world.fake.writes
    world.fake.refuse.clear()
    world.reconcile()
    assert world.caches.domains.list() == ()


def test_deletion_in_use_is_told_and_goes_on() -> None:
    world = converged()
    world.put(going(world.domain()))
    world.reconcile()
    assert world.reasons == ["DeletedInUse"]
    assert "1 ResourceClaims" in world.recorder.events[0].note
    assert world.caches.domains.list() == ()


def test_deletion_leaves_what_others_wrote() -> None:
    foreign = template_of(domain(), labels={})
    world = converged(node("n2", owner=UID))
    world.put(foreign)
    world.fake.managers["n2"] = {"kubectl"}
    world.put(going(world.domain()))
    world.reconcile()
    assert (world.caches.templates.list(), world.label_of("n2")) == ((foreign,), UID)


def test_a_deleted_domain_without_our_finalizer_is_not_touched() -> None:
    world = World(domain(finalizers=["other/x"], deletionTimestamp=GONE_AT), claim("n1"), node("n1"))
    assert world.reconcile() == DONE
    assert world.fake.writes == []
