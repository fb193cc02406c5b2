"""The dashboard and the alerts ask for nothing that a manager does not show."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from controllers.runtime.cache import Happening
from controllers.runtime.metrics import ReconcileResult
from controllers.runtime.recorder import Discarded
from tests.unit.exposition import Family, families, full_metrics

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "config" / "monitoring"
OVERLAYS = [path for path in (ROOT / "config").rglob("kustomization.yaml") if path.parent != MONITORING]

ADDED_BY_PROMETHEUS = {"namespace", "job", "service", "endpoint", "pod", "container", "instance"}
"""Labels that every series has once the operator's scrape has taken it."""

UP = {"up": Family("gauge", frozenset())}
"""What Prometheus itself says of each target."""

KEYWORDS = {"and", "or", "unless", "bool", "offset"}

USUAL = (
    'sum by (controller) (rate(controller_runtime_reconcile_total{result="error"}[5m]))',
    "sum by (instance, pod) (rate(controller_runtime_reconcile_errors_total[5m]))",
    "histogram_quantile(0.95, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket[5m])))",
    "controller_runtime_active_workers / controller_runtime_max_concurrent_reconciles",
    "histogram_quantile(0.9, sum by (name, le) (rate(workqueue_queue_duration_seconds_bucket[5m])))",
    "histogram_quantile(0.5, sum by (controller, name, le) (rate(workqueue_work_duration_seconds_bucket[5m])))",
    "sum by (name, priority) (workqueue_depth)",
    "rate(workqueue_adds_total[5m])",
    "rate(workqueue_retries_total[5m])",
    "rate(workqueue_unfinished_work_seconds[5m])",
    'sum by (code, method, host) (rate(rest_client_requests_total{code=~"4.."}[5m]))',
    "histogram_quantile(0.99, sum by (verb, host, le) (rate(rest_client_request_duration_seconds_bucket[5m])))",
    "rate(process_cpu_seconds_total[5m])",
    "process_resident_memory_bytes",
    "max by (name) (leader_election_master_status)",
)
"""What dashboards for controllers in Go ask for."""

VALUES = {
    "result": set(get_args(ReconcileResult)),
    "reason": set(get_args(Discarded)),
    "happening": {str(happening) for happening in Happening},
}
"""Labels whose values are fixed."""


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of PromQL, and where it stands."""

    place: str
    text: str
    legend: str = ""

    @property
    def bare(self) -> str:
        """Without what is in braces and brackets, and without the labels that it groups by."""
        return re.sub(r"\b(by|without)\s*\([^)]*\)", "", re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", self.text))

    @property
    def metrics(self) -> set[str]:
        return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", self.bare)) - KEYWORDS

    @property
    def matchers(self) -> list[tuple[str, str, str]]:
        """Metric, label and value of each matcher."""
        selectors = re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", self.text)
        return [
            (metric, label, value)
            for metric, inside in selectors
            for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', inside)
        ]

    @property
    def groups(self) -> set[str]:
        inside = re.findall(r"\bby\s*\(([^)]*)\)", self.text)
        return {label.strip() for labels in inside for label in labels.split(",")}


@cache
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return loaded


@cache
def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())["spec"]["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    for panel in panels():
        for target in panel["targets"]:
            yield Query(panel["title"], target["expr"], target["legendFormat"])
    for alert in alerts():
        yield Query(alert["alert"], alert["expr"], alert["annotations"]["summary"])


@cache
def shown() -> dict[str, Family]:
    return families(full_metrics()) | UP


def family_of(series: str) -> Family | None:
    """The metric that a series is part of; a histogram's series have the endings of its parts."""
    part = re.sub(r"_(bucket|sum|count)$", "", series)
    histogram = shown().get(part)
    if histogram is not None and histogram.type == "histogram":
        return histogram if part != series else None
    return shown().get(series)


@pytest.mark.parametrize("text", USUAL)
def test_what_dashboards_for_controller_runtime_ask_for_is_there(text: str) -> None:
    query = Query("elsewhere", text)
    found = [family for name in query.metrics if (family := family_of(name))]
    assert len(found) == len(query.metrics) > 0
    labels = {label for family in found for label in family.labels} | ADDED_BY_PROMETHEUS | {"le"}
    assert query.groups | {label for _, label, _ in query.matchers} <= labels


