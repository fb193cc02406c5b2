"""Where schedules are played: a cluster that can be broken, its controllers, and what it should show."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from controllers.all_in_one import PARTS
from hack.localcluster import LOCAL, SANDBOX, ControlPlane, Environment, FaultProxy, SandboxEnvironment, wait_ready
from hack.localcluster.controllers import NAMESPACE, REPOSITORY
from tests.chaos.audit import AuditLog, Event, holder, of_user
from tests.chaos.replicas import Replica, Supervisor, address
from tests.chaos.world import BASE_NODES, BASE_POOLS, HOME, Admin, World
from tests.contract.conftest import connect
from tests.integration.test_estate import USER

SWEEP_INTERVAL = 5.0  # seconds
LEASE_DURATION = 4.0  # seconds; this and the next two are the defaults, some four times as fast
RENEW_DEADLINE = 2.5
RETRY_PERIOD = 0.5
ELECTION = (
    "--leader-elect",
    f"--leader-elect-lease-duration={LEASE_DURATION:g}",
    f"--leader-elect-renew-deadline={RENEW_DEADLINE:g}",
    f"--leader-elect-retry-period={RETRY_PERIOD:g}",
    f"--leader-elect-resource-namespace={NAMESPACE}",
)
UNLIMITED = 0  # times that a fault of the sandbox strikes
OCCUPANT = "contract/1"  # the User-Agent of requests that we send ourselves as our account
NO_SHARE = "chaos"  # of the API server's attention; the name of the level and of the schema that leads there


class Server(Protocol):
    """The API server, which may be broken."""

    def kill(self) -> None:
        """SIGKILL; returns once it is down."""
        ...

    def start(self) -> None:
        """Starts it again; returns once it answers."""
        ...

    def forget(self) -> None:
        """Forgets all versions before the present one."""
        ...


@dataclass
class SandboxServer:
    environment: SandboxEnvironment
    admin: Admin

    def kill(self) -> None:
        self.environment.kill_server()

    def start(self) -> None:
        self.environment.start_server()

    def forget(self) -> None:
        assert self.admin.send("POST", "/sandbox/compact").code == 200


@dataclass
class RealServer:
    plane: ControlPlane

    def kill(self) -> None:
        self.plane.kill_component("kube-apiserver")

    def start(self) -> None:
        self.plane.start_component("kube-apiserver")
        # A controller manager that finds no API server while it starts gives up, and nobody else would start it again.
        for component in self.plane.components():
            if self.plane.processes.exit_code(component) is not None:
                self.plane.start_component(component)

    def forget(self) -> None:
        self.plane.compact()


@dataclass
class Arena:
    """Everything that a schedule can reach."""

    environment: Environment
    server: Server
    replicas: Sequence[Replica]
    supervisor: Supervisor
    world: World
    audit: AuditLog
    leader_elect: bool
    pairs: list[tuple[str, ...]] = field(default_factory=list)
    """Nodes that a domain may use together: one of each rack."""
    names: int = 0
    """How many names have been given to what schedules add."""
    broken: bool = False
    """Whether a schedule has failed, so that nobody knows what state this is in."""
    history: list[Event] = field(default_factory=list)
    """The audit log of our controllers."""

    def read_audit(self) -> list[Event]:
        """What our controllers have asked for since the last call."""
        news = [event for event in of_user(self.audit.news(), USER) if event["userAgent"] != OCCUPANT]
        self.history += news
        return news

    def leader(self) -> Replica:
        """Who wrote the Lease last; without an election the only replica there is."""
        if not self.leader_elect:
            return self.replicas[0]
        self.read_audit()
        last = holder(self.history)
        return next((replica for replica in self.replicas if replica.agent == last), self.replicas[0])

    def signal(self, replica: Replica, number: signal.Signals) -> None:
        self.environment.processes.signal(replica.name, number)

    def begin(self) -> None:
        """Makes the base of all schedules, and waits for it."""
        self.world.set_pools(BASE_POOLS)
        for name, pool in BASE_NODES.items():
            self.world.add_node(name, pool)
        wait_ready(self.environment, list(BASE_NODES))
        self.world.wait_reached()
        by_rack: dict[str, list[str]] = {}
        for node, rack in self.world.racks().items():
            by_rack.setdefault(rack, []).append(node)
        self.pairs = list(zip(*by_rack.values(), strict=True))
        assert len(self.pairs) == len(HOME) // 2
        self.read_audit()

    def restore(self) -> None:
        """Goes back to the base, and waits for it."""
        for name in list(self.world.domains):
            self.world.delete_domain(name)
        for name in self.world.nodes.keys() - BASE_NODES.keys():
            self.world.delete_node(name)
        if self.world.pools != BASE_POOLS:
            self.world.set_pools(BASE_POOLS)
        self.world.wait_reached()


@contextmanager
def opened(name: str, directory: Path, *, leader_elect: bool = False) -> Iterator[Arena]:
    """Starts one on the sandbox or on a control plane, with two replicas where they elect a leader."""
    if name == SANDBOX:
        sandbox = SandboxEnvironment(directory, durable=True, admin=True)
        with sandbox, _opened(sandbox, leader_elect=leader_elect) as arena:
            yield arena
        return
    plane = ControlPlane(directory)
    with plane, _opened(plane, leader_elect=leader_elect) as arena:
        yield arena
    plane.remove_state()


@contextmanager
def _opened(environment: SandboxEnvironment | ControlPlane, *, leader_elect: bool) -> Iterator[Arena]:
    _install(environment)
    real = isinstance(environment, ControlPlane)
    admin = Admin(connect(LOCAL if real else SANDBOX, environment.admin_kubeconfig))
    if real:
        _make_level(admin)
    controllers = f"--controllers={','.join(PARTS)}"
    # Leftovers of a domain that was gone before anything stood are found by a search every ten minutes otherwise.
    arguments = (
        controllers,
        f"--sweep-interval={SWEEP_INTERVAL:g}",
        "--log-level=debug",
        *(ELECTION if leader_elect else ()),
    )
    host, port = address(environment)
    with FaultProxy(host, port) as first, FaultProxy(host, port) as second:
        proxies = {"a": first, "b": second} if leader_elect else {"a": first}
        replicas = [Replica(environment, each, proxy, arguments) for each, proxy in proxies.items()]
        with Supervisor(replicas) as supervisor:
            server = (
                RealServer(environment) if isinstance(environment, ControlPlane) else SandboxServer(environment, admin)
            )
            log = AuditLog(environment.layout.audit_log)
            arena = Arena(environment, server, replicas, supervisor, World(admin), log, leader_elect)
            arena.begin()
            yield arena
        environment.processes.stop([replica.name for replica in replicas], 10.0)
    admin.api.close()


def _server(environment: SandboxEnvironment | ControlPlane, admin: Admin) -> Server:
    return RealServer(environment) if isinstance(environment, ControlPlane) else SandboxServer(environment, admin)


def _install(environment: Environment) -> None:
    for part in ("config/overlays/all-in-one", "crds/noderesourcetopology"):
        environment.kubectl("apply", "--server-side", "-k", str(REPOSITORY / part))
    environment.kubectl("delete", "deployments", "--all", "-n", NAMESPACE)
    environment.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all")


FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


def _make_level(admin: Admin) -> None:
    """A level of priority at which the API server takes no request at all; nobody is at it yet."""
    limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    spec = {"type": "Limited", "limited": {**limited, "limitResponse": {"type": "Reject"}}}
    manifest = {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": NO_SHARE},
        "spec": spec,
    }
    admin.apply(f"{FLOW}/prioritylevelconfigurations/{NO_SHARE}", manifest)
