"""Merging, comparing and cutting objects by the structure of their kind; the arithmetic below server-side apply.

Maps merge member by member, lists by their keys or as sets, and whatever is atomic is replaced as a whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from controllers.sandbox import notation
from controllers.sandbox.fieldset import (
    EMPTY,
    FieldSet,
    children,
    field_element,
    is_member,
    key_element,
    node,
    value_element,
)
from controllers.sandbox.typeschema import MISSING, TypeSchema

Object: TypeAlias = dict[str, Any]


class KeyMissing(Exception):
    """A list item has no value for a key of the list, which its message names."""


class Comparison(msgspec.Struct, frozen=True):
    """What is different between two objects, as sets of paths."""

    added: FieldSet
    modified: FieldSet
    removed: FieldSet


SAME: Final = Comparison(EMPTY, EMPTY, EMPTY)


def granular_map(value: Any, schema: TypeSchema) -> bool:
    """Whether a value is an object whose members are owned one by one."""
    return isinstance(value, dict) and schema.map_kind == "granular"


def granular_list(value: Any, schema: TypeSchema) -> bool:
    """Whether a value is a list whose items are owned one by one."""
    return isinstance(value, list) and schema.list_kind != "atomic"


def element_of(item: Any, schema: TypeSchema) -> str:
    """The path element of an item of a granular list. Raises KeyMissing."""
    if schema.list_kind == "set":
        return value_element(item)
    return key_element(_keys(item, schema))


def _keys(item: Any, schema: TypeSchema) -> Object:
    if not isinstance(item, dict):
        what = "a null element" if item is None else "non-map elements"
        raise KeyMissing(f"associative list with keys may not have {what}")
    keys: Object = {}
    for name in schema.map_keys:
        value = item.get(name, MISSING)
        if value is MISSING:
            value = schema.element().field(name).default
        if value is not MISSING:
            keys[name] = value
    if not keys:
        listed = " ".join(json.dumps(name) for name in schema.map_keys)
        raise KeyMissing(
            f"associative list with keys has an element that omits all key fields [{listed}]"
            " (and doesn't have default values for any key fields)"
        )
    return keys


# --- the paths of a value


def owned(value: Object, schema: TypeSchema) -> FieldSet:
    """The paths that an applied configuration takes: its leaves, items of lists and keys of free maps."""
    return _owned_members(value, schema)


def _owned_members(value: Object, schema: TypeSchema) -> FieldSet:
    found = {}
    for name, member in value.items():
        leaf, below = _owned(member, schema.field(name))
        explicit = leaf or member is None or member == {} or name not in schema.properties
        if (tree := node(explicit, below)) is not None:
            found[field_element(name)] = tree
    return found


def _owned(value: Any, schema: TypeSchema) -> tuple[bool, FieldSet]:
    if granular_map(value, schema):
        return False, _owned_members(value, schema)
    if granular_list(value, schema):
        items = schema.element()
        return False, {element_of(item, schema): node(True, _owned(item, items)[1]) or {} for item in value}
    return True, EMPTY


def every_path(value: Any, schema: TypeSchema) -> FieldSet:
    """A value's paths with all that lead there, as a node that is itself in the set."""
    if granular_map(value, schema):
        below = {field_element(name): every_path(member, schema.field(name)) for name, member in value.items()}
    elif granular_list(value, schema):
        below = {element_of(item, schema): every_path(item, schema.element()) for item in value}
    else:
        return {}
    return node(True, below) or {}


# --- merging


def merge(live: Any, config: Any, schema: TypeSchema) -> Any:
    """``live`` with all that ``config`` says. Raises KeyMissing."""
    if live is MISSING or not (live or config):
        return config  # Of two that are empty the new one counts, which may be null.
    if granular_map(live, schema) and (config is None or granular_map(config, schema)):
        return _merge_maps(live, config or {}, schema)
    if granular_list(live, schema) and (config is None or granular_list(config, schema)):
        return _merge_lists(live, config or [], schema)
    return config


def _merge_maps(live: Object, config: Object, schema: TypeSchema) -> Object:
    merged = dict(live)
    for name, value in config.items():
        merged[name] = merge(live.get(name, MISSING), value, schema.field(name))
    return merged


def _merge_lists(live: Sequence[Any], config: Sequence[Any], schema: TypeSchema) -> list[Any]:
    """Items keep their place beside those they stood next to; the order of shared items is that of ``config``."""
    old = [(element_of(item, schema), item) for item in live]
    new = [(element_of(item, schema), item) for item in config]
    old_items, new_names = dict(old), {name for name, _ in new}
    shared = iter([name for name, _ in new if name in old_items])
    pending: list[tuple[str, Any]] = list(reversed(new))
    awaited = next(shared, None)
    merged: list[Any] = []

    def take() -> str:
        name, item = pending.pop()
        merged.append(merge(old_items.get(name, MISSING), item, schema.element()))
        return name

    for name, item in old:
        if name not in new_names:
            merged.append(item)
        elif name == awaited:
            while take() != name:
                pass
            awaited = next(shared, None)
    while pending:
        take()
    return merged


