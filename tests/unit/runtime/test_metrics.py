"""Metric names, labels, buckets and text."""

import asyncio
import json
import math
import socket
from collections import Counter as Tally
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, get_args

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Gauge, Histogram

from controllers.runtime.cache import Change
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.errors import ConfigurationError, TransportError
from controllers.runtime.manager import Manager
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.metrics import (
    MAX_PRIORITIES,
    OVERFLOW_PRIORITY,
    QUEUE_BUCKETS,
    Metrics,
    ReconcileResult,
    exponential_buckets,
    shown_version,
)
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import STALL, Answer, FakeClock, ScriptedTransport, run_virtual
from controllers.runtime.transport import AiohttpTransport, AnsweredRequest, Credentials, HttpRequest, TimedResolver
from controllers.runtime.workqueue import WorkQueue
from tests.unit.exposition import Family, families, full_metrics, samples

GOLDEN = Path(__file__).with_name("metrics.golden")
WIDGETS = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)
WIDGET_LABELS = '{group="example.com",name="Widget",resource="widgets",version="v1"}'


def series(metrics: Metrics) -> dict[str, float]:
    lines = (line for line in metrics.render().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def golden() -> dict[str, Family]:
    found = {}
    for line in GOLDEN.read_text().splitlines():
        if not line.startswith("#"):
            name, kind, *rest = line.split(maxsplit=3)
            labels, edges = (rest[0].split(",") if rest else []), (rest[1].split() if len(rest) > 1 else [])
            found[name] = Family(kind, frozenset(labels), tuple(edges))
    return found


def quantile(rank: float, buckets: Mapping[str, float]) -> float:
    """``histogram_quantile`` as Prometheus defines it: linear inside the bucket that the rank falls into."""
    edges = sorted((math.inf if le == "+Inf" else float(le), count) for le, count in buckets.items())
    wanted, lower, below = rank * edges[-1][1], 0.0, 0.0
    for edge, count in edges:
        if count >= wanted:
            return lower if edge == math.inf else lower + (edge - lower) * (wanted - below) / (count - below)
        lower, below = edge, count
    raise AssertionError("a histogram ends in +Inf")


def buckets(*managers: Metrics, of: str) -> Mapping[str, float]:
    """``sum by (le)`` over the buckets of a histogram."""
    total: Tally[str] = Tally()
    for metrics in managers:
        for sample in samples(metrics):
            if sample.name == of + "_bucket":
                total[sample.labels["le"]] += int(sample.value)
    return total


def test_exposition_is_the_recorded_one_by_name_type_labels_and_edges() -> None:
    assert families(full_metrics()) == golden()


def test_no_series_is_shown_twice() -> None:
    shown = [(sample.name, *sorted(sample.labels.items())) for sample in samples(full_metrics())]
    assert len(shown) == len(set(shown))


def test_sum_by_le_over_two_managers_meets_in_the_same_buckets() -> None:
    one, two = Metrics(), Metrics()
    one.for_queue("c").popped(0, 0.5)
    two.for_queue("c").popped(0, 0.5)
    summed = buckets(one, two, of="workqueue_queue_duration_seconds")
    assert list(summed) == list(golden()["workqueue_queue_duration_seconds"].edges)
    assert (summed["0.1"], summed["1"], summed["+Inf"]) == (0, 2, 2)


def test_quantile_of_the_wait_comes_out_beyond_ten_seconds_too() -> None:
    metrics = Metrics()
    queue = metrics.for_queue("c")
    for waited in (20.0, 30.0, 40.0, 500.0):
        queue.popped(0, waited)
    waits = buckets(metrics, of="workqueue_queue_duration_seconds")
    assert quantile(0.5, waits) == 10 + (100 - 10) * 2 / 3
    assert quantile(0.99, waits) == pytest.approx(100 + 900 * 0.96)


def test_the_first_error_shows_in_a_rate_since_its_series_was_there_before() -> None:
    # rate(controller_runtime_reconcile_total{result="error"}[5m]) needs two values of one series.
    metrics = Metrics()
    counted = metrics.for_controller("c", 1)
    before = series(metrics)
    counted.reconciled("error", 0.1)
    after = series(metrics)
    name = 'controller_runtime_reconcile_total{controller="c",result="error"}'
    assert after[name] - before[name] == 1


def test_controller_series_exist_with_zero_before_the_first_reconcile() -> None:
    metrics = Metrics()
    metrics.for_controller("c", 3)
    found = series(metrics)
    prefix = "controller_runtime_"
    for result in get_args(ReconcileResult):
        assert found[f'{prefix}reconcile_total{{controller="c",result="{result}"}}'] == 0
    for name in ("reconcile_errors", "terminal_reconcile_errors", "reconcile_panics", "reconcile_timeouts"):
        assert found[f'{prefix}{name}_total{{controller="c"}}'] == 0
    assert found[f'{prefix}active_workers{{controller="c"}}'] == 0
    assert found[f'{prefix}max_concurrent_reconciles{{controller="c"}}'] == 3


def test_results_are_those_of_controller_runtime() -> None:
    assert set(get_args(ReconcileResult)) == {"success", "error", "requeue", "requeue_after"}


def test_controller_counts_what_it_is_told() -> None:
    metrics = Metrics()
    counted = metrics.for_controller("c", 1)
    counted.reconciled("requeue_after", 0.3)
    counted.error()
    counted.terminal_error()
    counted.panic()
    counted.timeout()
    counted.worker_started()
    counted.worker_started()
    counted.worker_stopped()
    found = {name: value for name, value in series(metrics).items() if 'controller="c"' in name and value}
    prefix = "controller_runtime_"
    assert {name: value for name, value in found.items() if "_bucket" not in name} == {
        prefix + 'reconcile_total{controller="c",result="requeue_after"}': 1,
        prefix + 'reconcile_errors_total{controller="c"}': 1,
        prefix + 'terminal_reconcile_errors_total{controller="c"}': 1,
        prefix + 'reconcile_panics_total{controller="c"}': 1,
        prefix + 'reconcile_timeouts_total{controller="c"}': 1,
        prefix + 'reconcile_time_seconds_count{controller="c"}': 1,
        prefix + 'reconcile_time_seconds_sum{controller="c"}': 0.3,
        prefix + 'max_concurrent_reconciles{controller="c"}': 1,
        prefix + 'active_workers{controller="c"}': 1,
    }


def test_queue_edges_come_from_repeated_multiplication() -> None:
    assert exponential_buckets(10e-9, 10, 12) == QUEUE_BUCKETS
    assert len(QUEUE_BUCKETS) == 12


def test_counting_looks_no_series_up(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(clock=FakeClock())
    controller, queue = metrics.for_controller("c", 1), metrics.for_queue("c")
    informer, election = metrics.for_informer(WIDGETS, "Widget"), metrics.leader_election("c")
    queue.added(0)
    for kind in (Counter, Gauge, Histogram):
        monkeypatch.setattr(kind, "labels", lambda *_: pytest.fail("a series was looked up while counting"))
    controller.reconciled("success", 0.1)
    controller.worker_started()
    controller.error()
    queue.added(0)
    queue.popped(0, 0.1)
    queue.done(0.1)
    informer.processed(0.1)
    election.leading(True)


def test_no_created_series_is_shown() -> None:
    metrics = Metrics()
    metrics.for_controller("c", 1)
    metrics.for_queue("c")
    metrics.counter("own_total", "Own.").inc()
    assert "own_total 1.0" in metrics.render().decode()
    assert "_created" not in metrics.render().decode()


def test_queue_series_follow_a_real_queue() -> None:
    clock = FakeClock()
    metrics = Metrics(clock=clock)
    queue = WorkQueue[str](observer=metrics.for_queue("c"))

    queue.add("a", clock.monotonic(), priority=-100)
    queue.add("b", clock.monotonic())
    queue.add("a", clock.monotonic(), priority=0)
    queue.add("later", clock.monotonic(), after=60.0)
    found = series(metrics)
    assert found['workqueue_depth{controller="c",name="c",priority="0"}'] == 2
    assert found['workqueue_depth{controller="c",name="c",priority="-100"}'] == 0
    assert found['workqueue_adds_total{controller="c",name="c"}'] == 2
    assert found['workqueue_retries_total{controller="c",name="c"}'] == 1

    clock.advance(2.0)
    item = queue.pop(clock.monotonic())
    assert item is not None
    clock.advance(3.0)
    found = series(metrics)
    assert found['workqueue_depth{controller="c",name="c",priority="0"}'] == 1
    assert found['workqueue_queue_duration_seconds_sum{controller="c",name="c"}'] == 2.0
    assert found['workqueue_unfinished_work_seconds{controller="c",name="c"}'] == 3.0

    queue.done(item.key, clock.monotonic())
    found = series(metrics)
    assert found['workqueue_work_duration_seconds_sum{controller="c",name="c"}'] == 3.0
    assert found['workqueue_unfinished_work_seconds{controller="c",name="c"}'] == 0.0


def test_unfinished_work_is_summed_and_the_oldest_shown_until_it_ends() -> None:
    clock = FakeClock()
    metrics = Metrics(clock=clock)
    queue = metrics.for_queue("c")
    queue.popped(0, 0.0)
    clock.advance(5.1)
    queue.popped(0, 0.0)
    clock.advance(0.2)
    found = series(metrics)
    assert found['workqueue_unfinished_work_seconds{controller="c",name="c"}'] == pytest.approx(5.5)
    assert found['workqueue_longest_running_processor_seconds{controller="c",name="c"}'] == pytest.approx(5.3)

    queue.done(5.3)
    assert series(metrics)['workqueue_longest_running_processor_seconds{controller="c",name="c"}'] == pytest.approx(0.2)


def test_priorities_beyond_the_limit_share_one_series() -> None:
    metrics = Metrics()
    queue = metrics.for_queue("c")
    for priority in range(MAX_PRIORITIES + 3):
        queue.added(priority)
    queue.popped(MAX_PRIORITIES, 0.0)
    depths = {n: v for n, v in series(metrics).items() if n.startswith("workqueue_depth")}
    assert len(depths) == MAX_PRIORITIES + 1
    assert depths[f'workqueue_depth{{controller="c",name="c",priority="{OVERFLOW_PRIORITY}"}}'] == 2


Step = tuple[str, int, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(("add", "later", "pop", "done", "tick")), st.integers(0, 5), st.integers(-20, 20))
    )
)
def test_depth_over_all_priorities_is_what_is_pending_and_never_negative(steps: list[Step]) -> None:
    clock = FakeClock()
    metrics = Metrics(clock=clock)
    queue = WorkQueue[int](observer=metrics.for_queue("c"))
    for step, key, priority in steps:
        now = clock.monotonic()
        if step == "add":
            queue.add(key, now, priority=priority)
        elif step == "later":
            queue.add(key, now, priority=priority, after=5.0)
        elif step == "pop":
            queue.pop(now)
        elif step == "done":
            queue.done(key, now)
        else:
            clock.advance(3.0)
        depths = [sample.value for metric in metrics.queue_depth.collect() for sample in metric.samples]
        pending = queue.statistics(now)
        assert sum(depths) == pending.ready + pending.dirty_while_processing
        assert min(depths, default=0.0) >= 0.0


