"""The client against a scripted transport."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from controllers.runtime import errors
from controllers.runtime.client import (
    Client,
    ClientOptions,
    Selection,
    WatchEvent,
    Write,
    decode_event,
    decode_page,
    writes_in_progress,
)
from controllers.runtime.errors import DecodeError, Expired, ObjectGone, PermissionNotDeclared, TransportError
from controllers.runtime.meta import Key, KubeObject, ObjectMeta, Resource
from controllers.runtime.rbac import permissions
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, Step, run_virtual

THINGS = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = THINGS

    size: int = 0
    colours: tuple[str, ...] = ()


Json = dict[str, Any]

OBSERVED = Thing(
    metadata=ObjectMeta(name="x", namespace="a", uid="u1", resource_version="5", finalizers=("other", "mine"))
)
PATH = "/apis/example.com/v1/namespaces/a/things/x"
STORED: Json = {"metadata": {"name": "x", "namespace": "a", "uid": "u1", "resourceVersion": "6"}, "size": 1}


def client_of(*replies: Reply, attempts: int = 4) -> tuple[Client, ScriptedTransport]:
    transport = ScriptedTransport(replies)
    return Client(transport, ClientOptions("tests", attempts=attempts)), transport


def sent(transport: ScriptedTransport, number: int = 0) -> Any:
    body = transport.requests[number].body
    assert body is not None
    return msgspec.json.decode(body)


def status(code: int, reason: str = "", *causes: Json, message: str = "said the server") -> Json:
    details = {"causes": list(causes)}
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def refused(code: int, reason: str = "", *causes: Json, **headers: str) -> Answer:
    return Answer(code, body=status(code, reason, *causes), headers=headers)


def raised_by(call: Callable[[Client], Coroutine[Any, Any, Any]], *replies: Reply) -> BaseException:
    client, _ = client_of(*replies, attempts=1)
    with pytest.raises(errors.RuntimeFault) as caught:
        run_virtual(call(client))
    return caught.value


def test_reading_loads_no_model_of_the_official_package() -> None:
    """It would cost a quarter of a second and 35 MB before the first request."""
    program = "import sys, controllers.runtime.cache, controllers.runtime.transport; print('kubernetes' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


# -- lists ------------------------------------------------------------------------------------------------------------


def page_of(*items: Any, version: str = "9") -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": version}, "items": items})


def test_an_undecodable_object_costs_only_itself_and_is_named() -> None:
    bad = {"metadata": {"name": "bad", "namespace": "a", "uid": "u2", "resourceVersion": "7"}, "size": "huge"}
    page = decode_page(Thing, page_of(bad, STORED))
    assert [item.name for item in page.items] == ["x"]
    (undecodable,) = page.undecodable
    assert (undecodable.key, undecodable.uid, undecodable.resource_version) == (Key("a", "bad"), "u2", "7")
    assert "Thing a/bad" in str(undecodable.error)
    assert "size" in str(undecodable.error)


@pytest.mark.parametrize(
    ("metadata", "held_by"),
    [
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y", "z"]}, ("x/y", "z")),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, ()),
        ({"finalizers": ["x/y"]}, ()),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": "broken"}, ()),
    ],
)
def test_an_undecodable_object_says_what_keeps_it_once_its_deletion_is_asked_for(
    metadata: dict[str, Any], held_by: tuple[str, ...]
) -> None:
    item = {"metadata": {"name": "bad", "namespace": "a", **metadata}, "size": "no number"}
    (bad,) = decode_page(Thing, page_of(item)).undecodable
    assert (bad.key, bad.held_by) == (Key("a", "bad"), held_by)


@pytest.mark.parametrize("item", [{}, {"metadata": None}, {"metadata": {"name": 5}}, 7])
def test_an_object_without_a_readable_name_is_undecodable_without_a_key(item: Any) -> None:
    page = decode_page(Thing, page_of(item, STORED))
    assert len(page.items) == 1
    assert [bad.key for bad in page.undecodable] == [None]


def test_null_lists_and_maps_are_empty_ones() -> None:
    item = {"metadata": {"name": "x", "labels": None, "finalizers": None}, "colours": None, "size": None}
    (thing,) = decode_page(Thing, page_of(item)).items
    assert (thing.colours, thing.size, thing.metadata.labels, thing.metadata.finalizers) == ((), 0, {}, ())


def test_a_list_with_null_items_is_empty() -> None:
    page = decode_page(Thing, b'{"metadata":{"resourceVersion":"9","continue":null},"items":null}')
    assert (page.items, page.resource_version, page.continue_token) == ((), "9", "")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items":[]}', b'{"metadata":{},"items":[{]}'])
def test_what_is_no_list_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(DecodeError, match=r"list of things.example.com"):
        decode_page(Thing, body)


@pytest.mark.parametrize("enabled", [True, False])
def test_decoding_a_page_leaves_the_collector_as_it_was(enabled: bool) -> None:
    seen: list[bool] = []

    class Curious(Thing, frozen=True, kw_only=True):
        def __post_init__(self) -> None:
            seen.append(gc.isenabled())

    if not enabled:
        gc.disable()
    try:
        decode_page(Curious, page_of(STORED))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == [False]


def test_list_follows_every_page() -> None:
    def page(name: str, token: str) -> Answer:
        return Answer(body={"metadata": {"resourceVersion": "9", "continue": token}, "items": [named(name)]})

    def named(name: str) -> Json:
        return {"metadata": {"name": name}}

    client, transport = client_of(page("a", "t1"), page("b", "t2"), page("c", ""))
    items = run_virtual(client.list(Thing, Selection(namespace="a", labels="l=1")))
    assert [item.name for item in items] == ["a", "b", "c"]
    assert [dict(request.query).get("continue") for request in transport.requests] == [None, "t1", "t2"]
    assert {dict(request.query)["labelSelector"] for request in transport.requests} == {"l=1"}


@pytest.mark.parametrize("kind", ["Table", "Status"])
def test_an_answer_of_another_kind_is_no_empty_list(kind: str) -> None:
    body = msgspec.json.encode({"kind": kind, "metadata": {"resourceVersion": "9"}, "rows": []})
    with pytest.raises(DecodeError, match=f"list of things.example.com: the answer is a {kind}"):
        decode_page(Thing, body)


def test_a_list_without_items_is_empty_whatever_it_is_called() -> None:
    for kind in ("", "ThingList", "ManyThingsList"):
        body = msgspec.json.encode({"kind": kind, "metadata": {"resourceVersion": "9"}})
        assert decode_page(Thing, body).items == ()


class Outline(KubeObject, frozen=True, kw_only=True):
    resource = THINGS
    metadata_only = True


PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


def test_a_kind_that_needs_metadata_only_asks_for_nothing_else() -> None:
    partial = {"kind": "PartialObjectMetadata", "metadata": STORED["metadata"]}
    page = Answer(body={"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "9"}, "items": [partial]})
    watch = Answer(
        stream=[{"type": "ADDED", "object": partial}, {"type": "ADDED", "object": {"kind": "Thing", **STORED}}]
    )
    client, transport = client_of(page, watch, Answer(body=partial))

    async def scenario() -> None:
        assert [item.name for item in await client.list(Outline)] == ["x"]
        async with client.watch(Outline, resource_version="9", timeout=300.0) as events:
            assert [event.object is not None for event in [each async for each in events]] == [True, True]
        assert (await client.get(Outline, "x", "a")).uid == "u1"

    run_virtual(scenario)
    list_of = PARTIAL.replace("Metadata;", "MetadataList;")
    assert [request.headers["Accept"] for request in transport.requests] == [list_of, PARTIAL, PARTIAL]


def test_a_kind_that_reads_more_than_its_metadata_cannot_leave_the_rest_out() -> None:
    class Wrong(Thing, frozen=True, kw_only=True):
        metadata_only = True

    client, transport = client_of()
    with pytest.raises(errors.ConfigurationError, match="Wrong reads metadata only, but has colours, size: drop one"):
        run_virtual(client.list(Wrong))
    assert transport.requests == []


# -- watches ----------------------------------------------------------------------------------------------------------


def watched(*steps: Step, answer: Answer | None = None) -> list[WatchEvent[Thing]]:
    client, _ = client_of(answer or Answer(stream=steps))

    async def read() -> list[WatchEvent[Thing]]:
        async with client.watch(Thing, resource_version="5", timeout=300.0) as events:
            return [event async for event in events]

    return run_virtual(read)


def line(type_: str, item: Any) -> bytes:
    return msgspec.json.encode({"type": type_, "object": item}) + b"\n"


LABELLED: Json = {"metadata": {"name": "x", "resourceVersion": "6", "labels": {"who": "Žofie €"}}}


def test_events_may_be_cut_into_chunks_anywhere_even_inside_a_character() -> None:
    whole = line("ADDED", LABELLED) + line("MODIFIED", LABELLED)
    expected = watched(whole)
    assert [event.type for event in expected] == ["ADDED", "MODIFIED"]
    for size in (1, 2, 3, 7, 50):
        assert watched(*(whole[at : at + size] for at in range(0, len(whole), size))) == expected


def test_blank_lines_between_events_are_nothing() -> None:
    assert len(watched(line("ADDED", STORED) + b"\n\n", b"\n", line("MODIFIED", STORED))) == 2


def test_a_truncated_last_line_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match="middle of a line"):
        watched(line("ADDED", STORED), line("MODIFIED", STORED)[:-9])


def test_a_line_that_is_not_json_is_a_decode_error_that_shows_it() -> None:
    with pytest.raises(DecodeError, match="garbage"):
        watched(b"garbage\n")


def test_expired_is_the_same_error_as_status_and_as_event() -> None:
    gone = status(410, "Expired")
    for answer in (Answer(410, body=gone), Answer(stream=[line("ERROR", gone)]), Answer(410, body=b"gone")):
        with pytest.raises(Expired) as caught:
            watched(answer=answer)
        assert caught.value.code == 410


def test_an_error_event_raises_what_its_status_says_after_the_events_before_it() -> None:
    with pytest.raises(errors.InternalError, match="etcd has gone"):
        decode_event(Thing, line("ERROR", status(500, "InternalError", message="etcd has gone")))


def test_a_bookmark_has_a_version_and_annotations_and_no_object() -> None:
    metadata = {"resourceVersion": "77", "annotations": {"k8s.io/initial-events-end": "true"}}
    (event,) = watched(line("BOOKMARK", {"kind": "Thing", "metadata": metadata}))
    assert (event.type, event.object, event.resource_version) == ("BOOKMARK", None, "77")
    assert event.annotations == {"k8s.io/initial-events-end": "true"}
    assert event.undecodable is None


def test_an_undecodable_event_still_says_which_object_and_version() -> None:
    bad = {"metadata": {"name": "x", "namespace": "a", "uid": "u1", "resourceVersion": "8"}, "size": "huge"}
    event, after = watched(line("DELETED", bad), line("ADDED", STORED))
    assert (event.type, event.object, event.resource_version) == ("DELETED", None, "8")
    assert event.undecodable is not None
    assert (event.undecodable.key, event.undecodable.uid) == (Key("a", "x"), "u1")
    assert after.object is not None


@pytest.mark.parametrize("item", [{"kind": "Table", "rows": []}, {"kind": "Status", "metadata": {"name": "x"}}])
def test_an_object_of_another_kind_is_named_and_never_taken_for_ours(item: Json) -> None:
    foreign, after = watched(line("ADDED", item), line("ADDED", {"kind": "Thing", **STORED}))
    assert (foreign.object, foreign.resource_version) == (None, "")
    assert foreign.undecodable is not None
    assert foreign.undecodable.key is None
    assert str(foreign.undecodable.error) == f"watch of things.example.com: it sent a {item['kind']}"
    assert after.object is not None


@pytest.mark.parametrize("item", [{}, {"metadata": {}}, {"metadata": None}, {"kind": None}, None, 7])
def test_an_object_without_metadata_does_not_end_the_watch(item: Any) -> None:
    foreign, after = watched(line("ADDED", item), line("ADDED", STORED))
    assert foreign.undecodable is not None
    assert foreign.undecodable.key is None
    assert after.object is not None


def test_a_bookmark_with_fields_of_nobody_or_null_still_tells_its_version() -> None:
    mark = {"kind": "Thing", "spec": None, "size": "huge", "metadata": {"resourceVersion": "77", "annotations": None}}
    (event,) = watched(line("BOOKMARK", mark))
    assert (event.resource_version, event.annotations, event.ends_initial) == ("77", {}, False)


def test_a_kind_with_a_way_of_its_own_to_decode_keeps_it_in_a_watch() -> None:
    class Own(Thing, frozen=True, kw_only=True):
        @classmethod
        def decode(cls, raw: bytes | msgspec.Raw) -> "Own":
            return msgspec.structs.replace(super().decode(raw), size=99)

    event: WatchEvent[Own] = decode_event(Own, line("ADDED", STORED))
    assert event.object is not None
    assert event.object.size == 99


def test_a_watch_refused_for_load_says_how_long_to_wait() -> None:
    with pytest.raises(errors.TooManyRequests) as caught:
        watched(answer=refused(429, "TooManyRequests", **{"Retry-After": "7"}))
    assert caught.value.retry_after == 7.0


# -- the error tree ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "causes", "expected"),
    [
        (400, "BadRequest", [], errors.BadRequest),
        (401, "Unauthorized", [], errors.Unauthorized),
        (403, "Forbidden", [], errors.Forbidden),
        (403, "Forbidden", [{"reason": "NamespaceTerminating"}], errors.NamespaceTerminating),
        (404, "NotFound", [], errors.NotFound),
        (405, "MethodNotAllowed", [], errors.MethodNotAllowed),
        (409, "Conflict", [], errors.Conflict),
        (409, "AlreadyExists", [], errors.AlreadyExists),
        (409, "Conflict", [{"reason": "FieldManagerConflict"}], errors.FieldConflict),
        (410, "Gone", [], errors.Expired),
        (415, "UnsupportedMediaType", [], errors.UnsupportedMediaType),
        (422, "Invalid", [], errors.Invalid),
        (429, "", [], errors.TooManyRequests),
        (500, "InternalError", [], errors.InternalError),
        (503, "ServiceUnavailable", [], errors.ServiceUnavailable),
        (504, "Timeout", [], errors.ServerTimeout),
        (504, "Timeout", [{"reason": "ResourceVersionTooLarge"}], errors.ResourceVersionTooLarge),
        (418, "Teapot", [], errors.ApiError),
    ],
)
def test_each_refusal_has_its_own_type(code: int, reason: str, causes: list[Json], expected: type) -> None:
    error = raised_by(lambda client: client.get(Thing, "x", "a"), refused(code, reason, *causes))
    assert type(error) is expected
    assert isinstance(error, errors.ApiError)
    assert (error.code, error.reason, error.message) == (code, reason, "said the server")


def test_a_refusal_in_plain_text_keeps_its_code_and_text() -> None:
    error = raised_by(lambda client: client.get(Thing, "x", "a"), Answer(503, body=b"upstream is down\n"))
    assert isinstance(error, errors.ServiceUnavailable)
    assert error.message == "upstream is down"


def test_find_gives_none_for_what_is_not_there() -> None:
    client, _ = client_of(refused(404, "NotFound"))
    assert run_virtual(client.find(Thing, "x", "a")) is None


# -- repetition -------------------------------------------------------------------------------------------------------


def elapsed(call: Callable[[Client], Coroutine[Any, Any, Any]], *replies: Reply) -> tuple[float, int]:
    """The virtual seconds and the requests that a call takes, whether it succeeds or not."""
    client, transport = client_of(*replies)

    async def timed() -> float:
        with suppress(errors.RuntimeFault):
            await call(client)
        return asyncio.get_running_loop().time()

    return run_virtual(timed), len(transport.requests)


def test_a_request_refused_for_load_is_repeated_after_the_time_the_server_names() -> None:
    slow = refused(429, "TooManyRequests", **{"Retry-After": "3"})
    assert elapsed(lambda client: client.get(Thing, "x", "a"), slow, slow, Answer(body=STORED)) == (6.0, 3)


def test_without_a_named_time_the_delays_double_and_the_attempts_are_limited() -> None:
    assert elapsed(lambda client: client.get(Thing, "x", "a"), *[refused(503)] * 9) == (0.5 + 1.0 + 2.0, 4)


def test_a_write_refused_for_load_is_repeated() -> None:
    replies = (refused(429, **{"Retry-After": "1"}), Answer(201, body=STORED))
    assert elapsed(lambda client: client.create(Thing, {"metadata": {"name": "x"}}), *replies) == (1.0, 2)


def test_a_read_without_an_answer_is_repeated_and_a_create_is_not() -> None:
    lost = TransportError("reset")
    assert elapsed(lambda client: client.get(Thing, "x", "a"), lost, Answer(body=STORED))[1] == 2
    assert elapsed(lambda client: client.create(Thing, {"metadata": {"name": "x"}}), lost, lost)[1] == 1


SLOW = refused(504, "Timeout")
LOST = TransportError("reset")


@pytest.mark.parametrize("first", [SLOW, LOST], ids=["504", "lost"])
def test_what_may_be_done_twice_is_repeated_where_its_end_is_unknown(first: Reply) -> None:
    calls: dict[str, Callable[[Client], Coroutine[Any, Any, Any]]] = {
        "apply": lambda client: client.apply(OBSERVED, {}),
        "apply_owned": lambda client: client.apply_owned(Thing, {"metadata": {"name": "x", "namespace": "a"}}),
        "update": lambda client: client.update(Thing, STORED),
        "delete": lambda client: client.delete(OBSERVED),
    }
    for name, call in calls.items():
        assert elapsed(call, first, Answer(body=STORED)) == (0.5, 2), name


@pytest.mark.parametrize("first", [SLOW, LOST], ids=["504", "lost"])
def test_what_may_not_be_done_twice_is_left_to_the_caller(first: Reply) -> None:
    assert elapsed(lambda client: client.create(Thing, {"metadata": {"name": "x"}}), first)[1] == 1
    assert elapsed(lambda client: client.json_patch(OBSERVED, []), first)[1] == 1


def test_a_version_that_is_not_reached_yet_is_not_waited_for_by_repeating() -> None:
    ahead = refused(504, "Timeout", {"reason": "ResourceVersionTooLarge"})
    assert elapsed(lambda client: client.list_page(Thing, resource_version="99"), ahead) == (0.0, 1)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422, 500])
def test_other_refusals_are_not_repeated(code: int) -> None:
    assert elapsed(lambda client: client.get(Thing, "x", "a"), refused(code)) == (0.0, 1)


# -- guarded writes ---------------------------------------------------------------------------------------------------


def test_create_posts_the_kind_under_our_field_manager() -> None:
    client, transport = client_of(Answer(201, body=STORED))
    run_virtual(client.create(Thing, {"metadata": {"name": "x", "namespace": "a"}, "size": 1}))
    (request,) = transport.requests
    assert (request.method, request.path) == ("POST", "/apis/example.com/v1/namespaces/a/things")
    assert request.query == (("fieldManager", "tests"),)
    assert sent(transport) == {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "x", "namespace": "a"},
        "size": 1,
    }


def test_apply_to_an_observed_object_carries_its_uid() -> None:
    client, transport = client_of(Answer(body=STORED))
    run_virtual(client.apply(OBSERVED, {"metadata": {"labels": {"l": "1"}}, "size": 1}, subresource="status"))
    (request,) = transport.requests
    assert (request.method, request.path) == ("PATCH", PATH + "/status")
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert dict(request.query) == {"fieldManager": "tests", "force": "false"}
    assert sent(transport) == {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"labels": {"l": "1"}, "name": "x", "namespace": "a", "uid": "u1"},
        "size": 1,
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refused(404, "NotFound"), ObjectGone),
        (refused(409, "Conflict"), ObjectGone),
        (refused(422, "Invalid", {"field": "metadata.uid"}), ObjectGone),
        (refused(422, "Invalid", {"field": "spec.size"}), errors.Invalid),
        (refused(409, "Conflict", {"reason": "FieldManagerConflict"}), errors.FieldConflict),
    ],
)
def test_apply_tells_a_vanished_object_from_a_refused_field(answer: Answer, expected: type) -> None:
    assert type(raised_by(lambda client: client.apply(OBSERVED, {"size": 1}), answer)) is expected


def test_json_patch_tests_uid_and_version_first() -> None:
    client, transport = client_of(Answer(body=STORED))
    run_virtual(client.json_patch(OBSERVED, [{"op": "remove", "path": "/size"}]))
    assert transport.requests[0].headers["Content-Type"] == "application/json-patch+json"
    assert sent(transport) == [
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "remove", "path": "/size"},
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refused(404, "NotFound"), ObjectGone),
        (refused(422, "Invalid"), errors.Conflict),
        (refused(422, "Invalid", {"field": "spec.size"}), errors.Invalid),
        (refused(409, "Conflict"), errors.Conflict),
    ],
)
def test_json_patch_tells_a_failed_test_from_an_invalid_value(answer: Answer, expected: type) -> None:
    assert type(raised_by(lambda client: client.json_patch(OBSERVED, []), answer)) is expected


def test_remove_finalizer_takes_off_exactly_ours() -> None:
    client, transport = client_of(Answer(body=STORED))
    run_virtual(client.remove_finalizer(OBSERVED, "mine"))
    assert sent(transport)[2:] == [
        {"op": "test", "path": "/metadata/finalizers/1", "value": "mine"},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]


def test_remove_finalizer_sends_nothing_where_it_is_not_there_and_forgives_a_vanished_object() -> None:
    client, transport = client_of(refused(404, "NotFound"))
    assert run_virtual(client.remove_finalizer(OBSERVED, "absent")) is OBSERVED
    assert transport.requests == []
    assert run_virtual(client.remove_finalizer(OBSERVED, "mine")) is None


def test_delete_names_the_uid_and_deletes_in_the_background() -> None:
    client, transport = client_of(Answer(body=status(200)))
    run_virtual(client.delete(OBSERVED))
    (request,) = transport.requests
    assert (request.method, request.path) == ("DELETE", PATH)
    assert sent(transport) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u1"},
    }


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (404, "things.example.com x not found"),
        (409, "the UID in the precondition (u1) does not match the UID in record (u2). The object might have been ..."),
        (409, "StorageError: ..., Precondition failed: UID in precondition: u1, UID in object meta: u2"),
    ],
)
def test_deleting_what_is_gone_is_success(code: int, message: str) -> None:
    client, _ = client_of(Answer(code, body=status(code, message=message)))
    assert noted(client.delete(OBSERVED)) == []


def test_a_delete_that_is_refused_while_the_object_stays_is_an_error() -> None:
    assert isinstance(raised_by(lambda client: client.delete(OBSERVED), refused(409)), errors.Conflict)


def noted(call: Coroutine[Any, Any, Any]) -> list[Write]:
    """The writes that a call notes."""
    writes: list[Write] = []

    async def collect() -> None:
        writes_in_progress.set(writes)
        await call

    run_virtual(collect)
    return writes


def test_successful_writes_are_noted_with_what_they_made() -> None:
    client, _ = client_of(Answer(201, body=STORED), Answer(body=status(200)))
    key = Key("a", "x")
    assert noted(client.create(Thing, {"metadata": {"name": "x", "namespace": "a"}})) == [Write(Thing, key, "u1", "6")]
    assert noted(client.delete(OBSERVED)) == [Write(Thing, key, "u1", "")]


def going(**metadata: Any) -> Answer:
    """An answer with the stored object under deletion."""
    gone = {**STORED["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return Answer(body={**STORED, "metadata": gone})


def test_a_delete_that_something_holds_up_is_noted_with_the_version_that_it_made() -> None:
    client, _ = client_of(going(finalizers=["f"]), going(deletionGracePeriodSeconds=30))
    assert [write.resource_version for write in noted(client.delete(OBSERVED))] == ["6"]
    assert [write.resource_version for write in noted(client.delete(OBSERVED))] == ["6"]


def test_taking_the_last_finalizer_off_an_object_under_deletion_is_noted_as_its_end() -> None:
    client, _ = client_of(going(), going(finalizers=["other"]))
    assert [write.resource_version for write in noted(client.json_patch(OBSERVED, []))] == [""]
    assert [write.resource_version for write in noted(client.json_patch(OBSERVED, []))] == ["6"]


def test_a_whole_object_is_read_and_updated_with_all_its_fields() -> None:
    client, transport = client_of(Answer(body={**STORED, "unknown": 1}), Answer(body=STORED))
    whole = run_virtual(client.get_dict(Thing, "x", "a"))
    assert whole == {**STORED, "unknown": 1}
    assert run_virtual(client.update(Thing, {**whole, "size": 2})).metadata.resource_version == "6"
    put = transport.requests[1]
    assert (put.method, put.path, put.query) == ("PUT", PATH, (("fieldManager", "tests"),))
    expected = {**STORED, "apiVersion": "example.com/v1", "kind": "Thing", "unknown": 1, "size": 2}
    assert sent(transport, 1) == expected


@pytest.mark.parametrize("missing", ["uid", "resourceVersion"])
def test_an_update_that_could_overwrite_blindly_is_refused(missing: str) -> None:
    client, transport = client_of()
    metadata = {name: value for name, value in STORED["metadata"].items() if name != missing}
    with pytest.raises(errors.ConfigurationError, match=r"update of Thing x: .* is missing: change what get_dict gave"):
        run_virtual(client.update(Thing, {**STORED, "metadata": metadata}))
    assert transport.requests == []


def test_an_update_tells_a_changed_object_from_one_that_is_gone() -> None:
    assert type(raised_by(lambda client: client.update(Thing, STORED), refused(409, "Conflict"))) is errors.Conflict
    assert type(raised_by(lambda client: client.update(Thing, STORED), refused(404, "NotFound"))) is errors.ObjectGone
    renewed = refused(422, "Invalid", {"field": "metadata.uid"})
    assert type(raised_by(lambda client: client.update(Thing, STORED), renewed)) is errors.ObjectGone


# -- permissions ------------------------------------------------------------------------------------------------------


def calls_of_every_verb(client: Client) -> Iterable[tuple[str, Coroutine[Any, Any, Any]]]:
    yield "get", client.get(Thing, "x", "a")
    yield "list", client.list_page(Thing)
    yield "create", client.create(Thing, {"metadata": {"name": "x"}})
    yield "get", client.get_dict(Thing, "x", "a")
    yield "update", client.update(Thing, STORED)
    yield "patch", client.apply(OBSERVED, {})
    yield "patch", client.json_patch(OBSERVED, [])
    yield "delete", client.delete(OBSERVED)


def test_an_undeclared_verb_is_refused_before_anything_is_sent() -> None:
    client, transport = client_of()
    restricted = client.restricted_to([], field_manager="tests/things")
    for verb, call in calls_of_every_verb(restricted):
        with pytest.raises(PermissionNotDeclared, match=f"tests/things has not declared {verb} on things.example.com"):
            run_virtual(call)
    assert transport.requests == []


def test_a_verb_on_the_object_does_not_include_its_subresource() -> None:
    client, transport = client_of(Answer(body=STORED))
    restricted = client.restricted_to(permissions(Thing, "patch"))
    with pytest.raises(PermissionNotDeclared, match=r"things.example.com/status"):
        run_virtual(restricted.apply(OBSERVED, {}, subresource="status"))
    run_virtual(restricted.apply(OBSERVED, {}))
    assert len(transport.requests) == 1
