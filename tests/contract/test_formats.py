"""Which format an answer has and a body may have: by Accept and Content-Type."""

import json
import struct
from typing import Any

import pytest
import yaml

from tests.contract.api_server import ApiServer, Reply

META = "g=meta.k8s.io;v=v1"
ONE, MANY, TABLE = (
    f"application/json;as={kind};{META}" for kind in ("PartialObjectMetadata", "PartialObjectMetadataList", "Table")
)
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def maps(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{path}/{name}" if name else path


@pytest.fixture
def made(server: ApiServer, namespace: str) -> str:
    """A namespace with the labelled ConfigMap a."""
    server.create(maps(namespace), {"metadata": {"name": "a", "labels": {"test": "f"}}, "data": {"k": "v"}})
    return namespace


def get(server: ApiServer, path: str, accept: str, **query: str) -> Reply:
    return server.send("GET", path, headers={"Accept": accept}, **query)


def kind(reply: Reply) -> str:
    assert reply.code == 200, reply
    return f"{reply.body['apiVersion']} {reply.body['kind']}"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json", "v1 ConfigMap"),
        ("*/*", "v1 ConfigMap"),
        ("text/html, */*;q=0.1", "v1 ConfigMap"),
        ("application/json;q=0", "v1 ConfigMap"),
        ("application/json;q=much", "v1 ConfigMap"),
        ("application/json; charset=utf-8", "v1 ConfigMap"),
        ("application/cbor,application/json", "v1 ConfigMap"),
        (ONE, "meta.k8s.io/v1 PartialObjectMetadata"),
        (f"{ONE},application/json", "meta.k8s.io/v1 PartialObjectMetadata"),
        (f"application/json,{ONE}", "v1 ConfigMap"),
        (f"application/json;q=0.5,{ONE};q=0.9", "meta.k8s.io/v1 PartialObjectMetadata"),
        (f"{ONE};q=0.5,application/json;q=0.9", "v1 ConfigMap"),
        (f"application/json;as=Nope;{META},application/json", "v1 ConfigMap"),
        (f"application/json;as=Nope;{META},{ONE}", "meta.k8s.io/v1 PartialObjectMetadata"),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
            "meta.k8s.io/v1beta1 PartialObjectMetadata",
        ),
        ("application/json;as=Table;g=meta.k8s.io;v=v1beta2,application/json", "v1 ConfigMap"),
        (f"*/*;as=Table;{META}", "meta.k8s.io/v1 Table"),
    ],
)
def test_object_comes_in_the_format_that_is_wanted_most(
    server: ApiServer, made: str, accept: str, expected: str
) -> None:
    assert kind(get(server, maps(made, "a"), accept)) == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (MANY, "meta.k8s.io/v1 PartialObjectMetadataList"),
        (f"{MANY},application/json", "meta.k8s.io/v1 PartialObjectMetadataList"),
        (f"application/json;q=0.5,{MANY}", "meta.k8s.io/v1 PartialObjectMetadataList"),
        ("application/json;as=Nope;g=meta.k8s.io;v=v1,application/json", "v1 ConfigMapList"),
        (MANY.replace("v=v1", "v=v1beta1"), "meta.k8s.io/v1beta1 PartialObjectMetadataList"),
        (f"{TABLE},application/json", "meta.k8s.io/v1 Table"),
    ],
)
def test_list_comes_in_the_format_that_is_wanted_most(server: ApiServer, made: str, accept: str, expected: str) -> None:
    assert kind(get(server, maps(made), accept, labelSelector="test=f")) == expected


@pytest.mark.parametrize(
    "accept",
    [
        *("text/html", "application/xml", "application/cbor", "garbage", "APPLICATION/JSON", "application/*"),
        *(f"application/json;as=Nope;{META}", "application/json;as=PartialObjectMetadata", f"application/json;{META}"),
        *("application/json;as=Table;g=meta.k8s.io;v=v1beta2", AGGREGATED),
    ],
)
def test_formats_that_there_are_not_are_refused_for_all_verbs(server: ApiServer, made: str, accept: str) -> None:
    for path, query in ((maps(made, "a"), {}), (maps(made), {}), (maps(made), {"watch": "1", "timeoutSeconds": "1"})):
        reply = get(server, path, accept, **query)
        assert (reply.code, reply.reason) == (406, "NotAcceptable")
    write = server.send("POST", maps(made), {"metadata": {"name": "b"}}, headers={"Accept": accept})
    assert (write.code, write.reason) == (406, "NotAcceptable")
    assert server.get(maps(made, "b")).code == 404


