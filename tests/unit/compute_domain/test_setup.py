"""What wakes the controller, for which domains, and what it may do."""

import asyncio
from typing import Any

import pytest

from controllers import compute_domain
from controllers.api import nvidia
from controllers.api.core import Node
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique
from controllers.compute_domain import DECLARATION, ComputeDomainOptions
from controllers.compute_domain.setup import Wakers, _what_matters_of_a_node
from controllers.runtime import Client, ClientOptions, Key, KubeObject, Manager
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import Permission
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.transport import HttpRequest
from tests.unit.compute_domain.world import (
    OTHER_UID,
    UID,
    V1,
    World,
    claim,
    clique_of_members,
    domain,
    entry,
    node,
    served,
    template_of,
)

D, OTHER = Key("a", "d"), Key("a", "other")
OTHER_DOMAIN = domain("other", OTHER_UID, template="other-t")


def wakers(*objects: KubeObject, namespaces: frozenset[str] = frozenset()) -> Wakers:
    return Wakers(World(*objects).caches, ComputeDomainOptions(namespaces=namespaces))


def test_a_template_wakes_whoever_asks_for_its_name_in_its_namespace() -> None:
    wake = wakers(domain(), OTHER_DOMAIN, domain("third", "u3", template="t"))
    foreign = template_of(domain(), labels={})
    assert set(wake.by_template(foreign)) == {D, Key("a", "third")}
    assert set(wake.by_template(template_of(domain(), namespace="b"))) == set()


def test_a_claim_wakes_the_domain_that_it_names() -> None:
    wake = wakers(domain(), OTHER_DOMAIN)
    assert set(wake.by_claim(claim(uid=OTHER_UID))) == {OTHER}
    assert set(wake.by_claim(claim(uid="11111111-0000-4000-8000-000000000000"))) == set()


def test_a_clique_wakes_the_domain_in_its_label() -> None:
    wake = wakers(domain(), OTHER_DOMAIN)
    assert set(wake.by_clique(clique_of_members(domain(), entry("n1", 0)))) == {D}
    assert set(wake.by_clique(ComputeDomainClique.decode(b'{"metadata":{"name":"x"}}'))) == set()


def test_a_node_wakes_its_domain_those_that_had_it_and_those_that_wait_for_it() -> None:
    assert set(wakers(domain(), OTHER_DOMAIN).by_node(node())) == set()
    assert set(wakers(domain(), OTHER_DOMAIN).by_node(node(owner=UID))) == {D}
    assert set(wakers(domain(), OTHER_DOMAIN, claim(uid=OTHER_UID)).by_node(node(owner=UID))) == {D, OTHER}
    assert set(wakers(served(domain(), entry("n1", 0)), OTHER_DOMAIN).by_node(node())) == {D}


def test_domains_of_other_namespaces_are_never_woken() -> None:
    objects = (served(domain(), entry("n1", 0)), claim())
    wake = wakers(*objects, namespaces=frozenset({"b"}))
    assert not wake.serves(domain())
    assert wake.serves(domain(namespace="b"))
    woken = {
        *wake.by_template(template_of(domain())),
        *wake.by_claim(claim()),
        *wake.by_node(node(owner=UID)),
        *wake.by_clique(clique_of_members(domain(), entry("n1", 0))),
    }
    assert woken == set()


def test_it_cannot_be_set_up_twice_on_one_manager() -> None:
    manager = Manager(Client(ScriptedTransport(()), ClientOptions("tests")), ManagerOptions())
    compute_domain.setup(manager, V1, ComputeDomainOptions())
    with pytest.raises(ConfigurationError):
        compute_domain.setup(manager, V1, ComputeDomainOptions())


def test_selections_are_what_the_options_say() -> None:
    paths: dict[str, dict[str, str]] = {}

    def server(request: HttpRequest) -> Reply:
        if ("watch", "true") in request.query:
            return Answer(stream=[STALL])
        paths[request.path] = dict(request.query)
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})

    async def scenario() -> None:
        options = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0")
        manager = Manager(Client(ScriptedTransport(server), ClientOptions("tests")), options)
        wanted = ComputeDomainOptions(driver_namespace="drivers", domain_selector="team=x")
        compute_domain.setup(manager, V1, wanted)
        asyncio.get_running_loop().call_later(5, manager.stop)
        await manager.run()

    run_virtual(scenario)
    assert set(paths) == {
        "/api/v1/nodes",
        "/apis/resource.k8s.io/v1/resourceclaims",
        "/apis/resource.k8s.io/v1/resourceclaimtemplates",
        "/apis/resource.nvidia.com/v1beta1/computedomains",
        "/apis/resource.nvidia.com/v1beta1/namespaces/drivers/computedomaincliques",
    }
    selected = {path.rpartition("/")[2]: query.get("labelSelector") for path, query in paths.items()}
    assert selected["computedomains"] == "team=x"
    assert {selector for kind, selector in selected.items() if kind != "computedomains"} == {None}


def test_what_it_may_not_do() -> None:
    everything = DECLARATION.everything
    for resource, verbs in (
        ("nodes", {"create", "delete", "update"}),
        ("nodes/status", {"patch", "update"}),
        ("computedomains", {"create", "delete", "update"}),
        ("resourceclaims", {"create", "delete", "update", "patch"}),
        ("resourceclaims/status", {"patch", "update"}),
        ("namespaces", {"list", "watch", "patch", "delete"}),
    ):
        assert not [granted for granted in everything if granted.resource == resource and granted.verb in verbs]
    cliques = ComputeDomainClique.resource.plural
    assert not [granted for granted in DECLARATION.cluster if granted.resource == cliques]
    assert Permission.of(ComputeDomain.resource, "patch", "status") in DECLARATION.cluster


def change_matters(old: Node, new: Node) -> bool:
    return _what_matters_of_a_node(old) != _what_matters_of_a_node(new)


def test_a_heartbeat_wakes_nobody_and_what_matters_does() -> None:
    assert not change_matters(node(resourceVersion="1"), node(resourceVersion="2"))
    assert not change_matters(node(annotations={"a": "1"}), node(annotations={"a": "2"}))
    assert change_matters(node(ready=True), node(ready=False))
    assert change_matters(node(), node(clique=""))
    assert change_matters(node(), node(owner=UID))
    assert change_matters(node(), node(deletionTimestamp="2030-01-01T00:00:00Z"))


def test_domains_are_counted_by_their_status() -> None:
    compute = Manager(Client(ScriptedTransport(()), ClientOptions("tests")), ManagerOptions())
    compute_domain.setup(compute, V1, ComputeDomainOptions())
    store: Any = compute.reader(ComputeDomain)
    for item in (served(domain(), entry("n1", 0)), served(OTHER_DOMAIN, ready=False), domain("new", "u3")):
        store.put(item)
    lines = compute.metrics.render().decode().splitlines()
    assert f'nvidia_dra_compute_domain_info{{status="{nvidia.READY}"}} 1.0' in lines
    assert f'nvidia_dra_compute_domain_info{{status="{nvidia.NOT_READY}"}} 1.0' in lines
