"""What becomes of the objects of a CustomResourceDefinition when it changes."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.api_server import ApiServer, Reply

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TIMEOUT = 30.0  # seconds until a changed definition must be in force
Manifest = dict[str, Any]


class Widgets:
    """A definition of a test's own, with the objects of its kind."""

    def __init__(self, server: ApiServer, group: str, namespace: str) -> None:
        self._server = server
        self._group = group
        self._definition = f"{DEFINITIONS}/widgets.{group}"
        self.path = f"/apis/{group}/v1/namespaces/{namespace}/widgets"

    def define(self, spec: Manifest) -> None:
        schema = {"type": "object", "properties": {"spec": {"type": "object", **spec}}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": "widgets", "kind": "Widget"}
        wanted = {"group": self._group, "names": names, "scope": "Namespaced", "versions": [version]}
        found = self._server.get(self._definition)
        if found.code == 404:
            manifest = {"kind": "CustomResourceDefinition", "metadata": {"name": f"widgets.{self._group}"}}
            self._server.create(DEFINITIONS, {"apiVersion": "apiextensions.k8s.io/v1", **manifest, "spec": wanted})
            self.wait(lambda: self._server.get(self.path).code == 200)
            return
        patched = {"spec": {"versions": [version]}}
        self.patch(self._definition, patched)

    def create(self, name: str, spec: Manifest) -> Manifest:
        manifest = {"apiVersion": f"{self._group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}
        created: Manifest = self._server.create(self.path, manifest)
        return created

    def read(self, name: str) -> Manifest:
        found: Manifest = self._server.get(f"{self.path}/{name}").body
        return found

    def patch(self, path: str, patch: Manifest) -> Reply:
        return self._server.send("PATCH", path, patch, content_type="application/merge-patch+json")

    def wait(self, reached: Any) -> None:
        end = time.monotonic() + TIMEOUT
        while not reached():
            assert time.monotonic() < end, "the definition did not come into force"
            time.sleep(0.05)

    def remove(self) -> None:
        self._server.send("DELETE", self._definition)


@pytest.fixture
def widgets(server: ApiServer, namespace: str) -> Iterator[Widgets]:
    made = Widgets(server, f"{uuid.uuid4().hex[:8]}.example.com", namespace)
    yield made
    made.remove()


IMMUTABLE = {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "stays as it is"}]}


def test_objects_from_before_a_schema_are_read_with_its_defaults_and_without_what_it_does_not_know(
    widgets: Widgets,
) -> None:
    widgets.define({"x-kubernetes-preserve-unknown-fields": True})
    created = widgets.create("old", {"size": 1, "colour": "red"})

    mode = {"type": "string", "default": "plain"}
    widgets.define({"properties": {"size": {"type": "integer"}, "mode": mode}, **IMMUTABLE})

    widgets.wait(lambda: widgets.read("old")["spec"] == {"size": 1, "mode": "plain"})
    assert widgets.read("old")["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    # A rule about changes compares with the old object as it is read, too.
    labelled = widgets.patch(f"{widgets.path}/old", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.code == 200, labelled
    changed = widgets.patch(f"{widgets.path}/old", {"spec": {"mode": "other"}})
    assert (changed.code, changed.reason) == (422, "Invalid")
