"""Objects that one controller makes as a whole, told from those that somebody else made under the same names."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

from controllers.runtime.client import Client, LiveOwnership, Selection
from controllers.runtime.errors import FieldConflict, ObjectGone
from controllers.runtime.meta import Key, KubeObject

T = TypeVar("T", bound=KubeObject)

REMEMBERED = 100_000
"""Objects of which it is known for whom they were made; one that is forgotten costs at most one write too many."""


class OwnedObjects(Generic[T]):
    """Writes and withdraws objects of a kind, each of which belongs to an object of the kind ``owners``.

    ``proof`` is the path of a field, in the terms of managedFields, that only the maker of an object has: one that
    cannot be changed is best, since an edit takes other fields over. The client must be allowed to list owners.
    """

    def __init__(self, client: Client, kind: type[T], *, owners: type[KubeObject], proof: tuple[str, ...]) -> None:
        self._client = client
        self._kind = kind
        self._owners = owners
        self._proof = proof
        self._made_for: LRUCache[Key, str] = LRUCache(REMEMBERED)
        self._makers: LRUCache[str, tuple[str, bool]] = LRUCache(REMEMBERED)

    async def ensure(self, desired: Mapping[str, Any], present: T | None) -> T:
        """Makes an object as desired, and takes edited fields back.

        Raises FieldConflict where it is another's, ObjectGone where it went because its owner did.
        """
        key, owner = _key(desired), desired["metadata"]["ownerReferences"][0]
        # Garbage collection takes at once what belongs to nobody. Where the cache hears of that before it hears of the
        # owner's end, which a half-open watch may keep from it for minutes, the two would make and take it for so long.
        if present is None and self._made_for.get(key) == owner["uid"]:
            await self._demand(owner["name"], owner["uid"])
        written = await self._write(desired, present)
        self._made_for[key] = owner["uid"]
        self._makers[written.uid] = (written.metadata.resource_version, True)
        return written

    async def _demand(self, name: str, uid: str) -> None:
        """Demands that an owner still exists, by a live look."""
        page = await self._client.list_page(self._owners, Selection(fields=f"metadata.name={name}"))
        present = {*(found.uid for found in page.items), *(found.uid for found in page.undecodable)}
        if uid not in present:
            raise ObjectGone(f"{self._owners.resource.kind} {name} is deleted: what belongs to it is not made again")

    async def _write(self, desired: Mapping[str, Any], present: T | None) -> T:
        try:
            return await self._client.apply_owned(self._kind, desired, force=False)
        except FieldConflict:
            if present is None or not await self.made(present):
                raise
        return await self._client.apply_owned(self._kind, desired, force=True)

    async def withdraw(self, present: T) -> bool:
        """Deletes an object that we made; whether it was one."""
        if not await self.made(present):
            return False
        await self._client.delete(present)
        return True

    async def is_ours(self, present: T) -> bool:
        """Whether an object is of our making or gone, by a live look at each version that we have not written."""
        version = present.metadata.resource_version
        known = self._makers.get(present.uid)
        if known is None or known[0] != version:
            live = await self._client.get_ownership(self._kind, present.name, present.namespace)
            ours = live is None or live.uid != present.uid or self._proves(live)
            known = self._makers[present.uid] = (version, ours)
        return known[1]

    async def made(self, present: T) -> bool:
        """Whether an object is of our making, by a live look."""
        live = await self._client.get_ownership(self._kind, present.name, present.namespace)
        return live is not None and live.uid == present.uid and self._proves(live)

    def _proves(self, live: LiveOwnership) -> bool:
        return live.managers_of(*self._proof) == {self._client.field_manager}


def _key(desired: Mapping[str, Any]) -> Key:
    metadata = desired["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])
