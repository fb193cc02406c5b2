"""From a change of some object to the requests it causes: plain callables."""

import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar

from controllers.runtime.cache import Change
from controllers.runtime.meta import Key, KubeObject
from controllers.runtime.reconcile import Request

T = TypeVar("T", bound=KubeObject)

MapFunction = Callable[[T], Iterable[Request]]
Handler = Callable[[Change[T]], Iterable[Request]]


class NoRequests(TypeError):
    """A map function or handler has returned something else than requests; the text says what."""


def requests_of(answer: object) -> tuple[Request, ...]:
    """What a map function or handler has returned. Raises NoRequests unless it is an iterable of requests.

    Without this a str would be read letter by letter, and fail much later, where nobody can tell where it came from.
    """
    if inspect.iscoroutine(answer):
        answer.close()  # it is never awaited, and that is told here
        raise NoRequests(f"{answer!r}: make it a plain function")
    if isinstance(answer, str | bytes | Key) or not isinstance(answer, Iterable):
        raise NoRequests(f"{answer!r}: return a list of requests, such as [Key(namespace, name)], or () for none")
    found = tuple(answer)
    for each in found:
        if not isinstance(each, Key):
            raise NoRequests(f"{each!r} among its requests: each must be a Key(namespace, name)")
    return found


def itself(change: Change[KubeObject]) -> Iterable[Request]:
    """The changed object."""
    return (change.subject.key,)


def mapped(function: MapFunction[T]) -> Handler[T]:
    """What ``function`` says of the old and of the new state, each request once."""

    def handle(change: Change[T]) -> Iterable[Request]:
        states = [state for state in (change.old, change.new) if state is not None]
        return tuple(dict.fromkeys(request for state in states for request in requests_of(function(state))))

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
