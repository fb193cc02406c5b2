"""What the recorded answers cannot show of apply: times, and what an object keeps that nobody touched."""

from typing import Any

import pytest

from controllers.sandbox.apply import apply, track_write
from controllers.sandbox.errors import StatusError
from controllers.sandbox.typeschema import builtin

SCHEMA = builtin("", "v1", "ConfigMap")
BEFORE, AFTER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def config(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def applied(live: dict[str, Any] | None, by: str, now: str, *, force: bool = False, **data: str) -> dict[str, Any]:
    return apply(
        live, config(**data), manager=by, api_version="v1", subresource="", force=force, schema=SCHEMA, now=now
    )


def updated(old: dict[str, Any] | None, new: dict[str, Any], by: str, now: str) -> dict[str, Any]:
    return track_write(old, new, manager=by, api_version="v1", subresource="", schema=SCHEMA, now=now)


def times(item: dict[str, Any]) -> dict[str, str | None]:
    """When each manager's entry last changed."""
    return {entry["manager"]: entry.get("time") for entry in item["metadata"]["managedFields"]}


def test_an_apply_that_changes_nothing_returns_an_equal_object() -> None:
    live = applied(None, "one", BEFORE, k="v")
    assert applied(live, "one", AFTER, k="v") == live


def test_an_entry_has_the_time_of_its_last_change() -> None:
    live = applied(None, "one", BEFORE, k="v")
    live = applied(live, "two", AFTER, l="w")
    assert times(live) == {"one": BEFORE, "two": AFTER}


def test_an_update_that_changes_nothing_keeps_the_times() -> None:
    live = updated(None, config(k="v"), "one", BEFORE)
    assert updated(live, {**live, "data": {"k": "v"}}, "two", AFTER) == live


def test_the_object_and_configuration_that_are_passed_in_stay_as_they_are() -> None:
    live = applied(None, "one", BEFORE, k="v", l="v")
    copy = applied(None, "one", BEFORE, k="v", l="v")
    applied(live, "two", AFTER, force=True, k="w", m="x")
    updated(live, config(k="other"), "three", AFTER)
    assert live == copy


def test_entries_that_a_request_brings_replace_those_of_the_object() -> None:
    live = updated(None, config(k="v"), "one", BEFORE)
    (entry,) = live["metadata"]["managedFields"]
    renamed = {**live, "metadata": {**live["metadata"], "managedFields": [{**entry, "manager": "other"}]}}
    assert times(updated(live, renamed, "one", AFTER)) == {"other": BEFORE}


def test_entries_that_cannot_be_read_leave_those_of_the_object() -> None:
    live = updated(None, config(k="v"), "one", BEFORE)
    broken = {**live, "metadata": {**live["metadata"], "managedFields": [{"manager": "x", "operation": "Nonsense"}]}}
    assert times(updated(live, broken, "one", AFTER)) == {"one": BEFORE}


def test_every_conflict_is_a_cause() -> None:
    live = applied(None, "one", BEFORE, k="v", l="v")
    with pytest.raises(StatusError) as refused:
        applied(live, "two", AFTER, k="w", l="w")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert [(cause.field, cause.reason) for cause in refused.value.causes] == [
        (".data.k", "FieldManagerConflict"),
        (".data.l", "FieldManagerConflict"),
    ]


def test_kubectl_may_take_what_its_client_side_apply_wrote() -> None:
    annotation = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"v"}}'
    old = config(k="v")
    old["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": annotation}
    live = updated(None, old, "kubectl-client-side-apply", BEFORE)
    merged = applied(live, "kubectl", AFTER, k="w")
    assert merged["data"] == {"k": "w"}
    assert '"k":"w"' in merged["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    with pytest.raises(StatusError, match="conflict with"):
        applied(live, "another", AFTER, k="w")
