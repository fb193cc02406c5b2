"""How far Jobs are, and what they still need."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.sandbox.stand_in.jobs import (
    INDEX,
    Progress,
    allowed,
    format_indexes,
    job_pod,
    job_status,
    missing,
    parse_indexes,
    progress,
)
from controllers.sandbox.stand_in.kinds import Pod
from tests.unit.sandbox.stand_in.objects import NOW, job, pod


def of(phase: str, index: int | None = None) -> Pod:
    annotations = {} if index is None else {INDEX: str(index)}
    return pod(f"p-{phase}-{index}", status={"phase": phase}, annotations=annotations)


INDEXED = {"completionMode": "Indexed", "completions": 4, "parallelism": 2}


@pytest.mark.parametrize(
    ("spec", "pods", "wanted"),
    [
        ({}, [], [None]),
        ({}, [of("Running")], []),
        ({}, [of("Succeeded")], []),
        ({"completions": 3, "parallelism": 2}, [], [None] * 2),
        ({"completions": 3, "parallelism": 2}, [of("Succeeded"), of("Succeeded")], [None]),
        ({"parallelism": 2}, [of("Running")], [None]),
        ({"parallelism": 2}, [of("Running"), of("Succeeded")], []),
        ({"suspend": True}, [], []),
        (INDEXED, [of("Succeeded", 0), of("Running", 2)], [1]),
        (INDEXED, [of("Succeeded", index) for index in range(4)], []),
    ],
)
def test_pods_that_are_missing(spec: dict[str, Any], pods: list[Pod], wanted: list[int | None]) -> None:
    entry = job(**spec)
    assert missing(entry, progress(entry, pods)) == wanted


def test_success_outlives_its_pod() -> None:
    entry = job(status={"succeeded": 2}, completions=3)
    assert progress(entry, [of("Succeeded")]).succeeded == 2
    entry = job(status={"completedIndexes": "0,2"}, **INDEXED)
    assert missing(entry, progress(entry, [])) == [1, 3]


def test_number_of_active_pods_ends_with_suspension_and_completion() -> None:
    busy = Progress(0, [of("Running")])
    assert allowed(job(parallelism=3), busy) == 3
    assert allowed(job(parallelism=3, suspend=True), busy) == 0
    assert allowed(job(completions=1), Progress(1, [of("Running")])) == 0


def test_indexed_pod_knows_its_index() -> None:
    made = job_pod(job(), 3)
    assert made["metadata"]["generateName"] == "job-3-"
    assert made["metadata"]["annotations"][INDEX] == made["metadata"]["labels"][INDEX] == "3"
    assert made["spec"]["hostname"] == "job-3"
    (variable,) = made["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert "env" not in job_pod(job(), None)["spec"]["containers"][0]


def test_status_through_a_jobs_life() -> None:
    suspended = job_status(job(suspend=True), Progress(0, []), NOW)
    assert [(entry["type"], entry["status"]) for entry in suspended["conditions"]] == [("Suspended", "True")]
    assert "startTime" not in suspended
    active = job_status(job(status=suspended), Progress(0, [of("Running")]), NOW)
    assert (active["active"], active["startTime"]) == (1, NOW)
    assert [(entry["type"], entry["status"]) for entry in active["conditions"]] == [("Suspended", "False")]
    done = job_status(job(status=active), Progress(1, []), NOW)
    assert [entry["type"] for entry in done["conditions"]] == ["Suspended", "SuccessCriteriaMet", "Complete"]
    assert (done["succeeded"], done["completionTime"]) == (1, NOW)
    assert "active" not in done


@given(st.sets(st.integers(0, 40)))
def test_list_of_indexes_means_what_it_was_made_of(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes


def test_neighbours_are_written_as_one() -> None:
    assert format_indexes({0, 1, 2, 4, 6, 7}) == "0-2,4,6-7"
