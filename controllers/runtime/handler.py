"""From a change of some object to the requests it causes: plain callables."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from controllers.runtime.cache import Change
from controllers.runtime.meta import Key, KubeObject
from controllers.runtime.reconcile import Request

T = TypeVar("T", bound=KubeObject)

MapFunction = Callable[[T], Iterable[Request]]
Handler = Callable[[Change[T]], Iterable[Request]]


def itself(change: Change[KubeObject]) -> Iterable[Request]:
    """The changed object."""
    return (change.subject.key,)


def mapped(function: MapFunction[T]) -> Handler[T]:
    """What ``function`` says of the old and of the new state, each request once."""

    def handle(change: Change[T]) -> Iterable[Request]:
        states = [state for state in (change.old, change.new) if state is not None]
        return dict.fromkeys(request for state in states for request in function(state))

    return handle


def owner(kind: type[KubeObject], *, every_owner: bool = False) -> Handler[KubeObject]:
    """The controlling owner of that kind, before and after the change; with ``every_owner`` all owners of that kind.

    Group and kind must match, the version need not. A cluster-scoped owner has no namespace.
    """
    wanted = kind.resource

    def owners(dependent: KubeObject) -> Iterable[Request]:
        for reference in dependent.metadata.owner_references:
            group = reference.api_version.rpartition("/")[0]
            counts = every_owner or reference.controller
            if counts and (group, reference.kind) == (wanted.group, wanted.kind):
                yield Key(dependent.namespace if wanted.namespaced else "", reference.name)

    return mapped(owners)
