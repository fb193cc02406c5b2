"""One cluster of a manager: its informers, who needs them, and what it says of those that are not filled."""

from collections.abc import Callable
from typing import Any

import pytest

from controllers.runtime.cache import Informer
from controllers.runtime.client import Client, ClientOptions, Selection
from controllers.runtime.clock import SystemClock
from controllers.runtime.cluster import Cluster
from controllers.runtime.errors import ConfigurationError, LeadershipLost
from controllers.runtime.meta import KubeObject, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.rbac import Declaration, permissions
from controllers.runtime.testing import Answer, ScriptedTransport, run_virtual


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


class Marked(Thing, frozen=True, kw_only=True):
    """Things that are selected in another way."""


DECLARATION = Declaration("things", permissions(Thing, "create"))
BODY = {"metadata": {"name": "x", "namespace": "a", "uid": "u", "resourceVersion": "1"}}


def cluster(
    name: str = "", guard: Callable[[], None] | None = None, made: dict[str, Informer[Any]] | None = None
) -> Cluster:
    transport = ScriptedTransport(lambda _: Answer(body=BODY))
    return Cluster(
        Client(transport, ClientOptions("tests", attempts=1)),
        name=name,
        clock=SystemClock(),
        metrics=Metrics(),
        guard=guard,
        new_informer=({} if made is None else made).__setitem__,
    )


def test_each_kind_has_one_informer_and_whoever_runs_them_is_told_of_it_once() -> None:
    made: dict[str, Informer[Any]] = {}
    there = cluster("there", made=made)
    informer = there.informer(Thing)
    assert there.informer(Thing) is informer
    assert there.reader(Thing) is informer.store
    assert made == {"informer-things.example.com in there": informer}


def test_only_the_first_use_of_a_kind_may_select() -> None:
    there = cluster()
    there.informer(Thing, Selection("a"))
    with pytest.raises(ConfigurationError, match="select before its first use"):
        there.informer(Thing, Selection("b"))


def test_a_write_is_seen_by_the_informer_of_its_kind_or_else_by_those_of_its_resource() -> None:
    there = cluster()
    things, marked = there.informer(Thing), there.informer(Marked, Selection(labels="marked"))
    assert there.informers_of(Thing) == [things]
    assert there.informers_of(Marked) == [marked]

    class Other(Thing, frozen=True, kw_only=True):
        pass

    assert there.informers_of(Other) == [things, marked]


def test_what_is_not_filled_is_named_with_its_cluster_unless_it_is_optional() -> None:
    assert list(cluster().unsynced()) == []
    for name, text in (("", "things.example.com: not listed yet"), ("b", "things.example.com in b: not listed yet")):
        there = cluster(name)
        there.informer(Thing, optional=True)
        assert list(there.unsynced()) == []
        there.informer(Thing)
        assert list(there.unsynced()) == [text]
        there.informer(Thing, optional=True)
        assert list(there.unsynced()) == [text]


def test_nobody_waits_for_an_optional_kind() -> None:
    there = cluster()
    there.informer(Thing, optional=True)
    run_virtual(there.wait_synced)


def test_a_client_is_guarded_unless_it_needs_no_leader() -> None:
    def guard() -> None:
        raise LeadershipLost("no")

    async def scenario() -> None:
        there = cluster(guard=guard)
        with pytest.raises(LeadershipLost):
            await there.client_for(DECLARATION).create(Thing, BODY)
        await there.client_for(DECLARATION, needs_leader=False).create(Thing, BODY)
        await cluster().client_for(DECLARATION).create(Thing, BODY)

    run_virtual(scenario)