def test_keys_that_wait_for_their_time_are_shown_apart_from_those_that_are_ready() -> None:
    clock = FakeClock()
    metrics = Metrics(clock=clock)
    observer = metrics.for_queue("c")
    queue = WorkQueue[str](observer=observer)
    observer.delayed_from(lambda: queue.statistics(clock.monotonic()).delayed)
    queue.add("now", 0.0)
    queue.add("later", 0.0, after=60.0)
    found = series(metrics)
    assert found['workqueue_depth{controller="c",name="c",priority="0"}'] == 1
    assert found['workqueue_delayed_items{controller="c",name="c"}'] == 1


def test_requests_are_counted_by_code_method_and_host() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("GET", "h:6443", "200", 0.1))
    metrics.rest_observer(AnsweredRequest("GET", "h:6443", "200", 0.1))
    metrics.rest_observer(AnsweredRequest("PATCH", "h:6443", "<error>", 0.1))
    found = series(metrics)
    assert found['rest_client_requests_total{code="200",host="h:6443",method="GET"}'] == 2
    assert found['rest_client_requests_total{code="<error>",host="h:6443",method="PATCH"}'] == 1


def test_requests_are_measured_by_verb_and_host() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("PUT", "h", "200", 0.3, sent=100, received=2000))
    found = series(metrics)
    assert found['rest_client_request_duration_seconds_sum{host="h",verb="PUT"}'] == 0.3
    assert found['rest_client_request_size_bytes_sum{host="h",verb="PUT"}'] == 100
    assert found['rest_client_response_size_bytes_sum{host="h",verb="PUT"}'] == 2000


