"""Who is a member: what claims say, what nodes say, and the indices that follow."""

import ipaddress
from collections.abc import Iterable
from typing import Any

import pytest

from controllers.api import nvidia
from controllers.api.core import POOL_LABEL, Node
from controllers.api.dra import ResourceClaim
from controllers.api.nvidia import DomainNode
from controllers.compute_domain.membership import (
    ADDRESS_PREFIX,
    BadClaim,
    ChannelClaim,
    Membership,
    Rules,
    address_of,
    channels_of,
    clique_of,
    domains_of,
    has_bad_clique_label,
    nodes_of,
    plan,
)
from tests.unit.compute_domain.world import (
    CLIQUE,
    FABRIC,
    OTHER_UID,
    UID,
    Json,
    allocated,
    claim,
    config,
    domain,
    entry,
    node,
    parameters,
    result,
)

# -- what claims say --------------------------------------------------------------------------------------------------


def found(configs: Iterable[Json], request: str = "channel") -> ChannelClaim | BadClaim | None:
    channels = channels_of(allocated([result(request=request)], list(configs)))
    assert len(channels) <= 1
    return channels[0] if channels else None


def reason(configs: Iterable[Json]) -> str:
    bad = found(configs)
    assert isinstance(bad, BadClaim)
    assert len(bad.note) < 600
    return bad.reason


OURS, THEIRS = ChannelClaim(UID, "n1"), ChannelClaim(OTHER_UID, "n1")


def test_a_claim_that_is_not_allocated_says_nothing() -> None:
    assert channels_of(ResourceClaim.decode(b'{"metadata":{"name":"c"}}')) == ()


def test_devices_of_other_drivers_say_nothing() -> None:
    other = allocated([result(driver="gpu.nvidia.com")], [config(parameters())])
    assert channels_of(other) == ()


def test_a_generated_claim_names_domain_and_node() -> None:
    assert channels_of(claim("n7")) == (ChannelClaim(UID, "n7"),)
    assert set(domains_of(claim("n7"))) == {UID}
    assert set(nodes_of(claim("n7"))) == {"n7"}


def test_each_device_counts() -> None:
    both = allocated([result("n1"), result("n2"), result("n3", driver="x")], [config(parameters())])
    assert set(nodes_of(both)) == {"n1", "n2"}
    assert set(domains_of(both)) == {UID}


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([config(parameters())], OURS),
        ([config(parameters(), "channel")], OURS),
        ([config(parameters(), "other", "channel")], OURS),
        ([config(parameters()), config(parameters(OTHER_UID))], THEIRS),
        ([config(parameters(OTHER_UID)), config(parameters(), "channel")], OURS),
        ([config(parameters()), config(parameters(OTHER_UID), "other")], OURS),
        ([config(parameters()), config(parameters(OTHER_UID), driver="gpu.nvidia.com")], OURS),
        ([config(parameters()), {"requests": []}], OURS),
    ],
)
def test_the_last_config_of_our_driver_that_covers_the_request_wins(
    configs: list[Json], expected: ChannelClaim
) -> None:
    assert found(configs) == expected


@pytest.mark.parametrize("covering", ["channel/small", "channel", None])
def test_a_chosen_alternative_is_covered_by_itself_by_its_request_and_by_all(covering: str | None) -> None:
    configs = [config(parameters(), *([covering] if covering else []))]
    assert found(configs, request="channel/small") == OURS


@pytest.mark.parametrize("covering", ["channel/large", "small", "chan"])
def test_a_chosen_alternative_is_not_covered_by_another(covering: str) -> None:
    bad = found([config(parameters(), covering)], request="channel/small")
    assert isinstance(bad, BadClaim)
    assert bad.reason == "MissingChannelConfig"


def test_daemons_are_no_members() -> None:
    daemon = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainDaemonConfig", "domainID": UID}
    assert found([config(daemon)]) is None


@pytest.mark.parametrize(
    "configs", [[], [config(parameters(), "other")], [config(parameters(), driver="x")], [config(None)]]
)
def test_a_channel_without_config_is_bad(configs: list[Json]) -> None:
    assert reason(configs) == "MissingChannelConfig"


