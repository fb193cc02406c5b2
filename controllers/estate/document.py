"""YAML as users write it, read into plain values within bounds.

Unlike YAML readers in general this one finds names that are there twice, takes every name for text as it is written
(a pool may be called 1 or on), and ends early where a document is made to exhaust whoever reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

MAX_VALUES = 100_000
"""Values of a document, counted again wherever an alias repeats them. 1,000 pools of all fields have some 30,000."""

MAX_DEPTH = 64  # of values in each other
MAX_NUMBER = 256  # characters; what is longer is text

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()
_CONSTRUCTOR: Any = yaml.constructor.SafeConstructor()
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = (None, "!", f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq")


Path = tuple[str | int, ...]
"""Names in maps and positions in lists, from the top."""


class Unreadable(ValueError):
    """The text is not YAML, or not what is read here; the message has the line."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A name that is there twice in one map."""

    path: Path  # to the second of them, from the top
    line: int  # from 1


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a text: of maps with text as keys, lists, text, numbers, booleans and None."""

    value: Any
    duplicates: tuple[Duplicate, ...] = ()


@dataclass(frozen=True, slots=True)
class _Anchored:
    value: Any
    size: int  # values
    height: int  # levels below it


def read(text: str) -> Document:
    """The document in a text. Raises Unreadable."""
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        raise Unreadable(f"{_place(error.problem_mark)}{_brief(str(error.problem))}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise Unreadable(_brief(str(error))) from None


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def _brief(text: str) -> str:
    """The first line of what a parser says, cut where it quotes too much."""
    line = text.partition("\n")[0]
    return line if len(line) <= 120 else f"{line[:117]}..."


class _Reader:
    """Makes values out of parser events, which come one by one: nothing is read beyond a bound that is passed."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, _Anchored] = {}
        self._duplicates: list[Duplicate] = []
        self._values = 0
        self._deepest = 0

    def document(self) -> Document:
        next(self._events)  # the stream starts
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return Document(None)
        value = self._value(next(self._events), ())
        next(self._events)  # the document ends
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _unreadable(after, "a second document starts here")
        return Document(value, tuple(self._duplicates))

    def _value(self, event: Any, path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        before, outer = self._values, self._deepest
        self._deepest = 0
        self._admit(event, path, 1, 0)
        value = self._content(event, path)
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(value, self._values - before, self._deepest - len(path))
        self._deepest = max(outer, self._deepest)
        return value

    def _alias(self, event: Any, path: Path) -> Any:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            raise _unreadable(event, f"nothing that is complete is called {_brief(event.anchor)} before this line")
        self._admit(event, path, anchored.size, anchored.height)
        return anchored.value

    def _admit(self, event: Any, path: Path, size: int, height: int) -> None:
        self._values += size
        self._deepest = max(self._deepest, len(path) + height)
        if self._values > MAX_VALUES:
            raise _unreadable(event, f"there are more than {MAX_VALUES} values up to here, with those of aliases")
        if self._deepest > MAX_DEPTH:
            raise _unreadable(event, f"there are more than {MAX_DEPTH} levels")

    def _content(self, event: Any, path: Path) -> Any:
        if event.tag not in _PLAIN_TAGS:
            raise _unreadable(event, f"the tag {_brief(event.tag)} is not known here")
        if isinstance(event, yaml.MappingStartEvent):
            return self._map(path)
        return self._list(path) if isinstance(event, yaml.SequenceStartEvent) else _scalar(event)

    def _list(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _map(self, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            value = self._value(next(self._events), (*path, key))
            if key == "<<" and getattr(event, "implicit", (False,))[0]:
                _inherit(inherited, event, value)
                continue
            if key in own:
                self._duplicates.append(Duplicate((*path, key), event.start_mark.line + 1))
            own[key] = value
        return {**inherited, **own}

    def _key(self, event: Any, path: Path) -> str:
        key = event.value if isinstance(event, yaml.ScalarEvent) else self._value(event, path)
        if not isinstance(key, str):
            raise _unreadable(event, "a name is not text")
        if isinstance(event, yaml.ScalarEvent) and event.anchor:
            self._anchors[event.anchor] = _Anchored(key, 1, 0)
        return key


def _inherit(inherited: dict[str, Any], event: Any, value: Any) -> None:
    """Adds what a map takes over by ``<<``: of several maps the first that has a name counts."""
    for source in value if isinstance(value, list) else [value]:
        if not isinstance(source, dict):
            raise _unreadable(event, "<< needs a map, or a list of maps")
        for key, inner in source.items():
            inherited.setdefault(key, inner)


def _scalar(event: Any) -> Any:
    is_text = event.tag is not None or not event.implicit[0] or len(event.value) > MAX_NUMBER
    return event.value if is_text else _plain(event.value)


@lru_cache(maxsize=4096)
def _plain(value: str) -> Any:
    """What is meant by text without quotes; dates, which nothing here needs, are text."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False)).removeprefix(_TAG)
    node = yaml.ScalarNode(tag, value)
    try:
        match tag:
            case "null":
                return None
            case "bool":
                return _CONSTRUCTOR.construct_yaml_bool(node)
            case "int":
                return _CONSTRUCTOR.construct_yaml_int(node)
            case "float":
                return _CONSTRUCTOR.construct_yaml_float(node)
    except ValueError:  # such as 0x_, which looks like a number and is none
        return value
    return value


def _unreadable(event: Any, why: str) -> Unreadable:
    return Unreadable(f"{_place(event.start_mark)}{why}")
