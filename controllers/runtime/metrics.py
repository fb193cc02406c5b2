"""The metrics of one manager, under the names, labels and buckets that dashboards for controller-runtime expect.

Nothing here is global: every ``Metrics`` has a registry of its own. Series are bound to their labels once, since
looking them up costs more than counting.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Resource
from controllers.runtime.transport import NO_ANSWER, AnsweredRequest

ReconcileResult = Literal["success", "error", "requeue", "requeue_after"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OVERFLOW_PRIORITY: Final = "exceeded_cardinality_limit"
"""The label of all priorities after the first ``MAX_PRIORITIES``."""

MAX_PRIORITIES: Final = 25
"""Distinct priorities that get a series of their own, as in controller-runtime."""

# fmt: off
RECONCILE_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
    1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
)
# fmt: on

REST_SECONDS_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

REST_BYTES_BUCKETS: Final = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)

INFORMER_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

VERSION_DIGITS: Final = 15
"""Last digits of a resourceVersion that a gauge shows: a float holds no more of them, and kube-core cuts there too."""

M = TypeVar("M", Counter, Gauge, Histogram)


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bucket edges by repeated multiplication, whose rounding gives the same odd texts as Go's."""
    edges = [start]
    while len(edges) < count:
        edges.append(edges[-1] * factor)
    return tuple(edges)


QUEUE_BUCKETS: Final = exponential_buckets(10e-9, 10, 12)


class ControllerMetrics:
    """What one controller's loop counts."""

    def __init__(self, metrics: "Metrics", name: str, workers: int) -> None:
        self._results = {r: metrics.reconcile_total.labels(name, r) for r in get_args(ReconcileResult)}
        self._errors = metrics.reconcile_errors.labels(name)
        self._terminal_errors = metrics.terminal_reconcile_errors.labels(name)
        self._panics = metrics.reconcile_panics.labels(name)
        self._timeouts = metrics.reconcile_timeouts.labels(name)
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._active = metrics.active_workers.labels(name)
        metrics.max_concurrent_reconciles.labels(name).set(workers)

    def reconciled(self, result: ReconcileResult, seconds: float) -> None:
        """Exactly once per reconcile."""
        self._results[result].inc()
        self._seconds.observe(seconds)

    def error(self) -> None:
        """A reconcile failed in whatever way, terminal errors and unexpected exceptions included."""
        self._errors.inc()

    def terminal_error(self) -> None:
        """A reconcile failed for good; ``error`` is called as well."""
        self._terminal_errors.inc()

    def panic(self) -> None:
        """A reconcile raised something that is not of the framework's tree; ``error`` is called as well."""
        self._panics.inc()

    def timeout(self) -> None:
        """The framework's own deadline for a reconcile fired."""
        self._timeouts.inc()

    def worker_started(self) -> None:
        """A worker took a key."""
        self._active.inc()

    def worker_stopped(self) -> None:
        """That worker is done with it."""
        self._active.dec()


