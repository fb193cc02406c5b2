"""Telling the owners of claims what is wrong with them."""

import pytest

from controllers.api.dra import ResourceClaim
from controllers.compute_domain.claims import ClaimChecker
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.runtime import Key, KubeObject
from controllers.runtime.reconcile import DONE
from controllers.runtime.testing import run_virtual
from tests.unit.compute_domain.world import OTHER_UID, World, allocated, claim, config, domain, parameters, result


def told(checked: ResourceClaim, *others: KubeObject, options: ComputeDomainOptions | None = None) -> list[str]:
    world = World(checked, *others)
    options = options or ComputeDomainOptions()
    checker = ClaimChecker(world.caches.claims, world.caches.domains, world.recorder, options)
    assert run_virtual(checker.reconcile(checked.key)) == DONE
    assert world.fake.calls == []
    assert all(event.obj == checked and event.type == "Warning" for event in world.recorder.events)
    return world.reasons


@pytest.mark.parametrize(
    ("checked", "reasons"),
    [
        (claim(), []),
        (claim(uid=OTHER_UID), ["UnknownDomain"]),
        (claim(namespace="b"), ["DomainInOtherNamespace"]),
        (allocated([result()], []), ["MissingChannelConfig"]),
        (allocated([result()], [config(parameters("x"))]), ["InvalidDomainID"]),
        (allocated([result("n1"), result("n2")], [config({})]), ["InvalidChannelConfig", "InvalidChannelConfig"]),
        (allocated([result(driver="gpu.nvidia.com")], []), []),
    ],
)
def test_each_fault_is_told_once_and_a_good_claim_hears_nothing(checked: ResourceClaim, reasons: list[str]) -> None:
    assert told(checked, domain()) == reasons


def test_claims_of_domains_that_others_serve_hear_nothing() -> None:
    bad = allocated([result()], [config({})])
    elsewhere = ComputeDomainOptions(namespaces=frozenset({"b"}))
    assert told(bad, options=elsewhere) == told(claim(uid=OTHER_UID), options=elsewhere) == []
    assert told(claim(uid=OTHER_UID), options=ComputeDomainOptions(domain_selector="team=x")) == []
    assert told(bad, options=ComputeDomainOptions(domain_selector="team=x")) == ["InvalidChannelConfig"]


def test_a_claim_that_is_gone_or_going_hears_nothing() -> None:
    going = ResourceClaim.decode(
        b'{"metadata":{"name":"c","namespace":"a","deletionTimestamp":"2030-01-01T00:00:00Z"},"status":{"allocation":'
        b'{"devices":{"results":[{"request":"r","driver":"compute-domain.nvidia.com","pool":"n","device":"d"}]}}}}'
    )
    assert told(going) == []
    world = World()
    checker = ClaimChecker(world.caches.claims, world.caches.domains, world.recorder, ComputeDomainOptions())
    assert run_virtual(checker.reconcile(Key("a", "nowhere"))) == DONE
    assert world.reasons == []
