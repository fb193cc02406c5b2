"""Label selectors in the API's syntax: what they match is decided here, without asking a server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from controllers.runtime.errors import ConfigurationError

_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PUNCTUATION = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector; ``operator`` is one of in, notin, exists, absent, gt, lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        (bound,) = self.values
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        return int(value) > int(bound) if self.operator == "gt" else int(value) < int(bound)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The terms of a label selector; all must match. Raises ConfigurationError for what is no selector."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+", "", text):
        raise ConfigurationError(f"unable to parse requirement: {text!r} is not a label selector")
    parser = _LabelParser(tokens)
    return parser.requirements()


class _LabelParser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def requirements(self) -> tuple[Requirement, ...]:
        found: list[Requirement] = []
        while self._peek():
            found.append(self._requirement())
            if self._peek() and self._next() != ",":
                raise self._failure(", expected: ',' or 'end of string'")
            if self._tokens[self._at - 1] == "," and not self._peek():
                raise self._failure(", expected: identifier after ','")
        return tuple(found)

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return Requirement(self._key(), "absent")
        key = self._key()
        match self._peek():
            case "=" | "==":
                self._next()
                return Requirement(key, "in", frozenset({self._value()}))
            case "!=":
                self._next()
                return Requirement(key, "notin", frozenset({self._value()}))
            case "in" | "notin":
                return Requirement(key, self._next(), self._set())
            case "<" | ">":
                return self._comparison(key, self._next())
        return Requirement(key, "exists")

    def _comparison(self, key: str, operator: str) -> Requirement:
        bound = self._value()
        if not re.fullmatch(r"-?\d+", bound):
            raise ConfigurationError(f"for 'Gt', 'Lt' operators, the value must be an integer, not {bound!r}")
        return Requirement(key, "gt" if operator == ">" else "lt", frozenset({bound}))

    def _set(self) -> frozenset[str]:
        if self._next() != "(":
            raise self._failure(" expected: '('")
        values = {self._value()}
        while (following := self._next()) == ",":
            values.add(self._value())
        if following != ")":
            raise self._failure(", expected: ',' or ')'")
        return frozenset(values)

    def _key(self) -> str:
        key = self._next()
        if not _KEY.fullmatch(key):
            raise ConfigurationError(f"unable to parse requirement: {key!r} is not a label key")
        return key

    def _value(self) -> str:
        value = "" if self._peek() in {"", ",", ")"} else self._next()
        if value in _PUNCTUATION or not _VALUE.fullmatch(value):
            raise ConfigurationError(f"unable to parse requirement: {value!r} is not a label value")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _failure(self, expected: str) -> Exception:
        found = self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""
        return ConfigurationError(f"unable to parse requirement: found '{found}'{expected}")
