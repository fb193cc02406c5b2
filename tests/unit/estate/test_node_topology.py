"""The ConfigMap of a node: its exact text, and what is kept of it."""

import pytest
import yaml

from controllers.estate import (
    GpuModel,
    GpuStatus,
    Pool,
    Usage,
    config_map_labels,
    gpu_id,
    load,
    statuses_of,
    topology_text,
)
from controllers.estate.node_topology import scalar
from tests.unit.estate.documents import CHART_DEFAULT

# What the YAML library of fake-gpu-operator makes of the same values.
DEFAULT_NODE = """\
gpuMemory: 11441
gpuProduct: Tesla-K80
gpus:
    - id: GPU-db9f4e6e-e6a8-5da4-8a8b-08b968db6904
      status:
        allocatedBy:
            namespace: ""
            pod: ""
            container: ""
        podGpuUsageStatus: {}
    - id: GPU-6f4b9d5a-0000-5000-8000-000000000000
      status:
        allocatedBy:
            namespace: ""
            pod: ""
            container: ""
        podGpuUsageStatus: {}
migStrategy: mixed
"""

FULL_NODE = """\
gpuMemory: 81920
gpuProduct: NVIDIA H100 80GB HBM3
driverVersion: 550.163.01
cudaVersion: "12.4"
gpus:
    - id: GPU-db9f4e6e-e6a8-5da4-8a8b-08b968db6904
      status:
        allocatedBy:
            namespace: ns
            pod: "123"
            container: c
        podGpuUsageStatus:
            "1e3":
                utilization:
                    min: 80
                    max: 100
                fbUsed: 5720
                useKnativeUtilization: false
            10000000-0000-4000-8000-000000000000:
                utilization:
                    min: 0
                    max: 0
                fbUsed: 0
                useKnativeUtilization: true
migStrategy: mixed
otherDevices:
    - name: example.com/nic
      count: 2
    - name: rdma/hca
      count: 0
"""

EMPTY_NODE = """\
gpuMemory: 0
gpuProduct: ""
gpus: []
migStrategy: none
"""

BUSY = GpuStatus(
    "ns", "123", "c", {"1e3": Usage(80, 100, 5720), "10000000-0000-4000-8000-000000000000": Usage(knative=True)}
)
H100 = load(
    "migStrategy: mixed\n"
    "nodePools: {p: {gpu: {profile: h100, overrides: {device_count: 1}},"
    " resources: [{rdma/hca: 0}, example.com/nic: 2]}}"
).pools["p"]


def test_a_free_node_has_the_exact_text() -> None:
    expected = DEFAULT_NODE.replace("GPU-6f4b9d5a-0000-5000-8000-000000000000", gpu_id("fake-node", 1))
    assert topology_text("fake-node", load(CHART_DEFAULT).pools["default"]) == expected


def test_a_busy_node_has_the_exact_text() -> None:
    assert topology_text("fake-node", H100, {gpu_id("fake-node", 0): BUSY}) == FULL_NODE


def test_a_node_without_gpus_has_the_exact_text() -> None:
    assert topology_text("n", Pool("p")) == EMPTY_NODE


def test_what_is_read_back_renders_to_the_same_text() -> None:
    assert topology_text("fake-node", H100, statuses_of(FULL_NODE)) == FULL_NODE


def test_statuses_of_gpus_that_stay_are_kept_when_the_pool_changes() -> None:
    larger = Pool("q", gpu=GpuModel("Other"), gpu_count=2)
    text = topology_text("fake-node", larger, statuses_of(FULL_NODE))
    assert statuses_of(text) == {gpu_id("fake-node", 0): BUSY, gpu_id("fake-node", 1): GpuStatus()}
    assert statuses_of(topology_text("fake-node", Pool("r"), statuses_of(FULL_NODE))) == {}


def test_the_order_of_pods_stays_as_it_was_written() -> None:
    swapped = GpuStatus("ns", "123", "c", dict(reversed([*BUSY.usage.items()])))
    text = topology_text("fake-node", H100, {gpu_id("fake-node", 0): swapped})
    assert text != FULL_NODE
    assert topology_text("fake-node", H100, statuses_of(text)) == text


