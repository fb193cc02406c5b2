"""Which labels of a node are to be written, and who else wrote some of them."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controllers.api.core import Node
from controllers.node_pool.labels import NodeLabels, difference
from controllers.runtime import Client, ClientOptions
from controllers.runtime.testing import Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest

COUNT, PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.product"
US, GFD = "gpu-mirage/node-pool", "gpu-feature-discovery"
Json = dict[str, Any]


@pytest.mark.parametrize(
    ("present", "desired", "foreign", "wrong", "stale"),
    [
        ({}, {}, {}, set(), set()),
        ({COUNT: "8", "other": "x"}, {COUNT: "8"}, {}, set(), set()),
        ({COUNT: "8"}, {COUNT: "4", PRODUCT: "p"}, {}, {COUNT, PRODUCT}, set()),
        ({COUNT: "8", PRODUCT: "p"}, {COUNT: "8"}, {}, set(), {PRODUCT}),
        ({COUNT: "8", PRODUCT: "p"}, {COUNT: "4"}, {COUNT: "8", PRODUCT: "p"}, set(), set()),
        ({COUNT: "9"}, {COUNT: "4"}, {COUNT: "8"}, {COUNT}, set()),
    ],
)
def test_difference_is_what_is_not_settled(
    present: Json, desired: Json, foreign: Json, wrong: set[str], stale: set[str]
) -> None:
    found = difference(present, desired, foreign)
    assert (set(found.wrong), set(found.stale)) == (wrong, stale)


class Server:
    """One node with labels and their managers; remembers what was applied."""

    def __init__(self, labels: Mapping[str, str], managers: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        self.managers = managers
        self.looks = 0
        self.applied: list[Json] = []
        self.removed: list[str] = []

    @property
    def node(self) -> Node:
        return Node.decode(msgspec.json.encode({"metadata": self._metadata()}))

    def _metadata(self) -> Json:
        return {"name": "n", "uid": "u", "resourceVersion": "1", "labels": self.labels}

    def __call__(self, request: HttpRequest) -> Reply:
        if request.method == "GET":
            self.looks += 1
            entries = [
                {"manager": manager, "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {}}}}}
                for key, manager in self.managers.items()
            ]
            return Answer(body={"metadata": {**self._metadata(), "managedFields": entries}})
        assert ("force", "true") not in request.query
        body = msgspec.json.decode(request.body or b"")
        if isinstance(body, list):
            self.removed += [operation["path"] for operation in body if operation["op"] == "remove"]
        else:
            self.applied.append(body["metadata"]["labels"])
        return Answer(body={"metadata": self._metadata()})


def ensure(server: Server, *wanted: Mapping[str, str]) -> list[frozenset[str]]:
    async def scenario() -> list[frozenset[str]]:
        labels = NodeLabels(Client(ScriptedTransport(server), ClientOptions(US, attempts=1)))
        return [await labels.ensure(server.node, each) for each in wanted]

    return run_virtual(scenario)


def test_labels_that_are_as_they_should_be_cost_not_even_a_look() -> None:
    server = Server({COUNT: "8"}, {COUNT: US})
    assert ensure(server, {COUNT: "8"}) == [frozenset()]
    assert (server.looks, server.applied) == (0, [])


def test_the_first_labels_of_a_node_cost_one_write_and_no_look() -> None:
    server = Server({"other": "x"}, {"other": GFD})
    assert ensure(server, {COUNT: "8", PRODUCT: "p"}) == [frozenset()]
    assert (server.looks, server.applied) == (0, [{COUNT: "8", PRODUCT: "p"}])


def test_missing_and_changed_labels_are_applied_together() -> None:
    server = Server({COUNT: "4"}, {COUNT: US})
    ensure(server, {COUNT: "8", PRODUCT: "p"})
    assert server.applied == [{COUNT: "8", PRODUCT: "p"}]


def test_a_label_that_is_no_longer_wanted_is_left_out_of_what_is_applied() -> None:
    server = Server({COUNT: "8", PRODUCT: "p"}, {COUNT: US, PRODUCT: US})
    ensure(server, {COUNT: "8"})
    assert (server.applied, server.removed) == ([{COUNT: "8"}], [])


def test_the_last_labels_are_taken_away_one_by_one_as_an_empty_apply_could_take_all_others_along() -> None:
    server = Server({COUNT: "8", PRODUCT: "p", "other": "x"}, {COUNT: US, PRODUCT: GFD})
    ensure(server, {})
    assert (server.applied, server.removed) == ([], ["/metadata/labels/nvidia.com~1gpu.count"])


def test_a_label_of_another_manager_is_reported_once_and_never_written() -> None:
    server = Server({COUNT: "4"}, {COUNT: GFD})
    assert ensure(server, {COUNT: "8", PRODUCT: "p"}, {COUNT: "8"}) == [frozenset({COUNT}), frozenset()]
    assert server.applied == [{PRODUCT: "p"}]


def test_a_label_of_another_manager_with_the_right_value_does_not_become_ours() -> None:
    server = Server({COUNT: "8"}, {COUNT: GFD})
    assert ensure(server, {COUNT: "8", PRODUCT: "p"}) == [frozenset()]
    assert server.applied == [{PRODUCT: "p"}]


def test_a_node_that_is_in_no_pool_is_not_written_where_nothing_on_it_is_ours() -> None:
    server = Server({COUNT: "8", PRODUCT: "p"}, {COUNT: GFD})
    assert ensure(server, {}, {}) == [frozenset(), frozenset()]
    assert (server.applied, server.removed) == ([], [])
