"""Who wrote what, and how often that is asked."""

import asyncio

import pytest

from controllers.api import nvidia
from controllers.compute_domain.declaration import FIELD_MANAGER
from controllers.compute_domain.ownership import Foreign
from controllers.runtime import KubeObject
from controllers.runtime.testing import run_virtual
from tests.unit.compute_domain.world import UID, World, clique_of_members, domain, entry, node, served, template_of

NODE = node(owner=UID)
CLIQUE = clique_of_members(domain(), entry("n1", 0))
TEMPLATE = template_of(domain())


async def wrote(world: World, observed: KubeObject) -> bool:
    match observed.resource.plural:
        case "nodes":
            return await world.ownership.wrote_label(NODE)
        case "computedomaincliques":
            return await world.ownership.wrote_clique(CLIQUE)
    return await world.ownership.wrote_template(TEMPLATE)


OBJECTS = pytest.mark.parametrize("observed", [NODE, CLIQUE, TEMPLATE], ids=["node", "clique", "template"])


@OBJECTS
@pytest.mark.parametrize(
    ("managers", "ours"),
    [
        ({FIELD_MANAGER}, True),
        ({"kubectl"}, False),
        ({FIELD_MANAGER, "kubectl"}, False),
        (set(), False),
        ({"gpu-mirage/other"}, False),
    ],
)
def test_only_what_our_manager_alone_wrote_is_ours(observed: KubeObject, managers: set[str], ours: bool) -> None:
    world = World(observed)
    world.fake.managers[observed.name] = managers
    assert run_virtual(wrote(world, observed)) is ours


@OBJECTS
def test_what_is_ours_is_looked_up_once(observed: KubeObject) -> None:
    world = World(observed)

    async def scenario() -> None:
        for _ in range(3):
            assert await wrote(world, observed)

    run_virtual(scenario)
    assert len(world.fake.calls) == 1


@OBJECTS
def test_what_is_not_ours_is_looked_up_every_time(observed: KubeObject) -> None:
    world = World(observed)
    world.fake.managers[observed.name] = {"kubectl"}
    assert not run_virtual(wrote(world, observed))
    world.fake.managers[observed.name] = {FIELD_MANAGER}
    assert run_virtual(wrote(world, observed))


@OBJECTS
def test_what_we_have_just_written_is_not_looked_up(observed: KubeObject) -> None:
    world = World(observed)
    world.ownership.remember(observed)
    assert run_virtual(wrote(world, observed))
    assert world.fake.calls == []
    world.ownership.forget(observed)
    assert run_virtual(wrote(world, observed))
    assert len(world.fake.calls) == 1


@OBJECTS
def test_what_is_gone_is_not_ours(observed: KubeObject) -> None:
    assert not run_virtual(wrote(World(), observed))


def test_a_namesake_is_not_ours() -> None:
    world = World(node(owner=UID, uid="another"))
    assert not run_virtual(world.ownership.wrote_label(NODE))


# -- domains that somebody else serves --------------------------------------------------------------------------------

SERVED = served(domain(), entry("n1", 0))


def test_a_fresh_domain_needs_no_look() -> None:
    world = World(domain())
    assert run_virtual(world.ownership.foreign_writer(domain())) is None
    assert world.fake.calls == []


def test_a_domain_that_we_serve_is_looked_at_once() -> None:
    world = World(SERVED)

    async def scenario() -> None:
        for _ in range(3):
            assert await world.ownership.foreign_writer(SERVED) is None

    run_virtual(scenario)
    assert world.fake.calls == ["get computedomains d"]


@pytest.mark.parametrize(
    "touched", [SERVED, domain(finalizers=[nvidia.DOMAIN_KEY]), domain(status={"status": "Ready"})]
)
def test_a_domain_that_somebody_touched_is_looked_at(touched: nvidia.ComputeDomain) -> None:
    world = World(touched)
    world.fake.managers["d"] = {"compute-domain-controller", FIELD_MANAGER, "another"}
    foreign = Foreign(("another", "compute-domain-controller"), ())
    assert run_virtual(world.ownership.foreign_writer(touched)) == foreign


def test_a_foreign_finalizer_is_told_apart_from_a_foreign_status() -> None:
    world = World(SERVED)
    world.fake.managers["d"] = {"status-writer", FIELD_MANAGER}
    world.fake.finalizer_managers = {"keeper", FIELD_MANAGER}
    foreign = Foreign(("keeper", "status-writer"), ("keeper",))
    assert run_virtual(world.ownership.foreign_writer(SERVED)) == foreign


def test_a_foreign_writer_is_remembered() -> None:
    world = World(SERVED)
    world.fake.managers["d"] = {"theirs"}

    async def scenario() -> None:
        for _ in range(3):
            assert await world.ownership.foreign_writer(SERVED) == Foreign(("theirs",), ())
            await asyncio.sleep(1)

    run_virtual(scenario)
    assert len(world.fake.calls) == 1


def test_a_domain_that_is_gone_or_replaced_has_no_foreign_writer() -> None:
    assert run_virtual(World().ownership.foreign_writer(SERVED)) is None
    replaced = World(domain(uid="another"))
    replaced.fake.managers["d"] = {"theirs"}
    assert run_virtual(replaced.ownership.foreign_writer(SERVED)) is None
