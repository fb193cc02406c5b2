"""Cached reads: the store, the machine that keeps it equal to the server, and the informer around both."""

from controllers.runtime.cache.change import Change, ChangeHandler, ChangeType
from controllers.runtime.cache.feed import Happening, InformerObserver, InformerOptions
from controllers.runtime.cache.handlers import AsyncChangeHandler, Registration
from controllers.runtime.cache.informer import Informer, Statistics
from controllers.runtime.cache.intake import Transform
from controllers.runtime.cache.pool import InformerPool
from controllers.runtime.cache.reflector import Action, Check, ListPage, Reflector, Replacement, StreamList, Wait, Watch
from controllers.runtime.cache.store import MutationDetector, Reader, Store

__all__ = [
    "Action",
    "AsyncChangeHandler",
    "Change",
    "ChangeHandler",
    "ChangeType",
    "Check",
    "Happening",
    "Informer",
    "InformerObserver",
    "InformerOptions",
    "InformerPool",
    "ListPage",
    "MutationDetector",
    "Reader",
    "Reflector",
    "Registration",
    "Replacement",
    "Statistics",
    "Store",
    "StreamList",
    "Transform",
    "Wait",
    "Watch",
]