every_query = pytest.mark.parametrize("query", list(queries()), ids=lambda query: query.place)


@every_query
def test_every_series_that_is_asked_for_is_shown(query: Query) -> None:
    assert query.metrics
    assert {name for name in query.metrics if family_of(name) is None} == set()


@every_query
def test_every_label_that_is_matched_is_one_of_that_metric(query: Query) -> None:
    for metric, label, _ in query.matchers:
        family = family_of(metric)
        assert family is not None
        assert label in family.labels | ADDED_BY_PROMETHEUS, f"{metric} has no label {label}"


@every_query
def test_every_value_that_is_matched_can_occur(query: Query) -> None:
    for _, label, value in query.matchers:
        if label in VALUES:
            assert set(value.split("|")) <= VALUES[label]


@every_query
def test_every_label_that_is_grouped_by_or_written_out_is_there(query: Query) -> None:
    labels = set.union(*({*family.labels} for name in query.metrics if (family := family_of(name))))
    buckets = {"le"} if any(name.endswith("_bucket") for name in query.metrics) else set()
    assert query.groups <= labels | buckets | ADDED_BY_PROMETHEUS
    written = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", query.legend))
    assert written <= (query.groups - {"le"} if query.groups else labels | ADDED_BY_PROMETHEUS)


@every_query
def test_every_histogram_is_summed_over_its_buckets_before_its_quantile(query: Query) -> None:
    assert ("histogram_quantile" in query.text) == any(name.endswith("_bucket") for name in query.metrics)
    assert ("le" in query.groups) == ("histogram_quantile" in query.text)


@every_query
def test_counters_are_asked_for_their_rate_and_gauges_are_not(query: Query) -> None:
    rated = set(re.findall(r"(?:rate|increase)\(\s*(\w+)", query.text))
    growing = {name for name in query.metrics if (family := family_of(name)) and family.type != "gauge"}
    assert rated == growing


def test_the_checks_find_what_is_not_there() -> None:
    query = Query("x", 'sum by (le, nope) (rate(no_such_total{code="1"}[5m])) > 0.5 unless on_call == 1')
    assert query.metrics == {"no_such_total", "on_call"}
    assert query.groups == {"le", "nope"}
    assert query.matchers == [("no_such_total", "code", "1")]
    assert family_of("no_such_total") is None
    assert family_of("workqueue_queue_duration_seconds") is None
    assert family_of("workqueue_queue_duration_seconds_bucket") is not None


def test_every_metric_of_the_framework_has_its_place_on_the_dashboard_or_in_an_alert() -> None:
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for query in queries() for name in query.metrics}
    own = {name for name in shown() if not name.startswith("process_")}
    assert own - asked == set()


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    boxes = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_panels_ask_only_the_chosen_namespaces() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            named = set(re.findall(r"\$(\w+)", target["expr"]))
            assert "namespace" in named
            assert named <= variables | {"__rate_interval"}


def test_alerts_have_names_severities_and_say_what_happens() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names))
    for alert in alerts():
        assert alert["alert"].startswith("GpuMirage")
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert alert["annotations"]["summary"].endswith(".")


def services() -> list[dict[str, Any]]:
    found = [yaml.safe_load(path.read_text()) for path in (ROOT / "config" / "base").rglob("service.yaml")]
    assert len(found) > 5
    return found


def test_alerts_ask_only_the_jobs_that_the_services_make() -> None:
    jobs = {value for query in queries() for _, label, value in query.matchers if label == "job"}
    (pattern,) = jobs
    for alert in alerts():
        assert f'job=~"{pattern}"' in alert["expr"]
    # Without a label that says otherwise, the job of a target is the name of its Service.
    for service in services():
        assert re.fullmatch(pattern, service["metadata"]["name"])


def test_the_monitor_selects_the_services_and_their_port() -> None:
    spec = yaml.safe_load((MONITORING / "servicemonitor.yaml").read_text())["spec"]
    (endpoint,) = spec["endpoints"]
    for service in services():
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    for path in (ROOT / "config" / "base").rglob("kustomization.yaml"):
        (given,) = yaml.safe_load(path.read_text())["labels"]
        assert spec["selector"]["matchLabels"].items() <= given["pairs"].items()


def test_nothing_else_needs_the_prometheus_operator() -> None:
    for path in OVERLAYS:
        assert "monitoring" not in path.read_text(), path