class QueueMetrics:
    """What one work queue counts; it learns of every step through the methods below, all durations in seconds."""

    def __init__(self, metrics: "Metrics", name: str, clock: Clock) -> None:
        labels = (name, name)  # the queue has its controller's name
        self._clock = clock
        self._depth = metrics.queue_depth
        self._name = name
        self._depths: dict[int, Gauge] = {}
        self._adds = metrics.queue_adds.labels(*labels)
        self._waits = metrics.queue_seconds.labels(*labels)
        self._works = metrics.queue_work_seconds.labels(*labels)
        self._delayed = metrics.queue_delayed.labels(*labels)
        self._retries = metrics.queue_retries.labels(*labels)
        self._started: list[float] = []
        # Ages are read at the scrape, so they are never older than it.
        metrics.queue_unfinished.labels(*labels).set_function(lambda: sum(self._ages()))
        metrics.queue_longest.labels(*labels).set_function(lambda: max(self._ages(), default=0.0))

    def added(self, priority: int) -> None:
        """A key became ready that was not pending before."""
        self._adds.inc()
        self._depth_of(priority).inc()

    def popped(self, priority: int, waited: float) -> None:
        """A worker took a key that had been ready for ``waited``."""
        self._depth_of(priority).dec()
        self._waits.observe(waited)
        self._started.append(self._clock.monotonic())

    def done(self, worked: float) -> None:
        """A worker finished a key after ``worked``."""
        self._works.observe(worked)
        began = self._clock.monotonic() - worked
        # Two readings of the clock never differ by exactly ``worked``: the nearest start is the one that ended.
        if self._started:
            self._started.remove(min(self._started, key=lambda start: abs(start - began)))

    def retried(self) -> None:
        """A key was put back with a delay."""
        self._retries.inc()

    def lifted(self, old: int, new: int) -> None:
        """A ready key moved to another priority."""
        self._depth_of(old).dec()
        self._depth_of(new).inc()

    def delayed_from(self, read: Callable[[], int]) -> None:
        """Shows the keys that wait for their time beside those that are ready; ``read`` is asked at each scrape."""
        self._delayed.set_function(read)

    def _ages(self) -> Iterator[float]:
        now = self._clock.monotonic()
        return (now - start for start in self._started)

    def _depth_of(self, priority: int) -> Gauge:
        known = self._depths.get(priority)
        if known is not None:
            return known
        if len(self._depths) >= MAX_PRIORITIES:
            return self._depth.labels(self._name, self._name, OVERFLOW_PRIORITY)
        return self._depths.setdefault(priority, self._depth.labels(self._name, self._name, str(priority)))


class _RequestSeries:
    """What is measured of the requests of one verb to one host."""

    def __init__(self, metrics: "Metrics", verb: str, host: str) -> None:
        self.seconds = metrics.rest_seconds.labels(verb, host)
        self.sent = metrics.rest_sent.labels(verb, host)
        self.received = metrics.rest_received.labels(verb, host)


class LeaderElectionMetrics:
    """What one elector shows of its lease."""

    def __init__(self, metrics: "Metrics", name: str) -> None:
        self._status = metrics.leader_status.labels(name)
        self._slow_paths = metrics.leader_slow_paths.labels(name)

    def leading(self, leading: bool) -> None:
        """Whether this process holds the lease from now on."""
        self._status.set(int(leading))

    def slow_path(self) -> None:
        """A renewal could not use the lease as it was remembered, and had to read it first."""
        self._slow_paths.inc()


class InformerMetrics:
    """What one informer shows of its store and its handlers."""

    def __init__(self, metrics: "Metrics", resource: Resource, name: str) -> None:
        labels = (name, resource.group, resource.version, resource.plural)
        self._queued = metrics.informer_queued.labels(*labels)
        self._seconds = metrics.informer_seconds.labels(*labels)
        self._version = metrics.informer_version.labels(*labels)

    def queued_from(self, read: Callable[[], int]) -> None:
        """Shows the changes that wait for a handler; ``read`` is asked at each scrape."""
        self._queued.set_function(read)

    def processed(self, seconds: float) -> None:
        """One change was brought into the store and handed out within ``seconds``."""
        self._seconds.observe(seconds)

    def version_from(self, read: Callable[[], str]) -> None:
        """Shows up to which resourceVersion the store is current; ``read`` is asked at each scrape."""
        self._version.set_function(lambda: shown_version(read()))


def shown_version(resource_version: str) -> int:
    """The last ``VERSION_DIGITS`` digits; 0 before the first list and for a version that is no number."""
    decimal = resource_version.isascii() and resource_version.isdigit()
    return int(resource_version[-VERSION_DIGITS:]) if decimal else 0


@dataclass(frozen=True, slots=True)
class _Declaration:
    """What two callers must agree on to share a metric."""

    kind: type[Counter | Gauge | Histogram]
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


