"""A controller: sources that fill a queue, and workers that empty it through a reconciler.

It promises that the last state of every object is reconciled, not that each change is: changes of one object that come
while it waits, or while it is worked on, become one look at what it is by then.
"""

import asyncio
import inspect
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, TypeVar

from controllers.runtime import handler, logs
from controllers.runtime.cache import Change, ChangeType, Informer
from controllers.runtime.client import Write, writes_in_progress
from controllers.runtime.clock import Clock
from controllers.runtime.errors import (
    ConfigurationError,
    Conflict,
    LeadershipLost,
    ObjectGone,
    RuntimeFault,
    TerminalError,
)
from controllers.runtime.limiter import ExponentialLimiter, Limiter
from controllers.runtime.meta import KubeObject
from controllers.runtime.metrics import Metrics, ReconcileResult
from controllers.runtime.predicate import Predicate
from controllers.runtime.reconcile import Reconciler, Request, Result
from controllers.runtime.tracing import TracedReconciler, Tracer
from controllers.runtime.watchdog import TimedReconciler
from controllers.runtime.workqueue import AsyncWorkQueue, QueueStatistics

T = TypeVar("T", bound=KubeObject)

INITIAL_PRIORITY = -100
"""Priority of what the first list brings or a resync repeats; below every real change, as in controller-runtime."""

OVERDUE = 1.0
"""Seconds after its deadline at which a reconcile that has not ended is reported: it must have time to clean up."""

logger = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """How a controller works its queue."""

    workers: int = 16  # reconciles at the same time, never two of one object
    reconcile_timeout: float = 60.0  # seconds after which one reconcile is cancelled and retried
    cache_wait: float = 5.0  # seconds to wait until the cache has seen a controller's own writes
    retry_base: float = 0.005  # seconds before the first retry of an object; doubles
    retry_cap: float = 300.0  # seconds between retries at most
    limiter: Limiter[Request] | None = None  # delays of retries; None: retry_base and retry_cap decide
    sync_timeout: float = 120.0  # seconds until every watched kind must have been listed once
    warm_up: bool = False  # fill the queue before ``run``, too; on a standby it grows with all that comes and goes

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"option workers={self.workers}: a controller needs at least 1")


def controller_options(name: str, options: Mapping[str, Any]) -> ControllerOptions:
    """The options of the controller ``name``. Raises ConfigurationError with the one that is wrong."""
    known = [field.name for field in fields(ControllerOptions)]
    if unknown := [option for option in options if option not in known]:
        raise ConfigurationError(f"controller {name}: there is no option {unknown[0]}: use one of {', '.join(known)}")
    try:
        return ControllerOptions(**options)
    except ConfigurationError as error:
        raise ConfigurationError(f"controller {name}: {error}") from error


class Gate(Protocol):
    """Which requests are this replica's to work on, where several share them."""

    def admits(self, key: Request) -> bool:
        """Whether it is worth queueing."""
        ...

    def enter(self, key: Request) -> bool:
        """Begins the work on it, in the current task; False where it may not begin. After True, ``leave`` must come."""
        ...

    def leave(self, key: Request) -> None: ...


class InformerSource(Protocol):
    """A cluster whose changes can wake a controller."""

    def informer(self, kind: type[T]) -> Informer[T]: ...


class Informers(InformerSource, Protocol):
    """Where a controller gets its informers from.

    An informer that is asked for once everything runs has to start at once, since watches may be added at any time.
    """

    def informers_of(self, kind: type[KubeObject], cluster: str = "") -> list[Informer[Any]]: ...


