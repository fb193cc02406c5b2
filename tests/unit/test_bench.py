"""The bench's figures: percentiles, spreads, ratios, verdicts and which writes count as expected."""

import importlib.util
import json
import shutil
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.api.core import Node
from controllers.runtime import Key, ObjectMeta
from controllers.runtime.client import decode_event, decode_page
from hack.bench import contest, framework, lanes, objects, sandbox
from hack.bench.audit import AuditLog
from hack.bench.canned import Canned, EventTemplate
from hack.bench.contest import Entrant, EntrantError, Standings
from hack.bench.entrants import meter, ours
from hack.bench.expectations import CREATION, DELETION, IDLE, PUBLICATION, QUIET_ESTATE, Needed, judged
from hack.bench.lanes import Target
from hack.bench.plan import Plan
from hack.bench.population import bare_writes
from hack.bench.publication import WRITES_OF
from hack.bench.report import Comparison, Report, Table, WriteList, aligned, number
from hack.bench.statistics import Spread, percentile, ratios

values = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.01, 1.0), (0.07, 7.0), (0.991, 100.0)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == expected


def test_the_p99_of_few_values_is_the_highest() -> None:
    assert percentile([3.0, 9.0, 1.0], 0.99) == 9.0


@given(values, st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_the_share_does_not_exceed(sample: list[float], share: float) -> None:
    found = percentile(sample, share)
    assert found in sample
    assert sum(value <= found for value in sample) >= share * len(sample) - 1e-6
    assert sum(value < found for value in sample) < share * len(sample) + 1e-6


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_outside_of_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


def test_nothing_has_neither_percentile_nor_spread() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_a_spread_is_median_lowest_and_highest() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 9.0]) == Spread(3.5, 1.0, 9.0)


def test_ratios_are_taken_repeat_by_repeat() -> None:
    assert ratios([10.0, 30.0], [5.0, 10.0]) == [2.0, 3.0]


