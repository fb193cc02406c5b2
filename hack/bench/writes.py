"""How many writes a domain costs, and that doing nothing costs none."""

import asyncio

from controllers.runtime import Client
from hack.bench import expectations, load
from hack.bench.audit import AuditLog, Episode
from hack.bench.domains import QUIET, Party
from hack.bench.estate import Estate
from hack.bench.expectations import Expected, judged
from hack.bench.report import WriteList


async def count(estate: Estate, client: Client) -> list[WriteList]:
    """Creation to Ready, departure of the workers, deletion; then some time in which nothing happens."""
    plan, audit = estate.plan, estate.audit()
    await asyncio.sleep(QUIET)
    await audit.restart()
    party = await Party.made(client, estate, [f"counted-{number}" for number in range(plan.counted)])
    await party.allocate_all()
    made = await audit.episode()
    await audit.restart()
    await party.leave()
    left = await audit.episode()
    await audit.restart()
    await load.delete_all(client, party.domains, plan.in_flight)
    await asyncio.sleep(QUIET)
    deleted = await audit.episode()
    domains = f"per domain of 2 workers in 1 clique, over {plan.counted} domains"
    return [
        _list(f"Writes from creation to Ready, {domains}", made, expectations.CREATION, plan.counted),
        _list(f"Writes when the workers leave, {domains}", left, expectations.DEPARTURE, plan.counted),
        _list(f"Writes of the deletion, {domains}", deleted, expectations.DELETION, plan.counted),
        await _idle(estate, client, audit),
    ]


async def _idle(estate: Estate, client: Client, audit: AuditLog) -> WriteList:
    plan = estate.plan
    party = await Party.made(client, estate, [f"idle-{number}" for number in range(plan.idle_domains)])
    await party.allocate_all()
    await audit.restart()
    await asyncio.sleep(plan.idle_seconds)
    idle = await audit.episode()
    await party.leave()
    await load.delete_all(client, party.domains, plan.in_flight)
    await asyncio.sleep(QUIET)
    title = f"Writes in {plan.idle_seconds:g} idle seconds with {plan.idle_domains} Ready domains"
    return _list(title, idle, expectations.IDLE, 1)


def _list(title: str, episode: Episode, expected: Expected, domains: int) -> WriteList:
    reads = sum(episode.reads.values()) / domains
    return WriteList(title, judged(episode.writes, expected, domains), extra=f" (and {reads:g} single reads)")
