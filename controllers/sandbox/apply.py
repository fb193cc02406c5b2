"""Server-side apply, and the record of who owns which field (``metadata.managedFields``).

An apply merges a configuration into the live object, takes out what its manager applied before and nobody else owns,
and refuses to change what others own. Every other write gives its manager the fields that it changed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from controllers.sandbox.errors import Cause, StatusError, bad_request
from controllers.sandbox.fieldset import (
    EMPTY,
    FieldSet,
    Path,
    canonical,
    describe,
    difference,
    intersection,
    of,
    parse,
    paths,
    union,
    without,
)
from controllers.sandbox.merge import (
    Comparison,
    KeyMissing,
    Object,
    compare,
    faults,
    fits,
    merge,
    owned,
    remove,
    with_named,
)
from controllers.sandbox.presets import STATUS_KEEPS
from controllers.sandbox.typeschema import MISSING, TypeSchema, zero
from controllers.sandbox.validation import validate

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL: Final = "kubectl"
BEFORE_FIRST_APPLY: Final = "before-first-apply"
OLD_UPDATES: Final = "ancient-changes"
MAX_UPDATERS: Final = 10
"""Managers of updates that are remembered one by one (kube-apiserver's number); older ones share an entry."""

NEVER_OWNED: Final = of(
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
            "managedFields", "resourceVersion",
        )
    ),
)  # fmt: skip
_STATUS: Final = of(("f:status",))
_BUT_STATUS: Final = of(("f:spec",))
_CUSTOM_BUT_STATUS: Final = of(("f:spec",), ("f:metadata",))


class Writer(msgspec.Struct, frozen=True):
    """Who an entry belongs to. An applier is the same through all versions of the API, so it has none."""

    manager: str
    operation: str
    subresource: str = ""
    api_version: str = ""

    @property
    def key(self) -> str:
        """What conflicts are sorted by: the entry without its fields, as the real server writes it."""
        parts = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        parts["subresource"] = self.subresource
        return json.dumps({name: part for name, part in parts.items() if part}, separators=(",", ":"))

    def __str__(self) -> str:
        """As conflicts name it."""
        text = json.dumps(self.manager, ensure_ascii=False)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource)}"
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


class Entry(msgspec.Struct, frozen=True):
    """What a writer owns, in which version of the API it said so, and when the entry last changed."""

    api_version: str
    fields: FieldSet
    time: str | None = None


Managers: TypeAlias = dict[Writer, Entry]


class _Conflicts(Exception):
    """Fields that an apply would change and others own."""

    def __init__(self, found: Mapping[Writer, FieldSet]) -> None:
        super().__init__("conflicts")
        self.found = found


def apply(
    live: Object | None,
    config: Object,
    *,
    manager: str,
    api_version: str,
    subresource: str,
    force: bool,
    schema: TypeSchema,
    now: str,
) -> Object:
    """The live object with the configuration applied, its managedFields brought up to date.

    ``live`` is ``None`` where the object is to be created, ``now`` is RFC 3339. Raises StatusError: 409 with one cause
    for each conflict, 400 for a configuration with managedFields or of another version, 500 for one that does not fit
    the schema, as the real server does.
    """
    _check(config, api_version, schema)
    held = live if live is not None else _nothing(config, schema)
    managers = _decode(_entries(held))
    request = _Apply(Writer(manager, "Apply", subresource), api_version, schema, now)
    if not managers:
        managers = request.adopt(held)
    try:
        merged, managers = request.run(held, config, managers, force)
    except _Conflicts as conflicts:
        if not _may_upgrade(conflicts, held, manager, schema):
            raise _conflict(conflicts.found) from None
        merged, managers = request.run(held, config, managers, True)
    if schema.builtin:
        merged = _without_nulls(merged, schema)
    return settle(live, _with_entries(_sync_last_applied(merged, config, manager), managers))