def test_a_request_without_an_answer_has_a_duration_and_no_sizes() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("PUT", "h", "<error>", 30.0, sent=100))
    found = series(metrics)
    assert found['rest_client_request_duration_seconds_count{host="h",verb="PUT"}'] == 1
    assert found['rest_client_request_size_bytes_count{host="h",verb="PUT"}'] == 0


def test_a_watch_is_counted_and_not_measured() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("GET", "h", "200", 400.0, stream=True))
    found = series(metrics)
    assert found['rest_client_requests_total{code="200",host="h",method="GET"}'] == 1
    assert not [name for name in found if name.startswith("rest_client_request_duration_seconds")]


def test_only_repetitions_count_as_retries() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("GET", "h", "503", 0.1))
    metrics.rest_observer(AnsweredRequest("GET", "h", "503", 0.1, attempt=2))
    metrics.rest_observer(AnsweredRequest("GET", "h", "200", 0.1, attempt=3))
    retries = {name: value for name, value in series(metrics).items() if name.startswith("rest_client_request_retries")}
    assert retries == {
        'rest_client_request_retries_total{code="503",host="h",verb="GET"}': 1,
        'rest_client_request_retries_total{code="200",host="h",verb="GET"}': 1,
    }


def test_name_resolutions_are_measured_by_host() -> None:
    metrics = Metrics()
    metrics.resolution_observer("api.example", 0.25)
    assert series(metrics)['rest_client_dns_resolution_duration_seconds_sum{host="api.example"}'] == 0.25


