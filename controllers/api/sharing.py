"""Keeps what many objects have in common once: in a cache of 30,000 pods few differ in what they ask for."""

from typing import TypeVar, cast

import msgspec
from cachetools import LRUCache

T = TypeVar("T", bound=msgspec.Struct | tuple[msgspec.Struct, ...])

KNOWN = 4096
"""Different values that are known at most; the one that was not asked for longest is forgotten first."""

_values: LRUCache[tuple[type, type | None, bytes], object] = LRUCache(KNOWN)


def shared(value: T) -> T:
    """An equal value, one and the same each time; for what is frozen."""
    # Things of different types may be written alike, since defaults are not written.
    of = type(value[0]) if isinstance(value, tuple) and value else None
    return cast(T, _values.setdefault((type(value), of, msgspec.msgpack.encode(value)), value))