def track_write(
    old: Object | None,
    new: Object,
    *,
    manager: str,
    operation: str = "Update",
    api_version: str,
    subresource: str,
    schema: TypeSchema,
    now: str,
    sent: Object | None = None,
) -> Object:
    """The new object of a create, update or patch with its managedFields brought up to date.

    ``sent`` is what the client wanted, where that is more than what its endpoint writes.

    An object whose managedFields were emptied is not tracked any more until something is applied to it.
    """
    writer = Writer(manager, operation, subresource, api_version)
    if not schema.builtin and not fits(sent or new, schema):
        # What does not fit its schema cannot be compared; whether it is valid at all is not judged here.
        return _with_entries(new, _decode_sent(old, new, subresource))
    if old is not None and (entries := _renewed(old, new, writer, schema, now)):
        return {**new, "metadata": {**new["metadata"], "managedFields": entries}}
    managers = _decode_sent(old, new, subresource)
    if not managers and old is not None:
        return _with_entries(new, managers)
    held = old if old is not None else _nothing(new, schema)
    try:
        managers = _record(_bare(held), _bare(new), managers, writer, schema, now)
    except KeyMissing:
        # Nor can an item without its key be named.
        return _with_entries(new, managers)
    return settle(old, _with_entries(new, _capped(managers)))


def settle(old: Object | None, new: Object) -> Object:
    """The new object; with the entries of the old one where nothing but their times is different."""
    if old is None:
        return new
    before, after = _entries(old), _entries(new)
    if before is None or after is None or before == after or not _equal_but_times(before, after):
        return new
    if _bare(old) != _bare(new):
        return new
    return {**new, "metadata": {**new["metadata"], "managedFields": before}}


def _unwritten(subresource: str, schema: TypeSchema) -> FieldSet:
    """The paths that a write through an endpoint leaves alone, and so does not own."""
    if subresource == "status":
        kept = of(*(("f:metadata", f"f:{name}") for name in STATUS_KEEPS.get(schema.name, ())))
        return union(_BUT_STATUS, kept) if schema.builtin else _CUSTOM_BUT_STATUS
    return _STATUS if schema.status_apart and not subresource else EMPTY


class _Apply:
    """One apply request: its writer and the rules of the kind."""

    def __init__(self, writer: Writer, api_version: str, schema: TypeSchema, now: str) -> None:
        self._writer = writer
        self._api_version = api_version
        self._schema = schema
        self._now = now
        self._reset = _unwritten(writer.subresource, schema)

    def adopt(self, live: Object) -> Managers:
        """Give the fields of an object that was never tracked to a manager of their own, lest they belong to nobody."""
        before = Writer(BEFORE_FIRST_APPLY, "Update", self._writer.subresource, self._api_version)
        nothing = _nothing(live, self._schema)
        return _record(nothing, _bare(live), {}, before, self._schema, self._now)

    def run(self, live: Object, config: Object, managers: Managers, force: bool) -> tuple[Object, Managers]:
        """Merge, prune and settle who owns what. Raises _Conflicts."""
        held = _bare(live)
        last = managers.get(self._writer)
        wanted = without(owned(config, self._schema), self._reset)
        mine = Entry(self._api_version, wanted, last.time if last else None)
        merged = merge(held, config, self._schema)
        merged = self._prune(merged, {**managers, self._writer: mine}, last)
        changes = compare(held, merged, self._schema)
        others = _taken(managers, self._writer, _effective(changes, self._reset), force)
        if held != merged:
            mine = replace(mine, time=self._now)
        mine = replace(mine, fields=difference(mine.fields, NEVER_OWNED))
        return merged, {**others, self._writer: mine} if mine.fields else others

    def _prune(self, merged: Object, managers: Managers, last: Entry | None) -> Object:
        """Take out what the writer applied last time, does not apply now, and nobody else owns."""
        if last is None or not difference(last.fields, managers[self._writer].fields):
            return merged
        dropped = with_named(last.fields, self._schema)
        pruned = remove(merged, dropped, self._schema)
        everything = self._named_paths(merged)
        claimed: FieldSet = {}
        for entry in managers.values():
            claimed = union(claimed, entry.fields)
        kept = union(self._named_paths(pruned), with_named(claimed, self._schema))
        pruned = remove(merged, difference(everything, kept), self._schema)
        gone = intersection(difference(everything, self._named_paths(pruned)), dropped)
        return remove(merged, gone, self._schema)

    def _named_paths(self, value: Object) -> FieldSet:
        return with_named(owned(value, self._schema), self._schema)


