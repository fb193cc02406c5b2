"""Several controllers in one process: which ones, and with what."""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from controllers.all_in_one.__main__ import names
from controllers.all_in_one.parts import DEFAULT, PARTS, declare
from controllers.compute_domain.options import add_arguments as add_compute_domain_arguments
from controllers.node_pool.options import add_arguments as add_node_pool_arguments
from controllers.runtime import Client, ClientOptions, Manager
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from tests.unit.binaries import BINARIES

OFF = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_compute_domain_arguments(parser)
    add_node_pool_arguments(parser)
    return parser.parse_args([])


class EmptyCluster:
    """Serves everything, and has nothing; remembers what was listed."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    def __call__(self, request: HttpRequest) -> Reply:
        if request.path == "/apis/resource.k8s.io":
            return Answer(body={"versions": [{"version": "v1"}]})
        if request.path == "/apis/topology.node.k8s.io/v1alpha2":
            return Answer(body={"resources": [{"name": "noderesourcetopologies"}]})
        if ("watch", "true") in request.query:
            return Answer(stream=[STALL])
        self.listed.append(request.path)
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})


def started(chosen: Sequence[str], options: ManagerOptions = OFF) -> tuple[list[str], list[str]]:
    """The controllers that run, and the paths that they list."""
    cluster = EmptyCluster()
    running: list[str] = []

    async def scenario() -> None:
        manager = Manager(Client(ScriptedTransport(cluster), ClientOptions("tests", attempts=1)), options)

        async def prepare(prepared: Manager) -> None:
            await declare(prepared, chosen, arguments())

        def finish() -> None:
            running.extend(task.get_name() for task in asyncio.all_tasks())
            manager.stop()

        manager.prepare(prepare)
        asyncio.get_running_loop().call_later(5, finish)
        await manager.run()

    run_virtual(scenario)
    return [name for name in running if name in PARTS], cluster.listed


def test_every_controller_that_has_a_binary_of_its_own_is_a_part() -> None:
    assert set(PARTS) == {binary.name for binary in BINARIES} - {"all-in-one"}


def test_all_of_them_run_in_one_process_and_list_nodes_once() -> None:
    running, listed = started(tuple(PARTS))
    assert set(running) == set(PARTS)
    assert listed.count("/api/v1/nodes") == 1


@pytest.mark.parametrize("name", sorted(PARTS))
def test_each_of_them_runs_alone(name: str) -> None:
    running, _ = started([name])
    assert running == [name]


def test_all_but_places_in_racks_can_be_shared_by_replicas() -> None:
    election = replace(OFF, leader_elect=True, leader_elect_resource_namespace="here", leader_elect_resource_name="all")
    # Nobody is elected, as the server has no Leases: what is not shared waits for that, the others for their shards.
    running, _ = started(tuple(PARTS), replace(election, shards=2))
    assert set(PARTS) - set(running) == {"node-pool"}


def test_what_needs_a_crd_of_others_runs_only_where_it_is_named() -> None:
    assert set(PARTS) - set(DEFAULT) == {"node-resource-topology"}


def test_names_are_taken_once_and_in_order() -> None:
    assert names("node-pool, gpu-slices,,node-pool") == ("node-pool", "gpu-slices")


@pytest.mark.parametrize(
    ("text", "said"), [("", "no controller is named"), ("nodepool", "'nodepool' is no controller")]
)
def test_a_wrong_name_is_refused_with_those_that_exist(text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        names(text)
