"""Create, read, update, patch and delete of single objects."""

from typing import Any

import pytest

from tests.contract.api_server import ApiServer


def maps(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{path}/{name}" if name else path


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_create_answers_201_with_identity_of_the_server(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a", x="1"))
    metadata = made["metadata"]
    assert (made["kind"], made["apiVersion"], metadata["namespace"]) == ("ConfigMap", "v1", namespace)
    assert len(metadata["uid"]) == 36
    assert metadata["resourceVersion"].isdigit()
    assert metadata["creationTimestamp"].endswith("Z")


def test_what_a_client_claims_of_identity_is_ignored(server: ApiServer, namespace: str) -> None:
    body: dict[str, Any] = dict(config_map("a"))
    long_ago = "2001-01-01T00:00:00Z"
    body["metadata"] = {"name": "a", "uid": "mine", "creationTimestamp": long_ago, "generation": 7}
    body["metadata"] |= {"deletionTimestamp": long_ago, "deletionGracePeriodSeconds": 0}
    metadata = server.create(maps(namespace), body)["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] != long_ago
    assert metadata.keys().isdisjoint({"deletionTimestamp", "deletionGracePeriodSeconds"})


def test_create_of_a_taken_name_is_already_exists(server: ApiServer, namespace: str) -> None:
    server.create(maps(namespace), config_map("a"))
    reply = server.send("POST", maps(namespace), config_map("a"))
    assert (reply.code, reply.reason) == (409, "AlreadyExists")
    assert reply.message == 'configmaps "a" already exists'
    assert reply.body["details"] == {"name": "a", "kind": "configmaps"}


def test_generate_name_gets_a_suffix(server: ApiServer, namespace: str) -> None:
    body = {"metadata": {"generateName": "many-"}}
    names = {server.create(maps(namespace), body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert {(name[:5], len(name)) for name in names} == {("many-", 10)}


def test_create_with_resource_version_is_refused(server: ApiServer, namespace: str) -> None:
    body = {"metadata": {"name": "a", "resourceVersion": "5"}}
    reply = server.send("POST", maps(namespace), body)
    assert (reply.code, reply.message) == (500, "resourceVersion should not be set on objects to be created")


def test_create_in_a_missing_namespace_is_not_found(server: ApiServer) -> None:
    reply = server.send("POST", maps("nowhere"), config_map("a"))
    assert (reply.code, reply.reason) == (404, "NotFound")
    assert reply.message == 'namespaces "nowhere" not found'


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"{", 400, "BadRequest"),
        (b"[]", 400, "BadRequest"),
        (b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}', 400, "BadRequest"),
        (b'{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"a"}}', 400, "BadRequest"),
        (b'{"metadata":{"name":"a","namespace":"other"}}', 400, "BadRequest"),
        (b'{"metadata":[]}', 400, "BadRequest"),
        (b'{"metadata":{"name":5}}', 400, "BadRequest"),
        (b'{"metadata":{"name":"a"},"data":{"x":1}}', 400, "BadRequest"),
        (b'{"metadata":{}}', 422, "Invalid"),
        (b'{"metadata":{"name":"No"}}', 422, "Invalid"),
        (b'{"metadata":{"name":"a","labels":{"bad key":"x"}}}', 422, "Invalid"),
        (b'{"metadata":{"name":"a","labels":{"k":"bad value"}}}', 422, "Invalid"),
    ],
)
def test_bad_bodies_are_refused(server: ApiServer, namespace: str, body: bytes, code: int, reason: str) -> None:
    reply = server.send("POST", maps(namespace), body)
    assert (reply.code, reply.reason) == (code, reason), reply.message
    assert (reply.body["kind"], reply.body["status"], reply.body["code"]) == ("Status", "Failure", code)


def test_bad_name_is_told_with_cause_and_rule(server: ApiServer, namespace: str) -> None:
    reply = server.send("POST", maps(namespace), config_map("No"))
    assert reply.message.startswith('ConfigMap "No" is invalid: metadata.name: Invalid value: "No": a lowercase RFC')
    (cause,) = reply.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "metadata.name")


def test_get_of_nothing_is_not_found(server: ApiServer, namespace: str) -> None:
    reply = server.get(maps(namespace, "none"))
    assert (reply.code, reply.reason, reply.message) == (404, "NotFound", 'configmaps "none" not found')


def test_put_replaces_and_moves_the_version(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a", x="1"))
    reply = server.send("PUT", maps(namespace, "a"), config_map("a", y="2"))
    assert (reply.code, reply.body["data"]) == (200, {"y": "2"})
    assert int(reply.body["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert reply.body["metadata"]["uid"] == made["metadata"]["uid"]


def test_write_without_change_keeps_the_version(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a", x="1"))
    put = server.send("PUT", maps(namespace, "a"), config_map("a", x="1"))
    patched = server.send(
        "PATCH", maps(namespace, "a"), {"data": {"x": "1"}}, content_type="application/merge-patch+json"
    )
    assert {r.body["metadata"]["resourceVersion"] for r in (put, patched)} == {made["metadata"]["resourceVersion"]}


def test_put_of_an_old_version_conflicts(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a", x="1"))
    server.send("PUT", maps(namespace, "a"), config_map("a", x="2"))
    reply = server.send("PUT", maps(namespace, "a"), made)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert reply.message == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again"
    )


def test_put_with_another_uid_conflicts(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a"))
    body = {"metadata": {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}}
    reply = server.send("PUT", maps(namespace, "a"), body)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert made["metadata"]["uid"] in reply.message


def test_put_to_nothing_is_not_found_and_of_a_lease_creates(server: ApiServer, namespace: str) -> None:
    assert server.send("PUT", maps(namespace, "a"), config_map("a")).code == 404
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/l"
    assert server.send("PUT", lease, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}).code == 201


def test_put_with_another_name_than_the_path_is_refused(server: ApiServer, namespace: str) -> None:
    server.create(maps(namespace), config_map("a"))
    reply = server.send("PUT", maps(namespace, "a"), config_map("b"))
    assert (reply.code, reply.message) == (400, "the name of the object (b) does not match the name on the URL (a)")


def test_lease_update_needs_the_version(server: ApiServer, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    server.create(path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}})
    reply = server.send("PUT", f"{path}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "you"}})
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "metadata.resourceVersion" in reply.message
    assert "must be specified for an update" in reply.message


def test_delete_answers_success_and_the_object_is_gone(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a"))
    reply = server.send("DELETE", maps(namespace, "a"))
    assert (reply.code, reply.body["status"]) == (200, "Success")
    assert reply.body["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert server.get(maps(namespace, "a")).code == 404


def test_delete_of_another_uid_conflicts(server: ApiServer, namespace: str) -> None:
    made = server.create(maps(namespace), config_map("a"))
    wrong = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    reply = server.send("DELETE", maps(namespace, "a"), wrong)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert reply.message == (
        'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition '
        "(00000000-0000-0000-0000-000000000000) does not match the UID in record "
        f"({made['metadata']['uid']}). The object might have been deleted and then recreated"
    )
    right = {"preconditions": {"uid": made["metadata"]["uid"]}}
    assert server.send("DELETE", maps(namespace, "a"), right).code == 200


def test_finalizer_holds_an_object_until_it_is_removed(server: ApiServer, namespace: str) -> None:
    server.create(maps(namespace), {"metadata": {"name": "a", "finalizers": ["test.example.com/hold"]}})
    held = server.send("DELETE", maps(namespace, "a"))
    assert held.code == 200
    assert held.body["metadata"]["deletionTimestamp"].endswith("Z")
    assert held.body["metadata"]["deletionGracePeriodSeconds"] == 0

    again = server.send("DELETE", maps(namespace, "a"))
    assert again.body["metadata"]["resourceVersion"] == held.body["metadata"]["resourceVersion"]
    more = [{"op": "add", "path": "/metadata/finalizers/-", "value": "test.example.com/more"}]
    refused = server.send("PATCH", maps(namespace, "a"), more, content_type="application/json-patch+json")
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert "no new finalizers can be added if the object is being deleted" in refused.message

    none = [{"op": "remove", "path": "/metadata/finalizers"}]
    assert server.send("PATCH", maps(namespace, "a"), none, content_type="application/json-patch+json").code == 200
    assert server.get(maps(namespace, "a")).code == 404


def test_dry_run_changes_nothing(server: ApiServer, namespace: str) -> None:
    reply = server.send("POST", maps(namespace), config_map("a"), dryRun="All")
    assert (reply.code, reply.body["metadata"]["name"]) == (201, "a")
    assert server.get(maps(namespace, "a")).code == 404
    server.create(maps(namespace), config_map("b", x="1"))
    assert server.send("DELETE", maps(namespace, "b"), dryRun="All").code == 200
    assert server.get(maps(namespace, "b")).body["data"] == {"x": "1"}


def test_only_nodes_are_created_with_a_status(server: ApiServer, namespace: str) -> None:
    name, status = f"{namespace}-node", {"capacity": {"cpu": "4"}, "phase": "Running"}
    node = server.create("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
    spec = {"containers": [{"name": "main", "image": "x"}]}
    body = {"metadata": {"name": "a"}, "spec": spec, "status": {"phase": "Running"}}
    pod = server.create(f"/api/v1/namespaces/{namespace}/pods", body)
    assert node["status"]["capacity"] == {"cpu": "4"}
    assert pod["status"]["phase"] == "Pending"
    server.send("DELETE", f"/api/v1/nodes/{name}")


def test_status_and_spec_are_written_apart(server: ApiServer, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "metadata": {"name": "r"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
        "status": {"replicas": 7},
    }
    made = server.create(path, body)
    assert (made["metadata"]["generation"], made["status"].get("replicas", 0)) == (1, 0)

    merge = "application/merge-patch+json"
    ignored = server.send("PATCH", f"{path}/r", {"status": {"replicas": 7}}, content_type=merge)
    assert ignored.body["status"].get("replicas", 0) == 0
    both = {"spec": {"minReadySeconds": 9}, "status": {"fullyLabeledReplicas": 3, "replicas": 3}}
    status = server.send("PATCH", f"{path}/r/status", both, content_type=merge)
    assert status.code == 200, status
    assert status.body["status"]["fullyLabeledReplicas"] == 3
    assert "minReadySeconds" not in status.body["spec"]
    assert status.body["metadata"]["generation"] == 1
    spec = server.send("PATCH", f"{path}/r", {"spec": {"minReadySeconds": 9}}, content_type=merge)
    assert spec.body["metadata"]["generation"] == 2


def test_deletecollection_takes_the_selected(server: ApiServer, namespace: str) -> None:
    for name, value in (("a", "1"), ("b", "1"), ("c", "2")):
        server.create(maps(namespace), {"metadata": {"name": name, "labels": {"k": value}}})
    reply = server.send("DELETE", maps(namespace), labelSelector="k=1")
    assert reply.code == 200
    assert server.get(maps(namespace, "a")).code == 404
    assert server.get(maps(namespace, "c")).code == 200


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nothings", 404),
        ("GET", "/apis/none.example.com/v1/things", 404),
        ("GET", "/apis/apps/v1/namespaces/default/deployments/a/b/c", 404),
        ("GET", "/api/v1/namespaces/default/configmaps/a/status", 404),
        ("POST", "/api/v1/namespaces/default/configmaps/a", 405),
        ("PUT", "/api/v1/namespaces/default/configmaps", 405),
        ("PATCH", "/api/v1/namespaces/default/configmaps", 405),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 405),
    ],
)
def test_what_is_not_served_is_told(server: ApiServer, method: str, path: str, code: int) -> None:
    assert server.send(method, path, {} if method != "GET" else None).code == code


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml"])
def test_unknown_formats_are_refused(server: ApiServer, namespace: str, content_type: str) -> None:
    reply = server.send("POST", maps(namespace), b"x", content_type=content_type)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    server.create(maps(namespace), config_map("a"))
    reply = server.send("PATCH", maps(namespace, "a"), b"{}", content_type=content_type)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    reply = server.send("GET", maps(namespace, "a"), headers={"Accept": content_type})
    assert (reply.code, reply.reason) == (406, "NotAcceptable")


def test_body_beyond_three_megabytes_is_refused(server: ApiServer, namespace: str) -> None:
    reply = server.send("POST", maps(namespace), config_map("a", x="x" * (3 * 2**20 + 1000)))
    assert (reply.code, reply.reason) == (413, "RequestEntityTooLarge")


def test_unknown_field_is_warned_of_or_refused(server: ApiServer, namespace: str) -> None:
    body = {"metadata": {"name": "a"}, "dta": {}}
    strict = server.send("POST", maps(namespace), body, fieldValidation="Strict")
    assert (strict.code, strict.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "dta"' in strict.message
    warned = server.send("POST", maps(namespace), body)
    assert (warned.code, warned.headers["Warning"]) == (201, '299 - "unknown field \\"dta\\""')


def test_credentials_decide(server: ApiServer, namespace: str) -> None:
    path = maps(namespace)
    wrong = server.send("GET", path, headers={"Authorization": "Bearer wrong"})
    if server.name == "sandbox":  # the other server also knows the client certificate of this connection
        assert (wrong.code, wrong.reason, wrong.message) == (401, "Unauthorized", "Unauthorized")
        nobody = server.send("GET", path, headers={"Authorization": ""})
        assert (nobody.code, nobody.reason) == (403, "Forbidden")
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    token = server.create(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    review = {"spec": {"token": token}}
    status = server.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:default"
