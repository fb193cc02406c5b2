"""YAML as users write it: what it means, where it is refused, and what is twice."""

import math
from typing import Any

import pytest

from controllers.estate.document import MAX_DEPTH, MAX_VALUES, Duplicate, Unreadable, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1", {"a": 1}),
        (
            "[1, 1.5, true, no, null, ~, '', x, '1', \"2\", 0x10, 010, 1_000]",
            [1, 1.5, True, False, None, None, "", "x", "1", "2", 16, 8, 1000],
        ),
        ("[2020-01-01, !!str 1, ! 2, '~', =, <<, 0x_]", ["2020-01-01", "1", "2", "~", "=", "<<", "0x_"]),
        ("[1e3, 1.0e+3, .inf]", ["1e3", 1000.0, math.inf]),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("{1: a, on: b, ~: c, 2020-01-01: d, 'e': f}", {"1": "a", "on": "b", "~": "c", "2020-01-01": "d", "e": "f"}),
        ("[&a [1], *a, *a]", [[1], [1], [1]]),
        ("{&k a: 1, b: *k, *k : 2}", {"a": 2, "b": "a"}),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}", {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}),
        ("y: {b: 3, <<: [{a: 1}, {a: 2, c: 4}]}", {"y": {"a": 1, "b": 3, "c": 4}}),
        ("{<<: {a: 1}, <<: {a: 2, b: 3}}", {"a": 1, "b": 3}),
        ("{'<<': 1}", {"<<": 1}),
        ("9" * 257, "9" * 257),
        ("!!map {a: !!seq [b]}", {"a": ["b"]}),
        ("# only\n---\na: 1\n...\n", {"a": 1}),
    ],
)
def test_values_are_plain(text: str, value: Any) -> None:
    assert read(text).value == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "line "),
        ("a\n\tb: c", "line"),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document"),
        ("a: *b", "line 1, column 4: nothing that is complete is called b"),
        ("&a [*a]", "nothing that is complete is called a"),
        ("{[a]: 1}", "line 1, column 2: a name is not text"),
        ("{? {a: 1} : 1}", "a name is not text"),
        ("{&a 1: &b [], *b : 1}", "a name is not text"),
        ("!!python/object:os.system {}", "the tag tag:yaml.org,2002:python/object:os.system is not known"),
        ("!!binary aGk=", "tag"),
        ("!!int x", "tag"),
        ("!!set {a}", "tag"),
        ("{<<: 1}", "<< needs a map"),
        ("{<<: [{}, x]}", "<< needs a map"),
        ("\x00", "character"),
        ("\ud800", ""),
        ("!<" + "x" * 10_000 + "> a", "..."),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, part: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert part in str(caught.value)
    assert len(str(caught.value)) < 250


def test_names_that_are_twice_are_found_with_path_and_line() -> None:
    document = read("a:\n- x\n- b: 1\n  c: 2\n  b: 3\nd: 1\nd: 2\n")
    assert document.value == {"a": ["x", {"b": 3, "c": 2}], "d": 2}
    assert document.duplicates == (Duplicate(("a", 1, "b"), 5), Duplicate(("d",), 7))


def test_a_name_that_replaces_a_merged_one_is_not_twice() -> None:
    assert read("x: &x {a: 1}\ny: {<<: *x, a: 2}\nz: {a: 2, <<: *x}").duplicates == ()


def test_levels_are_bounded_with_those_behind_aliases() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH).value
    with pytest.raises(Unreadable, match="levels"):
        read("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    half = "[" * 40 + "]" * 40
    assert read(f"- &a {half}\n- [*a]").value
    with pytest.raises(Unreadable, match="levels"):
        read(f"- &a {half}\n- &b {'[' * 20}*a{']' * 20}\n- {'[' * 10}*b{']' * 10}")


def test_values_are_bounded_with_those_behind_aliases() -> None:
    thousand = f"[{'0,' * 999}]"
    repeats = MAX_VALUES // 1000 - 1
    assert len(read(f"- &a {thousand}\n" + "- *a\n" * (repeats - 1)).value) == repeats
    with pytest.raises(Unreadable, match="values"):
        read(f"- &a {thousand}\n" + "- *a\n" * (repeats + 1))
