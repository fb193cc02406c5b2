"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of one run; the defaults are those of a full one."""

    repeats: int = 5  # of everything that is timed
    rate: float = 20.0  # domains per second while latency is measured
    paced_seconds: float = 10.0  # for which that rate is kept
    burst: int = 200  # domains created, and deleted, as fast as possible
    in_flight: int = 20  # requests at the same time in a burst
    members: int = 50  # domains with two workers each whose way to Ready is timed
    members_rate: float = 5.0  # of these become allocated per second
    counted: int = 10  # domains over which writes are counted
    idle_domains: int = 20  # Ready domains while nothing happens
    idle_seconds: float = 60.0
    nodes: int = 2000  # Node objects in the large estate
    claims: int = 5000  # ResourceClaims in the large estate
    pods: int = 5000  # in the list that every library reads, and changes in a burst
    resident: int = 10_000  # nodes in one cache
    stalled: int = 50_000  # pods in the list that must not stall the event loop
    reconciles: int = 50_000  # that do nothing
    queue_keys: int = 200_000  # keys that go through the queue
    requests: int = 3000  # of each sort to the sandbox, per repeat
    events: int = 5000  # changes that watchers are told of at a steady pace, per repeat
    events_rate: float = 1000.0  # of them per second
    watchers: int = 10
    sandbox_nodes: int = 10_000  # objects that the sandbox holds
    sandbox_pods: int = 30_000
    estate_nodes: int = 1000  # with 8 GPUs each
    estate_repeats: int = 2  # of their publication
    estate_quiet_seconds: float = 5.0
    churn_per_minute: float = 0.1  # share of the nodes
    churn_seconds: float = 30.0


QUICK = Plan(
    repeats=2,
    paced_seconds=3.0,
    counted=5,
    idle_seconds=30.0,
    nodes=200,
    claims=500,
    pods=1000,
    resident=2000,
    stalled=5000,
    reconciles=10_000,
    queue_keys=50_000,
    requests=1000,
    events=2000,
    sandbox_nodes=1000,
    sandbox_pods=3000,
    estate_nodes=200,
)