@pytest.mark.parametrize(
    "content",
    [
        parameters(extra=1),
        parameters(domainID=5),
        parameters(allocationMode="Some"),
        parameters(allocationMode=None),
        parameters(kind="Pod"),
        parameters(kind="x" * 10_000),
        parameters(apiVersion="resource.nvidia.com/v1"),
        {key: value for key, value in parameters().items() if key != "domainID"},
        {},
        [],
        [parameters()],
        "text",
        7,
        True,
    ],
)
def test_parameters_that_the_real_driver_refuses_are_bad(content: Any) -> None:
    assert reason([config(content)]) == "InvalidChannelConfig"


def test_the_allocation_mode_may_be_left_out() -> None:
    content = {key: value for key, value in parameters().items() if key != "allocationMode"}
    assert found([config(content)]) == OURS


@pytest.mark.parametrize(
    "uid",
    [
        "",
        UID.upper(),
        "{" + UID + "}",
        "urn:uuid:" + UID,
        UID.replace("-", ""),
        UID + "\n",
        " " + UID,
        "*",
        "../../etc",
        "x" * 10_000,
        "a=b,c",
        UID[:-1] + "\u0661",
    ],
)
def test_only_the_canonical_form_of_a_uid_is_one(uid: str) -> None:
    assert reason([config(parameters(uid))]) == "InvalidDomainID"


def test_a_bad_device_does_not_spoil_a_good_one() -> None:
    configs = [config(parameters(), "good"), config(parameters("x"), "bad")]
    mixed = allocated([result("n1", "good"), result("n2", "bad")], configs)
    assert [type(channel) for channel in channels_of(mixed)] == [ChannelClaim, BadClaim]
    assert set(nodes_of(mixed)) == {"n1"}


# -- what nodes say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "clique", "bad"),
    [
        (CLIQUE, CLIQUE, False),
        (f"{FABRIC}.32766", f"{FABRIC}.32766", False),
        (f"{FABRIC}.0", f"{FABRIC}.0", False),
        ("", "", False),
        ("00000000-0000-0000-0000-000000000000.0", "", False),
        ("00000000-0000-0000-0000-000000000000.7", "", False),
        ("0", "", False),
        (".", "", False),
        ("garbage", "", True),
        (FABRIC, "", True),
        (f"{FABRIC}.", "", True),
        (f"{FABRIC}.x", "", True),
        (f"{FABRIC}.-1", "", True),
        (f"{FABRIC.replace('1', 'A')}.1", "", True),
        (f"{FABRIC}.1.2", "", True),
    ],
)
def test_the_clique_of_a_node(label: str, clique: str, bad: bool) -> None:
    labelled = node(clique=label)
    assert (clique_of(labelled), has_bad_clique_label(labelled)) == (clique, bad)


def test_addresses_are_what_they_have_always_been() -> None:
    assert address_of("node-1") == "fd67:7075:6d69:3597:1be6:e9bb:24a:8955"


def test_addresses_are_inside_the_prefix_and_differ() -> None:
    addresses = [address_of(f"rack-{number}") for number in range(5000)]
    assert len(set(addresses)) == 5000
    assert all(ipaddress.ip_address(address) in ADDRESS_PREFIX for address in addresses)


# -- the plan ---------------------------------------------------------------------------------------------------------


def planned(
    nodes: Iterable[Node],
    previous: Iterable[DomainNode] = (),
    *,
    limit: int = 18,
    admits_new: bool = True,
    gone: Iterable[str] = (),
) -> Membership:
    known: dict[str, Node | None] = {each.name: each for each in nodes}
    known.update(dict.fromkeys(gone))
    return plan(domain(), known, known, previous, Rules(POOL_LABEL, limit, admits_new))


def indices(membership: Membership) -> dict[str, int]:
    return {member.name: member.index for member in membership.members}


def refusals(membership: Membership) -> dict[str, str]:
    return {refusal.node: refusal.reason for refusal in membership.refused}


def test_new_members_get_the_smallest_indices_in_order_of_their_names() -> None:
    assert indices(planned([node("b"), node("a"), node("c")])) == {"a": 0, "b": 1, "c": 2}


