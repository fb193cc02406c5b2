"""Operations of JSON patch (RFC 6902), with paths escaped as RFC 6901 has it."""

from typing import Any


def removal(*path: str | int) -> dict[str, Any]:
    """The operation that takes away what is under these keys and indices, one for each step from the object's root."""
    return {"op": "remove", "path": "".join(f"/{_escaped(str(step))}" for step in path)}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
