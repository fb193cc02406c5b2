"""What can go wrong around controllers, each as a context in which it goes wrong."""

import http.client
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

from controllers.all_in_one.__main__ import BINARY
from hack.localcluster import SANDBOX, ControlPlane
from hack.localcluster.components import Component
from hack.localcluster.controllers import NAMESPACE
from hack.localcluster.polling import wait_until
from tests.chaos.arena import FLOW, LEASE_DURATION, NO_SHARE, OCCUPANT, UNLIMITED, Arena
from tests.chaos.world import MERGE, path
from tests.contract.api_server import ApiServer
from tests.contract.conftest import connect
from tests.integration.test_estate import ACCOUNT

RIVALRY = ("nodes", "resourceslices", "configmaps", "computedomains", "computedomaincliques", "resourceclaimtemplates")
RIVAL_PAUSE = 0.002  # seconds between two writes of a rival
JUMPS = (-10 * 365 * 86400.0, -3600.0, -30.0, 30.0, 3600.0, 10 * 365 * 86400.0)  # seconds

OCCUPATION = 10.0  # seconds that it takes at most
ANSWER_TIME = 0.1  # seconds in which the server answers a request that it refuses
SCHEMA_HEADER = "X-Kubernetes-Pf-Flowschema-Uid"

Struck = Iterator[None]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, in words and in deed."""

    words: str
    strike: Callable[[Arena], AbstractContextManager[None]]
    deafens: bool = False
    """Whether the server cannot be told anything meanwhile."""


# -- the server -------------------------------------------------------------------------------------------------------


@contextmanager
def server_killed(arena: Arena) -> Struck:
    arena.server.kill()
    try:
        yield
    finally:
        arena.server.start()


@contextmanager
def component_killed(arena: Arena, component: Component) -> Struck:
    assert isinstance(arena.environment, ControlPlane)
    arena.environment.kill_component(component)
    try:
        yield
    finally:
        arena.environment.start_component(component)


@contextmanager
def compacted(arena: Arena) -> Struck:
    yield
    arena.server.forget()


@contextmanager
def forgotten(arena: Arena) -> Struck:
    """What happens while nothing reaches the controllers is forgotten before they can ask for it: they get 410."""
    for replica in arena.replicas:
        replica.proxy.freeze()
    try:
        yield
        arena.server.forget()
        if isinstance(arena.environment, ControlPlane):
            # etcd has forgotten; what the API server remembers by itself ends with it.
            arena.server.kill()
            arena.server.start()
    finally:
        for replica in arena.replicas:
            replica.proxy.cut()
            replica.proxy.thaw()


# -- connections ------------------------------------------------------------------------------------------------------


@contextmanager
def cut(arena: Arena, times: int, pause: float) -> Struck:
    for _ in range(times):
        for replica in arena.replicas:
            replica.proxy.cut()
        time.sleep(pause)
    yield
    for replica in arena.replicas:
        replica.proxy.cut()


@contextmanager
def frozen(arena: Arena, further: float = 0.0) -> Struck:
    proxy = arena.leader().proxy
    proxy.freeze()
    try:
        yield
        time.sleep(further)
    finally:
        if arena.leader_elect:
            # No client can take back what is on its way; a network that delivers it after the lease would be blamed
            # on the controllers.
            proxy.cut()
        proxy.thaw()


@contextmanager
def half_open(arena: Arena) -> Struck:
    arena.leader().proxy.abandon()
    yield


@contextmanager
def refused(arena: Arena) -> Struck:
    proxy = arena.leader().proxy
    proxy.refuse()
    try:
        yield
    finally:
        proxy.admit()


# -- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def killed(arena: Arena, times: int, pause: float) -> Struck:
    for _ in range(times):
        arena.signal(arena.leader(), signal.SIGKILL)
        time.sleep(pause)
    yield
    arena.signal(arena.leader(), signal.SIGKILL)


@contextmanager
def paused(arena: Arena, further: float) -> Struck:
    victim = arena.leader()
    arena.signal(victim, signal.SIGSTOP)
    try:
        yield
        time.sleep(further)
    finally:
        arena.signal(victim, signal.SIGCONT)


@contextmanager
def clock_jumped(arena: Arena, seconds: float) -> Struck:
    victim = arena.leader()
    victim.set_clock(seconds)
    try:
        yield
    finally:
        victim.set_clock(0.0)


# -- other writers ----------------------------------------------------------------------------------------------------


@contextmanager
def rivalled(arena: Arena) -> Struck:
    """Somebody writes to all the objects that controllers write to, again and again."""
    ending = threading.Event()
    rival = threading.Thread(target=_rival, args=(arena, ending), name="rival", daemon=True)
    rival.start()
    try:
        yield
    finally:
        ending.set()
        rival.join()


def _rival(arena: Arena, ending: threading.Event) -> None:
    api = connect("rival", arena.environment.admin_kubeconfig)
    round_number = 0
    while not ending.is_set():
        round_number += 1
        patch = {"metadata": {"annotations": {"chaos.example.com/touched": str(round_number)}}}
        try:
            for where in [each for resource in RIVALRY for each in _everything(api, resource)]:
                api.send("PATCH", where, patch, content_type=MERGE)
                if ending.wait(RIVAL_PAUSE):
                    break
        except (OSError, http.client.HTTPException):
            ending.wait(0.1)  # the server is down, too
    api.close()


def _everything(api: ApiServer, resource: str) -> list[str]:
    reply = api.get(path(resource))
    if reply.code != 200:
        return []
    names = (each["metadata"]["name"] for each in reply.body["items"])
    return [path(resource, name) for name in names if (resource, name) != ("configmaps", "topology")]


# -- answers ----------------------------------------------------------------------------------------------------------


@contextmanager
def asked_of_sandbox(arena: Arena, *faults: Mapping[str, Any]) -> Struck:
    """Faults of the sandbox that strike our controllers only."""
    admin = arena.world.admin
    mine = [{"agent": BINARY, **fault} for fault in faults]
    assert admin.send("POST", "/sandbox/faults", mine).code == 200
    try:
        yield
    finally:
        assert admin.send("DELETE", "/sandbox/faults").code == 200


@contextmanager
def out_of_share(arena: Arena) -> Struck:
    """The API server's own fairness has nothing left for our account: 429 to everything."""
    admin = arena.world.admin
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": ACCOUNT, "namespace": NAMESPACE}}
    all_objects = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    rule = {"subjects": [account], "resourceRules": [all_objects]}
    spec = {"priorityLevelConfiguration": {"name": NO_SHARE}, "matchingPrecedence": 2, "rules": [rule]}
    manifest = {"apiVersion": FLOW.removeprefix("/apis/"), "kind": "FlowSchema", "metadata": {"name": NO_SHARE}}
    schema = admin.apply(f"{FLOW}/flowschemas/{NO_SHARE}", {**manifest, "spec": spec})
    try:
        with _occupied(arena, schema["metadata"]["uid"]):
            for replica in arena.replicas:
                # Watches that are open have their share already.
                replica.proxy.cut()
            yield
    finally:
        admin.delete(f"{FLOW}/flowschemas/{NO_SHARE}")


