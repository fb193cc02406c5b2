"""The manager: owns the connection, the caches and the controllers, and starts and stops them in order.

Start: HTTP servers, then what must be known before anything is declared (``prepare``), caches, controllers and other
runnables. Stop: controllers and runnables, caches, event recorders, HTTP servers, connection. A task that ends by
itself is an error that stops the manager: nothing dies silently.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from controllers.runtime import logs
from controllers.runtime.cache import Informer, Reader
from controllers.runtime.client import Client, Selection
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.controller import Controller, ControllerOptions
from controllers.runtime.errors import ConfigurationError, RuntimeFault
from controllers.runtime.meta import KubeObject
from controllers.runtime.metrics import Metrics
from controllers.runtime.options import ManagerOptions
from controllers.runtime.probes import Checks, HttpServer
from controllers.runtime.rbac import Declaration
from controllers.runtime.recorder import PERMISSIONS as EVENT_PERMISSIONS
from controllers.runtime.recorder import Recorder, RecorderOptions
from controllers.runtime.tracing import Tracer

T = TypeVar("T", bound=KubeObject)

Runnable = Callable[[], Coroutine[Any, Any, None]]
Prepare = Callable[["Manager"], Awaitable[None]]

STALE_AFTER = 30.0
"""Seconds after which a cache that cannot be kept current makes its manager not ready; broken watches are routine."""

logger = logs.get_logger(__name__)


class Manager:
    """Runs controllers against one cluster."""

    def __init__(
        self,
        client: Client,
        options: ManagerOptions,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.client = client
        self.options = options
        self.metrics = metrics or Metrics()
        self.clock = clock or SystemClock()
        self._tracer = tracer
        self.liveness = Checks()
        self.readiness = Checks()
        self._prepare: list[Prepare] = []
        self._informers: dict[type[KubeObject], Informer[Any]] = {}
        self._controllers: list[Controller] = []
        self._runnables: list[tuple[str, Runnable]] = []
        self._recorders: dict[str, Recorder] = {}
        self._stop = asyncio.Event()
        self._state = "starting"
        self.readiness.add("caches", self._unsynced, public=True)

    # -- declaring ----------------------------------------------------------------------------------------------------

    def prepare(self, step: Prepare) -> None:
        """Adds a step that runs before the caches start and may wait, such as finding out what the server offers.

        It declares controllers on the manager it is given; meanwhile the manager serves its probes and is not ready.
        """
        self._prepare.append(step)

    def informer(self, kind: type[T], selection: Selection | None = None) -> Informer[T]:
        """The shared informer of a kind, made at the first call; only that call may give a selection."""
        known = self._informers.get(kind)
        if known is None:
            known = self._informers[kind] = self._made(kind, selection or Selection())
        elif selection is not None:
            raise ConfigurationError(f"the informer of {kind.resource} exists already: select before its first use")
        return cast("Informer[T]", known)

    def _made(self, kind: type[T], selection: Selection) -> Informer[T]:
        series = self.metrics.for_informer(kind.resource, kind.__name__)
        made = Informer(
            self.client,
            kind,
            selection,
            clock=self.clock,
            observer=self.metrics.informer_observer,
            processed=series.processed,
        )
        series.version_from(lambda: made.statistics().resource_version)
        return made

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

    def controller(self, name: str, **overrides: Any) -> Controller:
        """A new controller; ``overrides`` are fields of ControllerOptions. Names are unique, as metrics carry them."""
        if any(controller.name == name for controller in self._controllers):
            raise ConfigurationError(f"there are two controllers named {name}")
        options = ControllerOptions(**{"workers": self.options.workers, **overrides})
        controller = Controller(name, self, self.metrics, options, self.clock, self._tracer)
        self._controllers.append(controller)
        return controller

    def client_for(self, declaration: Declaration) -> Client:
        """The client of one controller: its own field manager, and no verb that it has not declared."""
        return self.client.restricted_to(declaration.everything, field_manager=f"gpu-mirage/{declaration.name}")

    def recorder(self, name: str, options: RecorderOptions | None = None) -> Recorder:
        """The event recorder of one controller, the same at each call: what is alike is merged by who has seen it.

        Only the first call may give options.
        """
        if name not in self._recorders:
            client = self.client.restricted_to(EVENT_PERMISSIONS)
            self._recorders[name] = Recorder(client, f"gpu-mirage/{name}", self.metrics, self.clock, options=options)
        elif options is not None:
            raise ConfigurationError(f"the recorder of {name} exists already: give its options at its first use")
        return self._recorders[name]

    def add(self, name: str, runnable: Runnable) -> None:
        """Adds a task that starts once the caches are filled and runs until the manager stops."""
        self._runnables.append((name, runnable))

    # -- running ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Makes ``run`` return, after what is running has ended or the grace period is over."""
        self._stop.set()

    async def run(self) -> None:
        """Runs until ``stop``. Raises what stopped it otherwise."""
        servers = self._servers()
        try:
            for server in servers:
                await server.start()
            await self._until_stopped(self._run_prepared())
        finally:
            self._state = "stopped"
            for server in reversed(servers):
                await server.stop()

    def _servers(self) -> list[HttpServer]:
        options = self.options
        return [
            HttpServer(options.health_probe_bind_address, liveness=self.liveness, readiness=self.readiness),
            HttpServer(options.metrics_bind_address, metrics=self.metrics),
        ]

    async def _run_prepared(self) -> None:
        for step in self._prepare:
            await step(self)
        async with asyncio.TaskGroup() as tasks:
            recorders = [tasks.create_task(r.run(), name="recorder") for r in self._recorders.values()]
            try:
                await self._run_caches()
            finally:
                await self._flush_recorders()
                _cancel(recorders)

    async def _run_caches(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            caches = [
                tasks.create_task(_endless(f"informer-{kind.resource}", informer.run))
                for kind, informer in self._informers.items()
            ]
            try:
                await self._wait_for_sync()
                await self._run_controllers()
            finally:
                _cancel(caches)

    async def _wait_for_sync(self) -> None:
        try:
            async with asyncio.timeout(self.options.cache_sync_timeout):
                for informer in self._informers.values():
                    await informer.wait_synced()
        except TimeoutError:
            raise RuntimeFault(
                f"caches not filled within {self.options.cache_sync_timeout:g} s: {self._unsynced()}"
            ) from None
        self._state = "running"
        logger.info("caches are filled", kinds=len(self._informers))

    async def _run_controllers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            controllers = [tasks.create_task(c.run(), name=c.name) for c in self._controllers]
            runnables = [tasks.create_task(_endless(name, run)) for name, run in self._runnables]
            logger.info("running", controllers=",".join(c.name for c in self._controllers))
            await self._stop.wait()
            self._state = "stopping"
            _cancel(runnables)
            for controller in self._controllers:
                controller.stop()
            await self._let_finish(controllers)

    async def _let_finish(self, tasks: "list[asyncio.Task[None]]") -> None:
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=self.options.grace_period)
            _cancel(unfinished)

    async def _until_stopped(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs ``main``; a stop that comes while it is still getting ready cancels it."""
        task = asyncio.create_task(main, name="manager")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._state == "starting":
                task.cancel()
            await asyncio.wait({task})
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _flush_recorders(self) -> None:
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))

    def _unsynced(self) -> str | None:
        """The kinds that are not in the cache, or not kept current, with their last error; None when all is well."""
        if self._state == "starting" and not self._informers:
            return "finding out what the server offers"
        missing = [
            f"{kind.resource}: {informer.last_error or ('cannot be watched' if informer.synced else 'not listed yet')}"
            for kind, informer in self._informers.items()
            if not informer.synced or informer.failing_for >= STALE_AFTER
        ]
        return "; ".join(missing) or None


async def _endless(name: str, run: Runnable) -> None:
    # Called in the task, not by its creator: a task that is cancelled before its first step leaves no coroutine behind.
    await run()
    raise RuntimeFault(f"{name} has ended, but must run for as long as the manager does")


def _cancel(tasks: "Iterable[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
