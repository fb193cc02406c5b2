"""Faults as a client meets them on its connection, and the requests that ask for them."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from controllers.sandbox import Fault, Sandbox, SandboxOptions
from tests.contract.api_server import ApiServer, Reply
from tests.contract.conftest import connect

MAPS = "/api/v1/namespaces/default/configmaps"
PATIENCE = 10.0  # seconds
TWO_BYTES = "ä"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxOptions(admin=True)) as running:
        # What every namespace has comes a moment later; tests begin with what stays.
        running.call(lambda cluster: cluster.collector.settle())
        yield running


class Dial(Protocol):
    """A client with the administrator's kubeconfig as it is now, or with another one."""

    def __call__(self, kubeconfig: Path | None = None) -> ApiServer: ...


@pytest.fixture
def dial(sandbox: Sandbox) -> Iterator[Dial]:
    opened: list[ApiServer] = []

    def connected(kubeconfig: Path | None = None) -> ApiServer:
        opened.append(connect("sandbox", kubeconfig or sandbox.kubeconfig))
        return opened[-1]

    yield connected
    for each in opened:
        each.close()


@pytest.fixture
def api(dial: Dial) -> ApiServer:
    return dial()


def config_map(name: str, value: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"value": value}}


class Watch:
    """A watch from now on, whose bytes are read as they come."""

    def __init__(self, api: ApiServer) -> None:
        version = api.get(MAPS).body["metadata"]["resourceVersion"]
        self._connection = api.begin("GET", MAPS, watch="1", resourceVersion=version)
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()

    def line(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self._response.readline())
        return event

    def told(self) -> tuple[str, str]:
        event = self.line()
        return event["type"], event["object"]["metadata"]["name"]

    def rest(self) -> bytes:
        """All until the end; raises http.client.IncompleteRead where the end is none."""
        return self._response.read()

    def is_silent(self, seconds: float) -> bool:
        assert self._connection.sock is not None
        self._connection.sock.settimeout(seconds)
        try:
            self._response.read1(1)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def watch(api: ApiServer) -> Iterator[Watch]:
    watching = Watch(api)
    yield watching
    watching.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ],
)
def test_refusal_comes_as_often_as_asked_with_its_reason(
    sandbox: Sandbox, api: ApiServer, code: int, reason: str
) -> None:
    sandbox.add_faults(Fault(do="refuse", code=code, times=2))
    replies = [api.get(MAPS) for _ in range(3)]
    assert [reply.code for reply in replies] == [code, code, 200]
    assert {reply.reason for reply in replies[:2]} == {reason}


def test_too_many_requests_say_when_to_come_again(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="refuse", code=429, retry_after=7))
    reply = api.get(MAPS)
    assert (reply.headers["Retry-After"], reply.body["details"]["retryAfterSeconds"]) == ("7", 7)


def test_watch_may_be_refused_with_the_http_status_410(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="refuse", verbs=("watch",), code=410))
    assert api.get(f"{MAPS}?watch=1").code == 410


def test_conflict_storm_leaves_the_object_alone(sandbox: Sandbox, api: ApiServer) -> None:
    made = api.create(MAPS, config_map("a", "1"))
    sandbox.add_faults(Fault(do="refuse", verbs=("update",), code=409, times=0))
    for _ in range(5):
        reply = api.send("PUT", f"{MAPS}/a", config_map("a", "2"))
        assert (reply.code, reply.body["details"]) == (409, {"name": "a", "kind": "configmaps"})
    assert api.get(f"{MAPS}/a").body == made


def test_answer_is_delayed_and_given(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="delay", seconds=0.3))
    before = time.monotonic()
    assert api.get(MAPS).code == 200
    assert time.monotonic() - before >= 0.3


