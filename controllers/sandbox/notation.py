"""JSON values in the notation of the real server's language, in which some of its messages show them."""

import json
from typing import Any

import msgspec


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON. In Python true equals 1 and false equals 0; in JSON they do not."""
    if left is right or type(left) is type(right) is str:
        return bool(left == right)
    if left != right:
        return False
    # Nearly always that is all there is to it, and what is written alike is found at once.
    return _in_order(left) == _in_order(right) or _same_types(left, right)


_in_order = msgspec.json.Encoder(order="sorted").encode


def _same_types(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return all(_same_types(member, right[name]) for name, member in left.items())
    if isinstance(left, list):
        return all(_same_types(*pair) for pair in zip(left, right, strict=True))
    return isinstance(left, bool) == isinstance(right, bool)


def plain(value: Any) -> str:
    """Without types, as ``map[a:b]`` and ``[a b]``."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{name}:{plain(member)}" for name, member in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(plain(item) for item in value) + "]"
    if value is None:
        return "<nil>"
    return value if isinstance(value, str) else json.dumps(value)


def literal(value: Any) -> str:
    """With types, as ``[]interface {}{"a"}``."""
    if isinstance(value, dict):
        members = ", ".join(f'"{name}":{literal(member)}' for name, member in sorted(value.items()))
        return f"map[string]interface {{}}{{{members}}}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(literal(item) for item in value) + "}"
    if value is None:
        return "interface {}(nil)"
    return json.dumps(value)


def type_name(value: Any) -> str:
    """The type that a decoded value has."""
    names = {str: "string", bool: "bool", dict: "map[string]interface {}", list: "[]interface {}"}
    return names.get(type(value), "float64")


def json_kind(value: Any) -> str:
    """What a decoder says it met."""
    names = {str: "string", bool: "bool", dict: "object", list: "array"}
    return names.get(type(value), "number")
