"""The whole path once: a ComputeDomain and its pods go from apply to Ready on a real control plane."""

from hack.localcluster import ControllerProcess
from tests.integration.conftest import PoolNodes
from tests.integration.scenario import EAST, WEST, Cluster, domain, worker


def test_four_workers_take_their_domain_to_ready(
    controller: ControllerProcess, pool_nodes: PoolNodes, namespace: str
) -> None:
    cluster = Cluster(controller.environment, namespace)
    nodes = pool_nodes({EAST: 2, WEST: 2})

    cluster.apply(domain(namespace), *(worker(namespace, f"worker-{number}") for number in range(4)))
    status = cluster.wait_status("Ready", members=4)

    assert sorted(node["name"] for node in status["nodes"]) == sorted(nodes)
    assert sorted((node["cliqueID"], node["index"]) for node in status["nodes"]) == [
        (EAST, 0),
        (EAST, 1),
        (WEST, 0),
        (WEST, 1),
    ]
    assert {node["status"] for node in status["nodes"]} == {"Ready"}
