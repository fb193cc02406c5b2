"""Putting finalizers on and taking them off, as operations and as requests against the sandbox's patches."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import ConfigurationError, Conflict, ObjectGone
from controllers.runtime.finalizers import addition, removal
from controllers.runtime.meta import KubeObject, ObjectMeta, Resource
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from controllers.sandbox.errors import StatusError
from controllers.sandbox.patch import json_patch


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Server:
    """Holds one object and patches it as the sandbox does."""

    def __init__(self, **metadata: Any) -> None:
        self.stored: dict[str, Any] = {
            "metadata": {"name": "x", "namespace": "a", "uid": "u1", "resourceVersion": "5", **metadata}
        }
        self.transport = ScriptedTransport(self._answer)
        self.client = Client(self.transport, ClientOptions("tests"))

    @property
    def observed(self) -> Thing:
        return Thing.decode(msgspec.json.encode(self.stored))

    @property
    def finalizers(self) -> list[str] | None:
        found: list[str] | None = self.stored["metadata"].get("finalizers")
        return found

    def _answer(self, request: HttpRequest) -> Reply:
        operations: list[Mapping[str, Any]] = msgspec.json.decode(request.body or b"")
        try:
            self.stored = json_patch(self.stored, operations)
        except StatusError:
            return Answer(422, body={"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"})
        self.stored["metadata"]["resourceVersion"] += "1"
        return Answer(body=self.stored)


def observed(*finalizers: str, **metadata: Any) -> Thing:
    return Thing(
        metadata=ObjectMeta(
            name="x", namespace="a", **{"uid": "u1", "resource_version": "5", "finalizers": finalizers, **metadata}
        )
    )


@pytest.mark.parametrize("others", [[], ["other"], ["one", "two"]])
def test_a_finalizer_is_put_on_beside_those_of_others_and_taken_off_alone(others: list[str]) -> None:
    server = Server(**({"finalizers": others} if others else {}))
    added = run_virtual(server.client.add_finalizer(server.observed, "example.com/mine"))
    assert added.metadata.finalizers == (*others, "example.com/mine")
    assert server.finalizers == [*others, "example.com/mine"]
    run_virtual(server.client.remove_finalizer(added, "example.com/mine"))
    assert server.finalizers == others


def test_what_is_there_is_not_put_on_and_what_is_not_there_not_taken_off() -> None:
    server = Server(finalizers=["mine"])
    assert run_virtual(server.client.add_finalizer(server.observed, "mine")) == server.observed
    assert run_virtual(server.client.remove_finalizer(server.observed, "absent")) == server.observed
    assert server.transport.requests == []


def test_uid_and_resource_version_are_tested_first() -> None:
    server = Server()
    run_virtual(server.client.add_finalizer(server.observed, "mine"))
    body = server.transport.requests[0].body
    assert body is not None
    assert msgspec.json.decode(body)[:2] == [
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
    ]


@pytest.mark.parametrize("stale", [{"resource_version": "4"}, {"uid": "u0"}])
def test_an_object_that_changed_meanwhile_is_left_alone(stale: dict[str, str]) -> None:
    server = Server(finalizers=["mine"])
    with pytest.raises(Conflict):
        run_virtual(server.client.add_finalizer(observed("mine", **stale), "more"))
    with pytest.raises(Conflict):
        run_virtual(server.client.remove_finalizer(observed("mine", **stale), "mine"))
    assert server.finalizers == ["mine"]


def test_a_projection_without_finalizers_never_replaces_those_of_others() -> None:
    server = Server(finalizers=["other"])
    with pytest.raises(Conflict):
        run_virtual(server.client.add_finalizer(observed(), "mine"))
    assert server.finalizers == ["other"]


def test_an_object_that_is_gone_gets_none_and_needs_none_taken_off() -> None:
    missing = Answer(404, body={"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"})
    client = Client(ScriptedTransport(lambda _: missing), ClientOptions("tests"))
    with pytest.raises(ObjectGone):
        run_virtual(client.add_finalizer(observed(), "mine"))
    assert run_virtual(client.remove_finalizer(observed("mine"), "mine")) is None


def test_an_object_under_deletion_gets_none_and_the_error_says_what_to_do() -> None:
    deleting = observed("other", deletion_timestamp="2030-01-01T00:00:00Z")
    with pytest.raises(ConfigurationError, match=r"Thing a/x is being deleted .* mine: look at \.deleting first"):
        addition(deleting, "mine")
    assert addition(observed("mine", deletion_timestamp="2030-01-01T00:00:00Z"), "mine") == []
    assert removal(deleting, "other") != []