def _taken(managers: Managers, writer: Writer, changes: Comparison, force: bool) -> Managers:
    """The others' entries after a change; one that is left without fields goes. Raises _Conflicts unless forced."""
    touched = union(changes.modified, changes.added)
    found = {
        other: clash
        for other, entry in managers.items()
        if other != writer and (clash := intersection(entry.fields, touched))
    }
    if found and not force:
        raise _Conflicts(found)
    rest = {}
    for other, entry in managers.items():
        if other == writer:
            continue
        fields = difference(difference(entry.fields, found.get(other, EMPTY)), changes.removed)
        if fields:
            rest[other] = replace(entry, fields=fields)
    return rest


def _effective(changes: Comparison, reset: FieldSet) -> Comparison:
    if not reset:
        return changes
    return Comparison(*(without(tree, reset) for tree in (changes.added, changes.modified, changes.removed)))


def _record(old: Object, new: Object, managers: Managers, writer: Writer, schema: TypeSchema, now: str) -> Managers:
    """The entries after an update: its writer owns what it added or modified."""
    nobody = Writer("", "")
    changes = _effective(compare(old, new, schema), _unwritten(writer.subresource, schema))
    rest = _taken(managers, nobody, changes, force=True)
    fields = difference(union(changes.modified, changes.added), NEVER_OWNED)
    if not fields:
        return rest
    previous = rest.get(writer)
    merged = union(fields, previous.fields) if previous else fields
    return {**rest, writer: Entry(writer.api_version, merged, now)}


def _renewed(old: Object, new: Object, writer: Writer, schema: TypeSchema, now: str) -> list[Object]:
    """The entries after an update that only changes what its writer owned already; none where that is not so.

    That is what most updates are, and nothing but a time changes then.
    """
    held, sent = _entries(old), _entries(new)
    if not held or (sent is not None and sent != held):
        return []
    mine = [entry for entry in held if _written_by(entry, writer)]
    try:
        changes = _effective(compare(_bare(old), _bare(new), schema), _unwritten(writer.subresource, schema))
    except KeyMissing:
        return []
    touched = union(changes.modified, changes.added)
    owned_now = difference(touched, NEVER_OWNED)
    if not mine or not owned_now or changes.removed or difference(owned_now, mine[0]["fieldsV1"]):
        return []
    others = [entry for entry in held if entry is not mine[0]]
    if any(intersection(entry["fieldsV1"], touched) for entry in others):
        return []
    return sorted([*others, {**mine[0], "time": now}], key=_place)


def _written_by(entry: Object, writer: Writer) -> bool:
    found = entry.get("manager", ""), entry["operation"], entry.get("subresource", ""), entry["apiVersion"]
    return found == (writer.manager, writer.operation, writer.subresource, writer.api_version)


def _place(entry: Object) -> tuple[str, ...]:
    """By which the entries of an object are ordered."""
    names = ("operation", "time", "manager", "apiVersion", "subresource")
    return tuple(entry.get(name, "") for name in names)


def _capped(managers: Managers) -> Managers:
    """The entries with the oldest updates of each version in one, so that not too many are left."""
    if len(managers) <= MAX_UPDATERS:
        return managers
    updaters = sorted(
        (writer for writer in managers if writer.operation == "Update"),
        key=lambda writer: (managers[writer].time or "", _identity(writer)),
    )
    surplus = len(updaters) - MAX_UPDATERS
    kept, first = dict(managers), dict[str, Writer]()
    for writer in updaters:
        if surplus <= 0:
            break
        version = writer.api_version
        if version not in first:
            first[version] = writer
            continue
        bucket = Writer(OLD_UPDATES, "Update", "", version)
        if bucket not in kept:
            kept[bucket] = kept.pop(first[version])
        entry = kept.pop(writer)
        kept[bucket] = Entry(version, union(entry.fields, kept[bucket].fields), entry.time)
        surplus -= 1
    return kept