def test_repeats_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="2 repeats cannot be compared with 1"):
        ratios([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not above 0"):
        ratios([1.0], [0.0])


@pytest.mark.parametrize(
    ("ours", "higher_is_better", "verdict"),
    [(4.0, False, "met"), (4.1, False, "missed"), (4.0, True, "met"), (3.9, True, "missed")],
)
def test_a_goal_is_met_by_the_median_ratio(ours: float, higher_is_better: bool, verdict: str) -> None:
    row = Comparison("x", "ms", [ours, 1.0, 99.0], [1.0, 1.0, 1.0], 4.0, higher_is_better)
    assert row.verdict == verdict


@pytest.mark.parametrize(
    ("ours", "higher_is_better", "verdict"),
    [(4.0, False, "met"), (4.1, False, "missed"), (4.0, True, "met"), (3.9, True, "missed")],
)
def test_an_absolute_goal_is_met_by_our_own_median(ours: float, higher_is_better: bool, verdict: str) -> None:
    row = Comparison("x", "ms", [ours, 1.0, 99.0], [7.0, 7.0, 7.0], 4.0, higher_is_better, absolute=True)
    assert row.verdict == verdict
    assert row.cells()[4:] == (f"{'>=' if higher_is_better else '<='} 4ms", verdict)


def test_goals_are_shown_without_a_base() -> None:
    text = Table("Title", [Comparison("x", "ms", [3.0], goal=4.0, absolute=True), Comparison("y", "ms", [3.0])]).text()
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "Title",
        "measurement ours goal",
        "x 3.00 ms (3.00..3.00) <= 4ms met",
        "y 3.00 ms (3.00..3.00) -",
    ]


def test_sandbox_is_measured_with_small_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SETTLED", 0.1)
    plan = Plan(
        repeats=1, requests=30, in_flight=3, events=20, watchers=2, events_rate=200.0, sandbox_nodes=2, sandbox_pods=5
    )
    tables = sandbox.measure(plan)
    rows = {row.name: row for table in tables for row in table.rows}
    assert {name for name, row in rows.items() if row.goal is not None} == {
        *("creates", "applies", "p99", "until the kubeconfig is there"),
    }
    assert all(value > 0.0 for row in rows.values() for value in row.ours if "CPU" not in row.name)


def test_without_goal_or_base_there_is_no_verdict() -> None:
    assert Comparison("x", "ms", [1.0], [1.0]).verdict == ""
    assert Comparison("x", "ms", [1.0], None, 4.0).verdict == ""


def test_columns_are_aligned() -> None:
    assert aligned([("a", "bb", "c"), ("aaa", "b", "cc")]) == "  a    bb  c\n  aaa  b   cc"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.004, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers_have_about_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_write_that_nobody_expects_is_unexpected_and_comes_last() -> None:
    writes = Counter({("delete", "pods"): 1, ("patch", "nodes"): 20, ("create", "resourceclaimtemplates"): 10})
    counts = judged(writes, CREATION, domains=10)
    assert [(c.what, c.per_domain, c.unexpected) for c in counts] == [
        ("create resourceclaimtemplates", 1.0, False),
        ("patch nodes", 2.0, False),
        ("delete pods", 0.1, True),
    ]


def test_more_of_an_expected_write_than_needed_is_unexpected() -> None:
    counts = judged(Counter({("patch", "computedomains"): 11}), {("patch", "computedomains"): Needed(1, "why")}, 10)
    assert [c.unexpected for c in counts] == [True]


def test_an_idle_estate_may_write_leases_and_nothing_else() -> None:
    assert all(resource == "leases" for _, resource in IDLE)


def test_an_estate_at_rest_may_write_nothing() -> None:
    assert judged(Counter({("patch", "leases"): 1}), QUIET_ESTATE, 1)[0].unexpected


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_an_answer_ends_with_its_length_or_its_last_chunk(answer: bytes, whole: bool) -> None:
    assert lanes.is_whole(answer) is whole


def audit_line(user: str, verb: str, name: str) -> str:
    reference = {"resource": "nodes", "name": name, "subresource": "status"}
    at, status = "2026-01-02T03:04:05.500000Z", {"code": 200}
    event = {"user": {"username": user}, "verb": verb, "objectRef": reference, "stageTimestamp": at}
    return json.dumps({**event, "responseStatus": status})


def test_the_audit_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    first, second = audit_line("us", "patch", "a"), audit_line("us", "patch", "b")
    path.write_text(f"{first}\n{audit_line('us too', 'patch', 'x')}\n{audit_line('us', 'get', 'y')}\n{second[:20]}")
    log = AuditLog(path, "us")
    assert [(write.sort, write.name) for write in log.writes()] == [(("patch", "nodes/status"), "a")]
    with path.open("a") as file:
        file.write(f"{second[20:]}\n")
    assert [(write.name, write.code) for write in log.writes()] == [("a", 200), ("b", 200)]
    assert log.writes()[0].at == 1767323045.5


def test_every_expected_write_has_its_reason() -> None:
    reasons = [needed.why for expected in (CREATION, DELETION, IDLE, PUBLICATION) for needed in expected.values()]
    assert len(reasons) > 5
    assert all(len(why) > 10 for why in reasons)


def test_only_an_unexpected_write_makes_a_report_fail(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report({})
    report.add(Table("t", [Comparison("slow", "ms", [100.0], [1.0], 2.0)]))
    report.add(WriteList("w", judged(Counter({("patch", "nodes"): 2}), CREATION, 1)))
    before = report.failed
    report.add(WriteList("w", judged(Counter({("patch", "nodes"): 3}), CREATION, 1)))
    assert (before, report.failed) == (False, True)
    assert "missed" in (printed := capsys.readouterr().out)
    assert "UNEXPECTED" in printed


def test_the_json_file_has_every_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report({"cores": 2})
    report.add(Table("t", [Comparison("x", "ms", [3.0, 4.0], [1.0, 2.0], 2.0)]))
    report.add(WriteList("w", judged(Counter({("patch", "nodes"): 2}), CREATION, 1)))
    report.save(tmp_path / "out.json")
    saved = json.loads((tmp_path / "out.json").read_text())
    row = saved["tables"][0]["rows"][0]
    assert (row["ours"], row["base"], row["ratio"], row["verdict"]) == ([3.0, 4.0], [1.0, 2.0], 2.5, "missed")
    assert saved["writes"][0]["counts"][0]["count"] == 2.0
    assert saved["facts"] == {"cores": 2}
    assert saved["failed"] is False
    assert capsys.readouterr().out


def test_the_bare_writes_of_a_node_are_those_that_its_controllers_have() -> None:
    target = Target("127.0.0.1", 6443, ssl.create_default_context(), "token")
    node = Node(metadata=ObjectMeta(name="n1", uid="u1"))

    for index in (0, 1):
        requests = [request.split(b"\r\n\r\n", 1) for request in bare_writes(target, node, index)]
        bodies = [msgspec.json.decode(body) for _, body in requests]
        assert len(requests) == sum(count(index) for count in WRITES_OF.values())
        slices = [body["spec"] for body in bodies if body["kind"] == "ResourceSlice"]
        assert all(isinstance(device["name"], str) for spec in slices for device in spec["devices"])
        assert all(spec["pool"]["resourceSliceCount"] == 1 for spec in slices)


def test_synthetic_pods_have_the_announced_size_and_one_version_each() -> None:
    pods = [objects.pod(number) for number in range(50)]
    sizes = {len(objects.encoded(pod)) for pod in pods}
    assert min(sizes) >= objects.POD_BYTES
    assert max(sizes) <= objects.POD_BYTES * 1.01
    assert len({pod["metadata"]["resourceVersion"] for pod in pods}) == 50


def test_pages_of_the_prepared_list_make_up_the_whole() -> None:
    canned = Canned.holding(pods=7, nodes=0)
    first = decode_page(ours.Pod, canned.page("pods", 3, 0))
    second = decode_page(ours.Pod, canned.page("pods", 3, int(first.continue_token)))
    last = decode_page(ours.Pod, canned.page("pods", 3, int(second.continue_token)))
    assert last.continue_token == ""
    whole = decode_page(ours.Pod, canned.page("pods", 0, 0))
    assert (*first.items, *second.items, *last.items) == whole.items
    assert len({pod.key for pod in whole.items}) == 7


def test_a_prepared_list_can_be_cut_short() -> None:
    canned = Canned.holding(pods=7, nodes=3)
    canned.shown = {"pods": 1}
    assert len(decode_page(ours.Pod, canned.page("pods", 0, 0)).items) == 1
    assert len(decode_page(Node, canned.page("nodes", 0, 0)).items) == 3


def test_a_prepared_event_tells_its_version_and_how_old_it_is() -> None:
    line = EventTemplate.of(4).line(1234)
    event = decode_event(ours.Pod, line)
    assert (event.type, event.resource_version) == ("MODIFIED", "1234")
    assert event.object is not None
    assert event.object.key == Key("default", objects.pod(4)["metadata"]["name"])
    assert json.loads(line)["object"]["kind"] == "Pod"
    age = meter.age(event.object.metadata.annotations)
    assert age is not None
    assert age >= 0.0


def test_what_came_with_a_list_has_no_age() -> None:
    assert meter.age({objects.DUE: ""}) is None
    assert meter.age(None) is None


def test_standings_put_ours_beside_each_other_one() -> None:
    other = Entrant("other", ())
    standings = Standings()
    for value in (1.0, 2.0):
        standings.add(contest.FRAMEWORK, value)
        standings.add(other, value * 4)
    assert standings.rows("CPU time", "s", {"other": 0.3}) == [
        Comparison("CPU time beside other", "s", [1.0, 2.0], [4.0, 8.0], 0.3)
    ]


def test_whoever_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_MIRAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    present, absent = contest.entrants()
    assert [entrant.name for entrant in present] == [contest.OURS, contest.OFFICIAL]
    assert set(absent) == {contest.CLIENT_GO, contest.KOPF}
    assert "Go is not on the PATH" in absent[contest.CLIENT_GO]
    assert "pip install" in absent[contest.KOPF]


def test_client_go_is_built_once_for_each_state_of_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_MIRAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/go")
    commands: list[list[str]] = []

    def build(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_text("program")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", build)
    first = contest.build_client_go()
    assert contest.build_client_go() == first
    assert len(commands) == 1
    assert first.is_relative_to(tmp_path)
    assert list(first.parent.iterdir()) == [first]


def test_a_build_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_MIRAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "/go")
    failed = subprocess.CompletedProcess([], 1, "", "no such module")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(EntrantError, match="no such module"):
        contest.build_client_go()


def test_an_entrant_that_ends_too_early_is_an_error() -> None:
    broken = Entrant("broken", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(EntrantError, match="code 3"):
        contest.run(broken, contest.Server("http://127.0.0.1:1"), "list", objects=1)


def test_every_figure_of_the_framework_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    official = Entrant(contest.OFFICIAL, contest.python("official"))
    monkeypatch.setattr(contest, "entrants", lambda: ([contest.FRAMEWORK, official], {contest.KOPF: "not here"}))
    plan = Plan(repeats=1, pods=200, resident=60, stalled=60, reconciles=50, queue_keys=50, events=20)
    tables = framework.measure(plan)
    rows = {(table.title.split(",")[0].split(" ")[0], row.name): row for table in tables for row in table.rows}
    assert {name for name, row in rows.items() if row.goal is not None} == {
        ("Work", "all pending at once"),
        ("Work", "1,000 pending"),
        ("Controller", "reconciles that do nothing"),
        ("List", "CPU time beside kubernetes.informer"),
        ("List", "memory per object beside kubernetes.informer"),
        ("Watch", "alone"),
        ("From", "p99, alone"),
        ("Cache", "memory per node"),
        ("List", "longest stall of the event loop"),
    }
