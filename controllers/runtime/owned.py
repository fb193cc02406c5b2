"""Objects that one controller makes as a whole, told from those that somebody else made under the same names."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from controllers.runtime.client import Client
from controllers.runtime.errors import FieldConflict
from controllers.runtime.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class OwnedObjects(Generic[T]):
    """Writes and withdraws objects of a kind.

    ``proof`` is the path of a field, in the terms of managedFields, that only the maker of an object has: one that
    cannot be changed is best, since an edit takes other fields over.
    """

    def __init__(self, client: Client, kind: type[T], proof: tuple[str, ...]) -> None:
        self._client = client
        self._kind = kind
        self._proof = proof

    async def ensure(self, desired: Mapping[str, Any], present: T | None) -> T:
        """Makes an object as desired, and takes edited fields back. Raises FieldConflict where it is another's."""
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

    async def made(self, present: T) -> bool:
        """Whether an object is of our making, by a live look."""
        live = await self._client.get_ownership(self._kind, present.name, present.namespace)
        if live is None or live.uid != present.uid:
            return False
        return live.managers_of(*self._proof) == {self._client.field_manager}