# --- comparing


def compare(old: Object, new: Object, schema: TypeSchema) -> Comparison:
    """What was added, modified and removed between two objects."""
    if notation.equal(old, new):
        return SAME
    return _Comparer().run(old, new, schema)


class _Comparer:
    """Collects the three trees of a comparison while it walks two values side by side."""

    def run(self, old: Object, new: Object, schema: TypeSchema) -> Comparison:
        return Comparison(*self._fields(old, new, schema))

    def _fields(self, old: Object, new: Object, schema: TypeSchema) -> tuple[FieldSet, FieldSet, FieldSet]:
        found: tuple[FieldSet, FieldSet, FieldSet] = ({}, {}, {})
        for name in {**old, **new}:
            before, after = old.get(name, MISSING), new.get(name, MISSING)
            if before is not after:
                self._note(found, field_element(name), before, after, schema.field(name))
        return found

    def _items(self, old: Sequence[Any], new: Sequence[Any], schema: TypeSchema) -> tuple[FieldSet, FieldSet, FieldSet]:
        found: tuple[FieldSet, FieldSet, FieldSet] = ({}, {}, {})
        held, wanted = _items(old, schema), _items(new, schema)
        for element in {**held, **wanted}:
            before, below = held.get(element) or (MISSING, wanted[element][1])
            after, below_after = wanted.get(element) or (MISSING, below)
            self._note(found, element, before, after, below if below is below_after else _SEVERAL)
        return found

    def _note(
        self, found: tuple[FieldSet, FieldSet, FieldSet], element: str, old: Any, new: Any, schema: TypeSchema
    ) -> None:
        added, modified, removed = self._compare(old, new, schema)
        if added is not None:
            found[0][element] = added
        if modified is not None:
            found[1][element] = modified
        if removed is not None:
            found[2][element] = removed

    def _compare(
        self, old: Any, new: Any, schema: TypeSchema
    ) -> tuple[FieldSet | None, FieldSet | None, FieldSet | None]:
        if old is MISSING:
            return every_path(new, schema), None, None
        if new is MISSING:
            return None, None, every_path(old, schema)
        if notation.equal(old, new):
            return None, None, None
        if _both(granular_map, old, new, schema):
            trees = self._fields(old or {}, new or {}, schema)
        elif _both(granular_list, old, new, schema):
            trees = self._items(old or [], new or [], schema)
        else:
            # What has parts on one side only is itself modified, and its parts come or go.
            return _parts(new, schema), {}, _parts(old, schema)
        added, modified, removed = (tree or None for tree in trees)
        return added, modified, removed


def _parts(value: Any, schema: TypeSchema) -> FieldSet | None:
    return dict(children(every_path(value, schema))) or None


def _both(granular: Any, old: Any, new: Any, schema: TypeSchema) -> bool:
    """Whether two values compare part by part: both have parts, or one has and the other is null."""
    kinds = [value is None or granular(value, schema) for value in (old, new)]
    return all(kinds) and bool(old or new)


_SEVERAL: Final = TypeSchema(type="array")
"""Items with one name, which no valid list has, are one value as long as they are there."""


def _items(value: Sequence[Any], schema: TypeSchema) -> dict[str, tuple[Any, TypeSchema]]:
    element, named = schema.element(), dict[str, tuple[Any, TypeSchema]]()
    for item in value:
        name = element_of(item, schema)
        held = named.get(name)
        if held is None:
            named[name] = item, element
        else:
            named[name] = [*(held[0] if held[1] is _SEVERAL else [held[0]]), item], _SEVERAL
    return named


# --- cutting


def remove(value: Object, unwanted: FieldSet, schema: TypeSchema) -> Object:
    """The object without the paths of a set."""
    return _cut_map(value, unwanted, schema) or {} if unwanted else value


def _cut(value: Any, unwanted: FieldSet, schema: TypeSchema) -> Any:
    if granular_map(value, schema):
        return _cut_map(value, unwanted, schema)
    if granular_list(value, schema):
        return _cut_list(value, unwanted, schema)
    # Whatever is atomic goes as a whole when something in it is to go.
    return None if isinstance(value, dict | list) else value


def _cut_map(value: Object, unwanted: FieldSet, schema: TypeSchema) -> Object | None:
    kept = {}
    for name, member in value.items():
        tree = unwanted.get(field_element(name))
        if tree is None:
            kept[name] = member
        elif not is_member(tree):
            kept[name] = _cut(member, tree, schema.field(name))
    return kept or None


