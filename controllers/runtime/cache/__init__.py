"""Cached reads: the store, the machine that keeps it equal to the server, and the informer around both."""

from controllers.runtime.cache.informer import (
    Change,
    ChangeHandler,
    ChangeType,
    Happening,
    Informer,
    InformerObserver,
    InformerOptions,
    Statistics,
)
from controllers.runtime.cache.reflector import Action, ListPage, Reflector, Replacement, Wait, Watch
from controllers.runtime.cache.store import Reader, Store

__all__ = [
    "Action",
    "Change",
    "ChangeHandler",
    "ChangeType",
    "Happening",
    "Informer",
    "InformerObserver",
    "InformerOptions",
    "ListPage",
    "Reader",
    "Reflector",
    "Replacement",
    "Statistics",
    "Store",
    "Wait",
    "Watch",
]
