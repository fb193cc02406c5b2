"""A controller framework: informers, work queues, reconcilers and a manager, on asyncio.

Names are imported from their modules when they are first used: whoever needs the clock or the log only does not wait
for an HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controllers.runtime.client import Client, ClientOptions, Selection
    from controllers.runtime.errors import NotFound
    from controllers.runtime.manager import Manager
    from controllers.runtime.meta import (
        Key,
        KubeObject,
        ObjectMeta,
        OwnerReference,
        Projection,
        Resource,
        owner_reference,
    )

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

_MODULES = {
    "Client": "client",
    "ClientOptions": "client",
    "Selection": "client",
    "NotFound": "errors",
    "Manager": "manager",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'meta')}"), name)
    globals()[name] = value
    return value