def test_an_elector_shows_that_it_does_not_lead_until_it_does() -> None:
    metrics = Metrics()
    election = metrics.leader_election("lease")
    status, slow = 'leader_election_master_status{name="lease"}', 'leader_election_slowpath_total{name="lease"}'
    assert (series(metrics)[status], series(metrics)[slow]) == (0, 0)
    election.leading(True)
    election.slow_path()
    assert (series(metrics)[status], series(metrics)[slow]) == (1, 1)
    election.leading(False)
    assert series(metrics)[status] == 0


def test_an_informer_shows_its_store_and_its_handlers() -> None:
    metrics = Metrics()
    informer = metrics.for_informer(WIDGETS, "Widget")
    informer.queued_from(lambda: 3)
    informer.version_from(lambda: "12345")
    informer.processed(0.2)
    found = series(metrics)
    assert found["informer_queued_items" + WIDGET_LABELS] == 3
    assert found["informer_store_resource_version" + WIDGET_LABELS] == 12345
    assert found["informer_processing_latency_seconds_sum" + WIDGET_LABELS] == 0.2


@pytest.mark.parametrize(
    ("version", "shown"), [("", 0), ("7", 7), ("1234567890123456789", 567890123456789), ("abc", 0), ("²", 0)]
)
def test_a_version_is_shown_by_its_last_fifteen_digits(version: str, shown: int) -> None:
    assert shown_version(version) == shown


def test_process_metrics_are_there() -> None:
    found = series(Metrics())
    assert found["process_resident_memory_bytes"] > 0
    assert "process_cpu_seconds_total" in found


def test_two_managers_share_nothing() -> None:
    one, two = Metrics(), Metrics()
    one.for_controller("c", 1).error()
    two.for_controller("c", 1)
    assert series(two)['controller_runtime_reconcile_errors_total{controller="c"}'] == 0


def test_own_metric_declared_twice_alike_is_one_metric() -> None:
    metrics = Metrics()
    metrics.counter("own_total", "Own.", ("a",)).labels("x").inc()
    metrics.counter("own_total", "Own.", ("a",)).labels("x").inc()
    assert series(metrics)['own_total{a="x"}'] == 2


