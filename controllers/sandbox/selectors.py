"""Label and field selectors in the API's syntax, as predicates on objects."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controllers.runtime import selector
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.selector import Requirement
from controllers.sandbox.errors import bad_request

Predicate = Callable[[Mapping[str, Any]], bool]


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The terms of a label selector; all must match. Raises StatusError 400."""
    try:
        return selector.parse_labels(text)
    except ConfigurationError as error:
        raise bad_request(str(error)) from None


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector: the value at ``path`` is, or is not, ``value``."""

    path: tuple[str, ...]
    equal: bool
    value: str

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return (_text_at(obj, self.path) == self.value) is self.equal


def parse_fields(text: str, supported: frozenset[str], *, custom: bool = False) -> tuple[FieldTerm, ...]:
    """The terms of a field selector; ``supported`` are the paths that the resource has. Raises StatusError 400."""
    return tuple(_field_term(term, supported, custom) for term in text.split(",") if term.strip())


def _field_term(term: str, supported: frozenset[str], custom: bool) -> FieldTerm:
    match = re.fullmatch(r"\s*([^=!]+?)\s*(==|!=|=)\s*(.*?)\s*", term)
    if match is None:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    path, operator, value = match.groups()
    if path not in supported:
        if not custom and supported <= {"metadata.name", "metadata.namespace"}:
            known = '"metadata.name", "metadata.namespace"'
            raise bad_request(f'"{path}" is not a known field selector: only {known}')
        raise bad_request(f"field label not supported: {path}")
    return FieldTerm(tuple(path.split(".")), operator != "!=", value)


def _text_at(obj: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Selector:
    """A label and a field selector together; without terms it matches everything."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(term.matches(labels) for term in self.labels) and all(term.matches(obj) for term in self.fields)

    @property
    def name(self) -> str:
        """The one object name that can match, "" where there is no such term."""
        return next((t.value for t in self.fields if t.path == ("metadata", "name") and t.equal), "")


EVERYTHING = Selector()


def parse(labels: str, fields: str, supported: frozenset[str], *, custom: bool = False) -> Selector:
    """A selector from the two query parameters for a resource, ``custom`` or built-in. Raises StatusError 400."""
    return Selector(parse_labels(labels), parse_fields(fields, supported, custom=custom))
