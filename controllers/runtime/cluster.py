"""One cluster as a manager sees it: a client, and the caches of what it holds.

A manager has one that its controllers work in, and may have further ones that they read from or write to. All caches
start, are waited for and stop together, whichever cluster they are of.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from controllers.runtime.cache import Informer, Reader
from controllers.runtime.client import Client, Guard, Selection
from controllers.runtime.clock import Clock
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import KubeObject
from controllers.runtime.metrics import Metrics
from controllers.runtime.rbac import Declaration

T = TypeVar("T", bound=KubeObject)

STALE_AFTER = 30.0
"""Seconds after which a cache that cannot be kept current makes its manager not ready; broken watches are routine."""

NewInformer = Callable[[str, Informer[Any]], None]


class Cluster:
    """A client and the shared informers on it; ``name`` is "" for the one that a manager was made with."""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        clock: Clock,
        metrics: Metrics,
        guard: Guard | None,
        new_informer: NewInformer,
    ) -> None:
        self.client = client
        self.name = name
        self._clock = clock
        self._metrics = metrics
        self._guard = guard
        self._new_informer = new_informer
        self._informers: dict[type[KubeObject], Informer[Any]] = {}
        self._optional: set[type[KubeObject]] = set()

    @property
    def informers(self) -> Mapping[type[KubeObject], Informer[Any]]:
        """All of them, those included that nobody waits for."""
        return self._informers

    def informer(self, kind: type[T], selection: Selection | None = None, *, optional: bool = False) -> Informer[T]:
        """The shared informer of a kind, made at the first call; only that call may give a selection.

        Nothing waits for an ``optional`` one, and it makes nobody not ready: one forbidden kind that a controller can
        do without must not stop all of them. Whoever asks without ``optional`` needs it all the same.
        """
        known = self._informers.get(kind)
        if known is not None and selection is not None:
            raise ConfigurationError(f"the informer of {kind.resource} exists already: select before its first use")
        if not optional:
            self._optional.discard(kind)
        elif known is None:
            self._optional.add(kind)
        return cast("Informer[T]", known or self._made(kind, selection or Selection()))

    def _made(self, kind: type[T], selection: Selection) -> Informer[T]:
        series = self._metrics.for_informer(kind.resource, self._place(kind.__name__))
        informer = Informer(
            self.client,
            kind,
            selection,
            clock=self._clock,
            observer=self._metrics.informer_observer,
            processed=series.processed,
        )
        series.version_from(lambda: informer.statistics().resource_version)
        series.queued_from(lambda: informer.pending)
        self._informers[kind] = informer
        self._new_informer(self._place(f"informer-{kind.resource}"), informer)
        return informer

    def informers_of(self, kind: type[KubeObject]) -> list[Informer[Any]]:
        """The informers that would see a write to objects of a kind: its own, or else all of the same resource.

        Kinds of one resource, such as two sorts of ConfigMaps, select different objects, and an informer never sees a
        write to an object that it does not select.
        """
        own = self._informers.get(kind)
        if own is not None:
            return [own]
        return [informer for other, informer in self._informers.items() if other.resource == kind.resource]

    def reader(self, kind: type[T]) -> Reader[T]:
        """Cached reads of a kind."""
        return self.informer(kind).store

    def client_for(self, declaration: Declaration, *, needs_leader: bool = True) -> Client:
        """The client of one controller: its own field manager, and no verb that it has not declared.

        It refuses to write while this replica is not the leader; without ``needs_leader`` it always does.
        """
        client = self.client.restricted_to(declaration.everything, field_manager=f"gpu-mirage/{declaration.name}")
        return client.guarded_by(self._guard) if needs_leader and self._guard is not None else client

    async def wait_synced(self) -> None:
        """Waits for the caches that are there by now and that are not optional."""
        for informer in [informer for kind, informer in self._informers.items() if kind not in self._optional]:
            await informer.wait_synced()

    def unsynced(self) -> Iterable[str]:
        """The kinds that are not in the cache, or not kept current, with their last error."""
        for kind, informer in self._informers.items():
            if kind not in self._optional and (not informer.synced or informer.failing_for >= STALE_AFTER):
                why = informer.last_error or ("cannot be watched" if informer.synced else "not listed yet")
                yield f"{self._place(str(kind.resource))}: {why}"

    def _place(self, text: str) -> str:
        return f"{text} in {self.name}" if self.name else text