@pytest.mark.parametrize(("deed", "done"), [("cut", False), ("lose", True)])
def test_reset_comes_before_or_after_the_deed(sandbox: Sandbox, api: ApiServer, deed: str, done: bool) -> None:
    sandbox.add_faults(Fault(do=deed))
    # Where the reset meets a client that is just writing, TLS tells it as an end against the protocol.
    with pytest.raises((ConnectionError, ssl.SSLEOFError)):
        api.send("POST", MAPS, config_map("a"))
    assert (api.get(f"{MAPS}/a").code == 200) is done


def test_stalled_request_gets_neither_an_answer_nor_an_end(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="stall"))
    connection = api.begin("GET", MAPS)
    connection.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert sandbox.struck == 1


def test_end_of_all_faults_ends_what_is_stalled(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="stall"))
    with ThreadPoolExecutor(1) as pool:
        stalled: Future[Reply] = pool.submit(api.get, MAPS)
        wait_until(lambda: sandbox.struck == 1)
        sandbox.clear_faults()
        assert isinstance(stalled.exception(PATIENCE), ConnectionError | ssl.SSLEOFError)


def test_answer_is_cut_within_a_character(sandbox: Sandbox, api: ApiServer) -> None:
    api.create(MAPS, config_map("a", f"12{TWO_BYTES}34"))
    sandbox.add_faults(Fault(do="truncate"))
    with pytest.raises(http.client.IncompleteRead) as cut:
        api.get(f"{MAPS}/a")
    assert cut.value.partial.endswith(b'"12\xc3')


@pytest.mark.parametrize("value", ["ascii", f"12{TWO_BYTES}34"])
def test_watch_is_cut_within_a_line(sandbox: Sandbox, api: ApiServer, watch: Watch, value: str) -> None:
    sandbox.add_faults(Fault(do="truncate", verbs=("watch",)))
    api.create(MAPS, config_map("a", value))
    with pytest.raises(http.client.IncompleteRead) as cut:
        watch.rest()
    partial = cut.value.partial
    assert partial.startswith(b'{"type":"ADDED"')
    assert b"\n" not in partial
    assert partial.endswith(b"\xc3") is (value != "ascii")


def test_open_watch_ends_with_the_event_that_its_version_is_forgotten(sandbox: Sandbox, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="expire"))
    event = json.loads(watch.rest())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_open_watch_is_reset(sandbox: Sandbox, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="cut", verbs=("watch",)))
    with pytest.raises((ConnectionError, ssl.SSLEOFError, http.client.IncompleteRead)):
        watch.rest()


def test_open_watch_is_silent_for_ever(sandbox: Sandbox, api: ApiServer, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="stall", verbs=("watch",)))
    wait_until(lambda: sandbox.struck == 1)
    api.create(MAPS, config_map("a"))
    assert watch.is_silent(0.5)


def test_watch_sees_writes_later_than_their_writers(sandbox: Sandbox, api: ApiServer, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="lag", seconds=0.4))
    before = time.monotonic()
    api.create(MAPS, config_map("a"))
    assert api.get(f"{MAPS}/a").code == 200
    assert watch.told() == ("ADDED", "a")
    assert time.monotonic() - before >= 0.4


def test_watch_tells_changes_twice(sandbox: Sandbox, api: ApiServer, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="duplicate"))
    api.create(MAPS, config_map("a"))
    assert [watch.told(), watch.told()] == [("ADDED", "a")] * 2


def test_watch_tells_changes_backwards(sandbox: Sandbox, api: ApiServer, watch: Watch) -> None:
    sandbox.add_faults(Fault(do="reorder"))
    for name in "abc":
        api.create(MAPS, config_map(name))
    assert [watch.told() for _ in range(3)] in ([("ADDED", n) for n in "bac"], [("ADDED", n) for n in "cba"])


