"""What an informer knows: objects by key, by namespace and by named indexes.

Every read is a snapshot, and the objects in it are frozen, so nothing that a reader does reaches the store. All of it
runs on one event loop; between two awaits of a reader nothing changes.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from controllers.runtime import logs
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Key, KubeObject

SMALL = 1_000
"""Objects up to which a store never gives memory back; Python's dicts keep their size when they are emptied."""

T = TypeVar("T", bound=KubeObject)
T_co = TypeVar("T_co", bound=KubeObject, covariant=True)

logger = logs.get_logger(__name__)


_NOTHING: Mapping[Key, str] = MappingProxyType({})


class Reader(Protocol[T_co]):
    """The read-only face of a store: all that a reconciler gets to see of it."""

    def get(self, key: Key) -> T_co | None:
        """The object of that name, or None."""
        ...

    def list(self, namespace: str = "") -> tuple[T_co, ...]:
        """Every object, or those of one namespace; in no promised order."""
        ...

    def by_index(self, name: str, value: str) -> tuple[T_co, ...]:
        """The objects that an index files under ``value``. Raises ConfigurationError where there is no such index."""
        ...


class _Index(Generic[T]):
    """Buckets of objects by what a function says of each; a bucket lives only as long as something is in it.

    An object that the function cannot take is in no bucket. An error names it, once for each of its versions, also
    where ``known``, an earlier filling of the same index, has told it already.
    """

    def __init__(self, name: str, values_of: Callable[[T], Iterable[str]], known: Mapping[Key, str] = _NOTHING) -> None:
        self.name = name
        self.values_of = values_of
        self.refused: dict[Key, str] = {}  # with the version that was refused
        self._known = known
        self._buckets: dict[str, dict[Key, T]] = {}

    def emptied(self) -> "_Index[T]":
        return _Index(self.name, self.values_of, self.refused)

    def filled_with(self, objects: Iterable[T]) -> "_Index[T]":
        fresh = self.emptied()
        for item in objects:
            fresh.add(item.key, item)
        return fresh

    def add(self, key: Key, item: T) -> None:
        try:
            values = _values(self.values_of(item))
        except Exception as error:  # noqa: BLE001 - one object's fault must not cost the others, or the list it came in
            self._refuse(key, item, error)
            return
        for value in values:
            self._buckets.setdefault(value, {})[key] = item

    def remove(self, item: T) -> None:
        key = item.key
        version = self.refused.pop(key, None)
        if version is not None:
            self._known = {key: version}  # its next state may be the same once more
            return
        try:
            for value in _values(self.values_of(item)):
                self._take_out(key, value)
        except Exception:  # noqa: BLE001 - it took this object before, so it is not pure: then a search has to do
            for value in [value for value, bucket in self._buckets.items() if key in bucket]:
                self._take_out(key, value)

    def _take_out(self, key: Key, value: str) -> None:
        bucket = self._buckets[value]
        del bucket[key]
        if not bucket:
            del self._buckets[value]

    def _refuse(self, key: Key, item: T, error: Exception) -> None:
        version = item.metadata.resource_version
        self.refused[key] = version
        if self._known.get(key) != version:
            logger.error(
                "the function of an index cannot take an object: by that index it is not found",
                resource=item.resource,
                object=key,
                index=self.name,
                resource_version=version,
                reason=f"{type(error).__name__}: {error}",
            )

    def find(self, value: str) -> tuple[T, ...]:
        return tuple(self._buckets.get(value, {}).values())

    def __len__(self) -> int:
        return len(self._buckets)


def _values(answer: Iterable[str]) -> frozenset[str]:
    if isinstance(answer, str):
        # Letter by letter it would be an iterable of values, under none of which anybody looks.
        raise TypeError(f"it returned {answer!r}: return a list of values, such as [{answer!r}]")
    return frozenset(answer)


class Draft(Generic[T]):
    """What a store is to hold next, filed part by part: a large list must not hold up everything else in one piece."""

    def __init__(self, named: Mapping[str, _Index[T]]) -> None:
        self.objects: dict[Key, T] = {}
        self.by_namespace: _Index[T] = _Index("namespace", _namespace_of)
        self.named = {name: index.emptied() for name, index in named.items()}

    def add(self, items: Iterable[T]) -> None:
        """Files objects whose keys are new to it."""
        for item in items:
            key = item.key
            self.objects[key] = item
            self.by_namespace.add(key, item)
            for index in self.named.values():
                index.add(key, item)


