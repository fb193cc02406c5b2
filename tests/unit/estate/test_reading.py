"""Typed values out of free-form ones."""

from typing import Any

import pytest

from controllers.estate.problem import Mistake, Problem
from controllers.estate.reading import Node, collected, joined, shown


def problem(read: Any) -> Problem:
    with pytest.raises(Mistake) as caught:
        read()
    return caught.value.problem


def test_paths_lead_to_the_value() -> None:
    top = Node({"a": [{"b": 1}]}, "", "p")
    place = top.get("a").list()[0].get("b")
    assert (place.value, place.path, place.pool) == (1, "a[0].b", "p")


@pytest.mark.parametrize(
    ("key", "path"),
    [("b", "a.b"), ("example.com/nic", "a.example.com/nic"), ("", "a.''"), ("b c", "a.'b c'"), ("b\n", r"a.'b\n'")],
)
def test_names_that_do_not_look_like_names_are_quoted_in_paths(key: str, path: str) -> None:
    assert joined("a", key) == path


def test_nothing_reads_as_an_empty_map_and_an_empty_list() -> None:
    nothing = Node(None, "a")
    assert (nothing.map(), nothing.list(), nothing.get("b").absent) == ({}, [], True)


@pytest.mark.parametrize(("value", "number"), [(3, 3), (3.0, 3), (None, 7)])
def test_a_whole_number_may_be_a_float(value: Any, number: int) -> None:
    assert Node(value, "a").whole_number(0, 9, default=7) == number


@pytest.mark.parametrize("value", [-1, 10, 2.5, float("nan"), float("inf"), 1e300, True, "3", [], {}, 10**300])
def test_other_values_are_no_whole_number(value: Any) -> None:
    found = problem(lambda: Node(value, "a").whole_number(0, 9, default=7))
    assert found.path == "a"
    assert found.why.endswith("is not a whole number from 0 to 9")


def test_what_is_missing_is_said_to_be_missing() -> None:
    for read in (lambda: Node(None, "a").whole_number(0, 9), lambda: Node(None, "a").text()):
        assert problem(read).why.startswith("it is missing")


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (12.4, "put the value in quotes"),
        (12, "put the value in quotes"),
        ("", "correct it"),
        ([], "correct it"),
        ("x" * 254, "correct it"),
    ],
)
def test_other_values_are_no_text(value: Any, fix: str) -> None:
    assert problem(lambda: Node(value, "a").text()).fix == fix


def test_empty_text_counts_as_absent_where_there_is_a_default() -> None:
    assert Node("", "a").text("x") == "x"
    assert Node("", "a").choice(("x", "y"), "y") == "y"


@pytest.mark.parametrize("value", ["z", 1, [], {}, None, True])
def test_a_choice_is_one_of_its_words(value: Any) -> None:
    assert problem(lambda: Node(value, "a").choice(("x", "y"))).fix == "use one of x, y"


def test_a_field_that_is_not_known_is_refused_by_its_path() -> None:
    found = problem(lambda: Node({"x": 1, "z": 2}, "a").refuse_unknown(("y", "x")))
    assert str(found) == "a.z: this field is not known here: use one of x, y"


def test_a_mistake_is_collected_and_anything_else_is_not_swallowed() -> None:
    problems: list[Problem] = []
    assert collected(problems, lambda: 5) == 5
    assert collected(problems, lambda: Node("x", "a").map()) is None
    assert [found.path for found in problems] == ["a"]
    with pytest.raises(ZeroDivisionError):
        collected(problems, lambda: 1 // 0)


def test_a_value_is_cut_where_it_is_long() -> None:
    nested: Any = [1]
    for _ in range(60):
        nested = [nested] * 9
    for value in ("x" * 10**6, {"k" * 500: 1}, list(range(10**5)), 10**300, nested):
        assert len(shown(value)) <= 60
    assert shown({"a": [1]}) == "{'a': [1]}"
