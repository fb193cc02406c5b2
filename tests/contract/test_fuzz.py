"""Sequences of requests are answered by the sandbox as by kube-apiserver: stored and a number of random ones."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.contract.fuzz.compare import Difference, comparable, compare, difference
from tests.contract.fuzz.generate import sequences
from tests.contract.fuzz.servers import both, sandbox
from tests.contract.fuzz.steps import RECORDED, Sequence, stored

SEEDS = (1, 2, 3)
SEQUENCES = 40  # of each seed; all of them take some fifteen seconds
IN_FLIGHT = 6


def test_the_same_seed_gives_the_same_sequences() -> None:
    first, again = sequences(7, 20), sequences(7, 20)
    assert first == again
    assert first != sequences(8, 20)
    assert len({step.do for sequence in first for step in sequence.steps}) > 8


def test_stored_sequences_are_answered_as_the_real_server_did() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert list(recorded) == [sequence.name for sequence in stored()]

    async def play() -> list[Difference]:
        async with sandbox() as server:
            found = [difference(one, recorded[one.name], await comparable(server, one)) for one in stored()]
        return [one for one in found if one]

    assert not "\n".join(found.text() for found in asyncio.run(play()))


@pytest.mark.control_plane
def test_random_sequences_are_answered_alike(tmp_path: Path) -> None:
    drawn = [sequence for seed in SEEDS for sequence in sequences(seed, SEQUENCES)] + stored()
    found = asyncio.run(_differences(tmp_path, drawn))
    assert not "\n\n".join(one.text() for one in found)


async def _differences(data_dir: Path, drawn: list[Sequence]) -> list[Difference]:
    waiting = iter(drawn)
    found: list[Difference] = []
    async with both(data_dir) as pair:

        async def work() -> None:
            for sequence in waiting:
                if await compare(pair, sequence) is None:
                    continue
                # What depends on the second in which it happens does not come again.
                if again := await compare(pair, Sequence(f"{sequence.name}-again", sequence.steps)):
                    found.append(again)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return found
