"""Metric names, labels, buckets and text."""

import re
from typing import get_args

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.metrics import (
    MAX_PRIORITIES,
    OVERFLOW_PRIORITY,
    QUEUE_BUCKETS,
    Metrics,
    ReconcileResult,
    exponential_buckets,
)
from controllers.runtime.testing import FakeClock
from controllers.runtime.transport import AnsweredRequest
from controllers.runtime.workqueue import WorkQueue

# fmt: off
GO_RECONCILE_BUCKETS = [
    "0.005", "0.01", "0.025", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45", "0.5", "0.6", "0.7",
    "0.8", "0.9", "1", "1.25", "1.5", "1.75", "2", "2.5", "3", "3.5", "4", "4.5", "5", "6", "7", "8", "9", "10", "15",
    "20", "25", "30", "40", "50", "60", "+Inf",
]
GO_QUEUE_BUCKETS = [
    "1e-08", "1e-07", "1e-06", "9.999999999999999e-06", "9.999999999999999e-05",
    "0.001", "0.01", "0.1", "1", "10", "100", "1000", "+Inf",
]
# fmt: on


def series(metrics: Metrics) -> dict[str, float]:
    lines = (line for line in metrics.render().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def buckets(metrics: Metrics, name: str) -> list[str]:
    return re.findall(rf'^{name}_bucket\{{.*le="([^"]+)".*\}}', metrics.render().decode(), re.MULTILINE)


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


def test_bucket_edges_are_written_as_go_writes_them() -> None:
    metrics = Metrics()
    metrics.for_controller("c", 1)
    metrics.for_queue("c")
    assert buckets(metrics, "controller_runtime_reconcile_time_seconds") == GO_RECONCILE_BUCKETS
    assert buckets(metrics, "workqueue_queue_duration_seconds") == GO_QUEUE_BUCKETS
    assert buckets(metrics, "workqueue_work_duration_seconds") == GO_QUEUE_BUCKETS
    assert exponential_buckets(10e-9, 10, 12) == QUEUE_BUCKETS


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


def test_requests_are_counted_by_code_method_and_host() -> None:
    metrics = Metrics()
    metrics.rest_observer(AnsweredRequest("GET", "h:6443", "200", 0.1))
    metrics.rest_observer(AnsweredRequest("GET", "h:6443", "200", 0.1))
    metrics.rest_observer(AnsweredRequest("PATCH", "h:6443", "<error>", 0.1))
    found = series(metrics)
    assert found['rest_client_requests_total{code="200",host="h:6443",method="GET"}'] == 2
    assert found['rest_client_requests_total{code="<error>",host="h:6443",method="PATCH"}'] == 1


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


def test_clashing_declarations_are_an_error_that_names_the_metric() -> None:
    metrics = Metrics()
    metrics.counter("own_total", "Own.", ("a",))
    with pytest.raises(ConfigurationError, match="own_total is declared twice"):
        metrics.counter("own_total", "Own.", ("b",))
    with pytest.raises(ConfigurationError, match="own_total is declared twice"):
        metrics.gauge("own_total", "Own.", ("a",))
    with pytest.raises(ConfigurationError, match="workqueue_queue_duration_seconds cannot be declared"):
        metrics.gauge("workqueue_queue_duration_seconds", "A histogram's name.")
