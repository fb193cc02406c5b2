"""The manager: owns the connection, the caches and the controllers, and starts and stops them in order.

Start: HTTP servers, other servers, what must be known before anything is declared (``prepare``), caches until they are
filled, what needs no leader, the election, what needs one. Stop: what needs no leader, what needs one, caches, servers,
the Lease, event recorders. Servers come first, since the API server may need a webhook of ours to answer a list; the
Lease goes after all that it guards has ended. Whatever is added later starts at once, or when its turn comes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from controllers.runtime import logs
from controllers.runtime.cache import Informer, Reader
from controllers.runtime.client import Client, Guard, Selection
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.cluster import Cluster
from controllers.runtime.controller import Controller, controller_options
from controllers.runtime.errors import ConfigurationError, LeadershipLost, RuntimeFault
from controllers.runtime.leader_election import Elector, LeaderGate
from controllers.runtime.meta import KubeObject
from controllers.runtime.metrics import Metrics
from controllers.runtime.options import ManagerOptions, election_options
from controllers.runtime.probes import Checks, HttpServer
from controllers.runtime.rbac import Declaration
from controllers.runtime.recorder import PERMISSIONS as EVENT_PERMISSIONS
from controllers.runtime.recorder import Recorder, RecorderOptions
from controllers.runtime.sharding import Shards, Sharers, shard_of
from controllers.runtime.stage import Entry, Runnable, Stage
from controllers.runtime.tracing import Tracer

T = TypeVar("T", bound=KubeObject)

Prepare = Callable[["Manager"], Awaitable[None]]

UNREACHABLE_AFTER = 30.0
"""Seconds without any answer about the Lease after which a replica is not ready."""

FLUSH = 5.0
"""Seconds that recorded events get to be sent when the manager stops."""

logger = logs.get_logger(__name__)


class Server(Protocol):
    """Something that answers requests, such as a webhook."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Also called where ``start`` has failed or was never called."""
        ...


