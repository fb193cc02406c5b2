"""Filters on changes: plain callables that say whether a change is worth waking a controller.

Those whose names end in ``changed`` hold back updates only. Creations and deletions pass, and so does an object that
replaced a namesake, since everything may differ about it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from controllers.runtime.cache import Change
from controllers.runtime.meta import KubeObject
from controllers.runtime.selector import parse_labels

T = TypeVar("T", bound=KubeObject)

Predicate = Callable[[Change[T]], bool]


def changed(aspect: Callable[[T], Any]) -> Predicate[T]:
    """Lets those updates pass after which ``aspect`` of the object differs."""
    return _passes_where(lambda old, new: bool(aspect(old) != aspect(new)))


def _passes_where(differ: Callable[[T, T], bool]) -> Predicate[T]:
    def passes(change: Change[T]) -> bool:
        if change.old is None or change.new is None:
            return True
        return change.old.uid != change.new.uid or differ(change.old, change.new)

    return passes


def _generation_differs(old: KubeObject, new: KubeObject) -> bool:
    # The server counts no generations for some kinds, ConfigMaps among them: a filter would silence them for good.
    return old.metadata.generation != new.metadata.generation or not new.metadata.generation


generation_changed: Predicate[Any] = _passes_where(_generation_differs)
"""Lets updates pass that changed what is desired, not status or metadata. Updates of kinds that have no generation
pass all."""

resource_version_changed: Predicate[Any] = changed(lambda item: item.metadata.resource_version)
"""Lets updates pass that are real, not the repetitions of a resync."""

labels_changed: Predicate[Any] = changed(lambda item: item.metadata.labels)
"""Lets updates of labels pass."""

annotations_changed: Predicate[Any] = changed(lambda item: item.metadata.annotations)
"""Lets updates of annotations pass."""


def selected_by(labels: str) -> Predicate[Any]:
    """Lets changes of objects pass that a label selector, in the API's syntax, matches before or after the change.

    So an object that leaves the selection is heard of once more. Raises ConfigurationError for what is no selector.
    """
    terms = parse_labels(labels)

    def matches(item: KubeObject | None) -> bool:
        return item is not None and all(term.matches(item.metadata.labels) for term in terms)

    return lambda change: matches(change.old) or matches(change.new)


def all_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Lets pass what all of them let pass."""
    return lambda change: all(passes(change) for passes in predicates)


def any_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Lets pass what at least one of them lets pass."""
    return lambda change: any(passes(change) for passes in predicates)


def negated(predicate: Predicate[T]) -> Predicate[T]:
    """Lets pass what the other holds back."""
    return lambda change: not predicate(change)
