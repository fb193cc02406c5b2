"""Typed objects: the metadata every kind has, the base class of projections, and how raw JSON becomes one.

A projection holds only the fields that somebody reads. It is frozen, so nobody can change what a cache holds, and
unknown fields cost nothing because they are never built.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from controllers.runtime.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives in the API; ``group`` is "" for core kinds."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path; segments are not escaped, since names that the API accepts need no escaping."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)

    def at(self, version: str) -> "Resource":
        """The same kind in another served version."""
        return Resource(self.group, version, self.plural, self.kind, self.namespaced)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Projection(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A part of an API object: frozen, camelCase on the wire, defaults not written.

    The garbage collector passes it over: what comes from JSON and cannot be changed is never part of a cycle, and a
    full collection would otherwise visit all that is cached, for a tenth of a second with 50,000 pods.
    """


class OwnerReference(Projection, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(Projection, frozen=True, kw_only=True):
    """The metadata that controllers read; ``managedFields`` is left out on purpose (a quarter of every object)."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names one object of a known kind; ``namespace`` is empty for cluster-scoped kinds.

    Caches and queues make, hash and compare several for every event: a Struct does so ten times as fast as a dataclass.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class KubeObject(Projection, frozen=True, kw_only=True):
    """Base class of every kind; a subclass sets ``resource`` and adds the fields that its readers need.

    A subclass without further fields that sets ``metadata_only`` reads ``PartialObjectMetadata``: the server leaves
    out all that the projection would throw away.
    """

    resource: ClassVar[Resource]
    metadata_only: ClassVar[bool] = False

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Self:
        """Builds the projection from JSON.

        Servers and older clients send ``null`` where the schema says list or map; the fast path refuses that, so a
        refused object is decoded once more without its nulls. Raises DecodeError where that fails too.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.ValidationError:
            return cls._decode_without_nulls(raw)
        except msgspec.DecodeError as error:
            raise DecodeError(f"{cls.resource.kind}: not JSON: {error}") from error

    @classmethod
    def _decode_without_nulls(cls, raw: bytes | msgspec.Raw) -> Self:
        try:
            return msgspec.convert(without_nulls(msgspec.json.decode(raw)), type=cls)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DecodeError(f"{cls.resource.kind} {_name_in(raw)}: {error}") from error


class PartialObject(Projection, frozen=True, kw_only=True):
    """Just enough of any object to say which one it is."""

    metadata: ObjectMeta


def _name_in(raw: bytes | msgspec.Raw) -> str:
    try:
        metadata = msgspec.json.decode(raw, type=PartialObject).metadata
    except (msgspec.ValidationError, msgspec.DecodeError):
        return "(no readable name)"
    return str(Key(metadata.namespace, metadata.name))


def without_nulls(value: Any) -> Any:
    """The value with every ``null`` member of a map or list left out, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def owner_reference(owner: KubeObject) -> dict[str, Any]:
    """A controller owner reference to ``owner``, as the API wants it.

    It does not block the owner's deletion: that would need the right to write the owner's finalizers.
    """
    resource = owner.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
