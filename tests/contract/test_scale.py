"""The scale subresource of workloads."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.api_server import ApiServer, Reply

APPLY = "application/apply-patch+yaml"
NOTHING: Mapping[str, str] = {}
PLURALS = ("deployments", "replicasets", "statefulsets")


def workloads(namespace: str, plural: str = "deployments") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/{plural}"


def make(server: ApiServer, namespace: str, plural: str = "deployments") -> Any:
    expressions = [
        {"key": "x", "operator": "In", "values": ["2", "1"]},
        {"key": "w", "operator": "NotIn", "values": ["3"]},
        {"key": "y", "operator": "Exists"},
        {"key": "z", "operator": "DoesNotExist"},
    ]
    spec: dict[str, Any] = {
        "replicas": 1,
        "selector": {"matchLabels": {"b": "1", "a": "1"}, "matchExpressions": expressions},
        "template": {
            "metadata": {"labels": {"a": "1", "b": "1", "x": "1", "y": "1"}},
            "spec": {
                "schedulingGates": [{"name": "test.example.com/never"}],
                "containers": [{"name": "c", "image": "i"}],
            },
        },
    }
    if plural == "statefulsets":
        spec["serviceName"] = "s"
    return server.create(workloads(namespace, plural), {"metadata": {"name": "w"}, "spec": spec})


def put(server: ApiServer, namespace: str, spec: Any, metadata: Mapping[str, str] = NOTHING) -> Reply:
    body = {"metadata": {"name": "w", "namespace": namespace, **metadata}, "spec": spec}
    return server.send("PUT", f"{workloads(namespace)}/w/scale", body)


def replicas(server: ApiServer, namespace: str) -> Any:
    return server.get(f"{workloads(namespace)}/w").body["spec"]["replicas"]


@pytest.mark.parametrize("plural", PLURALS)
def test_scale_shows_replicas_and_selector(server: ApiServer, namespace: str, plural: str) -> None:
    made = make(server, namespace, plural)["metadata"]
    scale = server.get(f"{workloads(namespace, plural)}/w/scale").body
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    assert scale["status"]["selector"] == "a=1,b=1,w notin (3),x in (1,2),y,!z"
    kept = ("name", "namespace", "uid", "creationTimestamp")
    assert {name: scale["metadata"][name] for name in kept} == {name: made[name] for name in kept}
    assert scale["metadata"].keys() == {*kept, "resourceVersion"}


@pytest.mark.parametrize("plural", PLURALS)
def test_scale_that_is_read_changed_and_written_changes_the_replicas(
    server: ApiServer, namespace: str, plural: str
) -> None:
    path = f"{workloads(namespace, plural)}/w"
    make(server, namespace, plural)
    # The version may move on meanwhile, as the real server's controllers write the status.
    for _ in range(20):
        scale = server.get(f"{path}/scale").body
        reply = server.send("PUT", f"{path}/scale", {**scale, "spec": {"replicas": 3}})
        if reply.code == 200:
            break
    assert (reply.body["kind"], reply.body["spec"]) == ("Scale", {"replicas": 3})
    written = server.get(path).body
    assert (written["spec"]["replicas"], written["metadata"]["generation"]) == (3, 2)
    owners = {(entry.get("subresource"), entry["operation"]) for entry in written["metadata"]["managedFields"]}
    assert ("scale", "Update") in owners


def test_no_replicas_are_not_shown(server: ApiServer, namespace: str) -> None:
    make(server, namespace)
    assert put(server, namespace, {}).body["spec"] == {}
    assert replicas(server, namespace) == 0


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        ("application/merge-patch+json", {"spec": {"replicas": 4}}),
        ("application/strategic-merge-patch+json", {"spec": {"replicas": 4}}),
        ("application/json-patch+json", [{"op": "replace", "path": "/spec/replicas", "value": 4}]),
    ],
)
def test_patched_scale_changes_the_replicas(server: ApiServer, namespace: str, content_type: str, patch: Any) -> None:
    make(server, namespace)
    reply = server.send("PATCH", f"{workloads(namespace)}/w/scale", patch, content_type=content_type)
    assert (reply.code, reply.body["spec"]) == (200, {"replicas": 4})
    assert replicas(server, namespace) == 4


def test_applied_scale_conflicts_until_forced(server: ApiServer, namespace: str) -> None:
    make(server, namespace)
    path = f"{workloads(namespace)}/w/scale"
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5}}
    refused = server.send("PATCH", path, body, content_type=APPLY, fieldManager="m")
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert refused.body["details"]["causes"][0]["field"] == ".spec.replicas"
    forced = server.send("PATCH", path, body, content_type=APPLY, fieldManager="m", force="true")
    assert (forced.code, forced.body["spec"]) == (200, {"replicas": 5})


def test_dry_run_scales_nothing(server: ApiServer, namespace: str) -> None:
    make(server, namespace)
    path, merge = f"{workloads(namespace)}/w/scale", "application/merge-patch+json"
    reply = server.send("PATCH", path, {"spec": {"replicas": 9}}, content_type=merge, dryRun="All")
    assert reply.body["spec"] == {"replicas": 9}
    assert replicas(server, namespace) == 1


@pytest.mark.parametrize(
    ("spec", "metadata", "code"),
    [
        ({"replicas": 2}, {"resourceVersion": "1"}, 409),
        ({"replicas": 2}, {"uid": "another"}, 409),
        ({"replicas": 2}, {"name": "another"}, 400),
        ({"replicas": 2}, {"name": ""}, 400),
        ({"replicas": 2}, {"namespace": "another"}, 400),
        ({"replicas": -1}, {}, 422),
        ({"replicas": "2"}, {}, 400),
        ({"replicas": 2**31}, {}, 400),
        ([], {}, 400),
    ],
)
def test_scale_that_does_not_fit_is_refused(
    server: ApiServer, namespace: str, spec: Any, metadata: dict[str, str], code: int
) -> None:
    make(server, namespace)
    assert put(server, namespace, spec, metadata).code == code
    assert replicas(server, namespace) == 1


def test_negative_replicas_are_named(server: ApiServer, namespace: str) -> None:
    make(server, namespace)
    reply = put(server, namespace, {"replicas": -1})
    assert reply.message == (
        'Scale.autoscaling "w" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0'
    )


def test_scale_of_nothing_is_not_found(server: ApiServer, namespace: str) -> None:
    path = f"{workloads(namespace)}/nothing/scale"
    body = {"metadata": {"name": "nothing", "namespace": namespace}, "spec": {"replicas": 1}}
    for reply in (server.get(path), server.send("PUT", path, body)):
        assert (reply.code, reply.message) == (404, 'deployments.apps "nothing" not found')


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_scale_is_only_read_and_written(server: ApiServer, namespace: str, method: str) -> None:
    make(server, namespace)
    assert server.send(method, f"{workloads(namespace)}/w/scale", {}).code == 405


def test_scale_is_told_of_in_discovery(server: ApiServer) -> None:
    listed = {entry["name"]: entry for entry in server.get("/apis/apps/v1").body["resources"]}
    for plural in PLURALS:
        entry = listed[f"{plural}/scale"]
        assert (entry["group"], entry["version"], entry["kind"]) == ("autoscaling", "v1", "Scale")
        assert entry["verbs"] == ["get", "patch", "update"]
    assert "daemonsets/scale" not in listed


def test_scale_as_a_table_has_desired_and_available(server: ApiServer, namespace: str) -> None:
    make(server, namespace)
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = server.send("GET", f"{workloads(namespace)}/w/scale", headers=accept).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert table["rows"][0]["cells"][:2] == ["w", 1]