class Manager:
    """Runs controllers against one cluster, or against several.

    ``leases`` is the client that elections use; one with connections of its own cannot wait behind those of others.
    ``on_stuck`` is called at a stop where a task does not end though it was cancelled: no code in this process can end
    it. The Lease is not released then.
    """

    def __init__(
        self,
        client: Client,
        options: ManagerOptions,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
        leases: Client | None = None,
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        self._on_stuck = on_stuck
        self.client = client
        self.options = options
        self.metrics = metrics or Metrics()
        self.clock = clock or SystemClock()
        self._tracer = tracer
        self.liveness = Checks()
        self.readiness = Checks()
        self.elected = asyncio.Event()
        """Set from when what needs a leader starts; without an election that is when the caches are filled."""
        self._prepare: list[Prepare] = []
        self._controllers: list[Controller] = []
        self._sharded: list[Controller] = []
        self._recorders: dict[str, Recorder] = {}
        self._servers: list[Server] = []
        self._stop = asyncio.Event()
        self._state = "new"
        self._failures: list[Exception] = []
        self._recording = Stage("recorders", self._failed)
        self._caches = Stage("caches", self._failed)
        self._others = Stage("without a leader", self._failed)
        self._election = Stage("election", self._failed)
        self._leaders = Stage("with a leader", self._failed)
        self._elector = self._made_elector(leases or client)
        self._shards = self._made_shards(leases or client)
        self._home = self._made_cluster("", client)
        self._clusters = [self._home]
        self.readiness.add("caches", self._unsynced, public=True)

    def _made_elector(self, client: Client) -> Elector | None:
        if not self.options.leader_elect:
            return None
        options = election_options(self.options)
        sharing = self.options.shards > 1
        elector = Elector(
            client,
            options,
            clock=self.clock,
            observer=self.metrics.leader_election(options.name),
            sharing=sharing,
            in_use=None if sharing else Sharers(client, options, clock=self.clock).in_use,
        )
        self._election.add(Entry("leader-election", elector.run))
        self.liveness.add("leader-election", elector.unhealthy)
        self.readiness.add("leader-election", lambda: _unreachable(elector), public=True)
        return elector

    def _made_shards(self, client: Client) -> Shards | None:
        if self.options.shards == 1:
            return None
        if self._elector is None:
            raise ConfigurationError(f"--shards {self.options.shards} needs Leases: give --leader-elect, too")
        shards = Shards(
            client,
            self._elector,
            self.options.shards,
            self._replay_shard,
            clock=self.clock,
            observe=self.metrics.leader_election,
        )
        for name, runnable in shards.runnables():
            self._election.add(Entry(name, runnable))
        return shards

    def _replay_shard(self, shard: int) -> None:
        for controller in self._sharded:
            controller.replay(lambda request: shard_of(request, self.options.shards) == shard)

    def _made_cluster(self, name: str, client: Client) -> Cluster:
        def new_informer(task: str, informer: Informer[Any]) -> None:
            self._caches.add(Entry(task, informer.run))

        return Cluster(
            client, name=name, clock=self.clock, metrics=self.metrics, guard=self._guard(), new_informer=new_informer
        )

    def _guard(self) -> Guard | None:
        elector, shards = self._elector, self._shards
        if elector is None or shards is None:
            return elector.require_leadership if elector is not None else None

        def require() -> None:
            if not shards.require_shard():
                elector.require_leadership()

        return require

    # -- declaring ----------------------------------------------------------------------------------------------------

    def prepare(self, step: Prepare) -> None:
        """Adds a step that runs before the caches start and may wait, such as finding out what the server offers.

        It declares controllers on the manager it is given; meanwhile the manager serves its probes and is not ready.
        """
        self._prepare.append(step)

    def cluster(self, name: str, client: Client) -> Cluster:
        """A further cluster, with caches that belong to this manager; whoever made the client closes its connection.

        Give it to ``Controller.watches`` to be woken by what happens there. Raises ConfigurationError for a taken or
        an empty name.
        """
        if any(known.name == name for known in self._clusters):
            raise ConfigurationError(f"cluster {name!r} is there already: give each one a name of its own")
        added = self._made_cluster(name, client.of_cluster(name))
        self._clusters.append(added)
        return added

    def informer(self, kind: type[T], selection: Selection | None = None, *, optional: bool = False) -> Informer[T]:
        """See ``Cluster.informer``; as all that speaks of no cluster, this one is of the manager's own."""
        return self._home.informer(kind, selection, optional=optional)

    def informers_of(self, kind: type[KubeObject], cluster: str = "") -> list[Informer[Any]]:
        """See ``Cluster.informers_of``."""
        return [found for known in self._clusters if known.name == cluster for found in known.informers_of(kind)]

    def reader(self, kind: type[T]) -> Reader[T]:
        """Cached reads of a kind."""
        return self._home.reader(kind)

    def controller(self, name: str, *, needs_leader: bool = True, sharded: bool = True, **overrides: Any) -> Controller:
        """A new controller; ``overrides`` are fields of ControllerOptions. Names are unique, as metrics carry them.

        Where keys are shared by replicas, it works on its part of them on each; not being ``sharded``, on all of them
        on the leader.

        It starts once all caches are filled that are declared by then and, if it ``needs_leader``, this replica leads.
        After the start of the manager it begins with the next turn of the event loop: declare all of it before.
        """
        if any(controller.name == name for controller in self._controllers):
            raise ConfigurationError(f"there are two controllers named {name}")
        options = controller_options(name, {"workers": self.options.workers, **overrides})
        controller = Controller(name, self, self.metrics, options, self.clock, self._tracer)
        self._controllers.append(controller)

        async def run() -> None:
            await self._wait_for_sync()
            await controller.run()

        if self._shards is not None and needs_leader and sharded:
            controller.gated_by(self._shards)
            self._sharded.append(controller)
            needs_leader = False
        elif self._elector is not None and needs_leader:
            controller.gated_by(LeaderGate(self._elector))
        self._stage(needs_leader).add(Entry(name, run, controller.stop))
        return controller

    def client_for(self, declaration: Declaration, *, needs_leader: bool = True) -> Client:
        """See ``Cluster.client_for``."""
        return self._home.client_for(declaration, needs_leader=needs_leader)

    def recorder(self, name: str, options: RecorderOptions | None = None) -> Recorder:
        """The event recorder of one controller, the same at each call: what is alike is merged by who has seen it.

        What it says of the past may be said by a former leader, too. Only the first call may give options.
        """
        if name in self._recorders:
            if options is not None:
                raise ConfigurationError(f"the recorder of {name} exists already: give its options at its first use")
            return self._recorders[name]
        client = self.client.restricted_to(EVENT_PERMISSIONS)
        made = self._recorders[name] = Recorder(client, f"gpu-mirage/{name}", self.metrics, self.clock, options=options)
        self._recording.add(Entry(f"recorder-{name}", made.run))
        return made

    def add(self, name: str, runnable: Runnable, *, needs_leader: bool = True) -> None:
        """Adds a task that starts once the caches are filled and runs until the manager stops.

        With an election it runs on the leader only, unless it does not need to be; such a task must not write what
        another replica writes, too.
        """
        self._stage(needs_leader).add(Entry(name, runnable))

    def add_server(self, server: Server) -> None:
        """Adds a server that starts before anything is read, and ends after all that may still be asked for."""
        self._servers.append(server)

    def _stage(self, needs_leader: bool) -> Stage:
        return self._leaders if needs_leader else self._others

    # -- running ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Makes ``run`` return, after what is running has ended or the grace period is over."""
        self._stop.set()

    async def run(self) -> None:
        """Runs until ``stop``, once. Raises what stopped it otherwise: LeadershipLost, or what a task has raised."""
        if self._state != "new":
            raise ConfigurationError("this manager has been run already: make another one")
        self._state = "starting"
        options = self.options
        self._servers[:0] = [
            HttpServer(options.health_probe_bind_address, liveness=self.liveness, readiness=self.readiness),
            HttpServer(options.metrics_bind_address, metrics=self.metrics),
        ]
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._supervised_start(tasks), name="start")
            grace: float | None = 0.0
            try:
                await self._stop.wait()
                grace = self._grace()
            finally:
                starting.cancel()
                await asyncio.wait({starting})
                await self._shut_down(grace)
        if self._failures:
            raise ExceptionGroup("the manager has stopped", self._failures)

    async def _supervised_start(self, tasks: asyncio.TaskGroup) -> None:
        try:
            await self._start(tasks)
        except Exception as error:  # noqa: BLE001 - whatever it is, the manager stops in order and raises it
            self._failed(error)

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._recording.start(tasks)
        for server in self._servers:
            await server.start()
        for step in self._prepare:
            await step(self)
        self._caches.start(tasks)
        await self._wait_for_sync()
        self._state = "running"
        logger.info("caches are filled", kinds=sum(len(cluster.informers) for cluster in self._clusters))
        self._start_stage(self._others, tasks)
        if self._elector is not None:
            self._start_stage(self._election, tasks)
            await self._elector.wait_leading()
        self._start_stage(self._leaders, tasks)
        self.elected.set()
        logger.info("running", controllers=",".join(c.name for c in self._controllers))

    def _start_stage(self, stage: Stage, tasks: asyncio.TaskGroup) -> None:
        # The stop may have come in the very turn of the loop in which what was waited for came, too.
        if not self._stop.is_set():
            stage.start(tasks)

    async def _shut_down(self, grace: float | None) -> None:
        self._state = "stopping"
        end = None if grace is None else self.clock.monotonic() + grace
        await self._others.stop(grace, late=self._late, stuck=self._stuck)
        left = None if end is None else max(0.0, end - self.clock.monotonic())
        await self._leaders.stop(left, late=self._late, stuck=self._stuck)
        await self._caches.stop()
        for server in reversed(self._servers):
            await server.stop()
        await self._election.stop()
        if self._elector is not None and not self._lost:
            await self._release(self._elector)
        await self._stop_recorders()
        self._state = "stopped"

    def _late(self, names: list[str]) -> None:
        for controller in self._controllers:
            if controller.name in names:
                for request in controller.running:
                    logger.warning(
                        "a reconcile still runs after the grace period", controller=controller.name, about=str(request)
                    )

    def _stuck(self, names: list[str]) -> None:
        self._late(names)
        logger.error("tasks do not end though they were cancelled", names=",".join(sorted(names)))
        if self._on_stuck is not None:
            self._on_stuck()

    async def _release(self, elector: Elector) -> None:
        if self._shards is not None:
            await self._shards.release()
        await elector.release()

    async def _stop_recorders(self) -> None:
        self._recording.close()
        seconds = 0.0 if self._lost else FLUSH
        await asyncio.gather(*(recorder.stop(seconds) for recorder in self._recorders.values()))
        await self._recording.stop()

    def _grace(self) -> float | None:
        """Seconds for running reconciles to end; None for as long as they take."""
        if self._lost:
            return 0.0
        return self.options.grace_period if self.options.grace_period >= 0.0 else None

    @property
    def _lost(self) -> bool:
        return any(isinstance(failure, LeadershipLost) for failure in self._failures)

    def _failed(self, error: Exception) -> None:
        """The first failure stops the manager; all of them are raised in the end."""
        if isinstance(error, LeadershipLost):
            # Now, and not when everything else has ended: another replica may begin soon.
            self._leaders.cancel()
            self._others.cancel()
        logger.info("stopping after a failure", reason=str(error), type=type(error).__name__)
        self._failures.append(error)
        self._stop.set()

    async def _wait_for_sync(self) -> None:
        try:
            async with asyncio.timeout(self.options.cache_sync_timeout):
                for cluster in self._clusters:
                    await cluster.wait_synced()
        except TimeoutError:
            raise RuntimeFault(
                f"caches not filled within {self.options.cache_sync_timeout:g} s: {self._unsynced()}"
            ) from None

    def _unsynced(self) -> str | None:
        """The kinds that are not in the cache, or not kept current, with their last error; None when all is well."""
        if self._state in ("new", "starting") and not any(cluster.informers for cluster in self._clusters):
            return "finding out what the server offers"
        return "; ".join(text for cluster in self._clusters for text in cluster.unsynced()) or None


def _unreachable(elector: Elector) -> str | None:
    return elector.last_error if elector.failing_for >= UNREACHABLE_AFTER else None
