"""Dynamic resource allocation in its three versions."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from controllers.api.dra import (
    DISCOVERY_INTERVAL,
    GROUP,
    VERSIONS,
    DraApi,
    ResourceClaim,
    ResourceSlice,
    best_version,
    dra_api,
    served_api,
    wait_for_dra,
)
from controllers.runtime import Client, ClientOptions, Manager
from controllers.runtime.errors import InternalError, TransportError
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, run_virtual

CLAIM = {
    "metadata": {"name": "c", "namespace": "a"},
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": "gpu/small", "driver": "d", "pool": "n", "device": "x", "adminAccess": None}],
                "config": [
                    {"source": "FromClaim", "requests": None, "opaque": {"driver": "d", "parameters": {"a": None}}},
                    {"source": "FromClass"},
                ],
            }
        }
    },
}


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_of_a_version_have_its_paths_and_its_version(version: str) -> None:
    api = dra_api(version)
    for kind in (api.claims, api.templates, api.slices):
        assert kind.resource.api_version == f"{GROUP}/{version}"
    assert api.claims.resource.path("a", "x") == f"/apis/{GROUP}/{version}/namespaces/a/resourceclaims/x"
    assert api.slices.resource.path() == f"/apis/{GROUP}/{version}/resourceslices"


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_of_a_version_decode_into_themselves_and_are_frozen(version: str) -> None:
    kind = dra_api(version).claims
    claim = kind.decode(msgspec.json.encode(CLAIM))
    assert isinstance(claim, ResourceClaim)
    assert type(claim) is kind
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    assert (result.main_request, result.pool) == ("gpu", "n")
    first, second = claim.status.allocation.devices.config
    assert (first.requests, second.opaque) == ((), None)
    with pytest.raises(AttributeError):
        claim.status = claim.status  # type: ignore[misc]


def test_an_unallocated_claim() -> None:
    for status in ({}, None, {"allocation": None}):
        claim = ResourceClaim.decode(msgspec.json.encode({"metadata": {"name": "c"}, "status": status}))
        assert claim.status.allocation is None


def test_a_request_in_each_version() -> None:
    exactly = {"deviceClassName": "cls", "allocationMode": "ExactCount", "count": 1}
    assert dra_api("v1").request("r", "cls") == {"name": "r", "exactly": exactly}
    assert dra_api("v1beta2").request("r", "cls") == {"name": "r", "exactly": exactly}
    assert dra_api("v1beta1").request("r", "cls") == {"name": "r", **exactly}


def test_a_device_in_each_version() -> None:
    attributes = {"id": {"int": 0}}
    assert dra_api("v1").device("d", attributes) == {"name": "d", "attributes": attributes}
    assert dra_api("v1beta2").device("d", attributes) == {"name": "d", "attributes": attributes}
    assert dra_api("v1beta1").device("d", attributes) == {"name": "d", "basic": {"attributes": attributes}}


def test_a_version_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match=r"resource\.k8s\.io/v1alpha3 is not one of v1, v1beta2, v1beta1"):
        dra_api("v1alpha3")


@pytest.mark.parametrize(
    ("served", "best"),
    [
        (["v1beta1"], "v1beta1"),
        (["v1beta1", "v1beta2"], "v1beta2"),
        (["v1beta1", "v1", "v1beta2", "v2"], "v1"),
        (["v1alpha3", "v2"], None),
        ([], None),
    ],
)
def test_the_best_version_that_is_served(served: list[str], best: str | None) -> None:
    assert best_version(served) == best


@pytest.mark.parametrize(
    ("spec", "driver", "generation"), [({}, "", 0), ({"driver": "d", "pool": {"generation": 4}}, "d", 4)]
)
def test_a_slice_tells_driver_and_generation(spec: dict[str, object], driver: str, generation: int) -> None:
    published = ResourceSlice.decode(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec}))
    assert (published.driver, published.pool_generation) == (driver, generation)


# -- discovery --------------------------------------------------------------------------------------------------------


def group(*versions: str) -> Answer:
    return Answer(body={"kind": "APIGroup", "versions": [{"version": version} for version in versions]})


def client(*replies: Reply) -> Client:
    return Client(ScriptedTransport(replies), ClientOptions("tests", attempts=1))


def version_of(api: DraApi | None) -> str | None:
    return api.version if api else None


@pytest.mark.parametrize(
    ("reply", "version"),
    [(group("v1", "v1beta1"), "v1"), (group("v1beta1"), "v1beta1"), (group("v1alpha3"), None), (Answer(404), None)],
)
def test_the_server_is_asked_for_its_versions(reply: Answer, version: str | None) -> None:
    assert version_of(run_virtual(served_api(client(reply)))) == version


@pytest.mark.parametrize(("reply", "error"), [(Answer(500), InternalError), (TransportError("x"), TransportError)])
def test_no_answer_is_not_taken_for_no_api(reply: Reply, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_virtual(served_api(client(reply)))


def waiting(*replies: Reply) -> tuple[str | None, float, list[str | None]]:
    """The version found, when, and what readiness said half-way to each further look."""
    said: list[str | None] = []

    async def scenario() -> tuple[str | None, float]:
        manager = Manager(client(*replies), ManagerOptions())
        loop = asyncio.get_running_loop()
        note: Callable[[], None] = lambda: said.append(manager.readiness.result("dra").reason)  # noqa: E731
        for number in range(len(replies)):
            loop.call_later((number + 0.5) * DISCOVERY_INTERVAL, note)
        found = (await wait_for_dra(manager)).version
        at = loop.time()
        await asyncio.sleep(DISCOVERY_INTERVAL)
        return found, at

    return *run_virtual(scenario), said


def test_waiting_ends_with_the_first_answer_that_has_a_version() -> None:
    assert waiting(group("v1")) == ("v1", 0.0, [None])


def test_waiting_goes_on_until_the_api_is_served_and_says_so() -> None:
    version, at, (first, second, last) = waiting(Answer(404), group("v1alpha3"), group("v1beta1"))
    assert (version, at, last) == ("v1beta1", 2 * DISCOVERY_INTERVAL, None)
    assert first == second
    assert "serves none of v1, v1beta2, v1beta1 of resource.k8s.io" in (first or "")


def test_waiting_survives_failures_and_says_why() -> None:
    version, at, said = waiting(TransportError("refused"), Answer(403, body=b"no right"), group("v1"))
    assert (version, at) == ("v1", 2 * DISCOVERY_INTERVAL)
    assert "refused" in (said[0] or "")
    assert "no right" in (said[1] or "")
    assert said[2] is None


@pytest.mark.parametrize("version", VERSIONS)
def test_slices_of_a_driver_are_a_kind_of_their_own(version: str) -> None:
    api = dra_api(version)
    one, other = api.slices_of("a.example.com"), api.slices_of("b.example.com")
    assert one is api.slices_of("a.example.com")
    assert len({one, other, api.slices}) == 3
    assert one.resource == other.resource == api.slices.resource
    body = {"metadata": {"name": "n"}, "spec": {"driver": "a.example.com", "nodeName": "n1"}}
    assert one.decode(msgspec.json.encode(body)).node_name == "n1"
