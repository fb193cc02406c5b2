"""Taking back what is ours, and nothing else."""

import pytest

from controllers.api import nvidia
from controllers.compute_domain.cleanup import Cleanup
from controllers.compute_domain.ownership import Ownership
from controllers.runtime import Client, ClientOptions, KubeObject
from controllers.runtime.clock import SystemClock
from controllers.runtime.errors import Conflict, ObjectGone
from controllers.runtime.testing import Answer, ScriptedTransport, run_virtual
from tests.unit.compute_domain.world import (
    GONE_AT,
    UID,
    World,
    clique_of_members,
    domain,
    entry,
    node,
    template_of,
)

NODE = node(owner=UID)
CLIQUE = clique_of_members(domain(), entry("n1", 0))
TEMPLATE = template_of(domain())


def removed(world: World, leftover: KubeObject) -> list[str]:
    run_virtual(world.cleanup.remove(leftover))
    return world.fake.writes


@pytest.mark.parametrize(
    ("leftover", "writes"),
    [
        (NODE, ["apply nodes n1"]),
        (CLIQUE, [f"delete computedomaincliques {CLIQUE.name}"]),
        (TEMPLATE, ["remove-finalizer resourceclaimtemplates t", "delete resourceclaimtemplates t"]),
    ],
    ids=["node", "clique", "template"],
)
def test_what_is_ours_is_removed_and_what_is_not_stays(leftover: KubeObject, writes: list[str]) -> None:
    assert removed(World(leftover), leftover) == writes
    for managers in ({"kubectl"}, {"kubectl", "gpu-mirage/compute-domain"}):
        foreign = World(leftover)
        foreign.fake.managers[leftover.name] = managers
        assert removed(foreign, leftover) == []


def test_taking_the_label_off_leaves_every_other_label() -> None:
    world = World(NODE)
    before = {key: value for key, value in NODE.labels.items() if key != nvidia.DOMAIN_KEY}
    removed(world, NODE)
    (left,) = world.caches.nodes.list()
    assert dict(left.labels) == before


def test_a_label_that_was_taken_off_is_ours_no_longer() -> None:
    world = World(NODE)
    removed(world, NODE)
    world.put(NODE)
    world.fake.managers["n1"] = {"kubectl"}
    world.fake.calls.clear()
    assert removed(world, NODE) == []


def test_a_node_that_went_meanwhile_is_fine_and_one_that_changed_is_not() -> None:
    world = World(NODE)
    world.fake.refuse["apply nodes"] = ObjectGone("gone")
    run_virtual(world.cleanup.remove_label(NODE))
    world.fake.refuse["apply nodes"] = Conflict("changed", code=409)
    with pytest.raises(Conflict):
        run_virtual(world.cleanup.remove_label(NODE))


def test_a_node_whose_observed_version_is_old_is_not_taken_for_one_that_is_gone() -> None:
    old = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "the object has been modified"}
    client = Client(ScriptedTransport([Answer(409, body=old)]), ClientOptions("gpu-mirage/compute-domain"))
    ownership = Ownership(client, SystemClock())
    ownership.remember(NODE)
    with pytest.raises(Conflict, match="the object has been modified"):
        run_virtual(Cleanup(client, ownership).remove_label(NODE))


def test_a_terminating_template_only_loses_its_finalizer() -> None:
    terminating = template_of(domain(), deletionTimestamp=GONE_AT)
    assert removed(World(terminating), terminating) == ["remove-finalizer resourceclaimtemplates t"]


def test_a_template_without_our_finalizer_is_deleted() -> None:
    bare = template_of(domain(), finalizers=["somebody.else/x"])
    assert removed(World(bare), bare) == ["delete resourceclaimtemplates t"]