@contextmanager
def _occupied(arena: Arena, schema: str) -> Iterator[None]:
    """Holds the one seat that even a level without a share gives."""
    api = connect("occupant", arena.replicas[0].direct)
    nodes = path("nodes")
    wait_until(lambda: api.get(nodes).headers.get(SCHEMA_HEADER) == schema, OCCUPATION, "the effect of a FlowSchema")
    occupant = _endless_request(api)

    def is_seated() -> bool:
        nonlocal occupant
        if _is_answered(occupant):
            # Somebody else had the seat when it came.
            occupant.close()
            occupant = _endless_request(api)
        return api.get(nodes).code == 429 and not _is_answered(occupant)

    try:
        wait_until(is_seated, OCCUPATION, "the refusal of a request that has no seat")
        yield
    finally:
        occupant.close()
        api.close()


def _endless_request(api: ApiServer) -> http.client.HTTPSConnection:
    """A request whose body does not come."""
    address = urlsplit(api.url)
    assert address.hostname is not None
    connection = http.client.HTTPSConnection(address.hostname, address.port, context=api.tls)
    connection.putrequest("POST", path("configmaps"))
    headers = {"Authorization": api.authorization, "Content-Type": "application/json", "Content-Length": "100"}
    for name, value in {**headers, "User-Agent": OCCUPANT}.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def _is_answered(connection: http.client.HTTPSConnection) -> bool:
    connection.sock.settimeout(ANSWER_TIME)
    try:
        connection.sock.recv(1)
    except TimeoutError:
        return False
    except OSError:
        pass  # the server has reset it
    return True


