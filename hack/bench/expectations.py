"""Which writes a domain may cost, and what each is needed for."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hack.bench.audit import Sort
from hack.bench.report import WriteCount


@dataclass(frozen=True, slots=True)
class Needed:
    """``at_most`` writes per domain of two workers in one clique, and the reason for them."""

    at_most: float
    why: str


Expected = Mapping[Sort, Needed]

CREATION: Expected = {
    ("create", "resourceclaimtemplates"): Needed(1, "the pods' claims are made from it"),
    ("patch", "computedomains"): Needed(1, "the finalizer: nothing else guarantees that deletion cleans up"),
    ("patch", "nodes"): Needed(2, "one label per member: it ties a node to one domain at a time"),
    ("patch", "computedomaincliques"): Needed(2, "the member list of the clique; twice where claims come one by one"),
    ("patch", "computedomains/status"): Needed(
        3, "NotReady once served, the members, Ready; fewer where claims come together"
    ),
    ("create", "events"): Needed(1, "tells people that the domain became Ready"),
}
DEPARTURE: Expected = {
    ("patch", "nodes"): Needed(2, "one label per member is taken off"),
    ("patch", "computedomaincliques"): Needed(1, "the member list while one worker is still there"),
    ("delete", "computedomaincliques"): Needed(1, "the clique has no owner that would take it along"),
    ("patch", "computedomains/status"): Needed(2, "NotReady, and the members that are left"),
    ("create", "events"): Needed(1, "tells people that the domain is no longer Ready"),
    ("patch", "events"): Needed(1, "the same Event again counts up instead of being made anew"),
}
DELETION: Expected = {
    ("patch", "resourceclaimtemplates"): Needed(1, "takes our finalizer off the template"),
    ("delete", "resourceclaimtemplates"): Needed(1, "the template must stop handing out claims before the domain goes"),
    ("patch", "computedomains"): Needed(1, "takes our finalizer off the domain, last of all"),
}
IDLE: Expected = {
    ("create", "leases"): Needed(1, "leader election"),
    ("update", "leases"): Needed(60, "leader election: the lease is renewed every few seconds"),
    ("patch", "leases"): Needed(60, "leader election: the lease is renewed every few seconds"),
}

PUBLICATION: Expected = {
    ("patch", "nodes"): Needed(1, "the labels of feature discovery, all in one"),
    ("patch", "nodes/status"): Needed(1, "capacity, and the condition: two on every other node, each by its own owner"),
    ("patch", "configmaps"): Needed(1, "the node's GPUs for exporters and tools that read them there"),
    ("patch", "resourceslices"): Needed(1.5, "channels on every node, GPUs as devices on every other one"),
    ("patch", "noderesourcetopologies"): Needed(1.5, "zones; again on a node whose GPUs come more than 0.5 s late"),
}
"""Per node of an estate, half of whose nodes offer their GPUs as devices and half as an extended resource."""

QUIET_ESTATE: Expected = {}


def judged(writes: Counter[Sort], expected: Expected, domains: int) -> list[WriteCount]:
    """Every sort that was written, those that are expected first and in the order in which they are declared."""
    order = [sort for sort in expected if sort in writes] + sorted(sort for sort in writes if sort not in expected)
    return [_judged(sort, writes[sort] / domains, expected.get(sort)) for sort in order]


def _judged(sort: Sort, per_domain: float, needed: Needed | None) -> WriteCount:
    what = " ".join(sort)
    if needed is None:
        return WriteCount(what, per_domain, 0.0, None)
    return WriteCount(what, per_domain, needed.at_most, needed.why)