def test_an_entry_says_everything_of_its_member() -> None:
    (member,) = planned([node("a", ready=False)]).members
    assert member == DomainNode(
        name="a", ip_address=address_of("a"), clique_id=CLIQUE, index=0, status=nvidia.NOT_READY
    )


def test_members_keep_their_indices_and_gaps_are_filled() -> None:
    previous = [entry("c", 0), entry("gone", 1), entry("d", 2)]
    assert indices(planned([node("a"), node("b"), node("c"), node("d")], previous)) == {"a": 1, "b": 3, "c": 0, "d": 2}


def test_each_clique_counts_for_itself() -> None:
    other = f"{FABRIC}.2"
    nodes = [node("a"), node("b", clique=other), node("c"), node("d", clique=other)]
    assert indices(planned(nodes)) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_without_a_clique_there_is_no_index_and_no_limit() -> None:
    nodes = [node(f"n{number:02}", clique="") for number in range(30)]
    membership = planned(nodes, limit=18)
    assert set(indices(membership).values()) == {-1}
    assert {member.clique_id for member in membership.members} == {""}
    assert len(membership.members) == 30


def test_a_clique_has_room_for_18_and_the_19th_is_refused() -> None:
    membership = planned([node(f"n{number:02}") for number in range(19)])
    assert sorted(indices(membership).values()) == list(range(18))
    assert refusals(membership) == {"n18": "CliqueFull"}


def test_a_newcomer_does_not_push_out_a_member_of_a_full_clique() -> None:
    members = [node(f"m{number}") for number in range(3)]
    previous = [entry(member.name, number) for number, member in enumerate(members)]
    membership = planned([node("a"), *members], previous, limit=3)
    assert indices(membership) == {"m0": 0, "m1": 1, "m2": 2}
    assert refusals(membership) == {"a": "CliqueFull"}


def test_the_first_of_two_sources_wins() -> None:
    assert indices(planned([node("a")], [entry("a", 5), entry("a", 3)])) == {"a": 5}


def test_where_two_hold_one_index_one_of_them_moves() -> None:
    assert indices(planned([node("a"), node("b")], [entry("a", 4), entry("b", 4)])) == {"a": 4, "b": 0}
    sources = [entry("a", 4), entry("b", 4), entry("b", 7)]
    assert indices(planned([node("a"), node("b")], sources)) == {"a": 4, "b": 7}


def test_an_index_beyond_the_limit_is_not_kept() -> None:
    assert indices(planned([node("a")], [entry("a", 18)])) == {"a": 0}
    assert indices(planned([node("a")], [entry("a", -1)])) == {"a": 0}


def test_a_node_that_moved_to_another_clique_starts_anew_there() -> None:
    other = f"{FABRIC}.2"
    previous = [entry("a", 7), entry("b", 0, clique=other)]
    membership = planned([node("a", clique=other), node("b", clique=other)], previous)
    assert indices(membership) == {"a": 1, "b": 0}
    assert {member.clique_id for member in membership.members} == {other}


def test_a_node_that_is_gone_is_nobody() -> None:
    assert planned([], [entry("a", 0)], gone=["a"]) == Membership(())


def test_a_node_outside_every_pool_is_refused() -> None:
    membership = planned([node("a", pool=False), node("b")])
    assert indices(membership) == {"b": 0}
    assert refusals(membership) == {"a": "NodeNotSimulated"}


def test_a_node_of_another_domain_is_refused() -> None:
    membership = planned([node("a", owner=OTHER_UID), node("b", owner=UID)])
    assert indices(membership) == {"b": 0}
    assert refusals(membership) == {"a": "NodeInOtherDomain"}
    assert OTHER_UID in membership.refused[0].note


def test_while_nobody_new_is_admitted_members_stay() -> None:
    membership = planned([node("a"), node("b")], [entry("b", 3)], admits_new=False)
    assert indices(membership) == {"b": 3}
    assert membership.refused == ()


def test_refusals_come_in_the_order_of_nodes() -> None:
    nodes = [node("c", pool=False), node("a"), node("b"), node("d", owner=OTHER_UID)]
    assert list(refusals(planned(nodes, limit=1))) == ["b", "c", "d"]