# -- the menu ---------------------------------------------------------------------------------------------------------

WRITES = ("create", "update", "patch", "delete")
STORMS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "too many requests": ({"do": "refuse", "code": 429, "retry_after": 1, "times": UNLIMITED},),
    "server errors": ({"do": "refuse", "code": 500, "times": UNLIMITED},),
    "unavailability": ({"do": "refuse", "code": 503, "times": UNLIMITED},),
    "gateway timeouts": ({"do": "refuse", "code": 504, "times": UNLIMITED},),
    "conflicts": ({"do": "refuse", "code": 409, "verbs": WRITES, "times": UNLIMITED},),
    "errors after the cut": ({"do": "cut", "verbs": ["watch"], "times": 5}, {"do": "refuse", "code": 500, "times": 30}),
    "lost answers": ({"do": "lose", "verbs": WRITES, "times": 10},),
    "truncated answers": ({"do": "truncate", "times": 10},),
    "resets": ({"do": "cut", "times": 20},),
    "slow answers": ({"do": "delay", "seconds": 0.3, "times": UNLIMITED},),
    "late events": ({"do": "lag", "seconds": 0.3, "times": UNLIMITED},),
    "events twice": ({"do": "duplicate", "times": 20},),
    "forgotten versions": ({"do": "expire", "times": 10},),
    "stalled requests": ({"do": "stall", "times": 3},),
}

Maker = Callable[[Random], Fault]


def menu(environment: str) -> Mapping[str, Maker]:
    """All faults that can be drawn there, by name. The numbers of each are drawn, too."""
    return {**EVERYWHERE, **(ON_SANDBOX if environment == SANDBOX else ON_CONTROL_PLANE)}


def _several(name: str, deed: Callable[..., AbstractContextManager[None]]) -> Maker:
    def make(chance: Random) -> Fault:
        times, pause = chance.randint(0, 2), round(chance.uniform(0.0, 1.0), 2)
        return Fault(f"{name} {times + 1} times", partial(deed, times=times, pause=pause))

    return make


def _jump(chance: Random) -> Fault:
    seconds = chance.choice(JUMPS)
    return Fault(f"clock jump of {seconds:+g} s", partial(clock_jumped, seconds=seconds))


def _pause(further: float) -> Maker:
    words = f"controller paused{f' for {further:g} s more' if further else ''}"
    return lambda _: Fault(words, partial(paused, further=further))


def _storm(name: str) -> Maker:
    return lambda _: Fault(name, lambda arena: asked_of_sandbox(arena, *STORMS[name]))


def _simple(words: str, strike: Callable[[Arena], AbstractContextManager[None]], *, deafens: bool = False) -> Maker:
    return lambda _: Fault(words, strike, deafens)


EVERYWHERE: Mapping[str, Maker] = {
    "kill-server": _simple("server killed", server_killed, deafens=True),
    "compact": _simple("compaction", compacted),
    "forget": _simple("versions forgotten behind a frozen network", forgotten),
    "cut": _several("connections cut", cut),
    "freeze": _simple("network frozen", frozen),
    "half-open": _simple("half-open connections", half_open),
    "refuse": _simple("connections refused", refused),
    "kill": _several("controller killed", killed),
    "pause": _pause(0.0),
    "jump": _jump,
    "rival": _simple("a rival writing", rivalled),
}
ON_SANDBOX: Mapping[str, Maker] = {name: _storm(name) for name in STORMS}
ON_CONTROL_PLANE: Mapping[str, Maker] = {
    "out-of-share": _simple("too many requests", out_of_share),
    "kill-etcd": _simple("etcd killed", partial(component_killed, component="etcd"), deafens=True),
    "kill-manager": _simple(
        "controller manager killed", partial(component_killed, component="kube-controller-manager")
    ),
    "kill-scheduler": _simple("scheduler killed", partial(component_killed, component="kube-scheduler")),
}
AT_LEADERS: Mapping[str, Maker] = {
    name: EVERYWHERE[name] for name in ("kill-server", "freeze", "half-open", "refuse", "kill", "pause", "jump")
}
"""What may cost a leader its Lease."""
BEYOND_LEASES: Mapping[str, Maker] = {
    "pause-beyond-lease": _pause(LEASE_DURATION + 1.0),
    "freeze-beyond-lease": _simple("network frozen beyond the Lease", partial(frozen, further=LEASE_DURATION + 1.0)),
}
"""What is sure to."""