class Metrics:
    """All metrics of one manager, and the text that a scrape gets."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._registry = CollectorRegistry()
        self._own: dict[str, tuple[_Declaration, Counter | Gauge | Histogram]] = {}
        self._rest: dict[tuple[str, str], _RequestSeries] = {}
        ProcessCollector(registry=self._registry)
        self._declare_controllers()
        self._declare_queues()
        self._declare_requests()
        self._declare_elections()
        self._declare_informers()

    def for_controller(self, name: str, workers: int) -> ControllerMetrics:
        """The series of one controller, all there with 0 from this call on."""
        return ControllerMetrics(self, name, workers)

    def for_queue(self, name: str) -> QueueMetrics:
        """The series of the queue of the controller ``name``."""
        return QueueMetrics(self, name, self._clock)

    def leader_election(self, name: str) -> LeaderElectionMetrics:
        """The series of the elector of the lease ``name``, which does not lead yet."""
        return LeaderElectionMetrics(self, name)

    def for_informer(self, resource: Resource, name: str) -> InformerMetrics:
        """The series of an informer; ``name`` tells two informers of one resource apart."""
        return InformerMetrics(self, resource, name)

    def rest_observer(self, answered: AnsweredRequest) -> None:
        """Counts one request; give it to the transport.

        A stream has no duration and no size: it would say only how long somebody watched.
        """
        code, where = answered.code, (answered.method, answered.host)
        self.rest_requests.labels(code, *where).inc()
        if answered.attempt > 1:
            self.rest_retries.labels(code, *where).inc()
        if answered.stream:
            return
        series = self._rest.get(where) or self._rest.setdefault(where, _RequestSeries(self, *where))
        series.seconds.observe(answered.seconds)
        if code != NO_ANSWER:
            series.sent.observe(answered.sent)
            series.received.observe(answered.received)

    def resolution_observer(self, host: str, seconds: float) -> None:
        """Counts one resolution of a host's name; give it to the transport."""
        self.rest_resolutions.labels(host).observe(seconds)

    def informer_observer(self, resource: Resource, happening: str) -> None:
        """Counts what an informer is told of or does."""
        self.informer_happenings.labels(str(resource), happening).inc()

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """A counter, whose name ends in ``_total``; the same one for every caller that declares it alike.

        Raises ConfigurationError where the name is taken by another metric.
        """
        return self._declare(Counter, name, help_text, _Declaration(Counter, tuple(labels)))

    def gauge(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, read: Callable[[], float] | None = None
    ) -> Gauge:
        """A gauge; the same one for every caller that declares it alike.

        ``read`` gives its value at each scrape; a gauge with labels takes one per series by ``set_function``. Raises
        ConfigurationError where the name is taken by another metric.
        """
        gauge = self._declare(Gauge, name, help_text, _Declaration(Gauge, tuple(labels)))
        if read is not None:
            gauge.set_function(read)
        return gauge

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
    ) -> Histogram:
        """A histogram with these upper edges; the same one for every caller that declares it alike.

        Raises ConfigurationError where the name is taken by another metric.
        """
        declaration = _Declaration(Histogram, tuple(labels), tuple(buckets))
        return self._declare(Histogram, name, help_text, declaration, buckets=declaration.buckets)

    def render(self) -> bytes:
        """The text format, to be sent as ``CONTENT_TYPE``."""
        return generate_latest(_AsGoWrites(self._registry))

    def _declare(self, kind: type[M], name: str, help_text: str, declaration: _Declaration, **options: Any) -> M:
        if name not in self._own:
            try:
                made = kind(name, help_text, declaration.labels, registry=self._registry, **options)
            except ValueError as error:
                raise ConfigurationError(f"metric {name} cannot be declared: {error}") from error
            self._own[name] = (declaration, made)
        known, metric = self._own[name]
        if known != declaration or not isinstance(metric, kind):
            raise ConfigurationError(
                f"metric {name} is declared twice, with different types, labels or buckets: rename one"
            )
        return metric

    def _declare_controllers(self) -> None:
        prefix, label = "controller_runtime_", ("controller",)
        self.reconcile_total = self.counter(
            prefix + "reconcile_total", "Total number of reconciliations per controller.", ("controller", "result")
        )
        self.reconcile_errors = self.counter(
            prefix + "reconcile_errors_total", "Total number of reconciliation errors per controller.", label
        )
        self.terminal_reconcile_errors = self.counter(
            prefix + "terminal_reconcile_errors_total", "Total number of terminal errors per controller.", label
        )
        self.reconcile_panics = self.counter(
            prefix + "reconcile_panics_total", "Total number of unexpected exceptions per controller.", label
        )
        self.reconcile_timeouts = self.counter(
            prefix + "reconcile_timeouts_total", "Total number of reconciliation timeouts per controller.", label
        )
        self.reconcile_seconds = self.histogram(
            prefix + "reconcile_time_seconds", "Length of time per reconciliation.", label, buckets=RECONCILE_BUCKETS
        )
        self.max_concurrent_reconciles = self.gauge(
            prefix + "max_concurrent_reconciles", "Maximum number of concurrent reconciles per controller.", label
        )
        self.active_workers = self.gauge(prefix + "active_workers", "Number of workers in use per controller.", label)

    def _declare_queues(self) -> None:
        labels, prefix, buckets = ("name", "controller"), "workqueue_", QUEUE_BUCKETS
        self.queue_depth = self.gauge(prefix + "depth", "Keys that are ready.", (*labels, "priority"))
        self.queue_delayed = self.gauge(prefix + "delayed_items", "Keys that wait until a delay has run out.", labels)
        self.queue_adds = self.counter(prefix + "adds_total", "Total number of keys that became ready.", labels)
        self.queue_retries = self.counter(prefix + "retries_total", "Total number of keys put back.", labels)
        self.queue_seconds = self.histogram(
            prefix + "queue_duration_seconds", "How long a key is ready before it is taken.", labels, buckets=buckets
        )
        self.queue_work_seconds = self.histogram(
            prefix + "work_duration_seconds", "How long the work on a key takes.", labels, buckets=buckets
        )
        self.queue_unfinished = self.gauge(
            prefix + "unfinished_work_seconds", "Sum of the ages of the keys being worked on.", labels
        )
        self.queue_longest = self.gauge(
            prefix + "longest_running_processor_seconds", "Age of the key being worked on for longest.", labels
        )

    def _declare_requests(self) -> None:
        prefix, where = "rest_client_", ("verb", "host")
        self.rest_requests = self.counter(
            prefix + "requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "method", "host"),
        )
        self.rest_retries = self.counter(
            prefix + "request_retries_total", "Number of requests that repeat a failed one.", ("code", *where)
        )
        self.rest_seconds = self.histogram(
            prefix + "request_duration_seconds", "How long a request takes.", where, buckets=REST_SECONDS_BUCKETS
        )
        self.rest_resolutions = self.histogram(
            prefix + "dns_resolution_duration_seconds",
            "How long it takes to resolve the host's name.",
            ("host",),
            buckets=REST_SECONDS_BUCKETS,
        )
        self.rest_sent = self.histogram(
            prefix + "request_size_bytes", "Size of a request's body.", where, buckets=REST_BYTES_BUCKETS
        )
        self.rest_received = self.histogram(
            prefix + "response_size_bytes", "Size of an answer's body.", where, buckets=REST_BYTES_BUCKETS
        )

    def _declare_elections(self) -> None:
        prefix, labels = "leader_election_", ("name",)
        self.leader_status = self.gauge(prefix + "master_status", "1 while this process holds the lease.", labels)
        self.leader_slow_paths = self.counter(
            prefix + "slowpath_total", "Renewals that had to read the lease first.", labels
        )

    def _declare_informers(self) -> None:
        prefix, labels = "informer_", ("name", "group", "version", "resource")
        self.informer_happenings = self.counter(
            prefix + "happenings_total",
            "What informers did and met, by resource: lists, watches, events, failures, objects that cannot be read.",
            ("resource", "happening"),
        )
        self.informer_queued = self.gauge(prefix + "queued_items", "Changes that wait for a handler.", labels)
        self.informer_seconds = self.histogram(
            prefix + "processing_latency_seconds",
            "How long it takes to bring a change into the store and to hand it out.",
            labels,
            buckets=INFORMER_BUCKETS,
        )
        self.informer_version = self.gauge(
            prefix + "store_resource_version",
            f"The last {VERSION_DIGITS} digits of the resourceVersion up to which the store is current.",
            labels,
        )


class _AsGoWrites(Collector):
    """A registry as Go's client would show it: no ``_created`` series, and whole bucket edges without ".0"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            for sample in metric.samples:
                if sample.name != metric.name + "_created":
                    shown.samples.append(sample._replace(labels=_go_labels(sample.labels)))
            yield shown


def _go_labels(labels: dict[str, str]) -> dict[str, str]:
    return {name: value.removesuffix(".0") if name in ("le", "quantile") else value for name, value in labels.items()}
