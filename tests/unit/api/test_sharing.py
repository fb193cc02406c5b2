"""Equal parts of many objects are kept once."""

from controllers.api.core import Container, PodStatus, Resources
from controllers.api.sharing import KNOWN, shared
from controllers.api.topology import Attribute, Zone


def container(cpu: str) -> Container:
    return Container(resources=Resources(requests={"cpu": cpu}))


def test_equal_values_become_one() -> None:
    first, second = shared((container("1"), container("2"))), shared((container("1"), container("2")))

    assert first is second
    assert first == (container("1"), container("2"))
    assert shared(PodStatus(phase="Running")) is shared(PodStatus(phase="Running"))


def test_what_differs_stays_different() -> None:
    values = [(container("1"),), (container("2"),), (container("1"), container("1")), ()]

    assert [shared(value) for value in values] == values


def test_values_of_different_types_are_not_mixed_up_where_they_are_written_alike() -> None:
    assert shared((Attribute(name="a"),)) == (Attribute(name="a"),)
    assert shared((Zone(name="a"),)) == (Zone(name="a"),)
    assert shared(Container()) == Container()
    assert shared(Resources()) == Resources()


def test_a_value_that_was_forgotten_is_taken_as_it_comes() -> None:
    first = shared((container("first"),))
    for number in range(KNOWN):
        shared((container(f"{number}"),))

    again = shared((container("first"),))

    assert again == first
    assert again is not first