def test_metadata_of_one_and_of_many_are_not_the_same(server: ApiServer, made: str) -> None:
    """What can be written otherwise does not help: the first format that exists is the one."""
    for fallback in ("", ",application/json"):
        many = get(server, maps(made), ONE + fallback, labelSelector="test=f")
        assert (many.code, many.reason) == (406, "NotAcceptable")
        assert (
            many.message
            == "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)"
        )
        one = get(server, maps(made, "a"), MANY + fallback)
        assert (one.code, one.reason) == (406, "NotAcceptable")
        assert one.message == (
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)"
        )


def test_writes_are_answered_in_the_format_that_is_wanted(server: ApiServer, namespace: str) -> None:
    headers = {"Accept": ONE}
    created = server.send("POST", maps(namespace), {"metadata": {"name": "a"}}, headers=headers)
    patched = server.send(
        "PATCH",
        maps(namespace, "a"),
        {"data": {"k": "v"}},
        content_type="application/merge-patch+json",
        headers=headers,
    )
    for reply, code in ((created, 201), (patched, 200)):
        assert (reply.code, set(reply.body)) == (code, {"kind", "apiVersion", "metadata"})
    collection = server.send("DELETE", maps(namespace), headers={"Accept": MANY}, fieldSelector="metadata.name=a")
    assert kind(collection) == "meta.k8s.io/v1 PartialObjectMetadataList"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_watch_of_metadata_tells_of_metadata(server: ApiServer, made: str, version: str) -> None:
    query = {"watch": "1", "timeoutSeconds": "1", "labelSelector": "test=f", "allowWatchBookmarks": "true"}
    begin = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    reply = get(server, maps(made), ONE.replace("v=v1", f"v={version}"), **query, **begin)
    added, bookmark = [json.loads(line) for line in reply.body.split("\n") if line][:2]
    assert (added["type"], bookmark["type"]) == ("ADDED", "BOOKMARK")
    assert added["object"]["metadata"]["name"] == "a"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    for event in (added, bookmark):
        assert (event["object"]["kind"], event["object"]["apiVersion"]) == (
            "PartialObjectMetadata",
            f"meta.k8s.io/{version}",
        )
        assert set(event["object"]) == {"kind", "apiVersion", "metadata"}


def test_watch_of_lists_of_metadata_ends_without_a_word(server: ApiServer, made: str) -> None:
    reply = get(server, maps(made), MANY, watch="1", timeoutSeconds="5", labelSelector="test=f")
    assert (reply.code, reply.body) == (200, "")


@pytest.mark.parametrize("accept", ["application/yaml", "application/json;q=0.9,application/yaml;q=0.95"])
def test_objects_lists_and_refusals_are_written_as_yaml(server: ApiServer, made: str, accept: str) -> None:
    for path, code in ((maps(made, "a"), 200), (maps(made), 200), (maps(made, "none"), 404), ("/apis", 200)):
        reply = get(server, path, accept)
        assert (reply.code, reply.headers["Content-Type"]) == (code, "application/yaml")
        assert yaml.safe_load(reply.body)["kind"]
    watch = get(server, maps(made), accept, watch="1", timeoutSeconds="1")
    assert (watch.code, watch.headers["Content-Type"]) == (406, "application/yaml")


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("Application/JSON", 201),
        ("application/yaml", 201),
        ("", 201),
        ("*/*", 415),
        ("application/json; ;", 415),
        ("application/merge-patch+json", 415),
        ("application/apply-patch+yaml", 415),
        ("application/cbor", 415),
        ("text/plain", 415),
    ],
)
def test_body_of_a_create_is_read_by_its_type(server: ApiServer, namespace: str, content_type: str, code: int) -> None:
    reply = server.send("POST", maps(namespace), {"metadata": {"name": "a"}}, content_type=content_type)
    assert reply.code == code


