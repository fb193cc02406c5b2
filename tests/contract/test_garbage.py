"""What goes with what: dependents with their owners, objects with their namespace and their definition."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.api_server import ApiServer

PATIENCE = 30.0  # seconds; the real garbage collector looks at some things only after a while


def maps(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return f"{path}/{name}" if name else path


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def gone(server: ApiServer, path: str) -> bool:
    return server.get(path).code == 404


def reference(owner: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    metadata = owner["metadata"]
    found = {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
    return found | ({"blockOwnerDeletion": True} if blocks else {})


def make(server: ApiServer, namespace: str, name: str, *references: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "ownerReferences": list(references), **more}
    made: dict[str, Any] = server.create(maps(namespace), {"metadata": metadata})
    return made


def test_dependents_go_after_their_last_owner(server: ApiServer, namespace: str) -> None:
    first, second = make(server, namespace, "first"), make(server, namespace, "second")
    make(server, namespace, "of-first", reference(first))
    make(server, namespace, "of-both", reference(first), reference(second))
    server.send("DELETE", maps(namespace, "first"))
    eventually(lambda: gone(server, maps(namespace, "of-first")))
    eventually(lambda: len(server.get(maps(namespace, "of-both")).body["metadata"]["ownerReferences"]) == 1)
    server.send("DELETE", maps(namespace, "second"))
    eventually(lambda: gone(server, maps(namespace, "of-both")))


def test_object_whose_owner_never_was_goes(server: ApiServer, namespace: str) -> None:
    owner = {"metadata": {"name": "ghost", "uid": "11111111-1111-1111-1111-111111111111"}}
    make(server, namespace, "orphan", reference(owner))
    eventually(lambda: gone(server, maps(namespace, "orphan")))


def test_orphaning_leaves_dependents_without_owner(server: ApiServer, namespace: str) -> None:
    make(server, namespace, "child", reference(make(server, namespace, "owner")))
    reply = server.send("DELETE", maps(namespace, "owner"), {"propagationPolicy": "Orphan"})
    assert reply.body["metadata"]["finalizers"] == ["orphan"]
    eventually(lambda: gone(server, maps(namespace, "owner")))
    assert "ownerReferences" not in server.get(maps(namespace, "child")).body["metadata"]


def test_foreground_deletion_waits_for_dependents(server: ApiServer, namespace: str) -> None:
    owner = make(server, namespace, "owner")
    make(server, namespace, "child", reference(owner, blocks=True), finalizers=["test.example.com/hold"])
    reply = server.send("DELETE", maps(namespace, "owner"), {"propagationPolicy": "Foreground"})
    assert reply.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    eventually(lambda: "deletionTimestamp" in server.get(maps(namespace, "child")).body["metadata"])
    assert not gone(server, maps(namespace, "owner"))
    free = {"metadata": {"finalizers": None}}
    server.send("PATCH", maps(namespace, "child"), free, content_type="application/merge-patch+json")
    eventually(lambda: gone(server, maps(namespace, "owner")))


def test_namespace_ends_with_its_contents(server: ApiServer, namespace: str) -> None:
    make(server, namespace, "held", finalizers=["test.example.com/hold"])
    make(server, namespace, "free")
    reply = server.send("DELETE", f"/api/v1/namespaces/{namespace}")
    assert reply.body["status"]["phase"] == "Terminating"
    refused = server.send("POST", maps(namespace), {"metadata": {"name": "late"}})
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert [cause["reason"] for cause in refused.body["details"]["causes"]] == ["NamespaceTerminating"]
    eventually(lambda: gone(server, maps(namespace, "free")))
    assert not gone(server, maps(namespace, "held"))
    free = {"metadata": {"finalizers": None}}
    server.send("PATCH", maps(namespace, "held"), free, content_type="application/merge-patch+json")
    eventually(lambda: gone(server, f"/api/v1/namespaces/{namespace}"))


def definition(plural: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
                },
            },
            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}],
    }
    kind = plural.capitalize()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.test.example.com"},
        "spec": {
            "group": "test.example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural[:-1], "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def test_definition_serves_its_objects_until_it_is_deleted(
    server: ApiServer, namespace: str, request: pytest.FixtureRequest
) -> None:
    definitions, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "widgets"
    server.create(definitions, definition(name))
    path = f"/apis/test.example.com/v1/namespaces/{namespace}/{name}"
    eventually(lambda: server.get(path).code == 200)
    established = server.get(f"{definitions}/{name}.test.example.com").body["status"]
    assert {c["type"]: c["status"] for c in established["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert established["storedVersions"] == ["v1"]

    body = {"apiVersion": "test.example.com/v1", "kind": "Widgets", "metadata": {"name": "w"}}
    made = server.create(path, body | {"spec": {"size": 2, "unknown": 1}, "status": {"ready": True}})
    assert (made["spec"], made["metadata"]["generation"]) == ({"size": 2, "color": "red"}, 1)
    assert "status" not in made
    assert server.get(path).body["items"][0]["kind"] == "Widgets"
    refused = server.send("POST", path, body | {"metadata": {"name": "x"}, "spec": {"size": 0, "color": "green"}})
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert {cause["field"] for cause in refused.body["details"]["causes"]} == {"spec.size", "spec.color"}
    unconditional = server.send("PUT", f"{path}/w", body | {"spec": {"size": 3}})
    assert (unconditional.code, unconditional.reason) == (422, "Invalid")
    resources = server.get("/apis/test.example.com/v1").body["resources"]
    assert sorted(resource["name"] for resource in resources) == ["widgets", "widgets/status"]

    server.send("DELETE", f"{definitions}/{name}.test.example.com")
    eventually(lambda: gone(server, f"{definitions}/{name}.test.example.com"))
    eventually(lambda: server.get(path).code == 404)