@pytest.mark.parametrize(
    ("fault", "path", "strikes"),
    [
        (Fault(do="refuse", verbs=("get", "list")), MAPS, True),
        (Fault(do="refuse", verbs=("watch",)), MAPS, False),
        (Fault(do="refuse", resource="configmaps"), MAPS, True),
        (Fault(do="refuse", resource="secrets"), MAPS, False),
        (Fault(do="refuse", namespace="default"), MAPS, True),
        (Fault(do="refuse", namespace="kube-system"), MAPS, False),
        (Fault(do="refuse", namespace="default"), "/api/v1/configmaps", False),
        (Fault(do="refuse", name="a"), f"{MAPS}/a", True),
        (Fault(do="refuse", name="a"), f"{MAPS}/b", False),
        (Fault(do="refuse", agent="contract/"), MAPS, True),
        (Fault(do="refuse", agent="kubectl"), MAPS, False),
    ],
)
def test_fault_strikes_what_it_concerns(
    sandbox: Sandbox, api: ApiServer, fault: Fault, path: str, strikes: bool
) -> None:
    sandbox.add_faults(fault)
    assert (api.get(path).code == 500) is strikes


def test_faults_strike_in_the_order_in_which_they_came(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="refuse", code=503), Fault(do="refuse", code=500))
    assert [api.get(MAPS).code for _ in range(3)] == [503, 500, 200]


def test_discovery_and_health_are_never_struck(sandbox: Sandbox, api: ApiServer) -> None:
    sandbox.add_faults(Fault(do="refuse", times=0))
    assert [api.get(path).code for path in ("/livez", "/version", "/api/v1", "/apis")] == [200] * 4
    assert sandbox.struck == 0


def test_revoked_tokens_are_worthless_and_replaced_in_the_kubeconfigs(
    sandbox: Sandbox, tmp_path: Path, dial: Dial
) -> None:
    account = sandbox.kubeconfig_for("default", "default", tmp_path / "account")
    old = [dial(path) for path in (sandbox.kubeconfig, account)]
    assert [each.get("/version").code for each in old] == [200, 200]
    sandbox.revoke_tokens()
    assert [each.get("/version").code for each in old] == [401, 401]
    new = [dial(path) for path in (sandbox.kubeconfig, account)]
    assert [each.get("/version").code for each in new] == [200, 200]


def test_restart_resets_connections_and_forgets_the_past(
    sandbox: Sandbox, api: ApiServer, watch: Watch, dial: Dial
) -> None:
    old = int(api.create(MAPS, config_map("a"))["metadata"]["resourceVersion"])
    made = api.create(MAPS, config_map("b"))
    sandbox.restart()
    with pytest.raises((ConnectionError, ssl.SSLEOFError, http.client.IncompleteRead)):
        watch.rest()
    api = dial()
    assert api.get(f"{MAPS}/b").body == made
    (event,) = api.watch(MAPS, resourceVersion=str(old), timeoutSeconds="1")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_nobody_answers_while_the_server_is_down(sandbox: Sandbox, dial: Dial) -> None:
    restarting = threading.Thread(target=sandbox.restart, kwargs={"down": 0.5})
    restarting.start()
    refused = 0
    while restarting.is_alive():
        api = dial()
        try:
            api.get("/version")
        except OSError:
            refused += 1
    assert refused > 0
    assert dial().get("/version").code == 200


def test_restored_checkpoint_gives_versions_out_again(sandbox: Sandbox, api: ApiServer, dial: Dial) -> None:
    kept = api.create(MAPS, config_map("kept", "1"))
    sandbox.checkpoint()
    lost = api.create(MAPS, config_map("lost"))
    api.send("PUT", f"{MAPS}/kept", config_map("kept", "2"))
    api.send("DELETE", f"{MAPS}/kept")
    sandbox.restart(restore=True)
    api = dial()
    assert api.get(f"{MAPS}/kept").body == kept
    assert api.get(f"{MAPS}/lost").code == 404
    again = api.create(MAPS, config_map("again"))
    assert again["metadata"]["resourceVersion"] == lost["metadata"]["resourceVersion"]
    ahead = str(int(again["metadata"]["resourceVersion"]) + 1)
    assert api.get(MAPS, resourceVersion=ahead).code == 504


