"""`python -m tests.contract.fuzz`: plays random sequences on the sandbox and on a kube-apiserver and compares."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hack.localcluster import BinariesMissing
from tests.contract.fuzz.compare import Difference, comparable, compare
from tests.contract.fuzz.generate import sequence
from tests.contract.fuzz.minimise import minimise
from tests.contract.fuzz.servers import Pair, both
from tests.contract.fuzz.steps import RECORDED, Sequence, decode, stored

IN_FLIGHT = 6


class Run:
    """Plays sequences, several at a time, and keeps count."""

    def __init__(self, pair: Pair, show: int) -> None:
        self._pair = pair
        self._show = show
        self.played = self.requests = self.passing = 0
        self.kinds: Counter[str] = Counter()
        self.found: dict[str, Difference] = {}

    async def play(self, sequences: Iterator[Sequence]) -> None:
        """Play them all."""
        workers = [self._work(sequences) for _ in range(IN_FLIGHT)]
        await asyncio.gather(*workers)

    async def _work(self, sequences: Iterator[Sequence]) -> None:
        for one in sequences:
            found = await compare(self._pair, one)
            self.played += 1
            self.requests += len(one.steps)
            if found is None:
                continue
            # Where the second in which something happens makes the difference, it is gone when that is done again.
            again = await compare(self._pair, msgspec.structs.replace(one, name=f"{one.name}-again"))
            if again is None or again.kind != found.kind:
                self.passing += 1
                continue
            self.kinds[found.kind] += 1
            if found.kind not in self.found and len(self.found) < self._show:
                self.found[found.kind] = found
                self.found[found.kind] = least = await minimise(self._pair, found)
                print(f"\n=== {one.name}: {least.text()}", flush=True)


def _drawn(seed: int, count: int, end: float) -> Iterator[Sequence]:
    number = 0
    while (number < count or not count) and time.monotonic() < end:
        yield sequence(seed, number)
        number += 1


async def _record() -> int:
    """Write what the real server answers to the stored sequences."""
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-fuzz-") as directory:
        async with both(Path(directory)) as pair:
            answers = {one.name: await comparable(pair.real, one) for one in stored()}
    lines = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(json.dumps(a, separators=(",", ":"), sort_keys=True) for a in each)
        + "\n]"
        for name, each in answers.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(answers)} sequences")
    return 0


async def _main(options: argparse.Namespace) -> int:
    if options.record:
        return await _record()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-fuzz-") as directory:
        async with both(Path(directory)) as pair:
            run = Run(pair, options.show)
            end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
            if options.file:
                await run.play(decode(Path(name).read_text()) for name in options.file)
            else:
                await run.play(_drawn(options.seed, 0 if options.minutes else options.sequences, end))
    seconds = time.monotonic() - started
    print(
        f"{run.played} sequences, {run.requests} requests, {run.kinds.total()} differences"
        f" ({run.passing} more did not come again) in {seconds:.0f} s"
    )
    for kind, count in run.kinds.most_common():
        print(f"  {count:5d} {kind}")
    return 1 if run.kinds else 0


def main() -> int:
    """The command; 1 where a difference was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="where the sequences come from (1)")
    parser.add_argument("--sequences", type=int, default=200, help="how many are played (200)")
    parser.add_argument("--minutes", type=float, default=0.0, help="play for so long instead")
    parser.add_argument("--show", type=int, default=10, help="how many kinds of differences are shrunk and shown (10)")
    parser.add_argument(
        "--record", action="store_true", help="write what kube-apiserver answers to cases/sequences.yaml"
    )
    parser.add_argument("file", nargs="*", help="play the sequences in these files instead")
    try:
        return asyncio.run(_main(parser.parse_args()))
    except BinariesMissing as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
