"""An estate that follows its ConfigMaps, and keeps what was right where they are not."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from controllers.api.core import Node
from controllers.runtime import Client, ClientOptions, Manager, ObjectMeta
from controllers.runtime.options import ManagerOptions
from controllers.runtime.testing import STALL, Answer, Pause, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from controllers.topology import TopologyOptions, TopologySource, Undecided

OFF = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")
LABEL = "run.ai/simulated-gpu-node-pool"
Json = dict[str, Any]


def config(document: str | None, version: int = 1) -> Json:
    data = {} if document is None else {"topology.yml": document}
    metadata = {"name": "topology", "namespace": "gpu-mirage", "uid": "t", "resourceVersion": str(version)}
    return {"metadata": metadata, "data": data}


def profile(name: str, text: str) -> Json:
    metadata = {"name": f"gpu-profile-{name}", "namespace": "gpu-mirage", "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "data": {"profile.yaml": text}}


def node(pool: str | None) -> Node:
    return Node(metadata=ObjectMeta(name="n1", labels={LABEL: pool} if pool else {}))


class Server:
    """ConfigMaps that are listed, then changed through the watch, and the Events that come."""

    def __init__(self, *configs: Json, profiles: tuple[Json, ...] = (), changes: tuple[Json, ...] = ()) -> None:
        self.configs = configs
        self.profiles = profiles
        self.changes = changes
        self.events: list[Json] = []
        self.selected: list[str] = []

    def __call__(self, request: HttpRequest) -> Reply:
        if request.method != "GET":
            self.events.append(msgspec.json.decode(request.body or b"{}"))
            return Answer(201, body=self.events[-1])
        query = dict(request.query)
        topology = "fieldSelector" in query
        if "watch" in query:
            lines = [msgspec.json.encode(change) + b"\n" for change in self.changes] if topology else []
            return Answer(stream=[Pause(1.0), *lines, STALL])
        self.selected.append(query.get("fieldSelector") or query["labelSelector"])
        items = list(self.configs if topology else self.profiles)
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": items})


def on(server: Server, look: Callable[[TopologySource, Manager], Any]) -> Any:
    """What a look at the source gives once all changes have come."""
    seen: list[Any] = []

    async def scenario() -> None:
        manager = Manager(Client(ScriptedTransport(server), ClientOptions("tests", attempts=1)), OFF)
        source = TopologySource(manager, TopologyOptions())

        def finish() -> None:
            seen.append(look(source, manager))
            manager.stop()

        asyncio.get_running_loop().call_later(5, finish)
        await manager.run()

    run_virtual(scenario)
    return seen[0]


def changed(document: str | None, version: int, kind: str = "MODIFIED") -> Json:
    return {"type": kind, "object": config(document, version)}


def pools(source: TopologySource, _manager: Manager) -> dict[str, int]:
    return {name: pool.gpu_count for name, pool in source.estate.pools.items()}


def test_only_the_topology_and_profiles_are_read() -> None:
    server = Server(config("nodePools: {a: {gpu: {profile: h100}}}"))
    assert on(server, pools) == {"a": 8}
    assert set(server.selected) == {"metadata.name=topology", "fake-gpu-operator/gpu-profile=true"}


def test_a_profile_of_the_cluster_comes_before_a_built_in_one() -> None:
    server = Server(config("nodePools: {a: {gpu: {profile: h100}}}"), profiles=(profile("h100", "device_count: 3"),))
    assert on(server, pools) == {"a": 3}


def test_a_change_is_followed() -> None:
    before, after = "nodePools: {a: {gpu: {profile: h100}}}", "nodePools: {b: {gpu: {profile: t4}}}"
    assert on(Server(config(before), changes=(changed(after, 2),)), pools) == {"b": 4}


def test_a_pool_that_becomes_unreadable_stays_as_it_was_and_others_go_on() -> None:
    before = "nodePools: {a: {gpu: {profile: h100}}, b: {gpu: {profile: t4}}}"
    after = "nodePools: {a: {gpu: {profile: nothing}}, b: {gpu: {profile: a100}}}"
    server = Server(config(before), changes=(changed(after, 2),))
    assert on(server, pools) == {"a": 8, "b": 8}
    assert [event["reason"] for event in server.events] == ["InvalidTopology"]
    assert "nodePools.a.gpu.profile" in server.events[0]["note"]


def test_every_pool_stays_while_the_document_is_unreadable_or_gone() -> None:
    before = "nodePools: {a: {gpu: {profile: h100}}}"
    for change in (changed("{", 2), changed(None, 2), changed(before, 2, "DELETED")):
        assert on(Server(config(before), changes=(change,)), pools) == {"a": 8}


def test_a_pool_that_was_never_readable_is_undecided_and_one_that_is_not_there_is_none() -> None:
    server = Server(config("nodePools: {a: {gpu: {profile: nothing}}, b: {gpu: {profile: t4}}}"))

    def look(source: TopologySource, _manager: Manager) -> list[str]:
        return [type(source.pool_of(node(name))).__name__ for name in ("a", "b", "c", None)]

    assert on(server, look) == ["Undecided", "Pool", "NoneType", "NoneType"]


OWN_LABEL = "nodePoolLabelKey: example.com/pool\nnodePools: {a: {gpu: {profile: h100}}}"


def test_the_label_of_pools_stays_while_the_document_does_not_tell_it() -> None:
    own = Node(metadata=ObjectMeta(name="n1", labels={"example.com/pool": "a"}))
    spoilt = OWN_LABEL.replace("example.com/pool", "'-'")
    for change in (changed("{", 2), changed(None, 2), changed(OWN_LABEL, 2, "DELETED"), changed(spoilt, 2)):
        server = Server(config(OWN_LABEL), changes=(change,))
        assert type(on(server, lambda source, _manager: source.pool_of(own))).__name__ == "Pool"


def test_nodes_under_an_earlier_label_are_concerned_by_a_change() -> None:
    nodes = [node("a"), Node(metadata=ObjectMeta(name="n2", labels={"example.com/pool": "a"})), node(None)]
    later = "nodePools: {a: {gpu: {profile: h100}}}"
    server = Server(config(OWN_LABEL), changes=(changed(later, 2),))
    found = on(server, lambda source, _manager: source.nodes(nodes))
    assert [key.name for key in found] == ["n1", "n2"]


def test_nobody_is_ready_without_a_topology_and_everything_is_undecided() -> None:
    def look(source: TopologySource, manager: Manager) -> tuple[str | None, object]:
        return manager.readiness.result("topology").reason, source.pool_of(node("a"))

    reason, pool = on(Server(), look)
    assert reason == "topology.yml: there is no ConfigMap gpu-mirage/topology: make it, with a topology in it"
    assert isinstance(pool, Undecided)


def test_a_topology_that_is_taken_away_makes_ready_no_more_and_stays_in_force() -> None:
    good = "nodePools: {a: {gpu: {profile: h100}}}"

    def look(source: TopologySource, manager: Manager) -> tuple[bool, list[str]]:
        return bool(manager.readiness.result("topology").reason), list(source.estate.pools)

    for change in (changed(good, 2, "DELETED"), changed("{", 2)):
        assert on(Server(config(good), changes=(change,)), look) == (True, ["a"])


def test_one_bad_pool_makes_nobody_not_ready_but_is_counted_and_noted() -> None:
    def look(_source: TopologySource, manager: Manager) -> tuple[str | None, str | None, bool]:
        result = manager.readiness.result("topology")
        return result.reason, result.note, "gpu_mirage_topology_problems 1.0" in manager.metrics.render().decode()

    note = "nodePools.a: 7 is not a map: write it as `name: value` lines"
    assert on(Server(config("nodePools: {a: 7, b: {gpu: {profile: t4}}}")), look) == (None, note, True)


def test_what_cannot_be_served_here_is_told_about_the_document() -> None:
    server = Server(config("nodePools: {a: {gpu: {profile: t4}}}"))
    on(server, lambda source, _manager: source.warn("MigNotSupported", "nodePools.a.gpu.mig: no", "PublishSlices"))
    assert [(event["reason"], event["regarding"]["name"]) for event in server.events] == [
        ("MigNotSupported", "topology")
    ]


def test_each_of_many_mistakes_is_told_and_so_are_those_of_the_next_document() -> None:
    first = "nodePools: {" + ", ".join(f"a{number}: 7" for number in range(40)) + "}"
    second = "nodePools: {" + ", ".join(f"b{number}: 7" for number in range(8)) + ", good: {gpu: {profile: t4}}}"
    server = Server(config(first), changes=(changed(second, 2),))
    on(server, pools)
    told = {event["note"].partition(":")[0].removeprefix("nodePools.") for event in server.events}
    assert {f"a{number}" for number in range(40)} <= told
    assert {f"b{number}" for number in range(8)} <= told


def test_of_too_many_mistakes_the_rest_is_one_event() -> None:
    document = "nodePools: {" + ", ".join(f"a{number}: 7" for number in range(60)) + "}"
    server = Server(config(document))
    on(server, pools)
    assert len(server.events) == 51
    assert server.events[-1]["note"].startswith("there are 10 more mistakes")
