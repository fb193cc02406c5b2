"""The tables in docs/properties name a test for each property, and the tests that pages name exist."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "properties"
NUMBERED = {"W": 22, "L": 8, "P": 13, "K": 20, "R": 22, "F": 6, "S": 14, "E": 12, "M": 9, "V": 6}
"""Groups of properties, and how many each has: queue, limiters, priorities, controller, reflector, feed of the store,
shared informer and store, election, manager, Events."""

_ROW = re.compile(r"^\| *([A-Z][0-9]+) *\|(.*)\|(.*)\|$", re.MULTILINE)
_LINK = re.compile(r"\[`?([A-Za-z0-9_]+)`?\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Row:
    """One property: where it stands, what it says, and its tests with their files."""

    page: Path
    id: str
    text: str
    tests: tuple[tuple[str, Path], ...]


def rows() -> list[Row]:
    return [
        Row(
            page,
            id_,
            text.strip(),
            tuple((name, (page.parent / file).resolve()) for name, file in _LINK.findall(links)),
        )
        for page in sorted(DOCS.glob("*.md"))
        for id_, text, links in _ROW.findall(page.read_text())
    ]


def names_in(file: Path) -> set[str]:
    found = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def test_every_property_stands_in_one_row() -> None:
    expected = {f"{group}{number}" for group, count in NUMBERED.items() for number in range(1, count + 1)}
    # A zero is for what a group holds to beside the numbered ones.
    listed = Counter(row.id for row in rows() if row.id[0] in NUMBERED and row.id[1:] != "0")

    assert expected - listed.keys() == set()
    assert listed.keys() - expected == set()
    assert {id_ for id_, count in listed.items() if count > 1} == set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_the_tests_of_a_property_exist(row: Row) -> None:
    assert row.text
    assert row.tests, f"{row.id} in {row.page.name} names no test"
    for name, file in row.tests:
        assert file.is_file(), file
        assert name in names_in(file), f"{file.name} has no {name}"


@pytest.mark.parametrize("page", sorted((DOCS.parent / "framework").glob("*.md")), ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    for name, file in _LINK.findall(page.read_text()):
        if name.startswith("test_"):
            assert name in names_in(page.parent / file), f"{file} has no {name}"
