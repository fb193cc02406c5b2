"""Finding and removing what domains left behind."""

import asyncio

import pytest

from controllers.api.nvidia import ComputeDomain
from controllers.compute_domain.sweeper import RETRY_DELAY, SETTLE_DELAY, Sweeper, domain_uids
from controllers.runtime.errors import Conflict, InternalError
from controllers.runtime.testing import run_virtual
from tests.unit.compute_domain.world import OTHER_UID, UID, World, clique_of_members, domain, entry, node, template_of

DEAD = domain("dead", OTHER_UID, template="dead")
INTERVAL = 600.0


def leftovers_of(dead: ComputeDomain) -> World:
    """Template, clique and label of a domain that is nowhere."""
    clique = clique_of_members(dead, entry("n1", 0))
    return World(template_of(dead), clique, node("n1", owner=dead.uid))


def sweeper_of(world: World) -> Sweeper:
    return Sweeper(world.client, world.caches, world.cleanup, INTERVAL)


def swept(world: World) -> list[str]:
    run_virtual(sweeper_of(world).sweep())
    return world.fake.writes


def test_everything_of_a_domain_that_lives_no_longer_goes() -> None:
    world = leftovers_of(DEAD)
    writes = swept(world)
    assert sorted(call.split()[1] for call in writes) == [
        "computedomaincliques",
        "nodes",
        "resourceclaimtemplates",
        "resourceclaimtemplates",
    ]
    assert (world.caches.templates.list(), world.caches.cliques.list(), world.label_of("n1")) == ((), (), None)


def test_nothing_of_a_living_domain_is_touched_and_no_list_is_needed() -> None:
    world = leftovers_of(DEAD)
    world.put(DEAD)
    assert swept(world) == []
    assert world.fake.calls == []


def test_the_live_list_saves_what_the_cache_does_not_know() -> None:
    world = leftovers_of(DEAD)
    world.fake.living = (DEAD,)
    assert swept(world) == []
    assert world.fake.calls == ["list computedomains"]


def test_what_a_domain_made_while_the_list_was_on_its_way_is_not_taken_for_a_leftover() -> None:
    world = leftovers_of(DEAD)
    fresh = domain("fresh", UID, template="fresh")
    listing = world.fake.list

    async def slow(kind: type[ComputeDomain]) -> tuple[ComputeDomain, ...]:
        answer = await listing(kind)
        for item in (fresh, template_of(fresh), node("n2", owner=UID)):
            world.put(item)
        return answer

    world.fake.list = slow  # type: ignore[method-assign, assignment]
    swept(world)
    assert [template.name for template in world.caches.templates.list()] == ["fresh"]
    assert world.label_of("n2") == UID


@pytest.mark.parametrize(
    "managers", [{"kubectl"}, {"gpu-mirage/compute-domain", "kubectl"}, {"compute-domain-controller"}]
)
def test_what_others_wrote_stays(managers: set[str]) -> None:
    world = leftovers_of(DEAD)
    for item in (*world.caches.templates.list(), *world.caches.cliques.list(), *world.caches.nodes.list()):
        world.fake.managers[item.name] = managers
    assert swept(world) == []


def test_one_failure_does_not_keep_the_rest() -> None:
    world = leftovers_of(DEAD)
    world.fake.refuse["apply nodes"] = Conflict("changed", code=409)
    with pytest.raises(Conflict):
        run_virtual(sweeper_of(world).sweep())
    assert (world.caches.templates.list(), world.caches.cliques.list()) == ((), ())


def test_a_template_belongs_to_its_owner_even_where_its_label_was_taken_off() -> None:
    bare = template_of(DEAD, labels={})
    assert domain_uids(bare) == {OTHER_UID}
    assert domain_uids(template_of(DEAD, labels={}, finalizers=[])) == set()
    world = World(bare)
    assert len(swept(world)) == 2


def test_an_object_of_two_domains_stays_while_one_of_them_lives() -> None:
    relabelled = template_of(DEAD, labels={"resource.nvidia.com/computeDomain": UID})
    assert domain_uids(relabelled) == {UID, OTHER_UID}
    world = World(relabelled, domain(uid=UID))
    assert swept(world) == []


def test_objects_without_label_are_nobodys() -> None:
    assert swept(World(node("n1"), template_of(DEAD, labels={}, finalizers=[]))) == []


# -- when -------------------------------------------------------------------------------------------------------------


def times_of_sweeps(world: World, seconds: float, *wakes: float) -> list[float]:
    """When a running sweeper asked for the living domains."""
    times: list[float] = []
    listing = world.fake.list

    async def noted(kind: type[ComputeDomain]) -> tuple[ComputeDomain, ...]:
        times.append(asyncio.get_running_loop().time())
        return await listing(kind)

    world.fake.list = noted  # type: ignore[method-assign, assignment]

    async def scenario() -> None:
        sweeper = sweeper_of(world)
        for at in wakes:
            asyncio.get_running_loop().call_later(at, sweeper.wake)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sweeper.run(), seconds)

    run_virtual(scenario)
    return times


def suspicious() -> World:
    """A world with a leftover that is never removed, so that every sweep lists."""
    world = World(node("n1", owner=OTHER_UID))
    world.fake.managers["n1"] = {"kubectl"}
    return world


def test_it_sweeps_at_the_start_and_every_interval() -> None:
    assert times_of_sweeps(suspicious(), 1500) == [0, INTERVAL, 2 * INTERVAL]


def test_a_wake_is_answered_soon_and_a_burst_of_them_by_one_sweep() -> None:
    assert times_of_sweeps(suspicious(), 500, 100, 100.1, 100.9) == [0, 100 + SETTLE_DELAY]


def test_a_sweep_that_fails_is_tried_again_soon() -> None:
    world = suspicious()
    world.fake.refuse["list computedomains"] = InternalError("etcd is away", code=500)
    assert times_of_sweeps(world, 2.5 * RETRY_DELAY) == [0, RETRY_DELAY, 2 * RETRY_DELAY]
