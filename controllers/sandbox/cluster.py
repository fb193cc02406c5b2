"""The API's verbs on objects in memory: what a request does once it is parsed, authorised and decoded.

Nothing here waits or touches the network. Reads and writes run to their end without a pause, so that a single event
loop makes them atomic; what happens later on its own (garbage collection) is queued for the collector.
"""

import base64
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from controllers.runtime.clock import Clock, SystemClock
from controllers.sandbox import apply, lifecycle, rules, validation
from controllers.sandbox.collector import DEFINITIONS, Collector
from controllers.sandbox.definitions import Definitions, established
from controllers.sandbox.errors import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    expired,
    invalid,
    not_found,
    version_too_large,
)
from controllers.sandbox.lifecycle import Deletion, Object, Undecodable
from controllers.sandbox.notation import json_kind
from controllers.sandbox.registry import Registry, ResourceInfo
from controllers.sandbox.selectors import EVERYTHING, Selector
from controllers.sandbox.storage import Forgotten, State, Store, Stored, key_of
from controllers.sandbox.typeschema import TypeSchema

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # the API's: without vowels, no words come about
NAME_ATTEMPTS = 8  # names tried for a generateName before the client is told that none was free
LIST_EXPIRED = "The resourceVersion for the provided list is too old."
CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class WriteOptions(msgspec.Struct, frozen=True):
    """What a write's query parameters say."""

    manager: str = "unknown"
    dry_run: bool = False
    field_validation: str = "Warn"  # Strict refuses unknown fields, Warn drops and tells, Ignore drops them
    subresource: str = ""
    force: bool = False  # of an apply: take fields from their managers
    duplicates: tuple[str, ...] = ()  # paths of fields that the body gives more than once
    told: list[str] = msgspec.field(default_factory=list)  # what the client is warned of, whether it succeeds or not


class Written(msgspec.Struct, frozen=True):
    """The object after a write, as the client sees it."""

    object: Object
    created: bool = False
    gone: bool = False
    encoded: bytes = b""  # its JSON, where there is one already


class ListOptions(msgspec.Struct, frozen=True):
    """Which objects, of which version, how many; ``limit`` 0 is all."""

    namespace: str = ""
    selector: Selector = EVERYTHING
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    token: str = ""

    @property
    def exact(self) -> bool:
        """Whether exactly that version is asked for; a limited list means so unless it says otherwise."""
        if self.match:
            return self.match == "Exact"
        return self.limit > 0 and self.resource_version not in {"", "0"} and not self.selector.name

    @property
    def of_store(self) -> bool:
        """Whether the real server asks its store for an object, which it does not expect to come any further."""
        return bool(self.selector.name) and (self.match == "Exact" or (self.limit > 0 and not self.match))


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: the stored objects, the version they are of, and how to go on."""

    items: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None

    def metadata(self) -> dict[str, Any]:
        """The list's own metadata."""
        result: dict[str, Any] = {"resourceVersion": str(self.version)}
        if self.token:
            result["continue"] = self.token
        if self.remaining is not None:
            result["remainingItemCount"] = self.remaining
        return result


class _Decoded(msgspec.Struct, frozen=True):
    """An object as it was read, pruned and defaulted; a ``sound`` one of a built-in kind breaks no rule."""

    object: Object
    sound: bool = False


