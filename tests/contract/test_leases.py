"""What leader election relies on: one winner of each race, and nothing but good leases."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.api_server import ApiServer, Reply

NOW = "2030-01-01T10:00:00.000000Z"
LATER = "2030-01-01T10:00:02.500000Z"
MERGE = "application/merge-patch+json"
RIVALS = 8


def leases(namespace: str, name: str = "") -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return f"{path}/{name}" if name else path


def spec(holder: str = "a", **changes: Any) -> dict[str, Any]:
    held = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0}
    return {**held, "acquireTime": NOW, "renewTime": NOW, **changes}


def acquire(server: ApiServer, namespace: str) -> dict[str, Any]:
    made: dict[str, Any] = server.create(leases(namespace), {"metadata": {"name": "l"}, "spec": spec()})
    return made


def put(server: ApiServer, namespace: str, lease: dict[str, Any], **changes: Any) -> Reply:
    return server.send("PUT", leases(namespace, "l"), {**lease, "spec": {**lease["spec"], **changes}})


def test_lease_is_kept_as_it_was_written(server: ApiServer, namespace: str) -> None:
    assert acquire(server, namespace)["spec"] == spec()


def test_renewal_with_the_remembered_lease_needs_no_read(server: ApiServer, namespace: str) -> None:
    lease = acquire(server, namespace)
    for second in range(3):
        renewed = put(server, namespace, lease, renewTime=f"2030-01-01T10:00:0{second}.000001Z")
        assert renewed.code == 200
        lease = renewed.body


def test_renewal_of_what_somebody_else_took_is_a_conflict(server: ApiServer, namespace: str) -> None:
    mine = acquire(server, namespace)
    assert put(server, namespace, mine, holderIdentity="b", leaseTransitions=1).code == 200
    lost = put(server, namespace, mine, renewTime=LATER)
    assert (lost.code, lost.reason) == (409, "Conflict")
    stale = {"metadata": {"resourceVersion": mine["metadata"]["resourceVersion"]}, "spec": {"renewTime": LATER}}
    patched = server.send("PATCH", leases(namespace, "l"), stale, content_type=MERGE)
    assert (patched.code, patched.reason) == (409, "Conflict")
    assert server.get(leases(namespace, "l")).body["spec"]["holderIdentity"] == "b"


@pytest.mark.parametrize("version", ["", "0"])
def test_lease_is_never_overwritten_blindly(server: ApiServer, namespace: str, version: str) -> None:
    acquire(server, namespace)
    body = {"metadata": {"name": "l", **({"resourceVersion": version} if version else {})}, "spec": spec("b")}
    reply = server.send("PUT", leases(namespace, "l"), body)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "must be specified for an update" in reply.message


def race(server: ApiServer, attempt: Callable[[str], Reply]) -> list[int]:
    """The sorted codes of attempts that many make at the same time, each under a name of its own."""

    def run(number: int) -> int:
        try:
            return attempt(f"rival-{number}").code
        finally:
            server.close()  # each thread has a connection of its own

    with ThreadPoolExecutor(RIVALS) as rivals:
        return sorted(rivals.map(run, range(RIVALS)))


def test_one_of_many_creates_the_lease(server: ApiServer, namespace: str) -> None:
    def create(rival: str) -> Reply:
        return server.send("POST", leases(namespace), {"metadata": {"name": "l"}, "spec": spec(rival)})

    assert race(server, create) == [201, *[409] * (RIVALS - 1)]


def test_one_of_many_takes_over(server: ApiServer, namespace: str) -> None:
    lease = acquire(server, namespace)

    def take(rival: str) -> Reply:
        return put(server, namespace, lease, holderIdentity=rival, leaseTransitions=1)

    assert race(server, take) == [200, *[409] * (RIVALS - 1)]


def test_release_leaves_the_lease_without_a_holder(server: ApiServer, namespace: str) -> None:
    released = put(server, namespace, acquire(server, namespace), holderIdentity="", leaseDurationSeconds=1)
    assert (released.code, released.body["spec"]["holderIdentity"]) == (200, "")


def test_renewal_of_a_deleted_lease_is_a_conflict(server: ApiServer, namespace: str) -> None:
    lease = acquire(server, namespace)
    server.send("DELETE", leases(namespace, "l"))
    reply = put(server, namespace, lease, renewTime=LATER)
    assert (reply.code, reply.reason) == (409, "Conflict")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"leaseDurationSeconds": 0}, "spec.leaseDurationSeconds"),
        ({"leaseDurationSeconds": -1}, "spec.leaseDurationSeconds"),
        ({"leaseTransitions": -1}, "spec.leaseTransitions"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    server: ApiServer, namespace: str, change: dict[str, Any], field: str
) -> None:
    body = {"metadata": {"name": "other"}, "spec": spec(**change)}
    created = server.send("POST", leases(namespace), body)
    patched = server.send(
        "PATCH", leases(namespace, acquire(server, namespace)["metadata"]["name"]), {"spec": change}, content_type=MERGE
    )
    for reply in (created, patched):
        assert (reply.code, reply.reason) == (422, "Invalid")
        assert [cause["field"] for cause in reply.body["details"]["causes"]] == [field]


@pytest.mark.parametrize(
    "time",
    [
        *("2030-01-01T10:00:00Z", "2030-01-01T10:00:00.5Z", "2030-01-01T10:00:00.123456789Z"),
        *("2030-01-01t10:00:00.000000z", "yesterday", "", 5),
    ],
)
def test_times_have_six_digits_of_a_second(server: ApiServer, namespace: str, time: Any) -> None:
    body = {"metadata": {"name": "other"}, "spec": spec(renewTime=time)}
    assert server.send("POST", leases(namespace), body).code == 400
    acquire(server, namespace)
    patched = server.send("PATCH", leases(namespace, "l"), {"spec": {"renewTime": time}}, content_type=MERGE)
    assert (patched.code, patched.reason) == (422, "Invalid")
