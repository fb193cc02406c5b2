"""How the slices of a node come to hold what they should."""

from collections.abc import Sequence
from typing import Any

import msgspec

from controllers.api.core import Node
from controllers.api.dra import ResourceSlice
from controllers.gpu_slices.contents import Content
from controllers.gpu_slices.plan import Spelling, desired, plan
from controllers.runtime import ObjectMeta

NODE = Node(metadata=ObjectMeta(name="n1", uid="u-n1"))
FIRST, SECOND = "n1-gpu.nvidia.com", "n1-gpu.nvidia.com-1"


def gpus(count: int) -> list[dict[str, Any]]:
    return [{"name": f"gpu-{index}"} for index in range(count)]


def parts(devices: Sequence[dict[str, Any]]) -> list[Content]:
    return [{"devices": list(devices[start : start + 128])} for start in range(0, len(devices), 128)]


def published(devices: Sequence[dict[str, Any]], generation: int = 1, node: Node = NODE) -> list[ResourceSlice]:
    return [ResourceSlice.decode(msgspec.json.encode(body)) for body in desired(node, parts(devices), generation)]


def written(devices: Sequence[dict[str, Any]], present: Sequence[ResourceSlice]) -> list[tuple[str, int, int]]:
    """Name, generation and number of slices of each write."""
    steps = plan(NODE, parts(devices), present).write
    pools = [(step["metadata"]["name"], step["spec"]["pool"]) for step in steps]
    return [(name, pool["generation"], pool["resourceSliceCount"]) for name, pool in pools]


def test_a_new_node_gets_the_first_generation() -> None:
    assert written(gpus(8), []) == [(FIRST, 1, 1)]


def test_every_slice_knows_how_many_there_are() -> None:
    steps = plan(NODE, parts(gpus(129)), []).write

    assert [len(step["spec"]["devices"]) for step in steps] == [128, 1]
    assert written(gpus(129), []) == [(FIRST, 1, 2), (SECOND, 1, 2)]
    assert written(gpus(128), []) == [(FIRST, 1, 1)]


def test_what_is_as_it_should_be_costs_no_write() -> None:
    assert plan(NODE, parts(gpus(200)), published(gpus(200), 7)) == plan(NODE, [], [])


def test_a_change_raises_the_generation_of_all_slices() -> None:
    changed = [*gpus(199), {"name": "gpu-199", "attributes": {}}]

    assert written(changed, published(gpus(200), 7)) == [(FIRST, 8, 2), (SECOND, 8, 2)]


def test_a_slice_that_was_deleted_comes_back_in_its_generation() -> None:
    first, _ = published(gpus(200), 7)

    assert written(gpus(200), [first]) == [(SECOND, 7, 2)]


def test_fewer_devices_take_the_old_slices_away_after_the_new_ones_are_there() -> None:
    present = published(gpus(200), 7)

    steps = plan(NODE, parts(gpus(8)), present)

    assert [step["metadata"]["name"] for step in steps.write] == [FIRST]
    assert steps.write[0]["spec"]["pool"]["generation"] == 8
    assert [entry.name for entry in steps.withdraw] == [SECOND]


def test_half_of_a_change_is_brought_to_its_end_by_the_next_run() -> None:
    old, new = published(gpus(200), 7), published(gpus(300), 8)

    assert written(gpus(300), [new[0], old[1]]) == [(FIRST, 9, 3), (SECOND, 9, 3), ("n1-gpu.nvidia.com-2", 9, 3)]


def test_a_node_that_was_made_again_becomes_the_owner_without_a_new_generation() -> None:
    before = Node(metadata=ObjectMeta(name="n1", uid="u-older"))

    assert written(gpus(8), published(gpus(8), 3, before)) == [(FIRST, 3, 1)]


def test_what_the_server_spells_otherwise_is_written_once() -> None:
    (wanted,) = desired(NODE, [{"devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "1000"}}}]}], 1)
    stored = {**wanted["spec"], "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "1k"}}}]}
    present = [ResourceSlice.decode(msgspec.json.encode({**wanted, "spec": stored}))]
    held = [{"devices": wanted["spec"]["devices"]}]
    spelling = Spelling()

    assert plan(NODE, held, present, spelling=spelling).write
    spelling.learn(FIRST, wanted["spec"], stored)
    assert not plan(NODE, held, present, spelling=spelling)
    assert plan(NODE, parts(gpus(1)), present, spelling=spelling).write
    edited = msgspec.structs.replace(present[0], spec={**stored, "devices": []})
    assert plan(NODE, held, [edited], spelling=spelling).write


def test_a_slice_that_was_spelled_otherwise_and_is_no_longer_is_compared_as_it_is() -> None:
    (wanted,) = desired(NODE, parts(gpus(1)), 1)
    present = published(gpus(1))
    spelling = Spelling()
    spelling.learn(FIRST, wanted["spec"], {"devices": []})
    spelling.learn(FIRST, wanted["spec"], wanted["spec"])

    assert not plan(NODE, parts(gpus(1)), present, spelling=spelling)
    assert plan(NODE, parts(gpus(1)), [msgspec.structs.replace(present[0], spec={"devices": []})], spelling=spelling)


def test_our_slices_are_newer_than_those_of_somebody_else_and_then_stay() -> None:
    steps = plan(NODE, parts(gpus(8)), published(gpus(8), 3), above=7)

    assert [step["spec"]["pool"]["generation"] for step in steps.write] == [9]
    assert not plan(NODE, parts(gpus(8)), published(gpus(8), 9), above=7)
    assert [s["spec"]["pool"]["generation"] for s in plan(NODE, parts(gpus(8)), [], above=7).write] == [8]
