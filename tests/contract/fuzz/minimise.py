"""Shrinks a sequence as long as it shows the same difference."""

from collections.abc import Iterator
from typing import Any

import msgspec

from tests.contract.fuzz.compare import Difference, compare
from tests.contract.fuzz.kinds import KINDS
from tests.contract.fuzz.servers import Pair
from tests.contract.fuzz.steps import Sequence, Step

ATTEMPTS = 250  # plays that shrinking one difference may cost


async def minimise(pair: Pair, found: Difference) -> Difference:
    """The difference in a sequence as short as could be found."""
    return await _Shrinker(pair, found).run()


class _Shrinker:
    def __init__(self, pair: Pair, found: Difference) -> None:
        self._pair = pair
        self._best = found
        self._base = found.sequence.name
        self._attempts = 0

    async def run(self) -> Difference:
        await self._try(self._best.sequence.steps[: self._best.number + 1])
        await self._fewer_steps()
        await self._smaller_steps()
        return self._best

    async def _try(self, steps: tuple[Step, ...]) -> bool:
        if self._attempts >= ATTEMPTS:
            return False
        self._attempts += 1
        again = await compare(self._pair, Sequence(f"{self._base}-m{self._attempts}", steps))
        if again is None or again.kind != self._best.kind:
            return False
        self._best = again
        return True

    async def _fewer_steps(self) -> None:
        size = max(1, len(self._best.sequence.steps) // 2)
        while size:
            start = 0
            while start < len(self._best.sequence.steps):
                steps = self._best.sequence.steps
                if not await self._try((*steps[:start], *steps[start + size :])):
                    start += size
            size //= 2

    async def _smaller_steps(self) -> None:
        shrunk = True
        while shrunk and self._attempts < ATTEMPTS:
            shrunk = False
            for number, step in enumerate(self._best.sequence.steps):
                for smaller in _smaller(step):
                    steps = self._best.sequence.steps
                    if await self._try((*steps[:number], smaller, *steps[number + 1 :])):
                        shrunk = True
                        break


def _smaller(step: Step) -> Iterator[Step]:
    for name in step.query:
        rest = {other: value for other, value in step.query.items() if other != name}
        yield msgspec.structs.replace(step, query=rest)
    for body in _smaller_bodies(step):
        yield msgspec.structs.replace(step, body=body)


def _smaller_bodies(step: Step) -> Iterator[Any]:
    kind = KINDS[step.resource]
    if kind.spoilable or not isinstance(step.body, dict):
        yield from _smaller_values(step.body)
        return
    # Less of anything else would be an object that only the real server finds invalid.
    for part in ("metadata", "status"):
        if part in step.body:
            yield {name: value for name, value in step.body.items() if name != part}
            for smaller in _smaller_values(step.body[part]):
                yield {**step.body, part: smaller}
    spec = step.body.get("spec")
    if isinstance(spec, dict):
        for name in kind.removable & spec.keys():
            yield {**step.body, "spec": {other: value for other, value in spec.items() if other != name}}


def _smaller_values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name in value:
            yield {other: member for other, member in value.items() if other != name}
        for name, member in value.items():
            for smaller in _smaller_values(member):
                yield {**value, name: smaller}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield [*value[:index], *value[index + 1 :]]
            for smaller in _smaller_values(item):
                yield [*value[:index], smaller, *value[index + 1 :]]