def test_own_gauge_is_read_at_each_scrape() -> None:
    metrics = Metrics()
    values = iter([1.0, 2.0])
    metrics.gauge("own", "Own.", read=lambda: next(values))
    assert [series(metrics)["own"], series(metrics)["own"]] == [1.0, 2.0]


def test_own_histogram_has_its_own_edges() -> None:
    metrics = Metrics()
    metrics.histogram("own_seconds", "Own.", ("a",), buckets=(1.0, 60.0)).labels("x").observe(30.0)
    assert metrics.histogram("own_seconds", "Own.", ("a",), buckets=(1.0, 60.0)).labels("x") is not None
    assert buckets(metrics, of="own_seconds") == {"1": 0, "60": 1, "+Inf": 1}


def test_clashing_declarations_are_an_error_that_names_the_metric() -> None:
    metrics = Metrics()
    metrics.counter("own_total", "Own.", ("a",))
    metrics.histogram("own_seconds", "Own.", buckets=(1.0,))
    with pytest.raises(ConfigurationError, match="own_total is declared twice"):
        metrics.counter("own_total", "Own.", ("b",))
    with pytest.raises(ConfigurationError, match="own_total is declared twice"):
        metrics.gauge("own_total", "Own.", ("a",))
    with pytest.raises(ConfigurationError, match="own_seconds is declared twice"):
        metrics.histogram("own_seconds", "Own.", buckets=(2.0,))
    with pytest.raises(ConfigurationError, match="own_seconds_count cannot be declared"):
        metrics.gauge("own_seconds_count", "A part of the histogram.")


# -- who tells it -----------------------------------------------------------------------------------------------------


def kubeconfig(path: Path, server: str) -> str:
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return str(path)


def test_the_transport_tells_sizes_streams_tries_and_name_resolutions(tmp_path: Path) -> None:
    observed: list[AnsweredRequest] = []
    resolved: list[str] = []

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read() * 2)

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", echo)
        runner = web.AppRunner(app)
        await runner.setup()
        listening = socket.create_server(("localhost", 0))
        await web.SockSite(runner, listening).start()
        config = kubeconfig(tmp_path / "config", f"http://localhost:{listening.getsockname()[1]}")
        transport = AiohttpTransport(
            Credentials(config),
            observer=observed.append,
            resolution_observer=lambda host, _: resolved.append(host),
        )
        try:
            await transport.request(HttpRequest("PUT", "/x", body=b"12345", attempt=3))
            async with transport.stream(HttpRequest("POST", "/x", body=b"12345")) as stream:
                await stream.read()
        finally:
            await transport.close()
            await runner.cleanup()

    asyncio.run(main())
    told = [(seen.method, seen.code, seen.sent, seen.received, seen.stream, seen.attempt) for seen in observed]
    assert told == [("PUT", "200", 5, 10, False, 3), ("POST", "200", 5, 0, True, 1)]
    assert resolved == ["localhost"]


class SlowResolver(AbstractResolver):
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.closed = False

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> list[ResolveResult]:
        self.clock.advance(2.5)
        raise OSError(f"{host}:{port} is unknown")

    async def close(self) -> None:
        self.closed = True


def test_a_name_that_cannot_be_resolved_is_timed_too() -> None:
    clock, timed = FakeClock(), []
    inner = SlowResolver(clock)
    resolver = TimedResolver(inner, lambda host, seconds: timed.append((host, seconds)), clock)
    with pytest.raises(OSError, match="is unknown"):
        run_virtual(resolver.resolve("api.example", 443))
    run_virtual(resolver.close())
    assert timed == [("api.example", 2.5)]
    assert inner.closed


