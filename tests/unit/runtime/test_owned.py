"""Objects that are made whole, and those that others made under the same names."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import msgspec
import pytest

from controllers.runtime import Client, ClientOptions, KubeObject, ObjectMeta, Resource
from controllers.runtime.errors import FieldConflict, ObjectGone
from controllers.runtime.owned import OwnedObjects
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest

US, OTHER = "gpu-mirage/tests", "somebody"
Json = dict[str, Any]


class Thing(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("example.com", "v1", "things", "Thing", namespaced=False)


class Owner(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "owners", "Owner", namespaced=False)


PRESENT = Thing(metadata=ObjectMeta(name="a", uid="u1", resource_version="1"))
OWNER = {"kind": "Owner", "name": "the-owner", "uid": "o1"}
DESIRED: Json = {"metadata": {"name": "a", "ownerReferences": [OWNER]}, "spec": {"kind": "x"}}


class Server:
    """One object with the managers of its proof; refuses applies that are not forced where it should."""

    def __init__(self, managers: set[str], *, uid: str = "u1", conflict: bool = False, gone: bool = False) -> None:
        self.managers = managers
        self.uid = uid
        self.conflict = conflict
        self.gone = gone
        self.owner = "o1"  # uid; "" where it is gone
        self.calls: list[str] = []

    def __call__(self, request: HttpRequest) -> Reply:
        forced = ("force", "true") in request.query
        self.calls.append("FORCE" if forced else request.method)
        if request.path == "/api/v1/owners":
            assert ("fieldSelector", "metadata.name=the-owner") in request.query
            return self._owners()
        if request.method == "GET":
            return self._live()
        if request.method == "DELETE":
            return Answer(body={"kind": "Status"})
        if self.conflict and not forced:
            causes = [{"reason": "FieldManagerConflict", "field": ".spec.kind"}]
            return Answer(409, body={"kind": "Status", "reason": "Conflict", "details": {"causes": causes}})
        return Answer(body={**DESIRED, "metadata": {"name": "a", "uid": self.uid, "resourceVersion": "2"}})

    def _owners(self) -> Reply:
        items = [{"metadata": {"name": "the-owner", "uid": self.owner}}] if self.owner else []
        return Answer(body={"metadata": {"resourceVersion": "5"}, "items": items})

    def _live(self) -> Reply:
        if self.gone:
            return Answer(404, body={"kind": "Status", "reason": "NotFound"})
        entries = [
            {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:kind": {}}}}
            for manager in sorted(self.managers)
        ]
        return Answer(body={"metadata": {"name": "a", "uid": self.uid, "managedFields": entries}})


def on(server: Server, act: Callable[[OwnedObjects[Thing]], Coroutine[Any, Any, Any]]) -> Any:
    client = Client(ScriptedTransport(server), ClientOptions(US, attempts=1))
    return run_virtual(act(OwnedObjects(client, Thing, owners=Owner, proof=("f:spec", "f:kind"))))


def test_an_object_is_made_by_one_apply_that_is_not_forced() -> None:
    server = Server(set())
    assert on(server, lambda owned: owned.ensure(DESIRED, None)).uid == "u1"
    assert server.calls == ["PATCH"]


def test_what_somebody_edited_in_an_object_of_ours_is_taken_back() -> None:
    server = Server({US}, conflict=True)
    on(server, lambda owned: owned.ensure(DESIRED, PRESENT))
    assert server.calls == ["PATCH", "GET", "FORCE"]


@pytest.mark.parametrize("managers", [{OTHER}, {US, OTHER}, set()])
def test_an_object_of_others_is_never_forced(managers: set[str]) -> None:
    server = Server(managers, conflict=True)
    with pytest.raises(FieldConflict):
        on(server, lambda owned: owned.ensure(DESIRED, PRESENT))
    assert "FORCE" not in server.calls


def test_an_object_that_was_not_seen_is_not_forced_either() -> None:
    server = Server({US}, conflict=True)
    with pytest.raises(FieldConflict):
        on(server, lambda owned: owned.ensure(DESIRED, None))
    assert server.calls == ["PATCH"]


def made_twice(server: Server, *, second_owner: str = "o1") -> Any:
    """Makes an object that is gone again when it is looked at next."""
    again: Json = {**DESIRED, "metadata": {"name": "a", "ownerReferences": [{**OWNER, "uid": second_owner}]}}

    async def make(owned: OwnedObjects[Thing]) -> Thing:
        await owned.ensure(DESIRED, None)
        return await owned.ensure(again, None)

    return on(server, make)


def test_what_somebody_deleted_is_made_again_while_its_owner_lives() -> None:
    server = Server(set())
    assert made_twice(server).uid == "u1"
    assert server.calls == ["PATCH", "GET", "PATCH"]


@pytest.mark.parametrize("owner", ["", "o2"])
def test_what_went_with_its_owner_is_not_made_again_however_late_that_is_heard_of(owner: str) -> None:
    server = Server(set())
    server.owner = owner
    with pytest.raises(ObjectGone, match="Owner the-owner is deleted"):
        made_twice(server)
    assert server.calls == ["PATCH", "GET"]


def test_a_namesake_of_the_owner_gets_its_own_without_a_look() -> None:
    server = Server(set())
    made_twice(server, second_owner="o2")
    assert server.calls == ["PATCH", "PATCH"]


def test_an_object_of_ours_is_withdrawn() -> None:
    server = Server({US})
    assert on(server, lambda owned: owned.withdraw(PRESENT)) is True
    assert server.calls == ["GET", "DELETE"]


@pytest.mark.parametrize(
    "server", [Server({OTHER}), Server({US, OTHER}), Server({US}, uid="another"), Server({US}, gone=True)]
)
def test_nothing_else_is_deleted(server: Server) -> None:
    assert on(server, lambda owned: owned.withdraw(PRESENT)) is False
    assert server.calls == ["GET"]


def test_bodies_carry_what_is_desired_and_nothing_else() -> None:
    bodies: list[Json] = []

    def answer(request: HttpRequest) -> Reply:
        bodies.append(msgspec.json.decode(request.body or b""))
        return Answer(body={**DESIRED, "metadata": {"name": "a", "uid": "u1", "resourceVersion": "2"}})

    client = Client(ScriptedTransport(answer), ClientOptions(US, attempts=1))
    run_virtual(OwnedObjects(client, Thing, owners=Owner, proof=("f:spec",)).ensure(DESIRED, None))
    assert bodies == [{"apiVersion": "example.com/v1", "kind": "Thing", **DESIRED}]
