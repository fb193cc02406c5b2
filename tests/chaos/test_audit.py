"""The judgement of audit logs condemns what must not be, and nothing else."""

import json
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.audit import AuditLog, Event, creations, excess, holder, of_user, without_lease

DURATION = 4.0


def event(seconds: float, agent: str, verb: str, resource: str, name: str = "x", code: int = 200) -> Event:
    return {
        "stage": "ResponseComplete",
        "stageTimestamp": datetime.fromtimestamp(1e9 + seconds, UTC).isoformat().replace("+00:00", "Z"),
        "user": {"username": "us"},
        "userAgent": agent,
        "verb": verb,
        "requestURI": f"/{resource}/{name}",
        "objectRef": {"resource": resource, "name": name},
        "responseStatus": {"code": code},
    }


def renewal(seconds: float, agent: str, code: int = 200) -> Event:
    return event(seconds, agent, "update", "leases", code=code)


def test_only_what_was_created_counts_as_made() -> None:
    made = creations(
        [
            event(0, "a", "patch", "resourceslices", code=201),
            event(1, "a", "patch", "resourceslices", code=200),
            event(2, "a", "create", "resourceclaimtemplates", code=409),
            event(3, "a", "create", "events", code=201),
        ]
    )
    assert made == {("resourceslices", "x"): 1}


def test_what_is_made_more_often_than_allowed_or_not_allowed_at_all_is_in_excess() -> None:
    once, twice, new = (("resourceslices", name) for name in ("once", "twice", "new"))
    assert excess({once: 1, twice: 2, new: 1}, {once: 1, twice: 1}) == {twice: 2, new: 1}


def test_the_leader_may_write_while_its_lease_lasts() -> None:
    log = [renewal(0, "a"), event(1, "a", "patch", "nodes"), renewal(3, "a"), event(6.9, "a", "patch", "nodes")]
    assert without_lease(log, DURATION) == []


def test_a_write_after_another_replica_took_the_lease_is_found() -> None:
    log = [renewal(0, "a"), renewal(3, "b"), event(3.1, "a", "patch", "nodes")]
    (found,) = without_lease(log, DURATION)
    assert "a did patch /nodes/x" in found
    assert "after b wrote the Lease" in found


def test_a_write_after_the_lease_ran_out_is_found_though_nobody_took_it() -> None:
    assert len(without_lease([renewal(0, "a"), event(4.1, "a", "patch", "nodes")], DURATION)) == 1


def test_a_write_before_anybody_had_the_lease_is_found() -> None:
    assert len(without_lease([event(0, "a", "patch", "nodes"), renewal(1, "a")], DURATION)) == 1


def test_a_lease_that_was_asked_for_in_vain_gives_no_right() -> None:
    assert len(without_lease([renewal(0, "a"), renewal(1, "b", 409), event(2, "b", "patch", "nodes")], DURATION)) == 1
    assert holder([renewal(0, "a"), renewal(1, "b", 409)]) == "a"


def test_reads_refusals_and_events_need_no_lease() -> None:
    log = [
        renewal(0, "a"),
        event(1, "b", "list", "nodes"),
        event(2, "b", "patch", "nodes", code=409),
        event(3, "b", "create", "events", code=201),
    ]
    assert without_lease(log, DURATION) == []


def test_a_log_is_read_on_from_where_it_ended_and_never_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    lines = [json.dumps(event(number, "a", "get", "nodes")) + "\n" for number in range(3)]
    file.write_text(lines[0] + lines[1][:10])
    log = AuditLog(file)
    assert len(log.news()) == 1
    file.write_text("".join(lines))
    assert [found["stageTimestamp"][-3:] for found in log.news()] == ["41Z", "42Z"]
    assert log.news() == []


def test_requests_of_others_are_left_out() -> None:
    foreign = {**event(0, "a", "get", "nodes"), "user": {"username": "somebody"}}
    nobody = {**event(0, "a", "get", "nodes"), "user": {}}
    assert of_user([foreign, nobody, event(1, "a", "get", "nodes")], "us") == [event(1, "a", "get", "nodes")]
