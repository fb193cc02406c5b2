"""Placements as text."""

import pytest

from controllers.node_resource_topology import record
from controllers.node_resource_topology.demand import Amount

PLACEMENTS = {"u1": {0: Amount(2, 4000, 1024), 3: Amount(gpus=1)}, "u2": {1: Amount(gpus=4)}}


def test_placements_come_back_as_they_were() -> None:
    text = record.written(PLACEMENTS)

    assert text == '{"u1":[[0,2,4000,1024],[3,1,0,0]],"u2":[[1,4,0,0]]}'
    assert record.read(text) == PLACEMENTS


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"u1": 1}', '{"u1": [[0, 1]]}', '{"u1": [[0, "1", 2, 3]]}', '{"u1": [[0, 1.5, 2, 3]]}'],
)
def test_a_text_of_another_kind_holds_no_placements(text: str) -> None:
    assert record.read(text) == {}


def test_numbers_below_zero_are_no_placement() -> None:
    assert record.read('{"u1": [[-1, 1, 0, 0]], "u2": [[0, -1, 0, 0]], "u3": [[0, 1, 0, 0]]}') == {
        "u3": {0: Amount(gpus=1)}
    }


def test_a_node_with_very_many_pods_keeps_what_an_annotation_can_hold() -> None:
    many = {f"{number:036}": {0: Amount(1, 1000, 2**30)} for number in range(10_000)}

    text = record.written(many)

    assert 190_000 < len(text) < 230_000
    kept = record.read(text)
    assert list(kept) == list(many)[: len(kept)]
