"""What pods ask for."""

from decimal import Decimal

import pytest

from controllers.sandbox.stand_in.kinds import Pod
from controllers.sandbox.stand_in.refusal import Refusal
from controllers.sandbox.stand_in.resources import check_room, requested
from tests.unit.sandbox.stand_in.objects import meta, pod


def test_containers_add_up_and_limits_stand_in_for_requests() -> None:
    first = {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "example.com/gpu": "1"}}}
    second = {"resources": {"limits": {"cpu": "1"}}}
    whole = Pod(metadata=meta("p"), spec={"containers": [first, second], "overhead": {"cpu": "100m"}})
    assert requested(whole) == {"cpu": Decimal("1.6"), "example.com/gpu": 1, "pods": 1}


def test_init_containers_count_one_at_a_time_but_for_those_that_stay() -> None:
    def container(cpu: str, **more: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    initial = [container("3"), container("1", restartPolicy="Always"), container("4")]
    assert requested(pod("p", requests={"cpu": "2"}, initContainers=initial))["cpu"] == 5
    assert requested(pod("p", requests={"cpu": "5"}, initContainers=initial))["cpu"] == 6


def test_requests_of_the_pod_itself_come_first() -> None:
    assert requested(pod("p", requests={"cpu": "2"}, resources={"requests": {"cpu": "1"}}))["cpu"] == 1


def test_unreadable_quantity_is_named() -> None:
    with pytest.raises(ValueError, match=r"resource cpu: 'much' is not a quantity"):
        requested(pod("p", requests={"cpu": "much"}))


def test_everything_that_lacks_is_named_and_what_is_not_asked_for_does_not_matter() -> None:
    wanted = {"cpu": Decimal(2), "example.com/gpu": Decimal(1), "memory": Decimal(0), "pods": Decimal(1)}
    check_room(wanted, {"cpu": Decimal(6)}, {"cpu": "8", "example.com/gpu": "1", "pods": "1"})
    with pytest.raises(Refusal) as refusal:
        check_room(wanted, {"cpu": Decimal(7), "pods": Decimal(1)}, {"cpu": "8", "pods": "1"})
    assert refusal.value.reasons == ("Insufficient cpu", "Insufficient example.com/gpu", "Too many pods")
