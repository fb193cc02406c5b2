"""Informers that come and go while others run: one for each kind, shared by all that read it."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from controllers.runtime.cache.feed import InformerObserver, InformerOptions, unobserved
from controllers.runtime.cache.informer import Informer
from controllers.runtime.client import EVERYTHING, Client, Selection
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError, RuntimeFault
from controllers.runtime.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class InformerPool:
    """Makes informers, runs them for as long as ``run`` runs, and lets each of them end before that.

    One that is asked for while the pool runs starts at once; ``Informer.wait_synced`` tells when it can be read.
    """

    def __init__(
        self,
        client: Client,
        options: InformerOptions | None = None,
        *,
        clock: Clock | None = None,
        observer: InformerObserver = unobserved,
    ) -> None:
        self._client = client
        self._options = options or InformerOptions()
        self._clock = clock or SystemClock()
        self._observer = observer
        self._informers: dict[type[KubeObject], Informer[Any]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[Informer[Any], asyncio.Task[None]] = {}

    @property
    def informers(self) -> Mapping[type[KubeObject], Informer[Any]]:
        """All that there are at present."""
        return MappingProxyType(self._informers)

    def informer(
        self,
        kind: type[T],
        selection: Selection | Sequence[Selection] | None = None,
        options: InformerOptions | None = None,
    ) -> Informer[T]:
        """The shared informer of a kind, made at the first call; only that call may give a selection or options."""
        known = self._informers.get(kind)
        if known is None:
            known = Informer(
                self._client,
                kind,
                EVERYTHING if selection is None else selection,
                options or self._options,
                clock=self._clock,
                observer=self._observer,
            )
            self._informers[kind] = known
            self._start(known)
        elif selection is not None or options is not None:
            raise ConfigurationError(f"the informer of {kind.resource} exists already: select before its first use")
        return cast("Informer[T]", known)

    async def remove(self, kind: type[KubeObject]) -> None:
        """Ends the informer of a kind and forgets it; where there is none, nothing happens.

        Its handlers hear nothing more, and who still holds its store reads the past. Asking for the kind again makes
        another informer.
        """
        informer = self._informers.pop(kind, None)
        if informer is None:
            return
        informer.stop()
        task = self._running.get(informer)
        # A handler may remove its own informer: that ends once the handler has returned.
        if task is not None and asyncio.current_task() not in informer.tasks:
            await asyncio.wait({task})

    async def wait_synced(self) -> None:
        """Waits until each informer that there is now can be read."""
        for informer in tuple(self._informers.values()):
            await informer.wait_synced()

    async def run(self) -> None:
        """Runs until cancelled. Raises what ended an informer that was not removed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for informer in self._informers.values():
                    self._start(informer)
                await asyncio.Event().wait()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None

    def _start(self, informer: Informer[Any]) -> None:
        if self._tasks is None:
            return
        task = self._tasks.create_task(self._supervise(informer), name=f"informer-{informer.kind.resource}")
        self._running[informer] = task
        task.add_done_callback(lambda _: self._running.pop(informer, None))

    async def _supervise(self, informer: Informer[Any]) -> None:
        await informer.run()
        if self._informers.get(informer.kind) is informer:
            raise RuntimeFault(f"the informer of {informer.kind.resource} has ended, but was not removed")
