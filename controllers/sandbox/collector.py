"""Garbage collection: dependents of owners that are gone, the contents of namespaces, the objects of dropped kinds.

Every write is observed; what follows from it is queued and done in ``step``, because the real server does it later,
too, and because a deletion may set off thousands more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from controllers.sandbox.definitions import CLEANUP, needs_establishing
from controllers.sandbox.lifecycle import FOREGROUND, ORPHAN, Deletion, Object, being_deleted
from controllers.sandbox.registry import ResourceInfo

if TYPE_CHECKING:
    from controllers.sandbox.cluster import Cluster

DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
Place = tuple[str, str]


class Collector:
    """Keeps track of owners and dependents, and removes what must not outlive others."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._owners: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self.wake: Callable[[], None] = lambda: None

    def observe(self, collection: str, key: str, before: Object | None, after: Object | None) -> None:
        """Learns of a write; ``before`` or ``after`` is None where there was, or is, no object."""
        place = (collection, key)
        self._index(place, before, after)
        queued = len(self._queue)
        if after is None and before is not None:
            self._after_removal(collection, before)
        elif after is not None:
            self._after_write(place, before, after)
        if len(self._queue) > queued:
            self.wake()

    def take_up(self, objects: Iterable[tuple[str, str, Object]]) -> None:
        """Learns of objects (with their collections and keys) that were there before, and queues what they wait for."""
        known = [((collection, key), obj) for collection, key, obj in objects]
        for place, obj in known:
            self._index(place, None, obj)
        for place, obj in known:
            self._after_write(place, None, obj)
        if self._queue:
            self.wake()

    def step(self, limit: int = 100) -> bool:
        """Does up to ``limit`` queued things; tells whether more are left.

        Raises StatusError where something could not be stored; it stays in the queue, to be tried again.
        """
        for _ in range(min(limit, len(self._queue))):
            # Each of them looks at what is there first, so that to begin one again does no harm.
            self._queue[0]()
            self._queue.popleft()
        return bool(self._queue)

    def settle(self) -> None:
        """Does all that is queued, and what follows from it."""
        while self.step():
            pass

    def _index(self, place: Place, before: Object | None, after: Object | None) -> None:
        if before is None and after is not None:
            self._owners[after["metadata"]["uid"]] = place
        if after is None and before is not None:
            self._owners.pop(before["metadata"]["uid"], None)
        old, new = set(_owner_uids(before)), set(_owner_uids(after))
        for uid in old - new:
            self._dependents[uid].discard(place)
            if not self._dependents[uid]:
                del self._dependents[uid]
        for uid in new - old:
            self._dependents.setdefault(uid, set()).add(place)

    def _after_removal(self, collection: str, before: Object) -> None:
        uid, namespace = before["metadata"]["uid"], before["metadata"].get("namespace")
        for place in sorted(self._dependents.get(uid, ())):
            self._later(self._check_owners, place)
        for owner in _owner_uids(before):
            if owner in self._owners:
                self._later(self._finish_owner, self._owners[owner])
        if namespace and self._is_deleted("namespaces", namespace):
            self._later(self._empty_namespace, namespace)
        if definition := self._definition_of(collection):
            self._later(self._empty_definition, definition)

    def _after_write(self, place: Place, before: Object | None, after: Object) -> None:
        if any(not self._lives(reference) for reference in after["metadata"].get("ownerReferences") or ()):
            self._later(self._check_owners, place)
        if not being_deleted(after):
            if place[0] == "namespaces" and before is None:
                self._later(self._furnish_namespace, place[1])
            if place[0] == DEFINITIONS and needs_establishing(after):
                self._later(self._establish, place[1])
            return
        finalizers = after["metadata"].get("finalizers") or ()
        if FOREGROUND in finalizers or ORPHAN in finalizers:
            self._later(self._finish_owner, place)
        if place[0] == "namespaces":
            self._later(self._empty_namespace, place[1])
        if CLEANUP in finalizers:
            self._later(self._empty_definition, place[1])

    def _later(self, action: Callable[..., None], *arguments: Any) -> None:
        self._queue.append(lambda: action(*arguments))

    def _check_owners(self, place: Place) -> None:
        """Deletes an object whose owners are all gone; takes the gone ones from an object that has others."""
        found = self._cluster.store.get(*place)
        if found is None:
            return
        references = found.object["metadata"].get("ownerReferences") or []
        living = [reference for reference in references if self._lives(reference)]
        if not references or len(living) == len(references):
            return
        if not living:
            self._delete(place)
        else:
            self._amend(place, {"ownerReferences": living})

    def _lives(self, reference: Mapping[str, Any]) -> bool:
        """Whether an owner is there. One of a kind that is not served may be: nobody can look."""
        group, _, _ = str(reference["apiVersion"]).rpartition("/")
        served = self._cluster.registry.by_kind(group, reference["kind"]) is not None
        return reference["uid"] in self._owners or not served

    def _finish_owner(self, place: Place) -> None:
        """Goes on with a foreground or orphaning deletion."""
        found = self._cluster.store.get(*place)
        if found is None or not being_deleted(found.object):
            return
        metadata = found.object["metadata"]
        finalizers = metadata.get("finalizers") or []
        uid, done = metadata["uid"], set()
        if ORPHAN in finalizers:
            for dependent in sorted(self._dependents.get(uid, ())):
                self._disown(dependent, uid)
            done.add(ORPHAN)
        if FOREGROUND in finalizers and not self._delete_dependents(uid):
            done.add(FOREGROUND)
        if done:
            self._amend(place, {"finalizers": [f for f in finalizers if f not in done]})

    def _delete_dependents(self, uid: str) -> bool:
        """Deletes all dependents; tells whether any that blocks its owner's deletion is left."""
        for place in sorted(self._dependents.get(uid, ())):
            found = self._cluster.store.get(*place)
            if found is not None and not being_deleted(found.object):
                self._delete(place, "Foreground" if self._dependents.get(found.object["metadata"]["uid"]) else None)
        left = (self._cluster.store.get(*place) for place in self._dependents.get(uid, ()))
        return any(_blocks(stored.object, uid) for stored in left if stored is not None)

    def _disown(self, place: Place, uid: str) -> None:
        found = self._cluster.store.get(*place)
        if found is not None:
            kept = [r for r in found.object["metadata"].get("ownerReferences") or () if r["uid"] != uid]
            self._amend(place, {"ownerReferences": kept})

    def _empty_namespace(self, namespace: str) -> None:
        found = self._cluster.store.get("namespaces", namespace)
        if found is None or not being_deleted(found.object):
            return
        for place in list(self._contents(namespace)):
            stored = self._cluster.store.get(*place)
            if stored is not None and not being_deleted(stored.object):
                self._delete(place)
        if next(self._contents(namespace), None) is None:
            spec = {**(found.object.get("spec") or {}), "finalizers": []}
            self._store(("namespaces", namespace), {**found.object, "spec": spec})

    def _contents(self, namespace: str) -> Iterator[Place]:
        for info in self._cluster.registry.all():
            if info.namespaced and not info.stored_as:
                for key, _ in self._cluster.store.collection(info.collection).select(f"{namespace}/"):
                    yield info.collection, key

    def _furnish_namespace(self, namespace: str) -> None:
        """Makes what every namespace of a real cluster has."""
        self._cluster.furnish(namespace)

    def _establish(self, name: str) -> None:
        found = self._cluster.store.get(DEFINITIONS, name)
        if found is not None and not being_deleted(found.object) and needs_establishing(found.object):
            self._cluster.establish(found)

    def _empty_definition(self, name: str) -> None:
        place = (DEFINITIONS, name)
        found = self._cluster.store.get(*place)
        if found is None or not being_deleted(found.object):
            return
        collection = _defined(found.object)
        for key, stored in list(self._cluster.store.collection(collection).select()):
            if not being_deleted(stored.object):
                self._delete((collection, key))
        if not self._cluster.store.collection(collection).objects:
            finalizers = found.object["metadata"].get("finalizers") or []
            self._amend(place, {"finalizers": [f for f in finalizers if f != CLEANUP]})

    def _definition_of(self, collection: str) -> str:
        """The name of a CRD under deletion to which a collection belongs."""
        group, _, plural = collection.rpartition("/")
        name = f"{plural}.{group}"
        return name if group and self._is_deleted(DEFINITIONS, name) else ""

    def _is_deleted(self, collection: str, key: str) -> bool:
        found = self._cluster.store.get(collection, key)
        return found is not None and being_deleted(found.object)

    def _delete(self, place: Place, propagation: str | None = None) -> None:
        found, info = self._cluster.store.get(*place), self._info(place)
        if found is None or info is None:
            return
        metadata = found.object["metadata"]
        deletion = Deletion(propagation=propagation or "Background")
        self._cluster.delete(info, metadata.get("namespace", ""), metadata["name"], deletion, dry_run=False)

    def _amend(self, place: Place, changes: Mapping[str, Any]) -> None:
        """Changes metadata; an empty list removes its field."""
        found = self._cluster.store.get(*place)
        if found is None:
            return
        metadata = {**found.object["metadata"], **changes}
        metadata = {key: value for key, value in metadata.items() if value or key not in changes}
        self._store(place, {**found.object, "metadata": metadata})

    def _store(self, place: Place, new: Object) -> None:
        found, info = self._cluster.store.get(*place), self._info(place)
        if found is not None and info is not None:
            self._cluster.amend(info, found, new)

    def _info(self, place: Place) -> ResourceInfo | None:
        return self._cluster.registry.by_collection(place[0])


def _owner_uids(obj: Object | None) -> list[str]:
    if obj is None:
        return []
    return [reference["uid"] for reference in obj["metadata"].get("ownerReferences") or ()]


def _blocks(obj: Object, uid: str) -> bool:
    references = obj["metadata"].get("ownerReferences") or ()
    return any(r["uid"] == uid and r.get("blockOwnerDeletion") for r in references)


def _defined(definition: Object) -> str:
    return f"{definition['spec']['group']}/{definition['spec']['names']['plural']}"