def test_restored_checkpoint_serves_the_definitions_and_owners_of_its_time(
    sandbox: Sandbox, api: ApiServer, dial: Dial
) -> None:
    owner = api.create(MAPS, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    api.create(MAPS, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    kept, late = (definition(plural) for plural in ("kepts", "lates"))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(path, kept)
    sandbox.checkpoint()
    api.create(path, late)
    api.send("DELETE", f"{MAPS}/owner")
    api.send("DELETE", f"{path}/kepts.test.example.com")
    sandbox.call(lambda cluster: cluster.collector.settle())
    sandbox.restart(restore=True)
    sandbox.call(lambda cluster: cluster.collector.settle())
    api = dial()
    group = "/apis/test.example.com/v1"
    assert [api.get(f"{group}/{plural}").code for plural in ("kepts", "lates")] == [200, 404]
    assert api.get(f"{MAPS}/owned").code == 200
    api.send("DELETE", f"{MAPS}/owner")
    sandbox.call(lambda cluster: cluster.collector.settle())
    assert api.get(f"{MAPS}/owned").code == 404


def definition(plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "metadata": {"name": f"{plural}.test.example.com"},
        "spec": {
            "group": "test.example.com",
            "scope": "Cluster",
            "names": {"plural": plural, "kind": plural.title()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_faults_are_added_listed_and_removed_over_http(api: ApiServer) -> None:
    first = {"do": "refuse", "verbs": ["get"], "resource": "configmaps", "code": 503, "times": 2}
    added = api.send("POST", "/sandbox/faults", [first, {"do": "cut", "name": "b"}])
    assert (added.code, [each["id"] for each in added.body["faults"]]) == (200, [1, 2])
    assert api.get(f"{MAPS}/a").code == 503
    assert api.get("/sandbox/faults").body == {
        "faults": [
            {**first, "id": 1, "struck": 1, "times": 1},
            {"do": "cut", "name": "b", "id": 2, "struck": 0, "times": 1},
        ],
        "struck": 1,
    }
    assert [each["id"] for each in api.send("DELETE", "/sandbox/faults/1").body["faults"]] == [2]
    assert api.send("DELETE", "/sandbox/faults/1").code == 404
    assert api.get(f"{MAPS}/a").code == 404
    assert api.send("DELETE", "/sandbox/faults").body["faults"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"do": "nonsense"}, "do must be one of refuse, delay"),
        ({}, "missing required field `do`"),
        ({"do": "cut", "times": -1}, "times must be at least 0"),
        ({"do": "cut", "times": "many"}, "times"),
        ({"do": "refuse", "code": 200}, "code must be one of 401"),
        ({"do": "delay"}, "seconds must be more than 0"),
        ({"do": "cut", "verbs": ["gets"]}, "verbs must be of get, list"),
        ({"do": "cut", "tmies": 3}, "unknown field `tmies`"),
        ([], "the list of faults is empty"),
        ([[]], "the fields are do, verbs"),
        ("cut", "the fields are do, verbs"),
        (None, "the fields are do, verbs"),
    ],
)
def test_faults_without_sense_are_refused_with_what_they_could_be(api: ApiServer, body: Any, said: str) -> None:
    reply = api.send("POST", "/sandbox/faults", body)
    assert (reply.code, reply.reason) == (400, "BadRequest")
    assert said in reply.message
    assert api.get("/sandbox/faults").body["faults"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "compact", None, 200),
        ("POST", "checkpoint", None, 200),
        ("POST", "restart", None, 200),
        ("POST", "restart", {"down": -1}, 400),
        ("POST", "restart", {"restore": "yes"}, 400),
        ("GET", "compact", None, 405),
        ("GET", "restart", None, 405),
        ("PUT", "faults", {"do": "cut"}, 405),
        ("POST", "unknown", None, 404),
        ("DELETE", "faults/x", None, 404),
        ("GET", "", None, 404),
    ],
)
def test_administration_does_what_its_paths_say(api: ApiServer, method: str, path: str, body: Any, code: int) -> None:
    assert api.send(method, f"/sandbox/{path}", body).code == code


