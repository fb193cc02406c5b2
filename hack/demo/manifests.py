"""What the demo applies: the manifests of config/, changed as far as the demo's size and place ask for it."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hack.localcluster.nodes import POOL_LABEL

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """The manifests of config/samples for one demo, and the names in them."""

    documents: tuple[Manifest, ...]
    domain: str
    template: str
    workers: str


def installation(documents: Iterable[Manifest]) -> list[Manifest]:
    """What is installed where the controllers run as processes of this machine, and the demo has its own topology."""
    return [document for document in documents if document["kind"] not in {"Deployment", "ConfigMap"}]


def samples_for(documents: Sequence[Manifest], namespace: str, nodes: int) -> Samples:
    """The samples in a namespace, with one worker and one member for each of `nodes`, on the pool of that name.

    Raises ValueError where the samples are not one ComputeDomain and one Deployment.
    """
    placed = [copy.deepcopy(document) for document in documents]
    for document in placed:
        document["metadata"]["namespace"] = namespace
    domain, workers = _the_one(placed, "ComputeDomain"), _the_one(placed, "Deployment")
    domain["spec"]["numNodes"] = nodes
    workers["spec"]["replicas"] = nodes
    workers["spec"]["template"]["spec"]["nodeSelector"] = {POOL_LABEL: namespace}
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    return Samples(tuple(placed), domain["metadata"]["name"], template, workers["metadata"]["name"])


def _the_one(documents: Iterable[Manifest], kind: str) -> Manifest:
    found = [document for document in documents if document["kind"] == kind]
    if len(found) != 1:
        raise ValueError(f"config/samples has {len(found)} objects of kind {kind}: the demo needs exactly one")
    return found[0]