def _identity(writer: Writer) -> tuple[str, str, str, str]:
    return writer.manager, writer.operation, writer.api_version, writer.subresource


# --- requests that cannot be honoured


def _check(config: Object, api_version: str, schema: TypeSchema) -> None:
    given = config.get("apiVersion", "")
    if given != api_version:
        raise bad_request(f"invalid object type: {_kind_of(config)}")
    if _metadata(config).get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    if found := faults(config, schema):
        text = found[0] if len(found) == 1 else "\n".join(["errors:", *(f"  {fault}" for fault in found)])
        message = f"failed to create typed patch object ({_named(config)}): {text}"
        raise StatusError(500, "", message)


def _has_null(value: Any, schema: TypeSchema) -> bool:
    """Whether a member is null that may not be: as applied, or as a list or map that lost all and still has owners."""
    if value is None:
        return bool(schema.type) and not schema.nullable and schema.default is MISSING
    return isinstance(value, dict) and any(_has_null(member, schema.field(name)) for name, member in value.items())


def _written(merged: Object, live: Object, subresource: str, schema: TypeSchema) -> Object:
    """What an endpoint stores of an object: the status, or all but the status."""
    if not schema.status_apart:
        return merged
    base, source = (live, merged) if subresource == "status" else (merged, live)
    rest = {name: value for name, value in base.items() if name != "status"}
    return {**rest, "status": source["status"]} if "status" in source else rest


def causes_of_nulls(merged: Object, live: Object | None, subresource: str, schema: TypeSchema) -> list[Cause]:
    """What is wrong with an applied object that has a null: the real server drops nulls from what it reads only."""
    written = merged if live is None else _written(merged, live, subresource, schema)
    members = {name: value for name, value in written.items() if name != "metadata"}
    return validate(written, live, schema, subresource) if not schema.builtin and _has_null(members, schema) else []


def _named(config: Object) -> str:
    metadata = _metadata(config)
    namespace, name = (part if isinstance(part := metadata.get(key), str) else "" for key in ("namespace", "name"))
    return f"{namespace}/{name}; {_kind_of(config)}"


def _metadata(config: Object) -> Object:
    metadata = config.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _kind_of(config: Object) -> str:
    group, _, version = str(config.get("apiVersion", "")).rpartition("/")
    return f"{group}/{version}, Kind={config.get('kind', '')}"


def _conflict(found: Mapping[Writer, FieldSet]) -> StatusError:
    listed = [
        (writer, path) for writer in sorted(found, key=lambda writer: writer.key) for path in paths(found[writer])
    ]
    causes = [Cause("FieldManagerConflict", f"conflict with {writer}", describe(path)) for writer, path in listed]
    return StatusError(409, "Conflict", _conflict_text(listed), causes)


def _conflict_text(listed: list[tuple[Writer, Path]]) -> str:
    if len(listed) == 1:
        writer, path = listed[0]
        return f"Apply failed with 1 conflict: conflict with {writer}: {describe(path)}"
    lines, previous = [], None
    for writer, path in listed:
        if writer != previous:
            lines.append(f"conflicts with {writer}:")
            previous = writer
        lines.append(f"- {describe(path)}")
    return f"Apply failed with {len(listed)} conflicts: " + "\n".join(lines)


# --- kubectl's own annotation


def _may_upgrade(conflicts: _Conflicts, live: Object, manager: str, schema: TypeSchema) -> bool:
    """Whether all that kubectl's apply would take was written by kubectl's older, client-side apply."""
    text = _annotations(live).get(LAST_APPLIED)
    if manager != KUBECTL or not text:
        return False
    try:
        allowed = owned(json.loads(text), schema)
    except (ValueError, AttributeError, KeyMissing):
        return False
    return not any(difference(fields, allowed) for fields in conflicts.found.values())


