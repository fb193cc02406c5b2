"""Times of ComputeDomains, each beside the API server's own from the same repeat."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from controllers.api import nvidia
from controllers.api.dra import ResourceClaim, ResourceClaimTemplate
from controllers.api.nvidia import ComputeDomain
from controllers.runtime import Client
from controllers.runtime.client import WatchEvent
from hack.bench import load, manifests
from hack.bench.estate import NAMESPACE, Estate
from hack.bench.milestones import Milestones
from hack.bench.report import Comparison, Table
from hack.bench.statistics import percentile

MILLI = 1000.0
QUIET = 2.0  # seconds after which nothing is left to do for what was made before


@dataclass
class Samples:
    """One value per repeat of everything that is timed; milliseconds where a single object, else seconds."""

    bare_p50: list[float] = field(default_factory=list)
    bare_p99: list[float] = field(default_factory=list)
    template_p50: list[float] = field(default_factory=list)
    template_p99: list[float] = field(default_factory=list)
    bare_burst: list[float] = field(default_factory=list)
    burst: list[float] = field(default_factory=list)
    bare_deletion: list[float] = field(default_factory=list)
    deletion: list[float] = field(default_factory=list)
    ready_p50: list[float] = field(default_factory=list)
    ready_p99: list[float] = field(default_factory=list)
    paced_cpu: list[float] = field(default_factory=list)
    burst_cpu: list[float] = field(default_factory=list)
    bare_cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)


async def measure(estate: Estate, client: Client) -> Samples:
    """All repeats; every figure and its base take turns, so that both meet the same machine."""
    samples = Samples()
    for repeat in range(estate.plan.repeats):
        print(f"repeat {repeat + 1} of {estate.plan.repeats}", file=sys.stderr, flush=True)
        measurement = _Repeat(estate, client, samples, repeat)
        await measurement.bare_paced()
        await measurement.paced()
        await measurement.bare_burst()
        await measurement.burst()
        await measurement.members()
    return samples


class _Repeat:
    """Every measurement once, with names of its own."""

    def __init__(self, estate: Estate, client: Client, samples: Samples, number: int) -> None:
        self._estate = estate
        self._plan = estate.plan
        self._client = client
        self._samples = samples
        self._number = number

    async def bare_paced(self) -> None:
        names = self._names("bare", int(self._plan.rate * self._plan.paced_seconds))
        bodies = [manifests.bare_template(NAMESPACE, name) for name in names]
        calls = [partial(self._client.create, ResourceClaimTemplate, body) for body in bodies]
        async with self._templates() as seen:
            began, made = await load.paced(calls, self._plan.rate)
            took = _durations(began, await seen.all_of(names))
        self._samples.bare_p50.append(percentile(took, 0.5))
        self._samples.bare_p99.append(percentile(took, 0.99))
        await load.delete_all(self._client, made, self._plan.in_flight)
        await asyncio.sleep(QUIET)

    async def paced(self) -> None:
        names = self._names("paced", int(self._plan.rate * self._plan.paced_seconds))
        calls = [partial(self._client.create, ComputeDomain, manifests.domain(NAMESPACE, name)) for name in names]
        before = self._estate.usage().cpu
        async with self._templates() as seen:
            began, made = await load.paced(calls, self._plan.rate)
            took = _durations(began, await seen.all_of(names))
        await asyncio.sleep(QUIET)
        self._samples.paced_cpu.append((self._estate.usage().cpu - before) * MILLI / len(names))
        self._samples.template_p50.append(percentile(took, 0.5))
        self._samples.template_p99.append(percentile(took, 0.99))
        await self._remove(made)

    async def bare_burst(self) -> None:
        names = self._names("bare-burst", self._plan.burst)
        bodies = [manifests.bare_template(NAMESPACE, name) for name in names]
        cpu = self._estate.server_usage().cpu
        async with self._templates() as seen:
            began = time.perf_counter()
            made = await load.create_all(self._client, ResourceClaimTemplate, bodies, self._plan.in_flight)
            self._samples.bare_burst.append(max(await seen.all_of(names)) - began)
        await asyncio.sleep(QUIET)
        self._samples.bare_cpu.append((self._estate.server_usage().cpu - cpu) * MILLI / len(names))
        async with self._gone_templates() as gone:
            began = time.perf_counter()
            await load.delete_all(self._client, made, self._plan.in_flight)
            self._samples.bare_deletion.append(max(await gone.all_of(names)) - began)
        await asyncio.sleep(QUIET)

    async def burst(self) -> None:
        names = self._names("burst", self._plan.burst)
        bodies = [manifests.domain(NAMESPACE, name) for name in names]
        cpu, server_cpu = self._estate.usage().cpu, self._estate.server_usage().cpu
        async with self._templates() as seen:
            began = time.perf_counter()
            made = await load.create_all(self._client, ComputeDomain, bodies, self._plan.in_flight)
            self._samples.burst.append(max(await seen.all_of(names)) - began)
        await asyncio.sleep(QUIET)
        usage = self._estate.usage()
        self._samples.burst_cpu.append((usage.cpu - cpu) * MILLI / len(names))
        self._samples.server_cpu.append((self._estate.server_usage().cpu - server_cpu) * MILLI / len(names))
        self._samples.resident.append(usage.resident)
        self._samples.deletion.append(await self._remove(made))

    async def members(self) -> None:
        names = self._names("members", self._plan.members)
        party = await Party.made(self._client, self._estate, names)
        async with allocated_claims(self._client) as claims, ready_domains(self._client) as ready:
            await load.paced([partial(party.allocate, number) for number in range(len(names))], self._plan.members_rate)
            ready_at = await ready.all_of(names)
            allocated_at = [max(await claims.all_of(party.claims_of(name))) for name in names]
        took = _durations(allocated_at, ready_at)
        self._samples.ready_p50.append(percentile(took, 0.5))
        self._samples.ready_p99.append(percentile(took, 0.99))
        await party.leave()
        await self._remove(party.domains)

    def _names(self, sort: str, count: int) -> list[str]:
        return [f"{sort}-{self._number}-{index}" for index in range(count)]

    def _templates(self) -> Milestones[ResourceClaimTemplate]:
        return Milestones(self._client, ResourceClaimTemplate, NAMESPACE, lambda event: event.type == "ADDED")

    def _gone_templates(self) -> Milestones[ResourceClaimTemplate]:
        return Milestones(self._client, ResourceClaimTemplate, NAMESPACE, _is_deletion)

    async def _remove(self, domains: Sequence[ComputeDomain]) -> float:
        """Deletes domains; returns the seconds until the last one was gone."""
        async with Milestones(self._client, ComputeDomain, NAMESPACE, _is_deletion) as gone:
            began = time.perf_counter()
            await load.delete_all(self._client, domains, self._plan.in_flight)
            took = max(await gone.all_of(domain.name for domain in domains)) - began
        await asyncio.sleep(QUIET)
        return took


class Party:
    """Domains with two workers each on two nodes of one clique, and their claims."""

    def __init__(self, client: Client, estate: Estate, domains: list[ComputeDomain]) -> None:
        self.domains = domains
        self._client = client
        self._estate = estate
        self._claims: list[tuple[ResourceClaim, ResourceClaim]] = []

    @classmethod
    async def made(cls, client: Client, estate: Estate, names: Sequence[str]) -> "Party":
        """Makes the domains and their claims, and waits until nothing is left to do but to allocate."""
        bodies = [manifests.domain(NAMESPACE, name, workers=2) for name in names]
        domains = await load.create_all(client, ComputeDomain, bodies, estate.plan.in_flight)
        party = cls(client, estate, domains)
        party._claims = await load.crowded(party._make_claims, domains, estate.plan.in_flight)
        await asyncio.sleep(QUIET)
        return party

    async def allocate(self, number: int) -> None:
        """Does for one domain what the scheduler does for its two pods."""
        domain, nodes = self.domains[number], self._estate.pairs[number]
        async with asyncio.TaskGroup() as writes:
            for claim, node in zip(self._claims[number], nodes, strict=True):
                status = manifests.allocation(domain, node)
                writes.create_task(self._client.apply(claim, status, subresource="status"))

    async def allocate_all(self) -> None:
        """For all domains, and waits until they are Ready."""
        async with ready_domains(self._client) as ready:
            await load.crowded(self.allocate, range(len(self.domains)), in_flight=2)
            await ready.all_of(domain.name for domain in self.domains)
        await asyncio.sleep(QUIET)

    async def leave(self) -> None:
        """Deletes the claims as if the workers had ended."""
        await load.delete_all(self._client, [claim for pair in self._claims for claim in pair], in_flight=2)
        await asyncio.sleep(QUIET)

    def claims_of(self, name: str) -> list[str]:
        return [f"{name}-{worker}" for worker in range(2)]

    async def _make_claims(self, domain: ComputeDomain) -> tuple[ResourceClaim, ResourceClaim]:
        bodies = [manifests.claim(domain, name) for name in self.claims_of(domain.name)]
        first, second = [await self._client.create(ResourceClaim, body) for body in bodies]
        return first, second


def allocated_claims(client: Client) -> Milestones[ResourceClaim]:
    """When claims were seen allocated."""
    return Milestones(
        client,
        ResourceClaim,
        NAMESPACE,
        lambda event: event.object is not None and event.object.status.allocation is not None,
    )


def ready_domains(client: Client) -> Milestones[ComputeDomain]:
    """When domains were seen Ready."""
    return Milestones(
        client,
        ComputeDomain,
        NAMESPACE,
        lambda event: event.object is not None and event.object.status.status == nvidia.READY,
    )


def tables(samples: Samples, estate: Estate) -> list[Table]:
    """The samples beside their bases and goals."""
    bare, burst = samples.bare_p50, estate.plan.burst
    return [
        Table(
            f"ComputeDomains, {estate.plan.rate:g} per second and in bursts of {burst}",
            [
                Comparison("applied -> template seen, p50 / bare create p50", "ms", samples.template_p50, bare, 2.4),
                Comparison("applied -> template seen, p99 / bare create p50", "ms", samples.template_p99, bare, 5.0),
                Comparison("the same, p99 / bare create p99", "ms", samples.template_p99, samples.bare_p99),
                Comparison(f"burst of {burst} -> last template", "s", samples.burst, samples.bare_burst, 4.0),
                Comparison("last claim allocated -> Ready, p50 / bare create p50", "ms", samples.ready_p50, bare),
                Comparison("last claim allocated -> Ready, p99 / bare create p50", "ms", samples.ready_p99, bare, 6.0),
                Comparison(f"deletion of {burst} -> last one gone", "s", samples.deletion, samples.bare_deletion),
            ],
            base="API server alone",
        ),
        Table(
            "CPU",
            [
                Comparison("controller per domain, paced", "ms", samples.paced_cpu, samples.bare_cpu),
                Comparison("controller per domain, burst", "ms", samples.burst_cpu, samples.bare_cpu),
                Comparison("API server per domain, burst", "ms", samples.server_cpu, samples.bare_cpu),
            ],
            base="API server per bare create",
        ),
        Table(
            "Resident memory of the controller",
            [
                Comparison("at rest, nothing served yet", "MiB", [estate.at_rest.resident]),
                Comparison(f"with {burst} domains", "MiB", samples.resident),
            ],
        ),
    ]


def _durations(began: Sequence[float], ended: Sequence[float]) -> list[float]:
    return [(end - begin) * MILLI for begin, end in zip(began, ended, strict=True)]


def _is_deletion(event: WatchEvent[ResourceClaimTemplate] | WatchEvent[ComputeDomain]) -> bool:
    return event.type == "DELETED"