class Cluster:
    """All state of one API server. ``window`` is how many changes of each resource watches can go back."""

    def __init__(self, *, clock: Clock | None = None, window: int = 10_000, root_ca: str = "") -> None:
        self.root_ca = root_ca
        self.clock = clock or SystemClock()
        self.store = Store(window=window)
        self.registry = Registry()
        self.definitions = Definitions(self.registry)
        self.collector = Collector(self)

    def now(self) -> str:
        """The moment as timestamps have it, in whole seconds."""
        return _timestamp(int(self.clock.utcnow().timestamp()))

    def load(self, state: State) -> None:
        """Takes in what another cluster held, with its versions; watches and lists cannot go back behind it.

        What that one still had to do, such as collecting garbage, is queued. Raises StatusError 422 for a definition
        that cannot be served.
        """
        definitions = "apiextensions.k8s.io/customresourcedefinitions"
        for resource, found in state.objects.items():
            for key, stored in sorted(found.items()):
                self.store.load(resource, key, stored)
        for stored in state.objects.get(definitions, {}).values():
            self.definitions.changed(stored.object, None)
            self._reread(stored.object)
        self.store.version = max(self.store.version, state.version)
        self.store.compact()
        # Definitions and owners first: what is garbage is known only then.
        self.collector.take_up(
            (resource, key, stored.object) for resource, found in state.objects.items() for key, stored in found.items()
        )

    def restore(self, state: State) -> None:
        """Goes back to an earlier state, as a cluster does whose etcd is restored from a backup."""
        before = self.store.state()
        self.store.restore(state)
        gone, come = _missing(before, state), _missing(state, before)
        for resource, _, stored in gone:
            if resource == DEFINITIONS:
                self.definitions.changed(None, stored.object)
        for resource, _, stored in come:
            if resource == DEFINITIONS:
                self.definitions.changed(stored.object, None)
        for resource, key, stored in gone:
            self.collector.observe(resource, key, stored.object, None)
        for resource, key, stored in come:
            self.collector.observe(resource, key, None, stored.object)

    def stored(self, info: ResourceInfo, namespace: str, name: str) -> Stored:
        """Raises StatusError 404."""
        found = self.store.get(info.collection, key_of(namespace, name))
        if found is None:
            raise not_found(info.group, info.plural, name)
        return found

    def get(self, info: ResourceInfo, namespace: str, name: str, resource_version: str = "") -> Object:
        """One object. Raises StatusError 404, or 504 for a version that is still to come."""
        self._check_reached(parse_version(resource_version))
        return info.served(self.stored(info, namespace, name).object)

    def list(self, info: ResourceInfo, options: ListOptions) -> Listing:
        """A page of objects, sorted by key. Raises StatusError 400, 410 or 504."""
        version, after = self._start_of_list(options)
        self._check_reached(version, retry=not options.of_store)
        as_of = version if options.token or options.exact else None
        prefix = f"{options.namespace}/" if options.namespace else ""
        try:
            candidates = self.store.collection(info.collection).select(prefix, after, as_of)
        except Forgotten:
            raise self._list_expired(options, after) from None
        if options.resource_version == "0" and options.match != "Exact":
            # Whoever takes any version gets all of it, as it comes from the real server's cache.
            options = replace(options, limit=0)
        items, more = _page(info, candidates, options)
        actual = self.store.version if as_of is None else as_of
        if not more or options.selector.name:
            return Listing(items, actual)
        last = _key(items[-1].object)
        remaining = None if options.selector else more + sum(1 for _ in candidates)
        return Listing(items, actual, _token(actual, last), remaining)

    def _start_of_list(self, options: ListOptions) -> tuple[int, str]:
        if not options.token:
            return parse_version(options.resource_version), ""
        version, after = _read_token(options.token)
        if options.resource_version not in {"", "0"}:
            raise bad_request("specifying resource version is not allowed when using continue")
        return (self.store.version if version < 0 else version), after

    def _list_expired(self, options: ListOptions, after: str) -> StatusError:
        if not options.token:
            return expired(LIST_EXPIRED)
        return expired(CONTINUE_EXPIRED, _token(-1, after))

    def _check_reached(self, version: int, *, retry: bool = True) -> None:
        if version > self.store.version:
            raise version_too_large(version, self.store.version, retry=retry)

    def create(self, info: ResourceInfo, namespace: str, body: Any, options: WriteOptions) -> Written:
        """Creates an object. Raises StatusError 400, 403, 404, 409 or 422."""
        decoded = self._decoded(info, lifecycle.check_kind(info, body), options)
        lifecycle.check_place(info, decoded.object, namespace)
        self._check_namespace(info, namespace, decoded.object)
        obj = lifecycle.without_status(info, decoded.object)
        if info.kind == "CustomResourceDefinition":
            obj = self.definitions.prepared(obj)
        obj = self._tracked(info, None, obj, options, decoded.object)
        return self._insert(info, namespace, replace(decoded, object=obj), options)

    def asked(self, info: ResourceInfo, namespace: str, body: Any, options: WriteOptions) -> Object:
        """An object that is only a question, with its owners: it is read like any other, and not kept.

        Raises StatusError 400.
        """
        decoded = self._decoded(info, lifecycle.check_kind(info, body), options)
        lifecycle.check_place(info, decoded.object, namespace)
        return self._tracked(info, None, decoded.object, options, decoded.object)

    def _insert(self, info: ResourceInfo, namespace: str, decoded: _Decoded, options: WriteOptions) -> Written:
        obj = decoded.object
        attempts = 1 if obj["metadata"].get("name") else NAME_ATTEMPTS
        for _ in range(attempts):
            made = lifecycle.created(info, obj, uid=_uid(), now=self.now(), suffix="" if attempts == 1 else _suffix())
            warnings = self._validate(info, made, None, decoded)
            if obj["metadata"].get("resourceVersion") and not options.dry_run:
                raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
            name = made["metadata"]["name"]
            taken = self.store.get(info.collection, key_of(namespace, name))
            if taken is None:
                break
        options.told.extend(warnings)
        if taken is not None:
            raise already_exists(info.group, info.plural, name, going=lifecycle.being_deleted(taken.object))
        if not options.dry_run:
            return _written(info, self._put(info, key_of(namespace, name), info.to_stored(made), None), created=True)
        made = _as_stored(info, made)
        if version := obj["metadata"].get("resourceVersion"):
            made["metadata"]["resourceVersion"] = version
        return Written(made, created=True)

    def update(self, info: ResourceInfo, namespace: str, name: str, body: Any, options: WriteOptions) -> Written:
        """Replaces an object, or creates it where its kind allows that. Raises StatusError."""
        found = self.store.get(info.collection, key_of(namespace, name))
        try:
            obj = lifecycle.check_kind(info, body, subresource=options.subresource)
            decoded = self._decoded(info, obj, _reading(info, body, options))
        except StatusError as error:
            # What can be read, but is of another kind, is judged when there is something to replace.
            if error.code == 422 and found is None:
                raise not_found(info.group, info.plural, name) from None
            if error.code == 422 and found is not None:
                lifecycle.check_update(info, found.object, {"metadata": body.get("metadata") or {}})
            raise
        lifecycle.check_place(info, decoded.object, namespace, name, named=True)
        if found is None:
            if not info.create_on_update or options.subresource:
                raise not_found(info.group, info.plural, name)
            if uid := decoded.object["metadata"].get("uid"):
                raise lifecycle.other_object(info, name, namespace, uid, "")
            return self.create(info, namespace, _as_new(decoded.object, options), replace(options, duplicates=()))
        return self._replace(info, found, decoded, options)

    def patch(
        self, info: ResourceInfo, namespace: str, name: str, change: Callable[[Object], Any], options: WriteOptions
    ) -> Written:
        """Changes an object by a function of its live state. Raises StatusError."""
        found = self.stored(info, namespace, name)
        body = change(self._own_copy(info, found))
        try:
            obj = lifecycle.check_kind(info, body, subresource=options.subresource, patched=True)
            decoded = self._decoded(info, obj, _reading(info, body, options), patched=True)
        except Undecodable as error:
            raise error.of_patch() from None
        lifecycle.check_place(info, decoded.object, namespace, name, named=True)
        return self._replace(info, found, decoded, options, patched=True)

    def apply(self, info: ResourceInfo, namespace: str, name: str, body: Any, options: WriteOptions) -> Written:
        """Server-side apply: creates the object where there is none. Raises StatusError, 409 for field conflicts."""
        found = self.store.get(info.collection, key_of(namespace, name))
        if found is None and options.subresource:
            raise not_found(info.group, info.plural, name)
        _check_applied_type(info, body)
        live = self._own_copy(info, found) if found else None
        obj = apply.apply(
            live,
            body,
            manager=options.manager,
            api_version=info.api_version,
            subresource=options.subresource,
            force=options.force,
            schema=info.schema,
            now=self.now(),
        )
        causes = apply.causes_of_nulls(obj, live, options.subresource, info.schema)
        if found is None and (uid := obj["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(info.group, info.plural, name, why)
        decoded = self._decoded(info, lifecycle.check_kind(info, obj), options, patched=True)
        lifecycle.check_place(info, decoded.object, namespace, name, named=True)
        if causes:
            raise invalid(info.group, info.kind, name, causes)
        if found is None:
            self._check_namespace(info, namespace, decoded.object)
            obj = lifecycle.without_status(info, _as_new(decoded.object, options))
            if info.kind == "CustomResourceDefinition":
                obj = self.definitions.prepared(obj)
            return self._insert(info, namespace, replace(decoded, object=obj), options)
        return self._replace(info, found, decoded, options, patched=True, tracked=True)

    def _own_copy(self, info: ResourceInfo, found: Stored) -> Object:
        """A stored object as it is served, which may be changed."""
        live = info.served(found.object)
        copied: Object = msgspec.json.decode(found.encoded) if live is found.object else _copy(live)
        return copied

    def establish(self, found: Stored) -> None:
        """Tells in a definition's status that it is served, as a controller of the real server does."""
        info = self.registry.by_kind("apiextensions.k8s.io", "CustomResourceDefinition")
        assert info is not None
        self.amend(info, found, established(found.object, self.now()))

    def _replace(
        self,
        info: ResourceInfo,
        found: Stored,
        decoded: _Decoded,
        options: WriteOptions,
        *,
        patched: bool = False,
        tracked: bool = False,
    ) -> Written:
        live = info.served(found.object)
        lifecycle.check_update(info, live, decoded.object, patched=patched)
        new = lifecycle.updated(info, live, decoded.object, options.subresource)
        options.told.extend(self._validate(info, new, live, decoded, options.subresource))
        if not tracked:
            # What the server alone writes was missing while owners were told apart.
            unmarked = lifecycle.unmarked(new, decoded.object)
            owners = self._tracked(info, live, unmarked, options, decoded.object)["metadata"].get("managedFields")
            new = {**new, "metadata": {k: v for k, v in new["metadata"].items() if k != "managedFields"}}
            if owners:
                new["metadata"]["managedFields"] = owners
        if info.kind == "CustomResourceDefinition":
            new = self.definitions.prepared(new)
        shown = _as_stored(info, new)
        if lifecycle.same(live, shown):
            return _written(info, found)
        if options.dry_run:
            return Written(shown)
        return self._store_update(info, found, info.to_stored(new))

    def _store_update(self, info: ResourceInfo, found: Stored, new: Object) -> Written:
        key = _key(found.object)
        if lifecycle.may_go(info, new):
            # It goes as it was stored last; this write is only answered.
            self._remove(info, key, dict(found.object))
            return Written(info.served(new), gone=True)
        return _written(info, self._put(info, key, new, found))

    def delete(self, info: ResourceInfo, namespace: str, name: str, deletion: Deletion, *, dry_run: bool) -> Written:
        """Deletes an object, or marks it where finalizers or its grace period hold it. Raises StatusError 404, 409."""
        found = self.stored(info, namespace, name)
        deletion.preconditions.check(info, found.object)
        grace = lifecycle.grace_period(info, found.object, deletion)
        deadline = _timestamp(int(self.clock.utcnow().timestamp()) + grace)
        marked = lifecycle.deleted(info, found.object, deletion, deadline)
        gone = lifecycle.may_go(info, marked)
        if gone and lifecycle.finalizers(marked) != lifecycle.finalizers(found.object):
            deletion.preconditions.check_again(info, found.object)
            if dry_run:
                return Written(lifecycle.nothing(info))
        # What may get time to end is marked before it goes, though there be none.
        noted = info.collection == "pods" and not lifecycle.being_deleted(found.object)
        if dry_run:
            return Written(info.served(found.object if gone and not noted else marked), gone=gone)
        if gone and noted:
            found = self._put(info, _key(marked), marked, found)
        if gone:
            return Written(info.served(self._remove(info, _key(marked), dict(found.object)).object), gone=True)
        if marked == found.object:
            return Written(info.served(found.object))
        return Written(info.served(self._put(info, _key(marked), marked, found).object))

    def amend(self, info: ResourceInfo, found: Stored, new: Object) -> Written:
        """Stores what the server itself makes of an object, which no client asked for."""
        return self._store_update(info, found, new)

    def furnish(self, namespace: str) -> None:
        """Makes what every namespace of a real cluster has: an account for its pods, and the CA that they trust."""
        for kind, content in (
            ("ServiceAccount", {"metadata": {"name": "default"}}),
            ("ConfigMap", {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self.root_ca}}),
        ):
            self.ensure(kind, namespace, content)

    def ensure(self, kind: str, namespace: str, content: Object, group: str = "") -> None:
        """Creates an object of a built-in kind unless there is one of its name, or its namespace goes."""
        info = self.registry.by_kind(group, kind)
        assert info is not None, kind
        try:
            self.create(info, namespace, content, WriteOptions(manager="gpu-mirage-sandbox"))
        except StatusError as error:
            if error.code not in {403, 404, 409}:
                raise

    def _decoded(self, info: ResourceInfo, obj: Object, options: WriteOptions, *, patched: bool = False) -> _Decoded:
        """The object pruned and defaulted; the one passed in may be changed. Raises Undecodable."""
        schema = info.schema
        # The server's own record of owners is valid, and longer than many an object.
        managed = obj["metadata"].pop("managedFields", None)
        dropped = validation.prune(obj, schema)
        faults = [f'duplicate field "{path}"' for path in options.duplicates]
        faults += [f'unknown field "{path}"' for path in dropped]
        if faults and options.field_validation == "Strict":
            raise Undecodable(info, f"strict decoding error: {', '.join(faults)}")
        validation.tidy(obj, schema)
        sound = not info.custom and self._is_sound(info, obj)
        validation.fill(obj, schema)
        if options.field_validation == "Warn":
            options.told.extend(faults)
        if warning := lifecycle.without_repeated_owners(obj, patched=patched):
            options.told.append(warning)
        if managed is not None and (managed or not info.custom):
            obj["metadata"]["managedFields"] = managed
        return _Decoded(obj, sound)

    def _is_sound(self, info: ResourceInfo, obj: Object) -> bool:
        """Whether an object of a built-in kind breaks no rule; a wrong type cannot even be decoded."""
        causes = tuple(validation.validate(obj, None, info.schema))
        for cause in causes:
            if cause.reason == "FieldValueTypeInvalid":
                raise Undecodable(info, f"{cause.field}: {cause.message}" if cause.field else cause.message)
        return not causes

    def _validate(
        self, info: ResourceInfo, new: Object, old: Object | None, decoded: _Decoded, subresource: str = ""
    ) -> Iterable[str]:
        """What the client should be warned of. Raises StatusError 422."""
        causes = [*lifecycle.metadata_causes(info, new), *rules.causes(info, new)]
        if old is not None:
            causes += lifecycle.finalizer_causes(old, new) + lifecycle.immutable_causes(info, old, new)
        if not decoded.sound:
            causes = validation.validate(new, old, info.schema, subresource, known=causes)
        if causes:
            raise invalid(info.group, info.kind, new["metadata"].get("name", ""), causes)
        return lifecycle.finalizer_warnings(old, new) if info.custom and not subresource else []

    def _tracked(
        self, info: ResourceInfo, old: Object | None, new: Object, options: WriteOptions, sent: Object | None = None
    ) -> Object:
        return apply.track_write(
            old,
            new,
            manager=options.manager,
            operation="Update",
            api_version=info.api_version,
            subresource=options.subresource,
            schema=info.schema,
            now=self.now(),
            sent=sent,
        )

    def _check_namespace(self, info: ResourceInfo, namespace: str, obj: Object) -> None:
        if not info.namespaced:
            return
        found = self.store.get("namespaces", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if lifecycle.being_deleted(found.object):
            raise lifecycle.namespace_terminating(info, namespace, obj["metadata"].get("name", ""))

    def _put(self, info: ResourceInfo, key: str, obj: Object, found: Stored | None) -> Stored:
        stored = self.store.put(info.collection, key, _as_stored(info, obj))
        self._react(info, key, found, stored)
        return stored

    def _remove(self, info: ResourceInfo, key: str, obj: Object) -> Stored:
        found = self.store.get(info.collection, key)
        stored = self.store.remove(info.collection, key, obj)
        self._react(info, key, found, None)
        return stored

    def _reread(self, definition: Object) -> None:
        """Reads the objects of a changed definition by their new schema, as the real server does."""
        spec = definition["spec"]
        stored = next(version["name"] for version in spec["versions"] if version["storage"])
        info = self.registry.find(spec["group"], stored, spec["names"]["plural"])
        if info is not None:
            self.store.reread(info.collection, lambda obj: _as_read(obj, info.schema))

    def _react(self, info: ResourceInfo, key: str, before: Stored | None, after: Stored | None) -> None:
        if info.kind == "CustomResourceDefinition":
            self.definitions.changed(after.object if after else None, before.object if before else None)
            if before is not None and after is not None:
                self._reread(after.object)
        self.collector.observe(info.collection, key, before.object if before else None, after.object if after else None)


def _written(info: ResourceInfo, stored: Stored, **rest: Any) -> Written:
    served = info.served(stored.object)
    return Written(served, **rest, encoded=stored.encoded if served is stored.object else b"")


def _as_read(obj: Object, schema: TypeSchema) -> Object:
    """A custom object as a schema has it read from the store, where it may lie since before that schema."""
    read = _copy(obj)
    validation.prune(read, schema)
    validation.default(read, schema)
    return read


@lru_cache(maxsize=16)
def _timestamp(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _uid() -> str:
    """A random UUID (version 4) as text; ``uuid.uuid4`` would make an object of it first, which takes longer."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _missing(state: State, other: State) -> list[tuple[str, str, Stored]]:
    """What of a state another one has not, or has otherwise, with resource and key."""
    return [
        (resource, key, stored)
        for resource, found in state.objects.items()
        for key, stored in found.items()
        if other.objects.get(resource, {}).get(key) is not stored
    ]


def _check_applied_type(info: ResourceInfo, body: Any) -> None:
    """Refuses to apply what is not of the path's kind and version. Raises StatusError 400."""
    if body is None:
        body = {}
    if not isinstance(body, dict):
        why = f"json: cannot unmarshal {json_kind(body)} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding patch: error unmarshaling JSON: while decoding JSON: {why}")
    api_version, kind = (body.get(name) if isinstance(body.get(name), str) else "" for name in ("apiVersion", "kind"))
    if (api_version, kind) != (info.api_version, info.kind):
        group, _, version = str(api_version).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind}")


def _reading(info: ResourceInfo, body: Object, options: WriteOptions) -> WriteOptions:
    """How a body is read: of custom objects that say another kind nothing is known, and so no field is unknown."""
    other = info.custom and body.get("kind") != info.kind
    return replace(options, field_validation="Ignore") if other else options


def _as_new(obj: Object, options: WriteOptions) -> Object:
    """What is to be updated or applied, where it is not there yet: its version counts for nothing."""
    hidden = () if options.dry_run else ("resourceVersion",)
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in hidden}}


