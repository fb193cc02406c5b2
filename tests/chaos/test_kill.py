"""kill -9 of the real controller process at random moments: what the next one finds, it brings to its end."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hack.localcluster import ControllerProcess, Environment, install, make_nodes, wait_ready
from hack.localcluster.polling import wait_until
from tests.integration.environments import BOTH, started
from tests.integration.scenario import DOMAIN_KEY, EAST, WEST, Cluster, Manifest, domain, worker

SEED_VARIABLE = "GPU_MIRAGE_CHAOS_SEED"
ROUNDS_VARIABLE = "GPU_MIRAGE_CHAOS_ROUNDS"
DEFAULT_ROUNDS = 3
DOMAINS = 3  # per round, with two workers each
KILLS = 3  # per round
LONGEST_LIFE = 2.0  # seconds from a start to its kill; the process needs about 0.7 to begin its work
NAMESPACE = "default"
USER = "system:serviceaccount:gpu-mirage:gpu-mirage-compute-domain"


@pytest.fixture(params=BOTH)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose audit log is that of the test."""
    with started(request.param, tmp_path_factory.mktemp("chaos")) as environment:
        install(environment)
        yield Cluster(environment, NAMESPACE)


@dataclass(frozen=True)
class Round:
    """The domains of one round, each with the two nodes that its workers run on."""

    cluster: Cluster
    nodes: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, cluster: Cluster, number: int, nodes: list[str]) -> "Round":
        pairs = zip(nodes[::2], nodes[1::2], strict=True)
        return cls(cluster, {f"domain-{number}-{index}": pair for index, pair in enumerate(pairs)})

    def create(self) -> dict[str, str]:
        """Makes domains and workers; returns the uids by name."""
        manifests: list[Manifest] = []
        for name, pair in self.nodes.items():
            manifests.append(domain(NAMESPACE, name, nodes=2))
            manifests += (
                worker(NAMESPACE, f"{name}-{place}", template=f"{name}-channel", node=node)
                for place, node in enumerate(pair)
            )
        self.cluster.apply(*manifests)
        return {name: self.cluster.uid("computedomains", name) for name in self.nodes}

    def delete(self, names: list[str]) -> None:
        """Deletes domains together with their workers."""
        pods = [f"pod/{name}-{place}" for name in names for place in (0, 1)]
        domains = [f"computedomain/{name}" for name in names]
        self.cluster.environment.kubectl("delete", "-n", NAMESPACE, "--wait=false", *domains, *pods)

    def demand(self, uids: dict[str, str], deleted: list[str]) -> None:
        """Waits until every domain is as it should be, and demands that nothing of the deleted ones is left."""
        for name in sorted(uids.keys() - set(deleted)):
            status = self.cluster.wait_status("Ready", name, members=2)
            assert {entry["name"] for entry in status["nodes"]} == set(self.nodes[name])
            assert {(entry["cliqueID"], entry["index"]) for entry in status["nodes"]} == {(EAST, 0), (WEST, 0)}
            assert labelled(self.cluster, uids[name]) == set(self.nodes[name])
        for name in deleted:
            self.demand_gone(name, uids[name])

    def demand_gone(self, name: str, uid: str) -> None:
        self.cluster.wait(
            lambda: not self.cluster.leftovers(name, uid) or None,
            lambda: f"the end of {', '.join(self.cluster.leftovers(name, uid))}",
        )


def labelled(cluster: Cluster, uid: str) -> set[str]:
    return {node["metadata"]["name"] for node in cluster.list("nodes", selector=f"{DOMAIN_KEY}={uid}")}


def kill_and_restart(controller: ControllerProcess, chance: random.Random) -> None:
    """Lets the controller live for a random time, kills it and starts it again at once."""
    time.sleep(chance.uniform(0.0, LONGEST_LIFE))
    controller.environment.processes.signal(controller.name, signal.SIGKILL)
    wait_until(lambda: not running(controller), 5.0, "the end of the killed controller", interval=0.01)
    controller.start(wait=False)


def running(controller: ControllerProcess) -> bool:
    return controller.name in controller.environment.processes.running()


def play(cluster: Cluster, controller: ControllerProcess, number: int, nodes: list[str], chance: random.Random) -> None:
    """One round: domains come, some go, and all the while the controller is killed."""
    played = Round.of(cluster, number, nodes)
    uids = played.create()
    deleted = chance.sample(sorted(uids), chance.randint(1, DOMAINS - 1))
    moment = chance.randrange(KILLS)
    for kill in range(KILLS):
        if kill == moment:
            played.delete(deleted)
        kill_and_restart(controller, chance)
    played.demand(uids, deleted)
    kept = sorted(uids.keys() - set(deleted))
    played.delete(kept)
    kill_and_restart(controller, chance)
    for name in kept:
        played.demand_gone(name, uids[name])


def creations(environment: Environment, resource: str) -> Counter[str]:
    """How often each object of ours was made, by the audit log; an apply that makes its object answers 201."""
    return Counter(
        event["objectRef"]["name"]
        for event in environment.audit_events()
        if event["user"]["username"] == USER
        and event.get("objectRef", {}).get("resource") == resource
        and event.get("responseStatus", {}).get("code") == 201
    )


def test_domains_converge_and_every_child_is_made_once_however_often_the_controller_is_killed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**6)))
    rounds = int(os.environ.get(ROUNDS_VARIABLE, DEFAULT_ROUNDS))
    with capsys.disabled():
        print(f"\n{rounds} rounds; to repeat them: {SEED_VARIABLE}={seed} {ROUNDS_VARIABLE}={rounds}")
    chance = random.Random(seed)
    environment = cluster.environment
    nodes = make_nodes(environment, {EAST: DOMAINS, WEST: DOMAINS}, "node")
    # Each pair has one node of each clique, so every domain has two cliques.
    nodes = [node for pair in zip(nodes[:DOMAINS], nodes[DOMAINS:], strict=True) for node in pair]
    wait_ready(environment, nodes)
    controller = ControllerProcess(environment)
    controller.start(wait=False)
    for number in range(rounds):
        play(cluster, controller, number, nodes, chance)
    controller.stop()

    templates = creations(environment, "resourceclaimtemplates")
    assert templates.keys() <= {f"domain-{r}-{d}-channel" for r in range(rounds) for d in range(DOMAINS)}
    assert len(templates) >= rounds  # at least one domain of each round is kept until it is Ready
    slices = creations(environment, "resourceslices")
    assert slices.keys() == {f"{node}-compute-domain.nvidia.com" for node in nodes}
    cliques = creations(environment, "computedomaincliques")
    assert len(cliques) >= 2 * rounds
    more_than_once = {name: count for name, count in (templates + slices + cliques).items() if count != 1}
    assert more_than_once == {}
