"""Two processes of one binary behind a Lease, on the sandbox: who writes when, by the audit log.

Each replica has a ServiceAccount of its own, with the rights of the binary's, so that the log tells them apart.
"""

import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hack.localcluster import ControllerProcess, Environment, SandboxEnvironment, install
from hack.localcluster.polling import wait_until
from tests.integration.conftest import unique
from tests.integration.scenario import DRIVER_NAMESPACE, TIMEOUT, Cluster, domain

BINARY = "gpu-mirage-compute-domain"
LEASE, DEADLINE, RETRY = 8, 6, 1  # seconds; long enough for a busy machine, short enough to wait for
ROUTINE = {"leases", "events"}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    with SandboxEnvironment(tmp_path_factory.mktemp("election")) as running:
        install(running)
        yield running


class Replica:
    """One process with an account, and so a name in the audit log, of its own."""

    def __init__(self, environment: Environment, lease: str, *arguments: str) -> None:
        self.environment = environment
        self.account = f"replica-{unique()}"
        environment.kubectl("create", "serviceaccount", self.account, "-n", DRIVER_NAMESPACE)
        subject = f"--serviceaccount={DRIVER_NAMESPACE}:{self.account}"
        environment.kubectl("create", "clusterrolebinding", self.account, f"--clusterrole={BINARY}", subject)
        environment.kubectl("create", "rolebinding", self.account, f"--role={BINARY}", subject, "-n", DRIVER_NAMESPACE)
        self.process = ControllerProcess(
            environment,
            account=self.account,
            name=self.account,
            arguments=(
                f"--driver-namespace={DRIVER_NAMESPACE}",
                "--leader-elect",
                f"--leader-elect-resource-name={lease}",
                f"--leader-elect-resource-namespace={DRIVER_NAMESPACE}",
                f"--leader-elect-lease-duration={LEASE}",
                f"--leader-elect-renew-deadline={DEADLINE}",
                f"--leader-elect-retry-period={RETRY}",
                *arguments,
            ),
        )

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def signal(self, number: int) -> None:
        self.environment.processes.signal(self.account, number)

    def exit_code(self) -> int:
        def ended() -> bool:
            return self.environment.processes.exit_code(self.account) is not None

        wait_until(ended, TIMEOUT, f"the end of {self.account} (log: {self.process.log})")
        code = self.environment.processes.exit_code(self.account)
        assert code is not None
        return code

    def writes(self) -> list[dict[str, Any]]:
        """What it has written successfully, oldest first, Leases and Events included."""
        user = f"system:serviceaccount:{DRIVER_NAMESPACE}:{self.account}"
        return [
            event
            for event in self.environment.audit_events()
            if event["user"]["username"] == user
            and event["verb"] not in ("get", "list", "watch")
            and event["responseStatus"]["code"] < 300
        ]

    def work(self) -> list[dict[str, Any]]:
        """The writes that only a leader may make."""
        return [event for event in self.writes() if event["objectRef"]["resource"] not in ROUTINE]

    def renewed(self) -> datetime:
        """When it wrote the Lease last."""
        return moment([event for event in self.writes() if event["objectRef"]["resource"] == "leases"][-1])


def moment(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["stageTimestamp"])


