"""Memory with many nodes and claims in the caches. Leaves them where they are: the last thing done to an estate."""

import asyncio

from controllers.api.core import Node
from controllers.api.dra import ResourceClaim
from controllers.runtime import Client
from hack.bench import load, manifests
from hack.bench.estate import NAMESPACE, Estate
from hack.bench.report import Comparison, Table

SETTLED = 3.0  # seconds in which the watches have brought everything


async def measure(estate: Estate, client: Client) -> Table:
    """Resident memory after the objects came by watch, and of a fresh process that listed them."""
    plan = estate.plan
    nodes = [manifests.plain_node(f"plain-{number}") for number in range(plan.nodes)]
    claims = [manifests.unowned_claim(NAMESPACE, f"plain-{number}") for number in range(plan.claims)]
    before = estate.usage().resident
    await load.create_all(client, Node, nodes, plan.in_flight)
    await load.create_all(client, ResourceClaim, claims, plan.in_flight)
    await asyncio.sleep(SETTLED)
    watched = estate.usage().resident
    await estate.restart_controller()
    await asyncio.sleep(SETTLED)
    listed = estate.usage().resident
    return Table(
        f"Resident memory of the controller with {plan.nodes:,} more nodes and {plan.claims:,} claims",
        [
            Comparison("before", "MiB", [before]),
            Comparison("after they came by watch", "MiB", [watched]),
            Comparison("fresh process that listed them", "MiB", [listed]),
        ],
    )
