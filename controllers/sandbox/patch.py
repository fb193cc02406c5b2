"""The three kinds of patch beside apply: JSON patch, merge patch and strategic merge patch.

All are pure and return a new object. A JSON patch is RFC 6902 with the real server's lenience, which no library has: a
``replace`` of a member that is not there adds it, and one that is not there equals null. A merge patch is RFC 7396; a
strategic merge patch merges lists by the keys that the kind's schema names.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeAlias

from controllers.sandbox import notation
from controllers.sandbox.errors import Cause, StatusError, bad_request
from controllers.sandbox.typeschema import TypeSchema

Object: TypeAlias = dict[str, Any]

MAX_OPERATIONS: Final = 10_000
"""Operations that one JSON patch may have (kube-apiserver's number)."""

DIRECTIVE: Final = "$patch"
RETAIN_KEYS: Final = "$retainKeys"
DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList/"
ORDER: Final = "$setElementOrder/"


def json_patch(live: Object, operations: Sequence[Mapping[str, Any]] | None, *, typed: bool = True) -> Object:
    """The object after the operations of a JSON patch, whose parts must be text where they are ``typed``.

    No operations, be that null, change nothing.

    Raises StatusError: 400 for what is no patch, 413 for too many operations, 422 for one that cannot be carried out.
    """
    if operations is None:
        return live
    _check_readable(operations, typed)
    if len(operations) > MAX_OPERATIONS:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
        )
    document = _Document(deepcopy(live))
    try:
        for operation in operations:
            document.carry_out(operation)
    except (LookupError, TypeError, ValueError):
        # One text for everything is what the real server answers, too.
        raise _refused() from None
    return document.root


def _check_readable(operations: Any, typed: bool) -> None:
    whole, part = ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp") if typed else _UNTYPED
    refusal = _undecodable if typed else _unread
    if not isinstance(operations, list):
        raise refusal(operations, whole)
    for operation in operations:
        if not _readable(operation, typed):
            raise refusal(operation, part)


_UNTYPED: Final = ("jsonpatch.Patch", "jsonpatch.Operation")


def _readable(operation: Any, typed: bool) -> bool:
    """Whether something can be read as an operation; whether it makes sense is judged when it is carried out."""
    if operation is None:
        return True
    parts = ("op", "path", "from")
    texts = isinstance(operation, dict) and all(isinstance(operation.get(part, ""), str | None) for part in parts)
    return texts or (isinstance(operation, dict) and not typed)


class _Document:
    """An object that the operations of a JSON patch change. Operations that cannot be carried out raise ValueError,
    TypeError or LookupError."""

    def __init__(self, root: Object) -> None:
        self.root = root

    def carry_out(self, operation: Mapping[str, Any]) -> None:
        """Do what one operation says."""
        kind, path = operation["op"], operation["path"]
        if kind == "test":
            self._test(path, operation.get("value"))
        elif kind == "remove":
            self._remove(path)
        elif kind in ("add", "replace"):
            self._put(path, operation["value"], insert=kind == "add")
        elif kind in ("copy", "move"):
            value = deepcopy(self._get(operation["from"]))
            if kind == "move":
                self._remove(operation["from"])
            self._put(path, value, insert=True)
        else:
            raise ValueError(kind)

    def _holder(self, path: str) -> tuple[Any, str]:
        """The object or list that a path leads into, and the last part of the path."""
        if not isinstance(path, str) or not path.startswith("/"):
            raise ValueError(path)
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))
        holder: Any = self.root
        for part in parents:
            holder = holder[_place(part, holder)] if isinstance(holder, list) else holder[part]
        if not isinstance(holder, dict | list):
            raise TypeError(path)
        return holder, last

    def _get(self, path: str) -> Any:
        holder, last = self._holder(path)
        return holder[_place(last, holder)] if isinstance(holder, list) else holder.get(last)

    def _test(self, path: str, wanted: Any) -> None:
        found = self._get(path)
        if found != wanted or isinstance(found, bool) != isinstance(wanted, bool):
            raise ValueError(path)

    def _remove(self, path: str) -> None:
        holder, last = self._holder(path)
        del holder[_place(last, holder) if isinstance(holder, list) else last]

    def _put(self, path: str, value: Any, *, insert: bool) -> None:
        holder, last = self._holder(path)
        if isinstance(holder, dict):
            holder[last] = value
        elif not insert:
            holder[_place(last, holder)] = value
        elif last == "-":
            holder.append(value)
        else:
            holder.insert(_place(last, [*holder, None]), value)


