"""Questions that are never kept: whose token is this, and who may do what, by the roles in the cluster."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.api_server import ApiServer, Reply
from tests.contract.conftest import connect_with

AUTHENTICATION = "/apis/authentication.k8s.io/v1"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io"
TOKENS = f"{AUTHENTICATION}/tokenreviews"
RIGHTS = f"{AUTHORIZATION}/subjectaccessreviews"
ISSUER = "https://kubernetes.default.svc.cluster.local"
EFFECT_TIMEOUT = 30.0  # seconds until a role must hold; the real server remembers for 10 whom a token stands for

Attributes = dict[str, Any]


@pytest.fixture
def granted(server: ApiServer, namespace: str) -> Iterator[str]:
    """A namespace with a role for its default account and for a group, and a cluster role of its name for a user."""
    subjects = [
        {"kind": "ServiceAccount", "name": "default", "namespace": namespace},
        {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "team"},
    ]
    rules = [
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps", "pods/log"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"]},
    ]
    bind(server, f"/namespaces/{namespace}/role", "r", rules, subjects)
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": f"{namespace}-jane"}
    bind(server, "/clusterrole", namespace, [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}], [user])
    end = time.monotonic() + EFFECT_TIMEOUT
    while not allowed(ask(server, {"user": account_of(namespace), **attributes(namespace)})):
        assert time.monotonic() < end, "the role has no effect"
        time.sleep(0.05)
    while not allowed(
        ask(server, {"user": user["name"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}})
    ):
        assert time.monotonic() < end, "the cluster role has no effect"
        time.sleep(0.05)
    yield namespace
    for kind in ("clusterroles", "clusterrolebindings"):
        server.send("DELETE", f"{RBAC}/v1/{kind}/{namespace}")


def bind(server: ApiServer, path: str, name: str, rules: list[Any], subjects: list[Any]) -> None:
    kind = "ClusterRole" if path == "/clusterrole" else "Role"
    server.create(f"{RBAC}/v1{path}s", {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    server.create(f"{RBAC}/v1{path}bindings", {"metadata": {"name": name}, "subjects": subjects, "roleRef": reference})


def account_of(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:default"


def attributes(namespace: str, /, **changes: str) -> Attributes:
    wanted = {"namespace": namespace, "verb": "get", "resource": "configmaps", **changes}
    return {"resourceAttributes": {name: value for name, value in wanted.items() if value}}


def ask(server: ApiServer, spec: Any, path: str = RIGHTS) -> Reply:
    return server.send("POST", path, {"spec": spec})


def allowed(reply: Reply) -> bool:
    assert reply.code == 201, reply
    return bool(reply.body["status"]["allowed"])


def fields(reply: Reply) -> list[str]:
    """The fields that are told to be wrong."""
    assert (reply.code, reply.reason) == (422, "Invalid"), reply
    return [cause["field"] for cause in reply.body["details"]["causes"]]


def token_for(server: ApiServer, namespace: str, *audiences: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    spec = {"expirationSeconds": 3600, **({"audiences": audiences} if audiences else {})}
    return str(server.create(path, {"spec": spec})["status"]["token"])


def test_token_review_names_the_account_and_its_groups(server: ApiServer, namespace: str) -> None:
    review = server.create(TOKENS, {"spec": {"token": token_for(server, namespace)}})
    assert (review["kind"], review["apiVersion"]) == ("TokenReview", "authentication.k8s.io/v1")
    status, user = review["status"], review["status"]["user"]
    assert status["authenticated"] is True
    assert status["audiences"] == [ISSUER]
    assert user["username"] == account_of(namespace)
    assert user["groups"] == [
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    ]
    account = server.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default").body
    assert user["uid"] == account["metadata"]["uid"]


def test_token_review_of_a_worthless_token_is_an_answer_and_not_an_error(server: ApiServer) -> None:
    review = server.create(TOKENS, {"spec": {"token": "x"}})
    assert review["status"] == {"user": {}, "error": "invalid bearer token"}


def test_token_of_a_deleted_account_is_worthless(server: ApiServer, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.create(accounts, {"metadata": {"name": "brief"}})
    token = server.create(f"{accounts}/brief/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    server.send("DELETE", f"{accounts}/brief")
    end = time.monotonic() + EFFECT_TIMEOUT
    while "authenticated" in server.create(TOKENS, {"spec": {"token": token}})["status"]:
        assert time.monotonic() < end, "the token is still good"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("own", "asked", "common"),
    [
        ((), (ISSUER,), [ISSUER]),
        ((), ("other", ISSUER), [ISSUER]),
        (("vault", "bank"), ("bank",), ["bank"]),
        ((), ("other",), None),
        (("vault",), (), None),
    ],
)
def test_token_is_good_for_its_audiences_only(
    server: ApiServer, namespace: str, own: tuple[str, ...], asked: tuple[str, ...], common: list[str] | None
) -> None:
    spec = {"token": token_for(server, namespace, *own), **({"audiences": asked} if asked else {})}
    status = server.create(TOKENS, {"spec": spec})["status"]
    assert status.get("audiences") == common
    assert status.get("authenticated") is (True if common else None)
    assert ("is invalid for the target audiences" in status.get("error", "")) is (common is None)


def test_token_for_others_does_not_open_the_server(server: ApiServer, namespace: str) -> None:
    for audience, code in (("vault", 401), (ISSUER, 403)):
        api = connect_with(server, token_for(server, namespace, audience))
        assert api.get("/api/v1/nodes").code == code
        api.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"spec": {"token": ""}}, 400),
        ({"spec": {"token": 5}}, 400),
        ({"spec": "x"}, 400),
        ([], 400),
        ({"kind": "ConfigMap", "apiVersion": "v1", "spec": {"token": "x"}}, 400),
    ],
)
def test_token_review_of_nothing_is_refused(server: ApiServer, body: Any, code: int) -> None:
    assert server.send("POST", TOKENS, body).code == code


def test_unknown_fields_of_a_review_are_warned_of_or_refused(server: ApiServer) -> None:
    body = {"spec": {"token": "x", "colour": "red"}}
    warned = server.send("POST", TOKENS, body)
    assert (warned.code, warned.headers["Warning"]) == (201, '299 - "unknown field \\"spec.colour\\""')
    assert warned.body["spec"] == {"token": "x"}
    refused = server.send("POST", TOKENS, body, fieldValidation="Strict")
    assert (refused.code, refused.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"verb": "list"}, True),
        ({"verb": "delete"}, False),
        ({"namespace": "default"}, False),
        ({"namespace": ""}, False),
        ({"group": "apps"}, False),
        ({"resource": "pods", "subresource": "log"}, True),
        ({"resource": "pods"}, False),
        ({"resource": "secrets", "name": "one"}, True),
        ({"resource": "secrets", "name": "two"}, False),
        ({"resource": "secrets"}, False),
    ],
)
def test_rights_are_those_of_the_roles(
    server: ApiServer, granted: str, changes: dict[str, str], expected: bool
) -> None:
    reply = ask(server, {"user": account_of(granted), **attributes(granted, **changes)})
    assert allowed(reply) is expected
    assert ("reason" in reply.body["status"]) is expected


def test_review_says_which_binding_allows(server: ApiServer, granted: str) -> None:
    account = ask(server, {"user": account_of(granted), **attributes(granted)}).body["status"]
    group = ask(server, {"groups": ["team"], **attributes(granted)}).body["status"]
    path = {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    user = ask(server, {"user": f"{granted}-jane", **path}).body["status"]
    master = ask(server, {"groups": ["system:masters"], **attributes(granted, verb="delete")}).body["status"]
    role = f'RBAC: allowed by RoleBinding "r/{granted}" of Role "r" to'
    assert account == {"allowed": True, "reason": f'{role} ServiceAccount "default/{granted}"'}
    assert group == {"allowed": True, "reason": f'{role} Group "team"'}
    cluster_role = f'RBAC: allowed by ClusterRoleBinding "{granted}" of ClusterRole "{granted}" to'
    assert user == {"allowed": True, "reason": f'{cluster_role} User "{granted}-jane"'}
    assert master == {"allowed": True}


def test_review_repeats_the_question_in_full(server: ApiServer, granted: str) -> None:
    spec = {"user": "jane", "extra": {"a": ["b"]}, "uid": "u", **attributes(granted, version="v1")}
    body = ask(server, spec).body
    assert (body["kind"], body["apiVersion"]) == ("SubjectAccessReview", "authorization.k8s.io/v1")
    assert body["spec"] == spec


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({}, ["spec", "spec.user"]),
        ({"user": "x"}, ["spec"]),
        ({"user": "x", "resourceAttributes": {}, "nonResourceAttributes": {"verb": "get", "path": "/"}}, ["spec"]),
        ({"resourceAttributes": {"verb": "get"}}, ["spec.user"]),
        (
            {
                "user": "x",
                "resourceAttributes": {
                    "labelSelector": {
                        "rawSelector": "a=b",
                        "requirements": [{"key": "a", "operator": "In", "values": ["b"]}],
                    }
                },
            },
            ["spec.resourceAttributes.labelSelector.rawSelector"],
        ),
    ],
)
def test_questions_about_rights_that_make_no_sense_are_refused(server: ApiServer, spec: Any, wrong: list[str]) -> None:
    assert fields(ask(server, spec)) == wrong


def test_review_has_no_name(server: ApiServer) -> None:
    body = {"metadata": {"name": "x"}, "spec": {"user": "x", "resourceAttributes": {}}}
    assert fields(server.send("POST", RIGHTS, body)) == ["metadata"]


def test_local_review_asks_of_its_own_namespace_only(server: ApiServer, granted: str) -> None:
    path = f"{AUTHORIZATION}/namespaces/{granted}/localsubjectaccessreviews"
    account = account_of(granted)
    local = ask(server, {"user": account, **attributes(granted)}, path)
    assert allowed(local)
    assert local.body["metadata"]["namespace"] == granted
    assert not allowed(ask(server, {"user": account, **attributes(granted, verb="delete")}, path))
    for elsewhere in ("default", ""):
        wrong = ask(server, {"user": account, **attributes(granted, namespace=elsewhere)}, path)
        assert fields(wrong) == ["spec.resourceAttributes.namespace"]
    no_resource = {"user": account, "nonResourceAttributes": {"verb": "get", "path": "/"}}
    assert fields(ask(server, no_resource, path)) == ["spec.nonResourceAttributes"]
    other = server.send("POST", path, {"metadata": {"namespace": "default"}, "spec": no_resource})
    assert (other.code, other.reason) == (400, "BadRequest")


def test_account_asks_about_itself(server: ApiServer, granted: str, account: ApiServer) -> None:
    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
    assert allowed(ask(account, attributes(granted), path))
    assert not allowed(ask(account, attributes(granted, verb="delete"), path))
    assert allowed(ask(account, {"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}, path))
    assert fields(ask(account, {}, path)) == ["spec"]
    me = account.create(f"{AUTHENTICATION}/selfsubjectreviews", {})
    assert me["kind"] == "SelfSubjectReview"
    assert me["status"]["userInfo"]["username"] == account_of(granted)
    rules = account.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", {"spec": {"namespace": granted}})["status"]
    mine = [rule for rule in rules["resourceRules"] if "configmaps" in rule["resources"]]
    assert mine == [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps", "pods/log"]}]
    nowhere = ask(account, {}, f"{AUTHORIZATION}/selfsubjectrulesreviews")
    assert (nowhere.code, nowhere.message) == (400, "no namespace on request")


def test_reviews_of_others_need_a_right(granted: str, account: ApiServer) -> None:
    local = f"{AUTHORIZATION}/namespaces/{granted}/localsubjectaccessreviews"
    for path in (RIGHTS, TOKENS, local):
        reply = ask(account, {"user": "x", "token": "x", **attributes(granted)}, path)
        assert (reply.code, reply.reason) == (403, "Forbidden")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", TOKENS, 405),
        ("GET", f"{TOKENS}/a", 404),
        ("PUT", f"{TOKENS}/a", 404),
        ("POST", f"{TOKENS}/a", 404),
        ("POST", f"{AUTHENTICATION}/namespaces/default/tokenreviews", 404),
        ("POST", f"{AUTHORIZATION}/localsubjectaccessreviews", 404),
        ("POST", "/apis/authentication.k8s.io/v2/tokenreviews", 404),
    ],
)
def test_reviews_are_only_created(server: ApiServer, method: str, path: str, code: int) -> None:
    assert server.send(method, path, None if method == "GET" else {"spec": {"token": "x"}}).code == code
