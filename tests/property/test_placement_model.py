"""Whatever pods come and go, no zone gives more than it has, nothing is lost, and nobody is moved."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from controllers.node_resource_topology import record
from controllers.node_resource_topology.demand import Amount, Demand, total
from controllers.node_resource_topology.placement import Placement, left_over, place

NAMES = "abcdefgh"
AMOUNTS = st.builds(Amount, st.integers(0, 5), st.integers(0, 4).map(lambda cores: cores * 1000), st.integers(0, 6))
ZONES = st.lists(AMOUNTS, min_size=1, max_size=4) | st.lists(AMOUNTS, min_size=9, max_size=10)
CONTAINERS = st.lists(AMOUNTS.filter(Amount().__ne__), min_size=1, max_size=3).map(tuple)
PODS = st.dictionaries(st.sampled_from(NAMES), CONTAINERS, max_size=6)
POLICIES = st.sampled_from(["single-numa-node", "restricted", "best-effort", "none"])
SCOPES = st.sampled_from(["container", "pod"])
RECORDS = st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.integers(0, 11), AMOUNTS, max_size=3), max_size=4)

Pods = Mapping[str, tuple[Amount, ...]]


def demands(pods: Pods) -> list[Demand]:
    return [Demand(uid, containers) for uid, containers in pods.items()]


def at_most(one: Amount, other: Amount) -> bool:
    return other.covers(one)


@given(ZONES, PODS, RECORDS, POLICIES, SCOPES)
def test_zones_give_what_is_asked_for_as_long_as_there_is_any_and_never_more(
    zones: list[Amount], pods: Pods, kept: dict[str, Placement], policy: str, scope: str
) -> None:
    placements = place(zones, demands(pods), kept, policy=policy, scope=scope)

    available = left_over(zones, placements.values())

    assert all(at_most(Amount(), free) and at_most(free, zone) for free, zone in zip(available, zones, strict=True))
    asked = total(demand.whole for demand in demands(pods))
    assert total(available) == total(zones) - asked.up_to(total(zones))
    assert all(at_most(total(placements[demand.uid].values()), demand.whole) for demand in demands(pods))
    assert list(placements) == list(pods)


@given(ZONES, PODS, RECORDS, POLICIES, SCOPES)
def test_what_is_recorded_is_found_again(
    zones: list[Amount], pods: Pods, kept: dict[str, Placement], policy: str, scope: str
) -> None:
    placements = place(zones, demands(pods), kept, policy=policy, scope=scope)

    recorded = record.read(record.written(placements))

    assert recorded == placements
    assert place(zones, demands(pods), recorded, policy=policy, scope=scope) == placements


@given(ZONES, st.lists(PODS, min_size=2, max_size=5), POLICIES, SCOPES)
def test_a_pod_keeps_what_it_has_whatever_comes_and_goes_beside_it(
    zones: list[Amount], history: list[Pods], policy: str, scope: str
) -> None:
    before: dict[str, Placement] = {}
    earlier: Pods = {}
    for pods in history:
        after = place(zones, demands(pods), before, policy=policy, scope=scope)
        for uid in pods:
            if earlier.get(uid) == pods[uid]:
                assert all(at_most(amount, after[uid].get(index, Amount())) for index, amount in before[uid].items())
        before, earlier = after, pods


@given(ZONES, CONTAINERS, PODS, SCOPES)
def test_a_pod_is_in_one_zone_where_one_has_room_for_it(
    zones: list[Amount], containers: tuple[Amount, ...], others: Pods, scope: str
) -> None:
    present = place(zones, demands(others), {}, policy="single-numa-node", scope=scope)
    free = left_over(zones, present.values())
    newcomer = Demand("new", containers)
    fitting = [index for index, zone in enumerate(free) if zone.covers(newcomer.whole)]

    found = place(zones, [*demands(others), newcomer], present, policy="single-numa-node", scope=scope)["new"]

    if fitting and scope == "pod":
        assert found == {fitting[0]: newcomer.whole}
    elif fitting and len(containers) == 1:
        assert found == {fitting[0]: containers[0]}