class Controller:
    """Runs one reconciler: declare what wakes it with ``for_``, ``owns`` and ``watches``, then ``reconciles_with``."""

    def __init__(
        self,
        name: str,
        informers: Informers,
        metrics: Metrics,
        options: ControllerOptions,
        clock: Clock,
        tracer: Tracer | None = None,
    ) -> None:
        self.name = name
        self._informers = informers
        self._options = options
        self._clock = clock
        self._tracer = tracer
        self._metrics = metrics.for_controller(name, options.workers)
        limiter = options.limiter or ExponentialLimiter[Request](options.retry_base, options.retry_cap)
        observer = metrics.for_queue(name)
        self._queue = AsyncWorkQueue[Request](clock=clock, limiter=limiter, observer=observer)
        observer.delayed_from(lambda: self._queue.statistics().delayed)
        self._primary: type[KubeObject] | None = None
        self._reconciler: Reconciler | None = None
        self._sources: list[tuple[Informer[Any], Callable[[Change[Any]], Iterable[Request]]]] = []
        self._connections: list[Callable[[], object]] = []
        self._connected = options.warm_up
        self._unseen: dict[Request, list[Write]] = {}
        self._started = False
        self._stop = asyncio.Event()
        self._gate: Gate | None = None
        self._runner: asyncio.Task[Any] | None = None
        self._began: dict[Request, float] = {}
        self._reported: set[Request] = set()
        self._overdue_check: asyncio.TimerHandle | None = None

    # -- declaring ----------------------------------------------------------------------------------------------------

    def for_(
        self, kind: type[T], when: Predicate[T] | None = None, *, cluster: InformerSource | None = None
    ) -> "Controller":
        """The kind whose objects are reconciled; ``cluster`` is one of the manager's further ones, if it is there.

        Raises ConfigurationError the second time: a controller has one such kind."""
        if self._primary is not None:
            raise ConfigurationError(
                f"controller {self.name} is for {self._primary.resource} already: "
                "call for_() once, and watches() for more"
            )
        self._primary = kind
        return self._watch(kind, handler.itself, when, cluster)

    def owns(self, kind: type[T], when: Predicate[T] | None = None, *, every_owner: bool = False) -> "Controller":
        """A kind whose objects have a controller owner reference to the primary kind, or with ``every_owner`` any."""
        if self._primary is None:
            raise ConfigurationError(f"controller {self.name}: owns() needs for_() before it")
        return self._watch(kind, handler.owner(self._primary, every_owner=every_owner), when)

    def watches(
        self,
        kind: type[T],
        maps_to: handler.MapFunction[T],
        when: Predicate[T] | None = None,
        *,
        cluster: InformerSource | None = None,
    ) -> "Controller":
        """Any other kind; ``maps_to`` names the requests of an object, and is asked for its old and its new state."""
        return self._watch(kind, handler.mapped(maps_to), when, cluster)

    def handles(self, kind: type[T], handle: handler.Handler[T], when: Predicate[T] | None = None) -> "Controller":
        """Any other kind, where it matters what kind of change it was; ``handle`` names the requests of a change."""
        return self._watch(kind, handle, when)

    def reconciles_with(self, reconciler: Reconciler) -> "Controller":
        """What brings the objects to the desired state; once. Raises ConfigurationError for what cannot do that."""
        if self._reconciler is not None:
            raise ConfigurationError(
                f"controller {self.name} has a reconciler already: call reconciles_with() once, or make two controllers"
            )
        _require_reconciler(self.name, reconciler)
        timed = TimedReconciler(reconciler, self.name, self._clock)
        self._reconciler = TracedReconciler(timed, self._tracer, self.name) if self._tracer else timed
        return self

    def enqueue(self, request: Request, *, after: float = 0.0, priority: int = 0) -> None:
        """Asks for a reconcile from outside, ``after`` seconds from now. Raises ConfigurationError for no Request."""
        if not isinstance(request, Request):
            raise ConfigurationError(f"controller {self.name}: enqueue({request!r}): give a Key(namespace, name)")
        self._queue.add(request, after=after, priority=priority)

    def _watch(
        self,
        kind: type[T],
        handle: handler.Handler[Any],
        when: Predicate[T] | None,
        cluster: InformerSource | None = None,
    ) -> "Controller":
        if inspect.iscoroutinefunction(when):
            # What it returns would count as true, whatever it says.
            raise ConfigurationError(
                f"controller {self.name}: a predicate of {kind.resource} is async: make it a plain one"
            )

        def requests(change: Change[T]) -> Iterable[Request]:
            if change.old is None and change.new is None:
                logger.error("a change without any object was dropped", controller=self.name, resource=kind.resource)
                return ()
            if when is not None and not when(change):
                return ()
            try:
                return handler.requests_of(handle(change))
            except handler.NoRequests as error:
                self._wakes_nobody(change, error)
                return ()

        def on_change(change: Change[T]) -> None:
            priority = priority_of(change)
            for request in requests(change):
                if self._gate is None or self._gate.admits(request):
                    self._queue.add(request, priority=priority)

        informer = (cluster or self._informers).informer(kind)
        self._sources.append((informer, requests))
        self._connections.append(partial(informer.add_handler, on_change))
        if self._connected:
            self._connect()
        return self

    def gated_by(self, gate: Gate) -> None:
        """Works only on what ``gate`` lets through. Where it opens for more, ``replay`` brings what is there."""
        self._gate = gate

    def replay(self, among: Callable[[Request], bool]) -> None:
        """Queues all of what a start would, as far as it is ``among`` what is wanted."""
        for informer, requests in self._sources:
            for item in informer.store.list():
                change = Change(ChangeType.ADDED, None, item, initial=True)
                try:
                    wanted = [request for request in requests(change) if among(request)]
                except Exception as error:  # noqa: BLE001 - as in an informer, one object's fault costs itself alone
                    self._handler_raised(change, error)
                    continue
                for request in wanted:
                    self._queue.add(request, priority=INITIAL_PRIORITY)

    def _wakes_nobody(self, change: Change[Any], error: handler.NoRequests) -> None:
        subject = change.subject
        what = "a map function or handler returned something else than requests, so it wakes nobody"
        logger.error(
            what,
            controller=self.name,
            resource=subject.resource,
            object=subject.key,
            change=change.type,
            returned=str(error),
        )

    def _handler_raised(self, change: Change[Any], error: Exception) -> None:
        subject = change.subject
        logger.error(
            "a handler raised", controller=self.name, resource=subject.resource, object=subject.key, exc_info=error
        )

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def unsynced(self) -> dict[str, str]:
        """The watched resources that have not been listed yet, each with its last error or ""."""
        return {str(source.kind.resource): source.last_error for source, _ in self._sources if not source.synced}

    @property
    def running(self) -> list[Request]:
        """What is being reconciled, the longest running first."""
        return list(self._began)

    def statistics(self) -> QueueStatistics:
        """What the queue holds."""
        return self._queue.statistics()

    async def warm_up(self) -> None:
        """Lets changes into the queue, and waits until every watched kind has been listed once.

        ``run`` does so first; what is in the caches by then comes in as from a first list. Called earlier, such as on
        a replica that does not lead yet, it shortens the wait then. Raises RuntimeFault after ``sync_timeout``, with
        the resources that are missing and why.
        """
        self._connect()
        try:
            async with asyncio.timeout(self._options.sync_timeout):
                for source, _ in self._sources:
                    await source.wait_synced()
        except TimeoutError:
            missing = "; ".join(f"{resource}: {error or 'not listed yet'}" for resource, error in self.unsynced.items())
            raise RuntimeFault(
                f"controller {self.name}: not everything was listed within {self._options.sync_timeout:g} s: {missing}"
            ) from None

    async def run(self) -> None:
        """Works until ``stop``; then every reconcile that has begun is finished and waiting ones are left.

        Raises ConfigurationError where it has no reconciler, where nothing wakes it, and the second time it is called;
        and what ``warm_up`` raises.
        """
        if self._reconciler is None:
            raise ConfigurationError(f"controller {self.name} has no reconciler: call reconciles_with()")
        if not self._sources and not self._queue.statistics().ready:
            raise ConfigurationError(f"controller {self.name}: nothing wakes it: call for_(), watches() or handles()")
        if self._started:
            raise ConfigurationError(f"controller {self.name} was started before: make a new one to run it again")
        self._started = True
        self._runner = asyncio.current_task()
        await self._warm_up_or_stop()
        try:
            async with asyncio.TaskGroup() as workers:
                for number in range(self._options.workers):
                    workers.create_task(self._work(self._reconciler), name=f"{self.name}-worker-{number}")
        finally:
            if self._overdue_check is not None:
                self._overdue_check.cancel()

    def stop(self) -> None:
        """Makes ``run`` return once the running reconciles have ended."""
        self._stop.set()
        self._queue.shut_down()

    def _connect(self) -> None:
        self._connected = True
        while self._connections:
            self._connections.pop(0)()

    async def _warm_up_or_stop(self) -> None:
        """A stop meanwhile ends the wait, which is no failure then."""
        warming = asyncio.create_task(self.warm_up(), name=f"{self.name}-warm-up")
        stopping = asyncio.create_task(self._stop.wait(), name=f"{self.name}-stop")
        try:
            await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if warming.done():
                warming.result()
        finally:
            warming.cancel()
            stopping.cancel()
            await asyncio.wait({warming, stopping})

    async def _work(self, reconciler: Reconciler) -> None:
        # Asked each time: a reconciler may have swallowed the cancellation that was to end this.
        while not self._is_ending():
            try:
                item = await self._queue.get()
            except asyncio.CancelledError:
                if self._is_ending():
                    raise
                await self._absorb_cancellation()
                continue
            if item is None:
                return
            try:
                if not self._stop.is_set():
                    await self._process_if_ours(reconciler, item.key, item.priority)
            finally:
                self._queue.done(item.key)

    async def _absorb_cancellation(self) -> None:
        """Forgets what a reconciler has asked for its own task; the next object has nothing to do with it."""
        task = asyncio.current_task()
        if task is None or not task.cancelling() or self._is_ending():
            return
        while task.cancelling():
            task.uncancel()
        try:
            # Where the cancellation has not been raised yet it is now, as counting down does not take it back.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_ending():
                raise

    def _is_ending(self) -> bool:
        # Workers are cancelled by the one that runs them, and by it only where somebody has cancelled that.
        return self._runner is None or self._runner.cancelling() > 0

    async def _process_if_ours(self, reconciler: Reconciler, request: Request, priority: int) -> None:
        if self._gate is None:
            await self._process(reconciler, request, priority)
        elif self._gate.enter(request):
            try:
                await self._process(reconciler, request, priority)
            finally:
                self._gate.leave(request)
        else:
            self._queue.forget(request)
            self._unseen.pop(request, None)

    async def _process(self, reconciler: Reconciler, request: Request, priority: int) -> None:
        with logs.bind(**self._log_fields(request)):
            self._metrics.worker_started()
            try:
                await self._reconcile(reconciler, request, priority)
            finally:
                self._metrics.worker_stopped()

    def _begins(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        self._began[request] = loop.time()
        # One timer for all, as what begins later is due later; its lines are not those of the reconcile that set it.
        if self._overdue_check is None:
            self._overdue_check = loop.call_later(self._overdue_after, self._report_overdue, context=Context())

    def _report_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = [began for began in self._began.values() if loop.time() < began + self._overdue_after]
        for request, began in self._began.items():
            if began + self._overdue_after <= loop.time() and request not in self._reported:
                self._reported.add(request)
                logger.warning(
                    "a reconcile has not ended at its deadline: it must not catch being cancelled",
                    controller=self.name,
                    about=str(request),
                )
        self._reported &= self._began.keys()
        next_at = min(waiting, default=None)
        self._overdue_check = (
            None
            if next_at is None
            else loop.call_at(next_at + self._overdue_after, self._report_overdue, context=Context())
        )

    @property
    def _overdue_after(self) -> float:
        return self._options.reconcile_timeout + OVERDUE

    def _log_fields(self, request: Request) -> dict[str, str]:
        """Which reconcile a line belongs to, under the names that controller-runtime gives these fields."""
        resource = self._primary.resource if self._primary is not None else None
        fields = {
            "controller": self.name,
            "controllerGroup": resource.group if resource else "",
            "controllerKind": resource.kind if resource else "",
            "namespace": request.namespace,
            "name": request.name,
            "reconcileID": secrets.token_hex(6),
        }
        return {name: value for name, value in fields.items() if value}

    async def _cache_is_current(self, request: Request) -> bool:
        # A reconcile on a cache older than its own last write would decide on a past that it has changed itself.
        unseen = self._unseen.pop(request, [])
        while unseen:
            if not await self._seen(unseen[0]):
                logger.warning("the cache has not seen our own write yet", write=str(unseen[0].key))
                self._unseen[request] = unseen
                return False
            unseen.pop(0)
        return True

    async def _seen(self, write: Write) -> bool:
        for informer in self._informers.informers_of(write.kind, write.cluster):
            if not await informer.wait_for(write, self._options.cache_wait):
                return False
        return True

    async def _reconcile(self, reconciler: Reconciler, request: Request, priority: int) -> None:
        started = self._clock.monotonic()
        try:
            if not await self._cache_is_current(request):
                self._queue.add_rate_limited(request, priority=priority)
                return
            started = self._clock.monotonic()
            outcome = self._succeeded(request, await self._call(reconciler, request), priority)
        except asyncio.CancelledError as error:
            # Awaiting something that others have cancelled raises this too, and so does a reconciler that cancels its
            # own task; a worker that let it through would end without a word, since task groups take it for an
            # ordered end.
            if self._is_ending():
                raise
            outcome = self._failed(request, error, priority)
        except Exception as error:  # noqa: BLE001 - whatever a reconciler raises must not stop the worker
            outcome = self._raised(request, error, priority)
        await self._absorb_cancellation()
        self._metrics.reconciled(outcome, self._clock.monotonic() - started)

    async def _call(self, reconciler: Reconciler, request: Request) -> Result:
        writes: list[Write] = []
        token = writes_in_progress.set(writes)
        deadline = asyncio.timeout(self._options.reconcile_timeout)
        self._begins(request)
        try:
            async with deadline:
                return self._checked(await reconciler.reconcile(request))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RuntimeFault(f"it did not end within {self._options.reconcile_timeout:g} s") from error
        finally:
            self._began.pop(request, None)
            # Also where the reconciler made something else of being cancelled.
            if deadline.expired():
                self._metrics.timeout()
            writes_in_progress.reset(token)
            if writes:
                self._unseen[request] = writes

    def _checked(self, answer: object) -> Result:
        if not isinstance(answer, Result):
            raise ConfigurationError(
                f"the reconciler of controller {self.name} returned {answer!r}: return a Result, such as DONE"
            )
        return answer

    def _succeeded(self, request: Request, result: Result, priority: int) -> ReconcileResult:
        priority = priority if result.priority is None else result.priority
        if result.requeue:
            # Not forgotten, so that the delay grows from one time to the next.
            self._queue.add_rate_limited(request, priority=priority)
            return "requeue"
        self._queue.forget(request)
        if result.requeue_after is None:
            return "success"
        self._queue.add(request, priority=priority, after=result.requeue_after)
        return "requeue_after"

    def _raised(self, request: Request, error: Exception, priority: int) -> ReconcileResult:
        if self._gate is not None and _is_only(LeadershipLost, error):
            return self._not_ours(request, error)
        return (
            self._failed_for_good(request, error)
            if _is_only(TerminalError, error)
            else self._failed(request, error, priority)
        )

    def _not_ours(self, request: Request, error: Exception) -> ReconcileResult:
        # Not tried again: whoever is the leader now looks at everything.
        self._queue.forget(request)
        self._metrics.error()
        logger.info("the reconcile was ended, since another replica may do it now", reason=str(error))
        return "error"

    def _failed_for_good(self, request: Request, error: Exception) -> ReconcileResult:
        self._queue.forget(request)
        self._metrics.error()
        self._metrics.terminal_error()
        logger.error("reconcile failed and will not be retried", reason=str(error))
        return "error"

    def _failed(self, request: Request, error: BaseException, priority: int) -> ReconcileResult:
        self._queue.add_rate_limited(request, priority=priority)
        self._metrics.error()
        if isinstance(error, Conflict | ObjectGone):
            logger.info("the object changed meanwhile, looking again", reason=str(error))
        elif isinstance(error, RuntimeFault):
            logger.error("reconcile failed and will be retried", reason=str(error))
        else:
            self._metrics.panic()
            logger.error("reconcile raised and will be retried", exc_info=error)
        return "error"


def _require_reconciler(controller: str, reconciler: object) -> None:
    reconcile = getattr(reconciler, "reconcile", None)
    if inspect.isclass(reconciler):
        wrong = f"{reconciler.__name__} is a class: give an instance of it"
    elif reconcile is None:
        wrong = f"{reconciler!r} has no method reconcile: give an object with async def reconcile(self, request)"
    elif not inspect.iscoroutinefunction(reconcile):
        wrong = f"{type(reconciler).__name__}.reconcile is no coroutine function: make it async def"
    else:
        return
    raise ConfigurationError(f"controller {controller}: {wrong}")


def priority_of(change: Change[Any]) -> int:
    """INITIAL_PRIORITY for what nobody has just done: the first list, and the repetitions of a resync. Otherwise 0."""
    if change.type is ChangeType.DELETED:
        return 0
    return INITIAL_PRIORITY if change.initial or _is_repetition(change) else 0


def _is_repetition(change: Change[Any]) -> bool:
    if change.old is None or change.new is None:
        return False
    old, new = change.old.metadata, change.new.metadata
    return bool(new.resource_version) and (old.uid, old.resource_version) == (new.uid, new.resource_version)


def _is_only(kind: type[Exception], error: BaseException) -> bool:
    """Whether an error is one of ``kind``, was raised from one, or is a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_only(kind, each) for each in error.exceptions)
    return isinstance(error, kind) or (error.__cause__ is not None and _is_only(kind, error.__cause__))