class Election:
    """Two replicas, the first of which leads, and domains that give them something to write."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.lease = f"lock-{unique()}"
        self.namespace = f"test-{unique()}"
        environment.create_namespace(self.namespace)
        self.cluster = Cluster(environment, self.namespace)
        self.first, self.second = (Replica(environment, self.lease) for _ in range(2))
        self.first.process.start()
        self.wait_for("running", self.first)
        self.second.process.start()

    def wait_for(self, words: str, replica: Replica) -> None:
        wait_until(lambda: words in replica.log, TIMEOUT, f"{words!r} in {replica.process.log}")

    def record(self) -> dict[str, Any]:
        found = self.cluster.get("leases", self.lease, DRIVER_NAMESPACE)
        assert found is not None
        spec: dict[str, Any] = found["spec"]
        return spec

    def make(self, name: str) -> None:
        self.cluster.apply(domain(self.namespace, name))

    def serve(self, name: str) -> None:
        """Makes a domain and waits until somebody has made its template."""
        self.make(name)
        self.wait_served(name)

    def wait_served(self, name: str) -> None:
        def served() -> bool:
            return self.cluster.get("resourceclaimtemplates", f"{name}-channel") is not None

        wait_until(served, TIMEOUT, f"the template of {name} (logs in {self.first.process.log.parent})")

    def end(self) -> None:
        for replica in (self.first, self.second):
            self.environment.processes.stop([replica.account], 10.0)


@pytest.fixture
def election(sandbox: Environment) -> Iterator[Election]:
    made = Election(sandbox)
    yield made
    made.end()


def test_a_follower_is_ready_and_writes_nothing(election: Election) -> None:
    assert election.second.process.ready()
    election.serve("one")
    assert election.first.work()
    assert election.second.writes() == []
    assert election.record()["leaseTransitions"] == 0


def test_a_killed_leader_is_followed_after_its_lease_and_not_before(election: Election) -> None:
    election.serve("one")
    election.first.signal(signal.SIGKILL)
    election.serve("two")
    assert election.record()["leaseTransitions"] == 1
    expired = election.first.renewed() + timedelta(seconds=LEASE)
    assert moment(election.second.writes()[0]) >= expired
    assert moment(election.second.work()[0]) >= expired
    assert moment(election.first.work()[-1]) < expired


def test_a_leader_that_was_asleep_wakes_up_and_writes_nothing_any_more(election: Election) -> None:
    election.serve("one")
    election.first.signal(signal.SIGSTOP)
    election.serve("two")
    election.make("three")
    # It finds changes to react to, and a connection on which it could.
    election.first.signal(signal.SIGCONT)
    assert election.first.exit_code() == 1
    assert "has lost the Lease" in election.first.log
    election.wait_served("three")
    expired = election.first.renewed() + timedelta(seconds=LEASE)
    assert all(moment(event) < expired for event in election.first.writes())
    assert all(moment(event) >= expired for event in election.second.writes())


def test_a_clean_stop_releases_the_lease_after_the_last_write(election: Election) -> None:
    election.serve("one")
    election.first.signal(signal.SIGTERM)
    assert election.first.exit_code() == 0
    assert "the lease is released" in election.first.log
    assert election.first.writes()[-1]["objectRef"]["resource"] in ROUTINE
    election.serve("two")
    released = election.first.renewed()
    assert all(moment(event) <= released for event in election.first.work())
    assert all(moment(event) >= released for event in election.second.writes())


def test_a_binary_may_do_all_this_under_its_own_account(sandbox: Environment, tmp_path: Path) -> None:
    lease = f"lock-{unique()}"
    process = ControllerProcess(
        sandbox,
        name=lease,
        arguments=(
            "--leader-elect",
            f"--leader-elect-resource-name={lease}",
            f"--leader-elect-resource-namespace={DRIVER_NAMESPACE}",
        ),
    )
    process.start()
    wait_until(lambda: "leading" in process.log.read_text(), TIMEOUT, f"leadership (log: {process.log})")
    process.stop()
    assert "the lease is released" in process.log.read_text()


def test_replicas_share_domains_and_one_that_dies_is_replaced_in_its_shards(sandbox: Environment) -> None:
    lease, namespace = f"lock-{unique()}", f"test-{unique()}"
    sandbox.create_namespace(namespace)
    cluster = Cluster(sandbox, namespace)
    replicas = [Replica(sandbox, lease, "--shards=4") for _ in range(2)]
    for replica in replicas:
        replica.process.start()

    def holders() -> set[str]:
        shards = [cluster.get("leases", f"{lease}-shard-{shard}", DRIVER_NAMESPACE) or {} for shard in range(4)]
        names = [shard.get("spec", {}).get("holderIdentity", "") for shard in shards]
        return set(names) if all(names) and len({*names}) > 1 else set()

    def served(names: list[str]) -> bool:
        found = {item["metadata"]["name"] for item in cluster.list("resourceclaimtemplates")}
        return found >= {f"{name}-channel" for name in names}

    wait_until(lambda: bool(holders()), TIMEOUT, "shards on both replicas")
    early, late = [f"early-{n}" for n in range(12)], [f"late-{n}" for n in range(12)]
    cluster.apply(*(domain(namespace, name) for name in early))
    wait_until(lambda: served(early), TIMEOUT, "the templates of all domains")
    makers = {r.account: {e["objectRef"]["name"] for e in r.work() if made_template(e)} for r in replicas}
    assert all(makers.values())
    assert not set.intersection(*makers.values())
    replicas[0].signal(signal.SIGKILL)
    cluster.apply(*(domain(namespace, name) for name in late))
    wait_until(lambda: served(late), TIMEOUT, "the templates of all later domains")
    for replica in replicas:
        sandbox.processes.stop([replica.account], 10.0)


def made_template(event: dict[str, Any]) -> bool:
    return bool(event["objectRef"]["resource"] == "resourceclaimtemplates" and event["verb"] == "create")
