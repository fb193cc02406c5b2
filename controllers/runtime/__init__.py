"""A controller framework: informers, work queues, reconcilers and a manager, on asyncio."""

from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.errors import NotFound
from controllers.runtime.manager import Manager
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, OwnerReference, Projection, Resource, owner_reference

__all__ = [
    "Client",
    "ClientOptions",
    "Key",
    "KubeObject",
    "Manager",
    "NotFound",
    "ObjectMeta",
    "OwnerReference",
    "Projection",
    "Resource",
    "Selection",
    "owner_reference",
]
