"""Objects in memory, with one integer version for the whole store and a window of past changes per resource.

Stored objects are never changed in place: a write stores a new dict, and whoever reads may keep what it got. Each
object is encoded once, when it is written; lists and watches send those bytes. The window serves watches that begin
in the past, and lists of a past version, which are the present with the changes since then undone. A journal, where
there is one, keeps each change before anybody can see it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Object = dict[str, Any]
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


_ENVELOPE = '{"kind":"","apiVersion":"",'


# Structs, as is whatever is made for each request: dataclasses would take several times as long.
class Stored(msgspec.Struct, frozen=True, gc=False):
    """An object as of one write: its ``version`` and its JSON."""

    object: Object
    version: int
    encoded: bytes

    @property
    def encoded_item(self) -> bytes:
        """Its JSON without kind and apiVersion, as the items of a list of a built-in kind are."""
        start = len(_ENVELOPE) + len(self.object["kind"]) + len(self.object["apiVersion"])
        return b"{" + self.encoded[start:]


class Change(msgspec.Struct, frozen=True, gc=False):
    """One write: what the object became (for a deletion, what it was last) and what it had been."""

    version: int
    type: ChangeType
    key: str
    stored: Stored
    previous: Stored | None


Journal = Callable[[str, Change], None]
"""Keeps a change of a resource; where it raises, the change is not made."""


@dataclass(frozen=True, slots=True)
class State:
    """All objects at one moment, by resource and key, and the version that the store had then."""

    version: int
    objects: dict[str, dict[str, Stored]]


class Forgotten(Exception):
    """The asked-for version lies before the window; ``oldest`` is the first that could be served."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"versions before {oldest} are forgotten")
        self.oldest = oldest


def key_of(namespace: str, name: str) -> str:
    """The key of an object; keys sort as etcd's do."""
    return f"{namespace}/{name}" if namespace else name


