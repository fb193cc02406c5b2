"""What a manager shows at ``/metrics``, with every series that can be there, and how to take it apart."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.meta import Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.recorder import PERMISSIONS, Recorder
from controllers.runtime.testing import FakeClock, ScriptedTransport
from controllers.runtime.transport import AnsweredRequest

HOST = "api.example:6443"
RESOURCE = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its labels without ``le``, and the texts of its bucket edges in their order."""

    type: str
    labels: frozenset[str]
    edges: tuple[str, ...] = ()


def full_metrics() -> Metrics:
    """A manager's metrics after each of them was used once."""
    metrics = Metrics(clock=FakeClock())
    metrics.for_controller("widgets", 2)
    metrics.for_queue("widgets").added(0)
    metrics.rest_observer(AnsweredRequest("GET", HOST, "200", 0.1, sent=0, received=100, attempt=2))
    metrics.resolution_observer("api.example", 0.01)
    metrics.informer_observer(RESOURCE, "list")
    metrics.for_informer(RESOURCE, "Widget")
    metrics.leader_election("widgets")
    client = Client(ScriptedTransport([]), ClientOptions("tests")).restricted_to(PERMISSIONS)
    Recorder(client, "gpu-mirage/widgets", metrics, FakeClock())
    return metrics


def samples(metrics: Metrics) -> list[Sample]:
    """All lines, in their order."""
    return [sample for _, found in _families(metrics.render().decode()) for sample in found]


def families(metrics: Metrics) -> dict[str, Family]:
    """All metrics by name."""
    return {name: _family(kind, found) for (name, kind), found in _families(metrics.render().decode())}


def _families(text: str) -> Iterator[tuple[tuple[str, str], list[Sample]]]:
    for block in text.split("# HELP ")[1:]:
        _, kind, *lines = block.splitlines()
        _, _, name, type_ = kind.split()
        yield (name, type_), [_sample(line) for line in lines]


def _sample(line: str) -> Sample:
    series, _, value = line.rpartition(" ")
    name, _, labels = series.partition("{")
    return Sample(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))


def _family(kind: str, found: list[Sample]) -> Family:
    labels = frozenset(label for sample in found for label in sample.labels) - {"le"}
    edges = dict.fromkeys(sample.labels["le"] for sample in found if "le" in sample.labels)
    return Family(kind, labels, tuple(edges))