def _place(part: str, items: list[Any]) -> int:
    """The index that a part of a path names. Raises ValueError or IndexError where there is no such place."""
    index = int(part)
    if not -len(items) <= index < len(items):
        raise IndexError(part)
    return index % len(items)


def _undecodable(content: Any, wanted: str) -> StatusError:
    return bad_request(f"error decoding patch: {_unread(content, wanted).message}")


def _unread(content: Any, wanted: str) -> StatusError:
    return bad_request(f"json: cannot unmarshal {notation.json_kind(content)} into Go value of type {wanted}")


def _refused() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request")


def _failed(why: str) -> StatusError:
    """What the real server answers to a strategic merge patch that contradicts itself, although the client errs."""
    return StatusError(500, "", why)


def merge_patch(live: Object, patch: Any, *, typed: bool = True) -> Object:
    """The object after a merge patch: objects merge, null deletes, all else replaces.

    What is no object is refused in other words where the patch is not ``typed``. Raises StatusError 400 and 422.
    """
    if isinstance(patch, list) and not typed:
        # It replaces the object, and only what comes of that is refused.
        cause = Cause("FieldValueInvalid", f'Invalid value: "{notation.plain(patch)}": it is no object', "patch")
        raise StatusError(422, "Invalid", f' "" is invalid: patch: {cause.message}', [cause])
    if patch is None or (not isinstance(patch, dict) and not typed):
        raise bad_request("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise _undecodable(patch, "map[string]interface {}")
    merged: Object = _merged(live, patch)
    return merged


def _merged(live: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def strategic_merge_patch(live: Object, patch: Any, schema: TypeSchema) -> Object:
    """The object after a strategic merge patch. Raises StatusError where the patch contradicts the schema: 400, 422."""
    if patch is None:
        return live
    if not isinstance(patch, dict):
        raise _unread(patch, "map[string]interface {}")
    return _merge_objects(live, patch, schema)


def _merge_objects(live: Object, patch: Object, schema: TypeSchema) -> Object:
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != DIRECTIVE}
    if directive == "delete":
        return {}
    if DIRECTIVE in patch:
        raise _failed(f"unknown patch type: {directive} in map: {notation.plain(patch)}")
    merged = _retained(live, patch)
    for name, value in patch.items():
        if name.startswith(DELETE_PRIMITIVES):
            _delete_primitives(merged, name.removeprefix(DELETE_PRIMITIVES), value)
        elif not name.startswith("$"):
            _merge_member(merged, name, value, patch, schema)
    for name, order in patch.items():
        field = name.removeprefix(ORDER)
        # Where the patch has items of the list they were ordered when they were merged.
        if name.startswith(ORDER) and field not in patch and isinstance(merged.get(field), list):
            merged[field] = _ordered(merged[field], order, merged[field], schema.field(field).patch_merge_key)
    return merged


def _retained(live: Object, patch: Object) -> Object:
    keys = patch.get(RETAIN_KEYS)
    if keys is None:
        return dict(live)
    if not isinstance(keys, list):
        raise bad_request("The patch format of retainKeys is wrong")
    for name, value in patch.items():
        if not name.startswith("$") and value is not None and name not in keys:
            raise bad_request("there is at least one key in the patch that is not in the retainKeys list")
    return {name: value for name, value in live.items() if name in keys}


def _delete_primitives(merged: Object, name: str, unwanted: Any) -> None:
    if not isinstance(unwanted, list):
        raise bad_request("Invalid value for $deleteFromPrimitiveList")
    live = merged.get(name)
    if isinstance(live, list):
        if len({notation.json_kind(item) for item in (*live, *unwanted)}) > 1:
            raise _failed(f"list element types are not identical: {notation.plain([live, unwanted])}")
        merged[name] = [item for item in live if item not in unwanted]


def _merge_member(merged: Object, name: str, value: Any, patch: Object, schema: TypeSchema) -> None:
    member, live = schema.field(name), merged.get(name)
    if value is None:
        merged.pop(name, None)
    elif isinstance(value, dict) and isinstance(live, dict):
        merged[name] = value if "replace" in member.patch_strategy else _merge_objects(live, value, member)
    elif isinstance(value, list) and (isinstance(live, list) or ORDER + name in patch):
        merges = "merge" in member.patch_strategy
        merged[name] = _merge_lists(live or [], value, patch.get(ORDER + name), member) if merges else value
    elif (kept := _undirected(_without_nulls(value))) is not _DIRECTIVE_ONLY:
        merged[name] = kept
    else:
        merged.pop(name, None)


_DIRECTIVE_ONLY: Final = object()


def _undirected(value: Any) -> Any:
    """What a patch puts where nothing was: all of it but the objects that say how to merge."""
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return _DIRECTIVE_ONLY
        members = {name: _undirected(member) for name, member in value.items()}
        return {name: member for name, member in members.items() if member is not _DIRECTIVE_ONLY}
    if isinstance(value, list):
        return [kept for item in value if (kept := _undirected(item)) is not _DIRECTIVE_ONLY]
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _merge_lists(live: list[Any], patch: list[Any], order: list[Any] | None, schema: TypeSchema) -> list[Any]:
    key = schema.patch_merge_key
    if order is not None:
        _check_order(patch, order, key)
    if not key:
        _check_scalars([*live, *patch])
        merged = list({_hashable(item): item for item in (*live, *patch)}.values())
        return _ordered(merged, patch if order is None else order, live, key)
    plain = [item for item in patch if not (isinstance(item, dict) and DIRECTIVE in item)]
    if any(isinstance(item, dict) and item.get(DIRECTIVE) == "replace" for item in patch):
        return plain
    remaining = list(live)
    for item in patch:
        if isinstance(item, dict) and DIRECTIVE in item:
            remaining = _without_item(remaining, item, key)
    merged = list(remaining)
    for item in plain:
        merged = _merge_item(merged, item, key, schema.element())
    return _ordered(merged, plain if order is None else order, live if order is not None else remaining, key)


def _check_scalars(items: list[Any]) -> None:
    if any(isinstance(item, dict) for item in items):
        raise _failed("list element types are not identical")


def _without_item(live: list[Any], item: Object, key: str) -> list[Any]:
    directive = item[DIRECTIVE]
    if directive == "merge":
        raise _failed("merging lists cannot yet be specified in the patch")
    if directive != "delete":
        raise _failed(f"unknown patch type: {directive} in map: {notation.plain(item)}")
    name = _key(item, key)
    return [held for held in live if held.get(key) != name]


def _check_order(patch: list[Any], order: list[Any], key: str) -> None:
    """Refuse a patch whose items stand in another order than the one that it asks for."""
    kept = [item for item in patch if not (isinstance(item, dict) and DIRECTIVE in item)]
    remaining = iter([_key(entry, key) if key else entry for entry in order])
    if not all((_key(item, key) if key else item) in remaining for item in kept):
        listed = f"\n{notation.plain(patch)}\n doesn't match $setElementOrder list:\n{notation.plain(order)}\n"
        raise _failed(f"The order in patch list:{listed}")


def _merge_item(merged: list[Any], item: Any, key: str, schema: TypeSchema) -> list[Any]:
    name = _key(item, key)
    for index, held in enumerate(merged):
        if held.get(key) == name:
            return [*merged[:index], _merge_objects(held, item, schema), *merged[index + 1 :]]
    return [*merged, item]


def _key(item: Any, key: str) -> Any:
    if not isinstance(item, dict) or key not in item:
        raise _failed(f"map: {notation.plain(item)} does not contain declared merge key: {key}")
    return item[key]


def _ordered(merged: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """The items that the order names as it says; each other one before the first of them that stood behind it."""

    def ranks(items: list[Any]) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for place, item in enumerate(items):
            found.setdefault(_hashable(_key(item, key) if key else item), place)
        return found

    wanted, before = ranks(order), ranks(live)
    named = [(_hashable(_key(item, key) if key else item), item) for item in merged]
    ordered = sorted((entry for entry in named if entry[0] in wanted), key=lambda entry: wanted[entry[0]], reverse=True)
    others = sorted((entry for entry in named if entry[0] not in wanted), key=lambda entry: before.get(entry[0], 0))
    result: list[Any] = []
    for name, item in others:
        while ordered and not before.get(name, -1) < before.get(ordered[-1][0], -1):
            result.append(ordered.pop()[1])
        result.append(item)
    return [*result, *(item for _, item in reversed(ordered))]


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, dict | list) else value
