"""Sets of field paths, as ``FieldsV1`` of ``metadata.managedFields`` writes them.

A set is the JSON itself: a tree of path elements (``f:<field>``, ``k:<keys of a list item>``, ``v:<item of a set>``). A
node that is in the set and has no children is ``{}``; one that is in the set and has children says so with ``"."``.
The empty tree at the root is the empty set. No function changes its arguments.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

FieldSet: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

SELF: Final = "."
EMPTY: Final[FieldSet] = {}
_PREFIXES: Final = frozenset({"f:", "k:", "v:", "i:"})


def node(member: bool, children: FieldSet) -> FieldSet | None:
    """A node of a tree; ``None`` where nothing would be in it. ``children`` has no ``SELF``."""
    if not children:
        return {} if member else None
    return {SELF: {}, **children} if member else children


def is_member(tree: FieldSet) -> bool:
    """Whether a node below the root is itself in the set."""
    return not tree or SELF in tree


def children(tree: FieldSet) -> Iterator[tuple[str, FieldSet]]:
    """The nodes below a node, by path element."""
    return ((element, child) for element, child in tree.items() if element != SELF)


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """The paths of either set."""
    if not left and SELF not in right:
        return right
    merged = dict(children(left))
    for element, child in children(right):
        held = merged.get(element)
        merged[element] = child if held is None else _union_below(held, child)
    return merged


def _union_below(left: FieldSet, right: FieldSet) -> FieldSet:
    return node(is_member(left) or is_member(right), union(left, right)) or {}


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """The paths of ``left`` that are not in ``right``; a path does not stand for those below it."""
    if not right and SELF not in left:
        return left
    kept = {}
    for element, child in children(left):
        other = right.get(element)
        rest = child if other is None else node(is_member(child) and not is_member(other), difference(child, other))
        if rest is not None:
            kept[element] = rest
    return kept


def without(left: FieldSet, excluded: FieldSet) -> FieldSet:
    """The paths of ``left`` that are neither in ``excluded`` nor below a path of it."""
    kept = {}
    for element, child in children(left):
        other = excluded.get(element)
        if other is not None and is_member(other):
            continue
        rest = child if other is None else node(is_member(child), without(child, other))
        if rest is not None:
            kept[element] = rest
    return kept


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """The paths of both sets."""
    kept = {}
    for element, child in children(left):
        other = right.get(element)
        if other is None:
            continue
        rest = node(is_member(child) and is_member(other), intersection(child, other))
        if rest is not None:
            kept[element] = rest
    return kept


def paths(tree: FieldSet) -> Iterator[Path]:
    """Every path of a set in the order of the server: those that end at a level before those that go deeper."""
    ordered = sorted(children(tree), key=_order)
    yield from ((element,) for element, child in ordered if is_member(child))
    for element, child in ordered:
        yield from ((element, *path) for path in paths(child))


def of(*members: Path) -> FieldSet:
    """The set of some paths."""
    tree: FieldSet = {}
    for path in members:
        nested: FieldSet = {}
        for element in reversed(path):
            nested = {element: nested}
        tree = union(tree, nested)
    return tree


def canonical(tree: FieldSet) -> FieldSet:
    """The same set with its elements in the order of the server."""
    # That is the order of text but for positions ("i:"), which come last; "." comes first.
    names = sorted(tree)
    if any(name[0] == "i" for name in names):
        names.sort(key=lambda name: name[0] == "i")
    return {name: canonical(child) if (child := tree[name]) and name != SELF else {} for name in names}


def _order(entry: tuple[str, FieldSet]) -> tuple[int, str]:
    return "fkvi".find(entry[0][0]), entry[0]


def parse(fields: Mapping[str, Any]) -> FieldSet:
    """A set from ``fieldsV1``. Raises ValueError naming what is no path element."""
    tree: FieldSet = {}
    for element, child in fields.items():
        is_element = element == SELF or element[:2] in _PREFIXES
        if not is_element or not isinstance(child, dict):
            raise ValueError(f"error decoding set: {element} is no path element with an object")
        tree[element] = parse(child) if child else {}
    return tree


def field_element(name: str) -> str:
    """The path element of an object's member."""
    return f"f:{name}"


def value_element(value: Any) -> str:
    """The path element of an item of a set."""
    return f"v:{compact(value)}"


def key_element(keys: Mapping[str, Any]) -> str:
    """The path element of a list item that its keys identify."""
    return f"k:{compact(keys)}"


def compact(value: Any, *, sort: bool = True) -> str:
    """JSON as the server's encoder writes it: without spaces, and such that it may stand inside HTML."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=sort, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def describe(path: Path) -> str:
    """A path as messages write it: ``.spec.containers[name="a"].image``."""
    return "".join(_describe(element) for element in path)


def _describe(element: str) -> str:
    sort, text = element[0], element[2:]
    if sort == "f":
        return f".{text}"
    if sort == "k":
        keys = json.loads(text)
        return "[" + ",".join(f"{name}={_scalar(value)}" for name, value in sorted(keys.items())) + "]"
    return f"[={_scalar(json.loads(text))}]" if sort == "v" else f"[{text}]"


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