def _as_stored(info: ResourceInfo, obj: Object) -> Object:
    """An object as the store gives it back."""
    if info.custom:
        return obj
    stored: Object = validation.emptied(obj, info.schema)
    return stored


def parse_version(text: str) -> int:
    """A resource version that a client sends; "" is 0. Raises StatusError 400."""
    if not text:
        return 0
    if not text.isdigit() or not text.isascii():
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {why}")
    if len(text) > 20 or int(text) >= 2**64:
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": value out of range'
        raise bad_request(f"invalid resource version: resourceVersion: {why}")
    return int(text)


def _page(
    info: ResourceInfo, candidates: Iterable[tuple[str, Stored]], options: ListOptions
) -> tuple[list[Stored], int]:
    """Up to ``limit`` matching objects, and 1 if another object follows, be it a matching one or not."""
    items: list[Stored] = []
    for _, stored in candidates:
        if options.limit and len(items) == options.limit:
            return items, 1
        if not options.selector or options.selector.matches(info.served(stored.object)):
            items.append(stored)
    return items, 0


def _key(obj: Mapping[str, Any]) -> str:
    return key_of(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _copy(obj: Object) -> Object:
    copied: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return copied


def _suffix() -> str:
    return "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(5))


def _token(version: int, after: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": version, "after": after})).decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        content = msgspec.json.decode(base64.urlsafe_b64decode(token))
        return int(content["v"]), str(content["after"])
    except (ValueError, TypeError, KeyError, msgspec.MsgspecError):
        raise bad_request("invalid continue token: continue key is not valid: it was not made by this server") from None
