"""Shapes of values: what a field may hold, from which random values are drawn, whole or in part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Record:
    """An object with declared fields; the required ones are always drawn."""

    required: Mapping[str, "Shape"] = field(default_factory=dict)
    optional: Mapping[str, "Shape"] = field(default_factory=dict)


@dataclass(frozen=True)
class MapOf:
    """An object with free keys."""

    keys: tuple[str, ...]
    value: "Shape"


@dataclass(frozen=True)
class ListMap:
    """A list of objects that differ in their keys, each of which is one of ``keys``."""

    keys: tuple[Mapping[str, Any], ...]
    item: Record = Record()
    least: int = 0


@dataclass(frozen=True)
class ListOf:
    """A list of any values, ``distinct`` where it is a set."""

    item: "Shape"
    least: int = 0
    most: int = 3
    distinct: bool = False


Shape = Choice | Record | MapOf | ListMap | ListOf


def choice(*values: Any) -> Choice:
    return Choice(values)


def named(*names: str, **fields: Shape) -> ListMap:
    """A list of objects with a unique ``name``."""
    return ListMap(tuple({"name": name} for name in names), Record({}, fields))


def draw(random: Random, shape: Shape, density: float = 0.5) -> Any:
    """A value; ``density`` is how likely each optional part of it is there."""
    match shape:
        case Choice(values):
            return random.choice(values)
        case Record(required, optional):
            picked = [*required.items(), *(entry for entry in optional.items() if random.random() < density)]
            return {name: draw(random, part, density) for name, part in picked}
        case MapOf(keys, value):
            return {key: draw(random, value, density) for key in keys if random.random() < density}
        case ListMap(keys, item, least):
            count = max(least, sum(random.random() < density for _ in keys))
            return [{**key, **draw(random, item, density)} for key in random.sample(keys, count)]
        case ListOf(item, least, most, distinct):
            items: list[Any] = []
            for _ in range(random.randint(least, most)):
                value = draw(random, item, density)
                if not (distinct and value in items):
                    items.append(value)
            return items


def places(value: Any, path: str = "") -> list[str]:
    """The JSON pointers of all values inside a value."""
    if isinstance(value, dict):
        below = [(f"{path}/{_escaped(name)}", member) for name, member in value.items()]
    elif isinstance(value, list):
        below = [(f"{path}/{index}", item) for index, item in enumerate(value)]
    else:
        below = []
    return [place for at, member in below for place in (at, *places(member, at))]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def mutated(random: Random, value: Any, replacement: Any) -> Any:
    """A copy of a value in which one random part is replaced."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        name = random.choice(list(value))
        return {**value, name: mutated(random, value[name], replacement)}
    if isinstance(value, list) and value and random.random() < 0.7:
        index = random.randrange(len(value))
        return [*value[:index], mutated(random, value[index], replacement), *value[index + 1 :]]
    return replacement