@dataclass(slots=True)
class Collection:
    """All objects of one resource, sorted by key, and its latest changes."""

    window: int
    floor: int
    objects: dict[str, Stored] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    trimmed: int = 0
    listeners: set[Callable[[], None]] = field(default_factory=set)

    @property
    def end(self) -> int:
        """The position after the latest change; positions count all changes ever made."""
        return self.trimmed + len(self.changes)

    def position_after(self, version: int) -> int:
        """The position of the first change after ``version``. Raises Forgotten."""
        if version < self.floor:
            raise Forgotten(self.floor)
        return self.trimmed + bisect_right(self.changes, version, key=_version)

    def changes_from(self, position: int, limit: int) -> list[Change]:
        """Up to ``limit`` changes from a position on. Raises Forgotten where the window has moved past it."""
        if position < self.trimmed:
            raise Forgotten(self.floor)
        start = position - self.trimmed
        return self.changes[start : start + limit]

    def select(self, prefix: str = "", after: str = "", version: int | None = None) -> Iterator[tuple[str, Stored]]:
        """The objects whose keys begin with ``prefix`` and lie behind ``after``, sorted, as of ``version`` or now.

        Raises Forgotten, before the first object is yielded.
        """
        undone = self._undone(version)
        keys = self.keys if not undone else sorted({*self.keys, *undone})
        start = bisect_right(keys, after) if after else bisect_left(keys, prefix)
        return self._walk(keys, start, prefix, undone)

    def _walk(
        self, keys: list[str], start: int, prefix: str, undone: dict[str, Stored | None]
    ) -> Iterator[tuple[str, Stored]]:
        for index in range(start, len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                return
            stored = undone[key] if key in undone else self.objects[key]
            if stored is not None:
                yield key, stored

    def _undone(self, version: int | None) -> dict[str, Stored | None]:
        if version is None or not self.changes or self.changes[-1].version <= version:
            return {}
        if version < self.floor:
            raise Forgotten(self.floor)
        undone: dict[str, Stored | None] = {}
        for change in reversed(self.changes):
            if change.version <= version:
                break
            undone[change.key] = change.previous
        return undone

    def record(self, change: Change) -> None:
        """Applies a change and tells the listeners."""
        if change.type == "DELETED":
            del self.objects[change.key]
            del self.keys[bisect_left(self.keys, change.key)]
        else:
            if change.previous is None:
                insort(self.keys, change.key)
            self.objects[change.key] = change.stored
        self.changes.append(change)
        # Trimming half of the list at a time makes its cost constant per change.
        if len(self.changes) > 2 * self.window:
            self.forget(len(self.changes) - self.window)
        for listener in tuple(self.listeners):
            listener()

    def forget(self, count: int) -> None:
        """Drops the oldest ``count`` changes."""
        if count <= 0:
            return
        self.floor = self.changes[count - 1].version
        self.trimmed += count
        del self.changes[:count]
        for listener in tuple(self.listeners):
            listener()


def _version(change: Change) -> int:
    return change.version


class Store:
    """All collections and the version that they share.

    ``window`` is how many changes of each resource are remembered at least.
    """

    def __init__(self, *, window: int = 10_000, version: int = 1) -> None:
        self.version = version
        self.journal: Journal | None = None
        self._window = window
        self._collections: dict[str, Collection] = {}
        self._encoder = msgspec.json.Encoder()

    def collection(self, resource: str) -> Collection:
        """The collection of a resource, made where there is none."""
        found = self._collections.get(resource)
        if found is None:
            found = self._collections[resource] = Collection(self._window, self.version)
        return found

    def resources(self) -> list[str]:
        """The resources of which there are, or were, objects."""
        return list(self._collections)

    def get(self, resource: str, key: str) -> Stored | None:
        return self.collection(resource).objects.get(key)

    def put(self, resource: str, key: str, obj: Object) -> Stored:
        """Stores ``obj`` under a new version, with that version in its metadata."""
        collection = self.collection(resource)
        previous = collection.objects.get(key)
        stored = self._versioned(obj)
        kind: ChangeType = "MODIFIED" if previous else "ADDED"
        self._make(resource, collection, Change(stored.version, kind, key, stored, previous))
        return stored

    def remove(self, resource: str, key: str, obj: Object) -> Stored:
        """Removes an object; ``obj`` is its last state, which gets the version of the deletion."""
        collection = self.collection(resource)
        previous = collection.objects[key]
        stored = self._versioned(obj)
        self._make(resource, collection, Change(stored.version, "DELETED", key, stored, previous))
        return stored

    def _make(self, resource: str, collection: Collection, change: Change) -> None:
        if self.journal is not None:
            self.journal(resource, change)
        self.version = change.version
        collection.record(change)

    def reread(self, resource: str, read: Callable[[Object], Object]) -> None:
        """Replaces the objects of a resource by what ``read`` makes of them, without a new version or a change."""
        objects = self.collection(resource).objects
        for key, stored in objects.items():
            obj = read(stored.object)
            if obj != stored.object:
                objects[key] = Stored(obj, stored.version, self._encoder.encode(obj))

    def compact(self) -> None:
        """Forgets all past changes, as etcd does every few minutes."""
        for collection in self._collections.values():
            collection.forget(len(collection.changes))
            collection.floor = self.version

    def state(self) -> State:
        """What is stored now. It stays as it is, whatever is written afterwards."""
        return State(self.version, {name: dict(found.objects) for name, found in self._collections.items()})

    def load(self, resource: str, key: str, stored: Stored) -> None:
        """Takes an object in with the version that it has; of the past before it nothing is known."""
        self.version = max(self.version, stored.version)
        collection = self.collection(resource)
        insort(collection.keys, key)
        collection.objects[key] = stored

    def restore(self, state: State) -> None:
        """Goes back to a state and forgets the past; versions that were given out since then are given out again."""
        self.version = state.version
        for resource in {*self._collections, *state.objects}:
            collection = self.collection(resource)
            collection.objects = dict(state.objects.get(resource, {}))
            collection.keys = sorted(collection.objects)
        self.compact()

    def _versioned(self, obj: Object) -> Stored:
        version = self.version + 1
        metadata = {**obj["metadata"], "resourceVersion": str(version)}
        # Kind and apiVersion go first, so that they can be cut off.
        ordered = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], **obj, "metadata": metadata}
        return Stored(ordered, version, self._encoder.encode(ordered))
