"""Plays a sequence on both servers, and tells where their answers differ."""

import asyncio
import difflib
import json
import re
from dataclasses import dataclass
from typing import Any

from tests.contract.fuzz.normal import Normaliser
from tests.contract.fuzz.play import Answer, Client, play
from tests.contract.fuzz.servers import Pair
from tests.contract.fuzz.steps import Sequence

LINES_SHOWN = 60
INDEX = re.compile(r"\[\d+\]|version-\d+|uid-\d+")


@dataclass(frozen=True)
class Difference:
    """The first step of a sequence that is answered differently, and the comparable answers."""

    sequence: Sequence
    number: int
    real: Answer
    ours: Answer

    @property
    def kind(self) -> str:
        """What sort of difference it is, such that two with one cause are likely to have the same."""
        step = self.sequence.steps[self.number]
        what = step.do + (f" {step.subresource}" if step.subresource else "")
        if self.real["code"] != self.ours["code"]:
            return f"{what}: code {self.real['code']} and not {self.ours['code']}"
        return f"{what}: {self.real['code']} {INDEX.sub('', _first_path(self.real, self.ours, ''))}"

    def text(self) -> str:
        """The sequence up to the step, and the difference of the answers."""
        # A watch also sees what comes after it.
        watches = any(step.do == "watch" for step in self.sequence.steps[: self.number + 1])
        steps = self.sequence if watches else Sequence(self.sequence.name, self.sequence.steps[: self.number + 1])
        pretty = [json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (self.real, self.ours)]
        diff = difflib.unified_diff(pretty[0], pretty[1], "kube-apiserver", "sandbox", n=4, lineterm="")
        return f"{self.kind}\n{steps.encode()}" + "\n".join(list(diff)[:LINES_SHOWN])


def _first_path(real: Any, ours: Any, path: str) -> str:
    if isinstance(real, dict) and isinstance(ours, dict):
        for name in sorted({*real, *ours}):
            if real.get(name) != ours.get(name):
                return _first_path(real.get(name), ours.get(name), f"{path}.{name}")
    if isinstance(real, list) and isinstance(ours, list):
        for index, (left, right) in enumerate(zip(real, ours, strict=False)):
            if left != right:
                return _first_path(left, right, f"{path}[{index}]")
        return f"{path}.length"
    return path


async def compare(pair: Pair, sequence: Sequence) -> Difference | None:
    """The first difference between the two servers, None where there is none."""
    theirs, ours = await asyncio.gather(comparable(pair.real, sequence), comparable(pair.sandbox, sequence))
    return difference(sequence, theirs, ours)


async def comparable(server: Client, sequence: Sequence) -> list[Answer]:
    """A server's answers to a sequence without what differs from run to run."""
    return Normaliser().answers(sequence, await play(server, sequence))


def difference(sequence: Sequence, theirs: list[Answer], ours: list[Answer]) -> Difference | None:
    """The first difference between comparable answers."""
    differing = [number for number, (real, own) in enumerate(zip(theirs, ours, strict=True)) if real != own]
    if not differing:
        return None
    # What a watch shows of a write that is answered differently is no cause.
    number = min(differing, key=lambda number: (sequence.steps[number].do == "watch", number))
    return Difference(sequence, number, theirs[number], ours[number])