def _sync_last_applied(merged: Object, config: Object, manager: str) -> Object:
    """Keep the annotation of client-side apply true where kubectl applies on the server."""
    annotations = _annotations(merged)
    if manager != KUBECTL or not annotations.get(LAST_APPLIED):
        return merged
    text = json.dumps(_without_last_applied(config), separators=(",", ":"), sort_keys=True, ensure_ascii=False) + "\n"
    return {**merged, "metadata": {**merged["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}}


def _annotations(item: Object) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("annotations") or {}


def _without_last_applied(config: Object) -> Object:
    annotations = _annotations(config)
    if LAST_APPLIED not in annotations:
        return config
    rest = {name: value for name, value in annotations.items() if name != LAST_APPLIED}
    metadata = {**config["metadata"], "annotations": rest}
    if not rest:
        del metadata["annotations"]
    return {**config, "metadata": metadata}


# --- managedFields


def _entries(item: Object | None) -> list[Object] | None:
    entries = ((item or {}).get("metadata") or {}).get("managedFields")
    return entries if isinstance(entries, list) else None


def _decode_sent(old: Object | None, new: Object, subresource: str) -> Managers:
    """The entries to go on from: what the request says, unless it says nothing or nonsense."""
    live, sent = _entries(old), _entries(new)
    if not subresource:
        if sent is not None and sent in ([], [{}]):
            return {}
        if decoded := _decode(sent):
            return decoded
    return _decode(live)


def _decode(entries: Iterable[Object] | None) -> Managers:
    """The entries of an object; none at all where one of them cannot be read."""
    try:
        return dict(_decoded(entry) for entry in entries or ())
    except (ValueError, TypeError, AttributeError):
        return {}


def _decoded(entry: Object) -> tuple[Writer, Entry]:
    operation, api_version = entry.get("operation", ""), entry.get("apiVersion", "")
    if operation not in ("Apply", "Update"):
        raise ValueError("operation must be `Apply` or `Update`")
    if not api_version:
        raise ValueError("apiVersion must not be empty")
    if entry.get("fieldsType") != "FieldsV1":
        raise ValueError(f"invalid fieldsType {entry.get('fieldsType')!r} in managed fields entry")
    version = api_version if operation == "Update" else ""
    writer = Writer(entry.get("manager", ""), operation, entry.get("subresource", ""), version)
    return writer, Entry(api_version, parse(entry.get("fieldsV1") or {}), entry.get("time"))


def _encode(managers: Managers) -> list[Object]:
    return sorted((dict(_encoded(writer, entry)) for writer, entry in managers.items()), key=_place)


def _encoded(writer: Writer, entry: Entry) -> Iterator[tuple[str, Any]]:
    yield "apiVersion", entry.api_version
    yield "fieldsType", "FieldsV1"
    yield "fieldsV1", canonical(entry.fields)
    if writer.manager:
        yield "manager", writer.manager
    yield "operation", writer.operation
    if writer.subresource:
        yield "subresource", writer.subresource
    if entry.time is not None:
        yield "time", entry.time


def _with_entries(item: Object, managers: Managers) -> Object:
    metadata = {name: value for name, value in (item.get("metadata") or {}).items() if name != "managedFields"}
    if managers:
        metadata["managedFields"] = _encode(managers)
    return {**item, "metadata": metadata}


def _equal_but_times(before: list[Object], after: list[Object]) -> bool:
    def timeless(entries: list[Object]) -> list[Object]:
        return [{name: value for name, value in entry.items() if name != "time"} for entry in entries]

    return timeless(before) == timeless(after)


def _bare(item: Object) -> Object:
    metadata = item.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return item
    return {**item, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def _nothing(item: Object, schema: TypeSchema) -> Object:
    """The empty object that a new one is compared with."""
    identity: Object = {name: item[name] for name in ("apiVersion", "kind") if name in item}
    return {**(zero(schema) if schema.builtin else {}), **identity}


def _without_nulls(value: Any, schema: TypeSchema) -> Any:
    """A value without the declared members that are null; in free maps and in lists null means something."""
    if isinstance(value, dict):
        return {
            name: _without_nulls(member, schema.field(name))
            for name, member in value.items()
            if member is not None or name not in schema.properties
        }
    return [_without_nulls(item, schema.element()) for item in value] if isinstance(value, list) else value
