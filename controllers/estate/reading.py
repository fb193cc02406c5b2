"""Typed values out of a free-form document, with problems that name the path."""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from controllers.estate.document import Duplicate
from controllers.estate.problem import Mistake, Problem

T = TypeVar("T")

MAX_SHOWN = 60  # characters of what is quoted to a user


class Node:
    """A place in a document: the value there, and the path that leads to it."""

    def __init__(self, value: Any, path: str, pool: str = "") -> None:
        self.value = value
        self.path = path
        self.pool = pool

    def mistake(self, why: str, fix: str) -> Mistake:
        """What is wrong with this very place."""
        return Mistake(Problem(self.path, why, fix, self.pool))

    def get(self, key: str) -> "Node":
        """The member of a map; its value is None where there is none. Raises Mistake where this is no map."""
        return Node(self.map().get(key), joined(self.path, key), self.pool)

    @property
    def absent(self) -> bool:
        """Whether nothing is there; null counts as nothing, as an empty key in YAML means it."""
        return self.value is None

    def map(self) -> Mapping[str, Any]:
        """A map; {} where it is absent. Raises Mistake."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.mistake(f"{shown(self.value)} is not a map", "write it as `name: value` lines")
        return self.value

    def list(self) -> "list[Node]":
        """The elements of a list; none where it is absent. Raises Mistake."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.mistake(f"{shown(self.value)} is not a list", "write it as `- value` lines")
        return [Node(item, f"{self.path}[{index}]", self.pool) for index, item in enumerate(self.value)]

    def whole_number(self, least: int, most: int, default: int | None = None) -> int:
        """A number from ``least`` to ``most``; a float that is whole counts. Raises Mistake."""
        if self.value is None and default is not None:
            return default
        number = self.value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise self._wrong(f"a whole number from {least} to {most}", "correct the number")
        return number

    def text(self, default: str | None = None, *, most: int = 253) -> str:
        """Text of 1 to ``most`` characters; empty text counts as absent. Raises Mistake."""
        if self.value in (None, "") and default is not None:
            return default
        if not isinstance(self.value, str) or not 0 < len(self.value) <= most:
            quotes = isinstance(self.value, int | float)
            raise self._wrong(f"text of 1 to {most} characters", "put the value in quotes" if quotes else "correct it")
        return self.value

    def choice(self, choices: Iterable[str], default: str | None = None) -> str:
        """One of some words; empty text counts as absent. Raises Mistake."""
        if self.value in (None, "") and default is not None:
            return default
        if self.value not in (allowed := tuple(choices)):
            raise self.mistake(f"{shown(self.value)} is not known", f"use one of {', '.join(allowed)}")
        return str(self.value)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raises Mistake for a member that means nothing here, as a misspelt one would be ignored in silence."""
        allowed = sorted(known)
        for key in self.map():
            if key not in allowed:
                raise self.get(key).mistake("this field is not known here", f"use one of {', '.join(allowed)}")

    def _wrong(self, wanted: str, fix: str) -> Mistake:
        if self.value is None:
            return self.mistake(f"it is missing, and has to be {wanted}", "add it")
        return self.mistake(f"{shown(self.value)} is not {wanted}", fix)


def joined(path: str, key: str) -> str:
    """A path with one more name, which is quoted where it does not look like one."""
    name = key if key.isprintable() and 0 < len(key) <= MAX_SHOWN and " " not in key else shown(key)
    return f"{path}.{name}" if path else name


def twice(duplicate: Duplicate, pool: str, document: str = "") -> Mistake:
    """That a name is there twice in a map, of which readers of YAML would take either."""
    path = document
    for name in duplicate.path:
        path = joined(path, name) if isinstance(name, str) else f"{path}[{name}]"
    return Mistake(Problem(path, f"it is there twice, again in line {duplicate.line}", "keep one of them", pool))


class Attempts:
    """Reads several places, and goes on where there is a mistake in one of them."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}  # each once, as several readers may meet the same one

    def __call__(self, read: Callable[[], T], otherwise: T) -> T:
        """What ``read`` gives, or ``otherwise`` after a mistake."""
        try:
            return read()
        except Mistake as mistake:
            self._problems.update(dict.fromkeys(mistake.problems))
            return otherwise

    def finish(self) -> None:
        """Raises Mistake with all that was found."""
        if self._problems:
            raise Mistake(*self._problems)


def collected(problems: list[Problem], read: Callable[[], T]) -> T | None:
    """What ``read`` gives, or None after its mistakes were added to ``problems``."""
    try:
        return read()
    except Mistake as mistake:
        problems += mistake.problems
        return None


_QUOTING = reprlib.Repr()
_QUOTING.maxlevel = 2
_QUOTING.maxstring = _QUOTING.maxlong = _QUOTING.maxother = MAX_SHOWN


def shown(value: Any) -> str:
    """A value as it is quoted to a user, cut where it is long; a large one is never written out before it is cut."""
    text = _QUOTING.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
