"""`python -m hack.bench`: measures the controllers on a control plane, an estate, the framework alone, and the sandbox.

Exits with 1 where a domain costs a write that nobody expects or where an idle estate writes; a missed goal is printed
and is no error, since it depends on the machine.
"""

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvloop

from hack.bench import domains, framework, machine, publication, sandbox, scale, writes
from hack.bench.estate import Estate, admin_client, estate
from hack.bench.plan import QUICK, Plan
from hack.bench.report import Report
from hack.localcluster import LOCAL, SANDBOX, BinariesMissing, ControlPlaneError

PARTS = ("all", "domains", "estate", "framework", "sandbox")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    report = Report(machine.facts())
    print(
        f"{machine.text(report.facts)}\nmedian (lowest..highest) of the repeats; ratios repeat by repeat\n", flush=True
    )
    try:
        _measure(options.part, _plan(options), options.environment, report)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (BinariesMissing, ControlPlaneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"total {time.monotonic() - began:.0f} s" + (", with UNEXPECTED writes" if report.failed else ""))
    if options.json:
        report.save(options.json)
    return 1 if report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, default="all", help="what to measure (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller numbers")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes of the estate (default: 1000, --quick: 200)")
    parser.add_argument(
        "--environment", choices=(LOCAL, SANDBOX), default=LOCAL, help="where the estate is (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there too")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan()
    return replace(plan, estate_nodes=options.nodes) if options.nodes else plan


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _measure(part: str, plan: Plan, environment: str, report: Report) -> None:
    if part in {"all", "domains"}:
        with estate(plan) as started:
            uvloop.run(_measure_controllers(started, report))
    if part in {"all", "estate"}:
        with publication.cluster(environment) as running:
            for found in uvloop.run(publication.measure(environment, running, plan)):
                report.add(found)
    if part in {"all", "framework"}:
        for table in framework.measure(plan):
            report.add(table)
    if part in {"all", "sandbox"}:
        for table in sandbox.measure(plan):
            report.add(table)


async def _measure_controllers(started: Estate, report: Report) -> None:
    async with admin_client(started) as client:
        for table in domains.tables(await domains.measure(started, client), started):
            report.add(table)
        for part in await writes.count(started, client):
            report.add(part)
        report.add(await scale.measure(started, client))


if __name__ == "__main__":
    sys.exit(main())
