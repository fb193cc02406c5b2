"""Whatever pools, other writers and crashes do, a node ends with what its pool gives it and with what is theirs."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controllers.api.core import KWOK_ANNOTATION, POOL_LABEL
from controllers.estate import DRA, Pool
from controllers.extended_resource.setup import DECLARATION, ExtendedResourceReconciler
from controllers.runtime.testing import run_virtual
from controllers.topology import Undecided
from tests.unit.live_nodes import FIRST, Crashed, LiveNodes

US = "gpu-mirage/extended-resource"
GPU, NIC, OTHER = NAMES = ("nvidia.com/gpu", "rdma/hca", "example.com/fpga")
Step = tuple[str, Any]

POOLS = st.builds(
    lambda count, nics, dra: Pool("p", gpu_count=count, resources=nics, offered=DRA if dra else "extended-resource"),
    st.sampled_from([0, 4, 1000]),
    st.sampled_from([{}, {NIC: 1}, {NIC: 2}, {OTHER: 1}]),
    st.sampled_from([False, False, True]),
)
STEPS = st.one_of(
    st.tuples(st.just("pool"), st.none() | POOLS | POOLS | st.just(Undecided("unreadable"))),
    st.tuples(st.just("label"), st.booleans()),
    st.tuples(st.just("simulated"), st.booleans()),
    st.tuples(st.just("plugin"), st.tuples(st.sampled_from(NAMES), st.sampled_from(["4", "7", None]))),
    st.tuples(st.just("plugin in part"), st.tuples(st.sampled_from(NAMES), st.sampled_from(["4", "7"]))),
    st.tuples(st.just("wiped"), st.sampled_from(NAMES)),
    st.tuples(st.just("kwok"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("crash"), st.integers(1, 2)),
)


class Model(LiveNodes):
    """A node, and what a reader of its status may rely on."""

    def __init__(self, owned: bool) -> None:
        super().__init__()
        self.make()
        if owned:
            self.give(dict.fromkeys(FIRST), by="kwok")
            self.give(FIRST, by="kwok")
        self.before: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        self.remembered: set[str] = set()
        client = self.client(US).restricted_to(DECLARATION.everything)
        self.reconciler = ExtendedResourceReconciler(client, self.cache, self.pools.source, self.recorder)

    def take(self, step: Step) -> None:
        kind, value = step
        match kind:
            case "pool":
                self.pools.by_name = {} if value is None else {"p": value}
            case "label":
                self.patch({"metadata": {"labels": {POOL_LABEL: "p" if value else None}}})
            case "simulated":
                self.patch({"metadata": {"annotations": {KWOK_ANNOTATION: "fake" if value else None}}})
            case "plugin":
                self.give({value[0]: value[1]})
            case "plugin in part":
                self.patch_status({"capacity": dict([value])})
            case "wiped":
                self.give({value: None}, by="kubectl")
            case "kwok":
                # It writes back what was there before our last change.
                self.give(self.before, by="kwok")
            case "restart":
                self.restart()
            case "crash":
                self.crash_after = value

    async def settled(self) -> None:
        ours = [name for name in NAMES if self.owners(name) == {US}]
        self.before = {name: self.status()["capacity"][name] for name in ours}
        self.remembered.update(ours)
        theirs = self.theirs()
        try:
            await self.settle(self.reconciler)
        except Crashed:
            self.restart()
            await self.settle(self.reconciler)
        self.crash_after = 0
        self.remembered.update(name for name in NAMES if self.owners(name) == {US})
        assert {name: self.status()["capacity"].get(name) for name in theirs} == theirs

    def owners(self, name: str) -> frozenset[str]:
        return self.managers("f:capacity", f"f:{name}") | self.managers("f:allocatable", f"f:{name}")

    def theirs(self) -> dict[str, str]:
        return {n: self.status()["capacity"][n] for n in NAMES if "kubelet" in self.managers("f:capacity", f"f:{n}")}

    def check(self) -> None:
        status = self.status()
        assert FIRST.items() <= status["capacity"].items()
        assert FIRST.items() <= status["allocatable"].items()
        pool = self.pools.pool_of(self.cache.list()[0])
        if isinstance(pool, Undecided):
            return
        wanted = self.wanted(pool)
        for name in NAMES:
            owners = self.owners(name)
            if owners <= {US}:
                found = {status[place].get(name) for place in ("capacity", "allocatable")}
                assert found == ({None} if name not in wanted else {str(wanted[name])}), (name, owners)
            else:
                # What is allocatable follows the capacity by itself, where it is taken away alone.
                assert US not in self.managers("f:capacity", f"f:{name}")
                assert owners != {"kwok"} or name not in self.remembered
                assert name not in wanted or status["capacity"].get(name) == str(wanted[name]) or self.reported(name)

    def wanted(self, pool: Pool | None) -> dict[str, int]:
        metadata = self.live()["metadata"]
        simulated = KWOK_ANNOTATION in metadata.get("annotations", {})
        if pool is None or pool.offered == DRA or not simulated:
            return {}
        return {GPU: pool.gpu_count, **pool.resources}

    def reported(self, name: str) -> bool:
        return any(event.reason == "ForeignCapacity" and event.note.startswith(name) for event in self.recorder.events)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=1, max_size=12), st.booleans())
def test_a_node_ends_with_what_its_pool_gives_it_and_what_others_gave_it(steps: list[Step], owned: bool) -> None:
    async def scenario() -> None:
        model = Model(owned)
        for step in [("pool", Pool("p", gpu_count=8, resources={NIC: 1})), *steps]:
            model.take(step)
            await model.settled()
            model.check()
            assert await model.settle(model.reconciler) in ([], ["get n"])

    run_virtual(scenario)


def test_the_model_tells_what_goes_wrong() -> None:
    """It would notice a node that keeps what it should not have."""
    model = Model(owned=False)
    model.pools.by_name = {"p": replace(Pool("p"), gpu_count=8)}
    run_virtual(model.settled())
    model.check()
    model.pools.by_name = {}
    try:
        model.check()
    except AssertionError:
        return
    raise AssertionError("the model accepted a resource of no pool")