def _namespace_of(item: KubeObject) -> tuple[str]:
    return (item.namespace,)


class Store(Generic[T]):
    """Objects of one kind, O(1) by key and O(matches) by namespace or index.

    Index functions must be pure: they are asked again to find the buckets that an object leaves. An object for which
    one raises is left out of that index alone: it is stored, and found in every other way.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}
        self._by_namespace: _Index[T] = _Index("namespace", _namespace_of)
        self._named: dict[str, _Index[T]] = {}
        self._most = 0

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str = "") -> tuple[T, ...]:
        return self._by_namespace.find(namespace) if namespace else tuple(self._objects.values())

    def by_index(self, name: str, value: str) -> tuple[T, ...]:
        index = self._named.get(name)
        if index is None:
            known = ", ".join(sorted(self._named)) or "none"
            raise ConfigurationError(f"there is no index {name!r} (known: {known}): call add_index first")
        return index.find(value)

    def index_sizes(self) -> dict[str, int]:
        """How many values each index distinguishes at present."""
        return {name: len(index) for name, index in self._named.items()}

    @property
    def unindexed(self) -> int:
        """Objects that exist at present and that some index cannot take, counted once for each such index."""
        return sum(len(index.refused) for index in self._named.values())

    def add_index(self, name: str, values_of: Callable[[T], Iterable[str]]) -> None:
        """Files every object, present and future, under each value that ``values_of`` gives for it.

        An object for which it raises, or gives a str in the place of several, is not found by this index; an error
        names both, once for each version of the object, and ``unindexed`` counts it.

        Raises ConfigurationError where the name is taken.
        """
        if name in self._named:
            raise ConfigurationError(f"there is already an index {name!r}: choose another name")
        self._named[name] = _Index(name, values_of).filled_with(self._objects.values())

    def put(self, item: T) -> T | None:
        """Adds or replaces one object; returns the one of that name that was there."""
        key = item.key
        old = self._objects.get(key)
        for index in (self._by_namespace, *self._named.values()):
            if old is not None:
                index.remove(old)
            index.add(key, item)
        self._objects[key] = item
        self._most = max(self._most, len(self._objects))
        return old

    def remove(self, key: Key) -> T | None:
        """Takes one object out and returns it; None where it is not there."""
        old = self._objects.pop(key, None)
        if old is not None:
            for index in (self._by_namespace, *self._named.values()):
                index.remove(old)
            if self._most > SMALL and len(self._objects) < self._most // 4:
                self.replace(self._objects.values())
        return old

    def replace(self, items: Iterable[T], namespace: str = "") -> None:
        """Swaps the whole contents, or those of one namespace; no reader ever sees a mixture of old and new."""
        draft = self.draft()
        draft.add({item.key: item for item in items}.values())
        self.adopt(draft, namespace)

    def draft(self) -> Draft[T]:
        """Empty next contents, for ``adopt``."""
        return Draft(self._named)

    def adopt(self, draft: Draft[T], namespace: str = "") -> None:
        """``replace`` by what was filed before: takes no time, but for the other namespaces where one is given."""
        if namespace:
            draft.add(item for item in self._objects.values() if item.namespace != namespace)
        # Whoever has added an index meanwhile pays for it.
        late = {
            name: index.filled_with(draft.objects.values())
            for name, index in self._named.items()
            if name not in draft.named
        }
        self._objects, self._by_namespace, self._named = draft.objects, draft.by_namespace, {**draft.named, **late}
        self._most = len(draft.objects)


class MutationDetector(Generic[T]):
    """Finds out whether somebody changed what a store holds, for tests.

    Objects are frozen, but the maps in them are not. Make one around a store, let readers work, then ``check``.
    """

    def __init__(self, store: Store[T]) -> None:
        self._store = store
        self._seen: dict[int, tuple[T, bytes]] = {}

    def check(self) -> None:
        """Raises AssertionError where an object is no longer what it was when this was first called with it."""
        current: dict[int, tuple[T, bytes]] = {}
        for item in self._store.list():
            current[id(item)] = self._seen.get(id(item)) or (item, msgspec.json.encode(item))
        for item, before in (*self._seen.values(), *current.values()):
            if msgspec.json.encode(item) != before:
                what = f"{item.resource.kind} {item.key}"
                raise AssertionError(f"{what} was changed inside the cache: change a copy (msgspec.structs.replace)")
        self._seen = current
