"""Waiting until NodeResourceTopologies can be written, and reading those of others."""

import asyncio

import msgspec

from controllers.api.topology import DISCOVERY_INTERVAL, NodeResourceTopology, wait_for_topology
from controllers.runtime import Client, ClientOptions, Manager
from controllers.runtime.errors import TransportError
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, run_virtual

SERVED = Answer(body={"resources": [{"name": "others"}, {"name": "noderesourcetopologies"}]})


def waiting(*replies: Reply) -> tuple[float, list[str | None]]:
    """When waiting ended, and what readiness said half-way to each further look."""
    said: list[str | None] = []

    async def scenario() -> float:
        client = Client(ScriptedTransport(replies), ClientOptions("tests", attempts=1))
        manager = Manager(client, ManagerOptions())
        loop = asyncio.get_running_loop()
        for number in range(len(replies)):
            at = (number + 0.5) * DISCOVERY_INTERVAL
            loop.call_later(at, lambda: said.append(manager.readiness.result("noderesourcetopology").reason))
        await wait_for_topology(manager)
        ended = loop.time()
        await asyncio.sleep(DISCOVERY_INTERVAL)
        return ended

    return run_virtual(scenario), said


def test_where_the_kind_is_served_nothing_is_waited_for() -> None:
    assert waiting(SERVED) == (0.0, [None])


def test_waiting_goes_on_until_the_crd_is_there_and_says_what_to_do() -> None:
    ended, (first, second, last) = waiting(Answer(404), Answer(body={"resources": []}), SERVED)

    assert (ended, last) == (2 * DISCOVERY_INTERVAL, None)
    assert first == second
    assert "install the CRD, such as crds/noderesourcetopology" in (first or "")


def test_waiting_survives_failures_and_says_why() -> None:
    ended, said = waiting(TransportError("refused"), Answer(403, body=b"no right"), SERVED)

    assert ended == 2 * DISCOVERY_INTERVAL
    assert "refused" in (said[0] or "")
    assert "no right" in (said[1] or "")


def test_topologies_of_others_can_be_read_whatever_they_leave_out() -> None:
    zone = {"name": "numa-node-0", "type": "Node", "resources": [{"name": "cpu", "available": 3}], "costs": None}
    body = {"metadata": {"name": "n"}, "zones": [zone], "attributes": None}

    found = NodeResourceTopology.decode(msgspec.json.encode(body))

    assert [(resource.name, resource.available) for resource in found.zones[0].resources] == [("cpu", 3)]
    assert (found.zones[0].costs, found.attributes, found.topology_policies) == ((), (), ())