@pytest.mark.parametrize("content_type", ["application/json", "application/yaml", "", PROTOBUF, "application/cbor"])
def test_patch_has_a_type_of_its_own(server: ApiServer, made: str, content_type: str) -> None:
    reply = server.send("PATCH", maps(made, "a"), b"{}", content_type=content_type)
    assert (reply.code, reply.reason, reply.message) == (
        415,
        "UnsupportedMediaType",
        "415: Unsupported Media Type",
    )


def message(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that is bytes, or a message."""
    return struct.pack("BB", number << 3 | 2, len(content)) + content


def test_protobuf_of_built_in_kinds_is_read(server: ApiServer, namespace: str) -> None:
    kind_of = message(1, message(1, b"v1") + message(2, b"ConfigMap"))
    body = b"k8s\x00" + kind_of + message(2, message(1, message(1, b"a")))
    reply = server.send("POST", maps(namespace), body, content_type=PROTOBUF)
    assert (reply.code, reply.body["metadata"]["name"]) == (201, "a")
    broken = server.send("POST", maps(namespace), b"{}", content_type=PROTOBUF)
    assert (broken.code, broken.reason) == (400, "BadRequest")


MERGE, STRATEGIC, JSON_PATCH, APPLY = (
    f"application/{kind}"
    for kind in ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")
)


@pytest.mark.parametrize(
    ("content_type", "body", "code", "text"),
    [
        (MERGE, b"5", 400, "cannot unmarshal number into Go value of type map[string]interface {}"),
        (MERGE, b'"x"', 400, "cannot unmarshal string into Go value of type map[string]interface {}"),
        (MERGE, b"null", 400, "Invalid JSON Patch"),
        (MERGE, b"{", 400, "invalid JSON patch"),
        (MERGE, b"", 400, "invalid JSON patch"),
        (STRATEGIC, b"5", 400, "cannot unmarshal number into Go value of type map[string]interface {}"),
        (STRATEGIC, b"null", 200, ""),
        (STRATEGIC, b"{", 400, "invalid JSON patch"),
        (JSON_PATCH, b"{}", 400, "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        (JSON_PATCH, b"[5]", 400, "cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        (JSON_PATCH, b"null", 200, ""),
        (JSON_PATCH, b"", 400, "invalid JSON patch"),
        (APPLY, b"5", 400, "cannot unmarshal number into Go value of type map[string]interface {}"),
        (APPLY, b"null", 400, "invalid object type: /, Kind="),
        (APPLY, b"", 400, "invalid object type: /, Kind="),
    ],
)
def test_patch_that_is_none_changes_nothing(
    server: ApiServer, made: str, content_type: str, body: bytes, code: int, text: str
) -> None:
    before = server.get(maps(made, "a")).body
    reply = server.send("PATCH", f"{maps(made, 'a')}?fieldManager=m", body, content_type=content_type)
    assert reply.code == code
    assert text in reply.message
    assert server.get(maps(made, "a")).body == before


@pytest.mark.parametrize(
    ("content_type", "body", "code", "text"),
    [
        (MERGE, b"1.5", 400, "Invalid JSON Patch"),
        (MERGE, b'"x"', 400, "Invalid JSON Patch"),
        (MERGE, b"[5]", 422, ' "" is invalid: patch: Invalid value:'),
        (JSON_PATCH, b"5", 400, "json: cannot unmarshal number into Go value of type jsonpatch.Patch"),
        (JSON_PATCH, b"[5]", 400, "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
        (STRATEGIC, b"5", 400, "json: cannot unmarshal number into Go value of type map[string]interface {}"),
    ],
)
def test_patch_that_is_none_is_refused_without_validation_of_fields_too(
    server: ApiServer, made: str, content_type: str, body: bytes, code: int, text: str
) -> None:
    reply = server.send("PATCH", maps(made, "a"), body, content_type=content_type, fieldValidation="Ignore")
    assert reply.code == code
    assert reply.message.startswith(text)


# -- discovery ---------------------------------------------------------------------------------------------------------


def resources_of(reply: Reply, group: str, version: str) -> dict[str, Any]:
    """The resources of a version of a group, by name."""
    assert kind(reply) == "apidiscovery.k8s.io/v2 APIGroupDiscoveryList"
    (found,) = (item for item in reply.body["items"] if item["metadata"].get("name", "") == group)
    (versions,) = (each for each in found["versions"] if each["version"] == version)
    assert versions["freshness"] == "Current"
    return {resource["resource"]: resource for resource in versions["resources"]}


@pytest.mark.parametrize(
    "accept",
    [
        AGGREGATED,
        f"{AGGREGATED},application/json",
        f"{AGGREGATED};q=0.1,application/json",
        f"application/json,{AGGREGATED}",
        f"{AGGREGATED},{AGGREGATED.replace('v2', 'v2beta1')},application/json",
    ],
)
def test_discovery_is_aggregated_for_whoever_knows_that(server: ApiServer, accept: str) -> None:
    core, groups = get(server, "/api", accept), get(server, "/apis", accept)
    assert core.headers["Content-Type"] == groups.headers["Content-Type"] == AGGREGATED
    assert resources_of(core, "", "v1")["configmaps"] == {
        "resource": "configmaps",
        "responseKind": {"group": "", "version": "", "kind": "ConfigMap"},
        "scope": "Namespaced",
        "singularResource": "configmap",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["cm"],
    }
    assert "deletecollection" not in resources_of(core, "", "v1")["namespaces"]["verbs"]
    token = {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}
    assert resources_of(core, "", "v1")["serviceaccounts"]["subresources"] == [
        {"subresource": "token", "responseKind": token, "verbs": ["create"]}
    ]
    assert resources_of(groups, "coordination.k8s.io", "v1")["leases"]["responseKind"]["kind"] == "Lease"
    assert resources_of(groups, "authorization.k8s.io", "v1")["subjectaccessreviews"]["verbs"] == ["create"]


@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_aggregated_discovery_is_not_sent_again(server: ApiServer, path: str) -> None:
    tag = get(server, path, AGGREGATED).headers["ETag" if server.name == "sandbox" else "Etag"]
    again = server.send("GET", path, headers={"Accept": AGGREGATED, "If-None-Match": tag})
    assert (again.code, again.body) == (304, "")
    other = server.send("GET", path, headers={"Accept": AGGREGATED, "If-None-Match": '"other"'})
    assert other.code == 200


@pytest.mark.parametrize(
    ("accept", "code"),
    [
        ("application/json", 200),
        ("*/*", 200),
        (f"{TABLE},application/json", 200),
        (TABLE, 406),
        ("text/html", 406),
        (AGGREGATED.replace("v2", "v2beta1"), 406),
        (AGGREGATED.replace("v2", "v3"), 406),
        (f"{AGGREGATED.replace('v2', 'v3')},application/json", 200),
    ],
)
def test_discovery_is_refused_in_other_formats(server: ApiServer, accept: str, code: int) -> None:
    for path in ("/api", "/apis"):
        assert get(server, path, accept).code == code


def test_namespaces_are_not_deleted_as_a_collection(server: ApiServer) -> None:
    reply = server.send("DELETE", "/api/v1/namespaces", labelSelector="no=such")
    assert (reply.code, reply.reason) == (405, "MethodNotAllowed")


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/livez", 200, "ok"),
        ("/readyz/ping", 200, "ok"),
        ("/healthz/etcd", 200, "ok"),
        ("/readyz/nothing", 404, "404 page not found\n"),
        ("/livez/ping/more", 404, "404 page not found\n"),
    ],
)
def test_health_is_asked_as_a_whole_and_in_parts(server: ApiServer, path: str, code: int, text: str) -> None:
    reply = server.get(path)
    assert (reply.code, reply.body) == (code, text)
    verbose = server.get("/livez", verbose="").body
    assert verbose.startswith("[+]ping ok\n")
    assert verbose.endswith("livez check passed\n")