def _cut_list(value: Sequence[Any], unwanted: FieldSet, schema: TypeSchema) -> list[Any] | None:
    kept = []
    for item in value:
        tree = unwanted.get(element_of(item, schema))
        if tree is None:
            kept.append(item)
        elif not is_member(tree):
            kept.append(_cut(item, tree, schema.element()))
    return kept or None


def with_named(tree: FieldSet, schema: TypeSchema) -> FieldSet:
    """The set with every declared member that leads to one of its paths; keys of free maps are not added."""
    grown = {}
    for element, child in children(tree):
        below, named = _below(element, schema)
        member = is_member(child) or named
        grown[element] = node(member, with_named(child, below)) or {}
    return grown


def _below(element: str, schema: TypeSchema) -> tuple[TypeSchema, bool]:
    if element[0] == "f":
        name = element[2:]
        return schema.field(name), name in schema.properties
    return schema.element(), False


# --- what may be applied


def fits(value: Any, schema: TypeSchema) -> bool:
    """Whether a value has no faults but duplicate items, which what has been stored may have."""
    if value is None:
        return True
    if isinstance(value, dict) and schema.type in ("object", ""):
        return all(schema.declares(name) and fits(member, schema.field(name)) for name, member in value.items())
    if isinstance(value, list) and schema.type in ("array", ""):
        items = schema.element()
        return all(_nameable(item, schema) and fits(item, items) for item in value)
    return not _mismatch(value, schema)


def faults(value: Object, schema: TypeSchema) -> list[str]:
    """Why a configuration cannot be applied, in the server's words: undeclared fields, wrong types, duplicate items."""
    return list(_faults(value, schema, ""))


def _faults(value: Any, schema: TypeSchema, path: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, dict) and schema.type in ("object", ""):
        for name, member in value.items():
            if not schema.declares(name):
                yield f"{path}.{name}: field not declared in schema"
                return
            below = schema.field(name)
            if not isinstance(member, str) or below.type not in ("string", ""):
                yield from _faults(member, below, f"{path}.{name}")
    elif isinstance(value, list) and schema.type in ("array", ""):
        yield from _list_faults(value, schema, path)
    elif wanted := _mismatch(value, schema):
        yield f"{path}: expected {wanted}, got {_shown(value, wanted)}"


def _list_faults(value: Sequence[Any], schema: TypeSchema, path: str) -> Iterator[str]:
    seen = set()
    for index, item in enumerate(value):
        at = f"{path}[{index}]"
        if schema.list_kind != "atomic":
            try:
                name = _applied_element(item, schema)
            except KeyMissing as error:
                yield f"{path}: element {index}: {error}"
                return
            at = f"{path}{_bracket(item, schema)}"
            if name in seen:
                yield f"{path}: duplicate entries for key {_bracket(item, schema)}"
            seen.add(name)
        yield from _faults(item, schema.element(), at)


def _nameable(item: Any, schema: TypeSchema) -> bool:
    if schema.list_kind == "set":
        return item is not None and not isinstance(item, dict | list)
    if schema.list_kind == "map" and not (isinstance(item, dict) and any(key in item for key in schema.map_keys)):
        try:
            _keys(item, schema)
        except KeyMissing:
            return False
    return True


def _applied_element(item: Any, schema: TypeSchema) -> str:
    """The path element of an item that is sent. Raises KeyMissing for one that cannot be told from others."""
    if schema.list_kind == "set" and item is None:
        raise KeyMissing("associative list without keys has an element that's an explicit null")
    if schema.list_kind == "set" and isinstance(item, dict):
        raise KeyMissing("associative list without keys has an element that's a map type")
    if schema.list_kind == "set" and isinstance(item, list):
        raise KeyMissing("not supported: associative list with lists as elements")
    return element_of(item, schema)


def _bracket(item: Any, schema: TypeSchema) -> str:
    if schema.list_kind == "set":
        return f"[={json.dumps(item)}]"
    keys = _keys(item, schema)
    return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(keys.items())) + "]"


_WANTED: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "object": ("map", (dict,)),
    "array": ("list", (list,)),
    "string": ("string", (str,)),
    "boolean": ("boolean", (bool,)),
    "integer": ("numeric (int or float)", (int, float)),
    "number": ("numeric (int or float)", (int, float)),
}


def _mismatch(value: Any, schema: TypeSchema) -> str:
    """What should stand there instead of a value, in the server's words; empty where it fits."""
    if schema.type not in _WANTED:
        return ""
    wanted, types = _WANTED[schema.type]
    fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    return "" if fits else wanted


def _shown(value: Any, wanted: str) -> str:
    """A value as the server's messages show one that is of no use."""
    if wanted.startswith("numeric"):
        return notation.type_name(value)
    if wanted == "string":
        return f"&value.valueUnstructured{{Value:{notation.literal(value)}}}"
    return f"&{{{notation.plain(value)}}}"