@pytest.mark.parametrize("text", ["", "gpus: [", "[]", "gpus: {}", "gpus: [1, {}, {id: 7}, {id: ''}]", "\x00"])
def test_a_text_without_gpus_that_can_be_read_has_no_statuses(text: str) -> None:
    assert statuses_of(text) == {}


@pytest.mark.parametrize(
    "status",
    [
        "[]",
        "{allocatedBy: x}",
        "{allocatedBy: {pod: [x]}}",
        "{podGpuUsageStatus: [1]}",
        "{podGpuUsageStatus: {u: 1}}",
        "{podGpuUsageStatus: {u: {fbUsed: lots}}}",
    ],
)
def test_one_broken_status_costs_no_other(status: str) -> None:
    text = f"gpus: [{{id: GPU-1, status: {status}}}, {{id: GPU-2, status: {{allocatedBy: {{pod: p}}}}}}, {{id: GPU-3}}]"
    assert statuses_of(text) == {"GPU-2": GpuStatus(pod="p"), "GPU-3": GpuStatus()}


def test_labels_have_the_node_s_name_or_what_fits_of_it() -> None:
    assert config_map_labels("n1") == {"node-topology": "true", "node-name": "n1"}
    assert config_map_labels("n" * 63)["node-name"] == "n" * 63
    long = [config_map_labels(f"{'n' * 53}.{index:0200}")["node-name"] for index in range(2)]
    assert len(set(long)) == 2
    assert all(len(value) <= 63 and value.startswith("n" * 53 + "-") for value in long)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "=",
            "123",
            "1e3",
            "0x1f",
            "1_000",
            "12.4",
            "true",
            "Yes",
            "y",
            "on",
            "NULL",
            "~",
            ".inf",
            ".nan",
            "-.INF",
        ),
        *("2020-01-01", "2020-1-1", "1:30", "1:2:3.5", "-1:30", "0o17", "017", "08", "0b11", "1.", ".5", "+1", "1_"),
    ],
)
def test_text_that_looks_like_another_type_is_in_double_quotes(text: str) -> None:
    assert scalar(text) == f'"{text}"'


@pytest.mark.parametrize(
    "text",
    [
        *("- a", "a: b", "a #b", "#a", " a", "a ", "a:", "@a", "%a", "&a", "*a", "!a", "|", ">", "'a'", '"a"', "[a]"),
        *("{a}", "?", "-", "---", "...", "x: ", "? a", "`a"),
    ],
)
def test_text_with_a_meaning_in_yaml_is_in_single_quotes(text: str) -> None:
    assert scalar(text) == "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a b",
            ":a",
            "a@b",
            "a'b",
            "a,b",
            "a[b]",
            "é",
            "日本",
            "a\\b",
            "NVIDIA GeForce RTX 4090 (24GB)",
            "--",
            "<<",
        ),
        *(
            "550.163.01",
            "1e",
            "e1",
            "0x",
            "tRue",
            "nan",
            "a-1",
            "1-a",
            "_1",
            "?a",
            "-a",
            "1,000",
            "0o8",
            "1:60",
            "9abc",
        ),
    ],
)
def test_other_text_is_plain(text: str) -> None:
    assert scalar(text) == text


@pytest.mark.parametrize(
    "text", ["a\tb", "a\nb", "a\r", "\x07", "😀", "\ufeff", "\u0085", "\u2028", "a\\\nb\"'", "\U0010ffff"]
)
def test_text_that_cannot_be_printed_is_escaped(text: str) -> None:
    assert scalar(text).isascii()
    assert yaml.safe_load(scalar(text)) == text


@pytest.mark.parametrize(("text", "written"), [("a\tb", '"a\\tb"'), ("😀", '"\\U0001F600"'), ("\u0085", '"\\N"')])
def test_escapes_are_those_of_the_other_library(text: str, written: str) -> None:
    assert scalar(text) == written
