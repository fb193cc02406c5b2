"""What comes from the server on its way into the store: which change each event or list makes.

An object that exists but can no longer be decoded stays in the store as it last was. Dropping it would look like a
deletion to every controller, with all that a controller does then; so it is kept, a warning names it once for each of
its versions, and ``unreadable`` counts it for as long as that lasts. The same holds for one that a transform cannot
take. One that an index cannot take is stored all the same, see ``Store``.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from controllers.runtime import logs
from controllers.runtime.cache.change import Change, ChangeType, change_between, changes_of_list
from controllers.runtime.cache.reflector import Replacement
from controllers.runtime.cache.store import Store
from controllers.runtime.client import Undecodable, WatchEvent
from controllers.runtime.errors import DecodeError
from controllers.runtime.meta import Key, KubeObject, Resource

T = TypeVar("T", bound=KubeObject)

Transform = Callable[[Any], Any]

BATCH = 1_000
"""Objects of a list that are filed at once."""

logger = logs.get_logger(__name__)


class Intake(Generic[T]):
    """Brings what one feed receives into the store that it shares with others; ``namespace`` "" is all of it.

    ``report`` is called for each object that cannot be read, once for each of its versions.
    """

    def __init__(
        self,
        store: Store[T],
        resource: Resource,
        namespace: str,
        transform: Transform | None,
        report: Callable[[], None],
    ) -> None:
        self._store = store
        self._resource = resource
        self._namespace = namespace
        self._transform = transform
        self._report = report
        self._unreadable: dict[Key, str] = {}
        self._stuck: dict[Key, str] = {}  # with the uid that was told

    @property
    def unreadable(self) -> int:
        """Objects that exist at present and cannot be read."""
        return len(self._unreadable)

    async def replace(self, replacement: Replacement[T], *, initial: bool) -> Iterator[Change[T]]:
        """Swaps what is stored for a complete list, and makes the changes that this means as they are asked for."""
        before = {item.key: item for item in self._store.list(self._namespace)}
        after: dict[Key, T] = {}
        undecodable = list(replacement.undecodable)
        draft = self._store.draft()
        for start in range(0, len(replacement.items), BATCH):
            items, refused = self._transformed(replacement.items[start : start + BATCH])
            undecodable += refused
            batch = {item.key: item for item in items}
            draft.add(batch.values())
            after.update(batch)
            # With tens of thousands of objects everything else would stand still for as long as this takes.
            await asyncio.sleep(0)
        kept = {old.key: old for bad in undecodable if (old := self._last_readable(bad)) is not None}
        unlisted = {key: old for key, old in kept.items() if key not in after}
        draft.add(unlisted.values())
        self._store.adopt(draft, self._namespace)
        known, self._unreadable = self._unreadable, {}
        still = {bad.key for bad in undecodable}
        self._stuck = {key: uid for key, uid in self._stuck.items() if key in still}
        for bad in undecodable:
            self._note(bad, known)
        return changes_of_list(before, {**unlisted, **after}, initial=initial)

    def take(self, event: WatchEvent[T]) -> Change[T] | None:
        """Brings one event into the store; None where that changes nothing."""
        subject = self._shaped(event.object) if event.object is not None else event.undecodable
        match event.type, subject:
            case "BOOKMARK", _:
                return None
            case "ADDED" | "MODIFIED", Undecodable() as bad:
                return self._cannot_read(bad)
            case "DELETED", Undecodable() as bad:
                return self._remove_unseen(bad)
            case "ADDED" | "MODIFIED", KubeObject() as item:
                return None if self._is_past(item) else self._put(item)
            case "DELETED", KubeObject() as item:
                return self._remove(item)
        logger.warning("a watch sent an event of unknown type", resource=self._resource, type=event.type)
        return None

    def _put(self, item: T) -> Change[T] | None:
        old = self._store.put(item)
        self._forget(item.key)
        return change_between(old, item)

    def _remove(self, item: T) -> Change[T] | None:
        stored = self._store.get(item.key)
        if stored is not None and (item.uid not in ("", stored.uid) or self._is_past(item)):
            return None
        self._forget(item.key)
        return Change(ChangeType.DELETED, item, None) if self._store.remove(item.key) else None

    def _is_past(self, item: T) -> bool:
        """Whether the store has a later state of that very object, as where an event comes twice or out of order."""
        stored = self._store.get(item.key)
        if stored is None or stored.uid != item.uid:
            return False
        known, told = stored.metadata.resource_version, item.metadata.resource_version
        return known.isdecimal() and told.isdecimal() and int(told) < int(known)

    def _cannot_read(self, bad: Undecodable) -> Change[T] | None:
        self._note(bad, self._unreadable)
        namesake = self._store.get(bad.key) if bad.key is not None else None
        return self._vanished(namesake) if self._last_readable(bad) is None else None

    def _remove_unseen(self, bad: Undecodable) -> Change[T] | None:
        if bad.key is not None:
            self._forget(bad.key)
        return self._vanished(self._last_readable(bad))

    def _vanished(self, old: T | None) -> Change[T] | None:
        if old is None:
            return None
        self._store.remove(old.key)
        return Change(ChangeType.DELETED, old, None, final_state_unknown=True)

    def _last_readable(self, bad: Undecodable) -> T | None:
        """The stored state of what cannot be decoded now, if that is still the same object and not a namesake."""
        old = self._store.get(bad.key) if bad.key is not None else None
        return old if old is not None and bad.uid in ("", old.uid) else None

    def _note(self, bad: Undecodable, known: dict[Key, str]) -> None:
        told = bad.key is not None and known.get(bad.key) == bad.resource_version
        if bad.key is not None:
            self._unreadable[bad.key] = bad.resource_version
        if told:
            return
        self._report()
        logger.warning(
            "an object cannot be read: the cache keeps its last readable state, or leaves it out",
            resource=self._resource,
            object=bad.key or "(no readable name)",
            resource_version=bad.resource_version,
            reason=str(bad.error),
        )

        self._note_stuck(bad)

    def _note_stuck(self, bad: Undecodable) -> None:
        """No controller hears of the deletion of what it cannot read, so nobody would ever take its finalizers away."""
        if bad.key is None or not bad.held_by or self._stuck.get(bad.key) == bad.uid:
            return
        self._stuck[bad.key] = bad.uid
        logger.error(
            "an object is being deleted, but cannot be read: it stays until its finalizers are removed by hand, or it "
            "is mended",
            resource=self._resource,
            object=bad.key,
            finalizers=", ".join(bad.held_by),
            reason=str(bad.error),
        )

    def _forget(self, key: Key) -> None:
        self._unreadable.pop(key, None)
        self._stuck.pop(key, None)

    def _transformed(self, items: tuple[T, ...]) -> tuple[Sequence[T], list[Undecodable]]:
        if self._transform is None:
            return items, []
        done: list[T] = []
        refused: list[Undecodable] = []
        for item in items:
            shaped = self._shaped(item)
            if isinstance(shaped, Undecodable):
                refused.append(shaped)
            else:
                done.append(shaped)
        return done, refused

    def _shaped(self, item: T) -> T | Undecodable:
        if self._transform is None:
            return item
        try:
            shaped: T = self._transform(item)
        except Exception as error:  # noqa: BLE001 - one object's fault must not stop the others
            return _refused(item, f"raised {type(error).__name__}: {error}")
        if not isinstance(shaped, KubeObject) or shaped.key != item.key:
            return _refused(item, f"returned {shaped!r}: return that object, or a changed copy of the same name")
        return shaped


def _refused(item: KubeObject, how: str) -> Undecodable:
    reason = DecodeError(f"{item.resource.kind} {item.key}: the transform {how}")
    held_by = item.metadata.finalizers if item.deleting else ()
    return Undecodable(item.key, item.uid, item.metadata.resource_version, reason, tuple(held_by))
