"""Typed values out of a free-form document, with problems that name the path."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controllers.estate.problem import Mistake, Problem


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
        return Node(self.map().get(key), f"{self.path}.{key}" if self.path else key, self.pool)

    @property
    def absent(self) -> bool:
        """Whether nothing is there; null counts as nothing, as an empty key in YAML means it."""
        return self.value is None

    def map(self) -> Mapping[str, Any]:
        """A map with names as keys; {} where it is absent. Raises Mistake."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.mistake(
                f"{shown(self.value)} is not a map with names as keys", "write it as `name: value` lines"
            )
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
            why = f"{shown(self.value)} is not a whole number from {least} to {most}"
            raise self.mistake(why, "correct the number")
        return number

    def text(self, default: str | None = None, *, most: int = 253) -> str:
        """Text of 1 to ``most`` characters. Raises Mistake."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str) or not 0 < len(self.value) <= most:
            why = f"{shown(self.value)} is not text of 1 to {most} characters"
            raise self.mistake(why, "put the value in quotes" if isinstance(self.value, int | float) else "correct it")
        return self.value

    def choice(self, choices: Iterable[str], default: str | None = None) -> str:
        """One of some words. Raises Mistake."""
        if self.value is None and default is not None:
            return default
        if self.value not in (allowed := tuple(choices)):
            raise self.mistake(f"{shown(self.value)} is not known", f"use one of {', '.join(allowed)}")
        return str(self.value)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raises Mistake for a member that means nothing here, as a misspelt one would be ignored in silence."""
        for key in self.map():
            if key not in (allowed := tuple(known)):
                raise self.get(key).mistake("this field is not known here", f"use one of {', '.join(sorted(allowed))}")


def collected(problems: list[Problem], read: Callable[[], Any]) -> Any:
    """What ``read`` gives, or None after its mistake was added to ``problems``."""
    try:
        return read()
    except Mistake as mistake:
        problems.append(mistake.problem)
        return None


def shown(value: Any) -> str:
    """A value as it is quoted to a user, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