class Widget(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = WIDGETS


def widgets(version: str) -> Answer:
    return Answer(body={"metadata": {"resourceVersion": version}, "items": []})


def test_the_client_says_which_try_of_one_call_a_request_is() -> None:
    transport = ScriptedTransport([TransportError("reset"), TransportError("reset"), widgets("7"), widgets("7")])
    client = Client(transport, ClientOptions("tests")).restricted_to(permissions(Widget, "list"))
    run_virtual(client.list(Widget))
    run_virtual(client.list(Widget))
    assert [request.attempt for request in transport.requests] == [1, 2, 3, 1]


def test_the_manager_shows_how_long_changes_take_to_be_handed_out() -> None:
    added = {"type": "ADDED", "object": {"metadata": {"name": "w", "namespace": "ns", "resourceVersion": "12"}}}
    clock = FakeClock()
    transport = ScriptedTransport([widgets("11"), Answer(stream=[added, STALL])])
    manager = Manager(Client(transport, ClientOptions("tests")), ManagerOptions(), clock=clock)
    informer = manager.informer(Widget)
    informer.add_handler(lambda _: clock.advance(0.3))

    async def follow() -> None:
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(1)
        task.cancel()

    run_virtual(follow)
    assert series(manager.metrics)["informer_processing_latency_seconds_sum" + WIDGET_LABELS] == pytest.approx(0.3)


def test_the_manager_shows_how_many_changes_wait_for_a_slow_handler() -> None:
    added = [
        {"type": "ADDED", "object": {"metadata": {"name": name, "namespace": "ns", "resourceVersion": "12"}}}
        for name in ("a", "b", "c")
    ]
    transport = ScriptedTransport([widgets("11"), Answer(stream=[*added, STALL])])
    manager = Manager(Client(transport, ClientOptions("tests")), ManagerOptions())
    informer = manager.informer(Widget)

    async def sleep(_: Change[Widget]) -> None:
        await asyncio.sleep(1000)

    async def follow() -> None:
        informer.add_buffered_handler(sleep)
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(1)
        assert series(manager.metrics)["informer_queued_items" + WIDGET_LABELS] == 2  # the third is being handled
        task.cancel()

    run_virtual(follow)


def test_the_manager_shows_how_current_the_caches_of_each_kind_are() -> None:
    class Marked(Widget, frozen=True, kw_only=True):
        """Widgets that are selected in another way."""

    def server(request: HttpRequest) -> Answer:
        if ("watch", "true") in request.query:
            return Answer(stream=[STALL])
        return widgets("12" if ("labelSelector", "marked") in request.query else "11")

    manager = Manager(Client(ScriptedTransport(server), ClientOptions("tests")), ManagerOptions())
    informers = manager.informer(Widget), manager.informer(Marked, Selection(labels="marked"))
    before = series(manager.metrics)

    async def fill() -> None:
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.wait_synced()
        for task in tasks:
            task.cancel()

    run_virtual(fill)
    after = series(manager.metrics)
    widget = "informer_store_resource_version" + WIDGET_LABELS
    marked = widget.replace("Widget", "Marked")
    assert (before[widget], before[marked]) == (0, 0)
    assert (after[widget], after[marked]) == (11, 12)


def test_a_controller_shows_the_keys_that_it_has_put_off() -> None:
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions())
    controller = manager.controller("c")

    async def put_off() -> dict[str, float]:
        controller.enqueue(Key("ns", "a"), after=60.0)
        controller.enqueue(Key("ns", "b"))
        return series(manager.metrics)

    found = run_virtual(put_off)
    assert found['workqueue_delayed_items{controller="c",name="c"}'] == 1
    assert found['workqueue_depth{controller="c",name="c",priority="0"}'] == 1


def test_a_reconcile_is_counted_once_and_its_worker_is_busy_meanwhile() -> None:
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions(workers=3))
    controller = manager.controller("c")
    busy: list[float] = []

    class Slow:
        async def reconcile(self, _: Request) -> Result:
            busy.append(series(manager.metrics)['controller_runtime_active_workers{controller="c"}'])
            await asyncio.sleep(1)
            return DONE if len(busy) < 3 else Result(requeue_after=1000.0)

    async def main() -> None:
        controller.reconciles_with(Slow())
        for name in ("x", "y", "z"):
            controller.enqueue(Key("ns", name))
        asyncio.get_running_loop().call_later(10, controller.stop)
        await controller.run()

    run_virtual(main)
    found = series(manager.metrics)
    results = [value for name, value in found.items() if name.startswith("controller_runtime_reconcile_total")]
    assert busy == [1, 2, 3]
    assert sum(results) == 3
    assert found['controller_runtime_active_workers{controller="c"}'] == 0
    assert found['controller_runtime_reconcile_time_seconds_count{controller="c"}'] == 3
