"""Sets of field paths obey the laws of sets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.sandbox import fieldset
from controllers.sandbox.fieldset import FieldSet, Path

ELEMENTS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
PATHS = st.sets(st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple), max_size=6)


def members(tree: FieldSet) -> set[Path]:
    return set(fieldset.paths(tree))


@given(PATHS)
def test_a_set_has_the_paths_that_it_was_made_of(paths: set[Path]) -> None:
    assert members(fieldset.of(*paths)) == paths


@given(PATHS, PATHS)
def test_union_difference_and_intersection_are_those_of_sets(left: set[Path], right: set[Path]) -> None:
    one, two = fieldset.of(*left), fieldset.of(*right)
    assert members(fieldset.union(one, two)) == left | right
    assert members(fieldset.difference(one, two)) == left - right
    assert members(fieldset.intersection(one, two)) == left & right
    assert (one, two) == (fieldset.of(*left), fieldset.of(*right)), "an operation changed its argument"


@given(PATHS, PATHS)
def test_an_excluded_path_stands_for_all_below_it(left: set[Path], excluded: set[Path]) -> None:
    kept = {path for path in left if not any(path[: len(prefix)] == prefix for prefix in excluded)}
    assert members(fieldset.without(fieldset.of(*left), fieldset.of(*excluded))) == kept


@given(PATHS)
def test_what_is_written_is_read_back(paths: set[Path]) -> None:
    tree = fieldset.of(*paths)
    assert fieldset.parse(fieldset.canonical(tree)) == tree


def test_elements_stand_in_the_order_of_the_server() -> None:
    tree = fieldset.of(('v:"a"',), ("f:b",), ('k:{"a":1}',), ("f:a",), ("f:a", "f:z"))
    assert list(fieldset.canonical(tree)) == ["f:a", "f:b", 'k:{"a":1}', 'v:"a"']
    assert list(fieldset.canonical(tree)["f:a"]) == [".", "f:z"]


def test_a_path_reads_as_in_messages() -> None:
    path = ("f:spec", "f:ports", fieldset.key_element({"protocol": "TCP", "containerPort": 80}), "f:name")
    assert fieldset.describe(path) == '.spec.ports[containerPort=80,protocol="TCP"].name'
    assert fieldset.describe(("f:finalizers", fieldset.value_element("a/b"))) == '.finalizers[="a/b"]'


@pytest.mark.parametrize("fields", [{"x:a": {}}, {"a": {}}, {"f:a": 1}, {"f:a": {"": {}}}])
def test_what_is_no_path_element_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="error decoding set"):
        fieldset.parse(fields)
