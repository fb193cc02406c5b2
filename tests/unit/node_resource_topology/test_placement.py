"""Which zones pods take what they need from."""

from collections.abc import Mapping, Sequence

import pytest

from controllers.node_resource_topology.demand import Amount, Demand
from controllers.node_resource_topology.placement import Placement, left_over, place

ALIGNED = ["single-numa-node", "restricted", "best-effort"]
TWO = [Amount(4, 16_000, 64), Amount(4, 16_000, 64)]


def demand(uid: str, *containers: Amount) -> Demand:
    return Demand(uid, containers)


def gpus(uid: str, *counts: int) -> Demand:
    return Demand(uid, tuple(Amount(gpus=count) for count in counts))


def placed(
    zones: Sequence[Amount],
    *demands: Demand,
    kept: Mapping[str, Placement] | None = None,
    policy: str = "single-numa-node",
    scope: str = "container",
) -> dict[str, Placement]:
    return place(zones, demands, kept or {}, policy=policy, scope=scope)


def of_gpus(*counts: int) -> list[Amount]:
    return [Amount(gpus=count) for count in counts]


def counts(placement: Placement) -> dict[int, int]:
    return {index: amount.gpus for index, amount in placement.items()}


# -- where a new pod goes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALIGNED)
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_container_goes_into_the_lowest_zone_that_has_room_for_all_of_it(policy: str, scope: str) -> None:
    zones = [Amount(1, 16_000, 64), Amount(4, 1_000, 64), Amount(4, 16_000, 64), Amount(4, 16_000, 64)]

    found = placed(zones, demand("a", Amount(2, 8_000, 16)), policy=policy, scope=scope)

    assert found == {"a": {2: Amount(2, 8_000, 16)}}


def test_without_a_policy_each_resource_goes_where_there_is_room_for_it() -> None:
    zones = [Amount(1, 16_000, 64), Amount(4, 1_000, 8)]

    found = placed(zones, demand("a", Amount(2, 8_000, 16)), policy="none")

    assert found == {"a": {0: Amount(0, 8_000, 16), 1: Amount(gpus=2)}}


def test_containers_are_aligned_one_by_one_and_pods_as_a_whole() -> None:
    zones = of_gpus(3, 4)

    assert counts(placed(zones, gpus("a", 2, 2), scope="container")["a"]) == {0: 2, 1: 2}
    assert counts(placed(zones, gpus("a", 2, 2), scope="pod")["a"]) == {1: 4}


def test_containers_of_a_pod_do_not_get_the_same_gpus() -> None:
    assert counts(placed(of_gpus(4, 4), gpus("a", 2, 2, 2))["a"]) == {0: 4, 1: 2}


def test_pods_are_placed_in_their_order() -> None:
    found = placed(of_gpus(4, 4), gpus("a", 3), gpus("b", 3), gpus("c", 1), gpus("d", 1))

    assert {uid: counts(placement) for uid, placement in found.items()} == {
        "a": {0: 3},
        "b": {1: 3},
        "c": {0: 1},
        "d": {1: 1},
    }


def test_uneven_zones_are_used_as_they_are() -> None:
    found = placed(of_gpus(6, 2), gpus("a", 2), gpus("b", 5), gpus("c", 1))

    # b fits into no zone any more, although there are as many GPUs.
    assert [counts(found[uid]) for uid in "abc"] == [{0: 2}, {0: 4, 1: 1}, {1: 1}]


@pytest.mark.parametrize("policy", [*ALIGNED, "none"])
def test_what_fits_into_no_zone_takes_from_the_fewest_that_have_room(policy: str) -> None:
    assert counts(placed(of_gpus(1, 2, 4), gpus("a", 5), policy=policy)["a"]) == {0: 1, 2: 4}
    assert counts(placed(of_gpus(1, 2, 4), gpus("a", 7), policy=policy)["a"]) == {0: 1, 1: 2, 2: 4}


def test_among_as_many_zones_the_lowest_are_taken() -> None:
    assert counts(placed(of_gpus(0, 2, 2, 2), gpus("a", 4))["a"]) == {1: 2, 2: 2}
    assert counts(placed(of_gpus(2, 0, 0, 2), gpus("a", 4))["a"]) == {0: 2, 3: 2}


@pytest.mark.parametrize("zones", [8, 9, 64])
def test_many_zones_are_no_burden(zones: int) -> None:
    pods = [gpus(f"p{number}", 3) for number in range(zones // 2)]

    found = placed(of_gpus(*[2] * zones), *pods)

    assert sum(sum(counts(placement).values()) for placement in found.values()) == 3 * len(pods)
    assert counts(found["p0"]) == {0: 2, 1: 1}


def test_a_pod_for_which_there_is_no_room_gets_what_there_is() -> None:
    found = placed(of_gpus(2, 1), gpus("a", 8), gpus("b", 1))

    assert (counts(found["a"]), found["b"]) == ({0: 2, 1: 1}, {})


def test_a_lack_of_one_resource_does_not_scatter_the_others() -> None:
    zones = [Amount(4, 16_000, 1), Amount(4, 16_000, 1)]

    found = placed(zones, demand("a", Amount(4, 8_000, 100)))

    assert found == {"a": {0: Amount(4, 8_000, 1), 1: Amount(memory=1)}}


# -- where a pod stays ------------------------------------------------------------------------------------------------


def test_a_pod_stays_where_it_is_when_another_leaves() -> None:
    before = placed(of_gpus(4, 4), gpus("a", 4), gpus("b", 3))

    after = placed(of_gpus(4, 4), gpus("b", 3), gpus("c", 1), kept=before)

    assert {uid: counts(placement) for uid, placement in after.items()} == {"b": {1: 3}, "c": {0: 1}}


def test_an_older_pod_that_comes_later_does_not_move_the_younger_one() -> None:
    before = placed(of_gpus(4, 4), gpus("young", 4))

    after = placed(of_gpus(4, 4), gpus("old", 4), gpus("young", 4), kept=before)

    assert {uid: counts(placement) for uid, placement in after.items()} == {"old": {1: 4}, "young": {0: 4}}


@pytest.mark.parametrize(
    "kept",
    [
        {7: Amount(gpus=3)},
        {0: Amount(gpus=5)},
        {0: Amount(gpus=4)},
        {0: Amount(gpus=1, memory=1)},
        {},
    ],
    ids=["no such zone", "more than there is", "more than it asks for", "another resource", "nothing"],
)
def test_a_placement_that_no_longer_holds_is_decided_anew(kept: Placement) -> None:
    assert counts(placed(of_gpus(4, 4), gpus("a", 3), kept={"a": kept})["a"]) == {0: 3}


def test_a_pod_that_asks_for_more_keeps_what_it_has() -> None:
    assert counts(placed(of_gpus(4, 4), gpus("a", 3), kept={"a": {1: Amount(gpus=2)}})["a"]) == {0: 1, 1: 2}


def test_two_pods_that_claim_the_same_gpus_do_not_both_keep_them() -> None:
    kept = {"a": {0: Amount(gpus=3)}, "b": {0: Amount(gpus=3)}}

    found = placed(of_gpus(4, 4), gpus("a", 3), gpus("b", 3), kept=kept)

    assert [counts(found[uid]) for uid in "ab"] == [{0: 3}, {1: 3}]


def test_what_is_left_over_is_what_no_pod_has() -> None:
    found = placed(TWO, demand("a", Amount(3, 8_000, 16)), demand("b", Amount(1, 16_000, 64)))

    assert left_over(TWO, found.values()) == [Amount(1, 8_000, 48), Amount(3, 0, 0)]