def test_compaction_over_http_makes_old_versions_expire(api: ApiServer) -> None:
    old = api.create(MAPS, config_map("a"))["metadata"]["resourceVersion"]
    api.create(MAPS, config_map("b"))
    assert api.send("POST", "/sandbox/compact").code == 200
    (event,) = api.watch(MAPS, resourceVersion=old, timeoutSeconds="1")
    assert event["object"]["code"] == 410


def test_restart_over_http_answers_before_it_happens(sandbox: Sandbox, api: ApiServer, dial: Dial) -> None:
    assert api.create(MAPS, config_map("lost"))
    assert api.send("POST", "/sandbox/restart", {"restore": True}).body == {"done": "restart"}
    wait_until(lambda: is_gone(dial, f"{MAPS}/lost"))


def test_revocation_over_http_costs_the_caller_its_token_too(sandbox: Sandbox, api: ApiServer, dial: Dial) -> None:
    assert api.send("POST", "/sandbox/revoke-tokens").code == 200
    assert api.get("/version").code == 401
    assert dial().get("/version").code == 200


def test_administration_is_for_the_administrator(sandbox: Sandbox, tmp_path: Path, dial: Dial) -> None:
    account = dial(sandbox.kubeconfig_for("default", "default", tmp_path / "account"))
    assert account.get("/sandbox/faults").code == 403
    assert account.send("POST", "/sandbox/faults", {"do": "cut"}).code == 403


def test_administration_is_not_served_unless_asked_for() -> None:
    with Sandbox() as plain:
        api = connect("sandbox", plain.kubeconfig)
        assert api.get("/sandbox/faults").code == 404
        assert api.send("POST", "/sandbox/faults", {"do": "cut"}).code == 404
        api.close()


def test_a_delay_without_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds must be at most 3600"):
        Fault(do="delay", seconds=1e99)


def test_end_of_all_faults_ends_delays(sandbox: Sandbox) -> None:
    sandbox.add_faults(Fault(do="delay", seconds=3000))
    answer: list[int] = []

    def ask() -> None:
        client = connect("sandbox", sandbox.kubeconfig)
        answer.append(client.get(MAPS).code)
        client.close()

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(lambda: sandbox.struck == 1)
    sandbox.clear_faults()
    waiting.join(10)
    assert answer == [200]


def test_sandbox_stops_at_once_although_it_stalls_somebody() -> None:
    with Sandbox() as stopping:
        api = connect("sandbox", stopping.kubeconfig)
        stopping.add_faults(Fault(do="stall"))
        connection = api.begin("GET", MAPS)
        wait_until(lambda: stopping.struck == 1)
        before = time.monotonic()
    connection.close()
    assert time.monotonic() - before < 3.0


def test_sandbox_stops_at_once_although_somebody_watches() -> None:
    with Sandbox() as stopping:
        api = connect("sandbox", stopping.kubeconfig)
        connection = api.begin("GET", MAPS, watch="1")
        response = connection.getresponse()
        before = time.monotonic()
    assert time.monotonic() - before < 2.0
    assert b"kube-root-ca.crt" in response.read(), "the watch ends in order"
    connection.close()


def test_sandbox_stops_although_a_client_keeps_its_connection() -> None:
    with Sandbox() as stopping:
        api = connect("sandbox", stopping.kubeconfig)
        assert api.get("/version").code == 200
        before = time.monotonic()
    assert time.monotonic() - before < 3.0
    api.close()


def test_fault_cannot_be_made_without_sense_in_python_either() -> None:
    with pytest.raises(ValueError, match="code must be one of"):
        Fault(do="refuse", code=404)
    with pytest.raises(msgspec.ValidationError, match="do must be one of"):
        msgspec.convert({"do": "explode"}, Fault)


def is_gone(dial: Dial, path: str) -> bool:
    try:
        return dial().get(path).code == 404
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
