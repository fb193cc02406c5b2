"""Watches: where they begin, what they tell, how they end."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.api_server import ApiServer

Event = dict[str, Any]


def maps(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{path}/{name}" if name else path


def make(server: ApiServer, namespace: str, name: str, **labels: str) -> Event:
    made: Event = server.create(maps(namespace), {"metadata": {"name": name, "labels": {"test": "w", **labels}}})
    return made


def label(server: ApiServer, namespace: str, name: str, **labels: str | None) -> Event:
    body = {"metadata": {"labels": labels}}
    reply = server.send("PATCH", maps(namespace, name), body, content_type="application/merge-patch+json")
    assert reply.code == 200, reply
    return dict(reply.body)


def version(obj: Event) -> str:
    return str(obj["metadata"]["resourceVersion"])


def seen(server: ApiServer, namespace: str, **query: str) -> list[Event]:
    return list(server.watch(maps(namespace), timeoutSeconds="1", **{"labelSelector": "test", **query}))


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events if event["type"] != "BOOKMARK"]


def test_watch_from_a_version_tells_every_change_after_it(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    make(server, namespace, "b")
    changed = label(server, namespace, "a", k="v")
    server.send("DELETE", maps(namespace, "b"))
    events = seen(server, namespace, resourceVersion=version(first))
    assert told(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert events[1]["object"] == changed
    versions = [int(version(event["object"])) for event in events]
    assert versions == sorted(versions)
    assert versions[2] > versions[1]


@pytest.mark.parametrize("start", ["", "0"])
def test_watch_without_a_version_begins_with_the_state(server: ApiServer, namespace: str, start: str) -> None:
    make(server, namespace, "a")
    make(server, namespace, "b")
    query = {"resourceVersion": start} if start else {}
    assert sorted(told(seen(server, namespace, **query))) == [("ADDED", "a"), ("ADDED", "b")]


def test_selection_turns_changes_into_added_and_deleted(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a", k="no")
    label(server, namespace, "a", k="yes")
    label(server, namespace, "a", other="x")
    left = label(server, namespace, "a", k="no")
    events = seen(server, namespace, resourceVersion=version(first), labelSelector="k=yes")
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert events[2]["object"]["metadata"]["labels"]["k"] == "yes"
    assert version(events[2]["object"]) == version(left)


def test_finalized_deletion_is_told_as_change_and_then_as_deletion(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    label(server, namespace, "a", k="v")
    hold = {"metadata": {"finalizers": ["test.example.com/hold"]}}
    merge = "application/merge-patch+json"
    server.send("PATCH", maps(namespace, "a"), hold, content_type=merge)
    server.send("DELETE", maps(namespace, "a"))
    server.send("PATCH", maps(namespace, "a"), {"metadata": {"finalizers": None}}, content_type=merge)
    events = seen(server, namespace, resourceVersion=version(first))
    assert [kind for kind, _ in told(events)] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    assert "deletionTimestamp" in events[2]["object"]["metadata"]


def test_watch_of_one_name_tells_of_it_only(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    make(server, namespace, "b")
    label(server, namespace, "a", k="v")
    events = seen(server, namespace, resourceVersion=version(first), fieldSelector="metadata.name=a")
    assert told(events) == [("MODIFIED", "a")]


def test_timeout_ends_the_watch_cleanly(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    began = time.monotonic()
    assert seen(server, namespace, resourceVersion=version(first)) == []
    assert 0.9 <= time.monotonic() - began < 5.0


def test_initial_events_end_with_a_marked_bookmark(server: ApiServer, namespace: str) -> None:
    make(server, namespace, "a")
    last = make(server, namespace, "b")
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    events = seen(server, namespace, **query)
    assert sorted(told(events)) == [("ADDED", "a"), ("ADDED", "b")]
    bookmark = next(event["object"] for event in events if event["type"] == "BOOKMARK")
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")
    assert int(version(bookmark)) >= int(version(last))


INITIAL = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


@pytest.mark.parametrize("begin", ["", "0", "own"])
def test_initial_events_are_those_of_any_version_that_was_reached(
    server: ApiServer, namespace: str, begin: str
) -> None:
    own = version(make(server, namespace, "a"))
    make(server, namespace, "b")
    query = {"resourceVersion": own if begin == "own" else begin} if begin else {}
    events = seen(server, namespace, **INITIAL, **query)
    assert sorted(told(events)) == [("ADDED", "a"), ("ADDED", "b")]
    assert all(event["type"] == "ADDED" for event in events), "a bookmark that was not asked for"


def test_initial_events_of_a_version_to_come_end_with_the_advice_to_wait(server: ApiServer, namespace: str) -> None:
    make(server, namespace, "a")
    (event,) = seen(server, namespace, **INITIAL, resourceVersion="99999999", allowWatchBookmarks="true")
    status = event["object"]
    assert (event["type"], status["code"], status["reason"]) == ("ERROR", 504, "Timeout")
    assert status["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]


def test_no_initial_events_is_a_watch_from_now_or_from_a_version(server: ApiServer, namespace: str) -> None:
    first = version(make(server, namespace, "a"))
    make(server, namespace, "b")
    none = {**INITIAL, "sendInitialEvents": "false"}
    assert told(seen(server, namespace, **none)) == []
    assert told(seen(server, namespace, **none, resourceVersion=first)) == [("ADDED", "b")]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"sendInitialEvents": "true"}, "resourceVersionMatch"),
        ({"sendInitialEvents": "false"}, "resourceVersionMatch"),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, "resourceVersionMatch"),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Sometime"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "NotOlderThan"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "NotOlderThan", "resourceVersion": "5"}, "resourceVersionMatch"),
    ],
)
def test_initial_events_and_their_version_go_together(
    server: ApiServer, namespace: str, query: dict[str, str], field: str
) -> None:
    reply = server.get(maps(namespace), watch="1", timeoutSeconds="1", **query)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert {cause["field"] for cause in reply.body["details"]["causes"]} == {field}


def test_bookmarks_come_before_the_end(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    query = {"resourceVersion": version(first), "allowWatchBookmarks": "true", "labelSelector": "test"}
    with ThreadPoolExecutor(1) as aside:
        watching = aside.submit(lambda: list(server.watch(maps(namespace), timeoutSeconds="4", **query)))
        # The real server has no news to tell unless something changes meanwhile, be that selected or not.
        while not watching.done():
            server.create(maps(namespace), {"metadata": {"generateName": "unseen-"}})
            time.sleep(0.2)
    events = watching.result()
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert int(version(events[-1]["object"])) > int(version(first))


@pytest.mark.parametrize(
    ("query", "code", "reason"),
    [
        ({"resourceVersion": "abc"}, 500, ""),
        ({"sendInitialEvents": "true"}, 422, "Invalid"),
        ({"resourceVersionMatch": "NotOlderThan"}, 422, "Invalid"),
        ({"labelSelector": "a in ("}, 400, "BadRequest"),
    ],
)
def test_impossible_watches_are_refused(
    server: ApiServer, namespace: str, query: dict[str, str], code: int, reason: str
) -> None:
    reply = server.get(maps(namespace), watch="1", timeoutSeconds="1", **query)
    assert (reply.code, reply.reason) == (code, reason)


def test_tables_are_watched_with_their_columns_once(server: ApiServer, namespace: str) -> None:
    first = make(server, namespace, "a")
    label(server, namespace, "a", k="v")
    label(server, namespace, "a", k="w")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    query = {"watch": "1", "timeoutSeconds": "1", "resourceVersion": version(first), "labelSelector": "test"}
    raw = server.send("GET", maps(namespace), headers=accept, **query).body
    tables = [line for line in raw.split("\n") if line]
    assert len(tables) == 2
    assert ['"columnDefinitions":[{' in line for line in tables] == [True, False]
    assert all('"kind":"Table"' in line and '"cells":["a",' in line for line in tables)
