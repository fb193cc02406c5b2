"""ComputeDomains on a real control plane: what becomes of them, and what stays as it is.

The expected values are written out. What a test makes that is not the controller's is called ``users-...`` or
``outside-...``; the last test reads the audit log of everything before it.
"""

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from hack.localcluster import ControllerProcess, Environment, delete_nodes, node_manifest, set_ready
from hack.localcluster.controllers import REPOSITORY
from hack.localcluster.nodes import CLIQUE_LABEL, POOL_LABEL
from tests.integration.conftest import PoolNodes, unique
from tests.integration.scenario import (
    DOMAIN_KEY,
    DRIVER_NAMESPACE,
    EAST,
    WEST,
    Cluster,
    Manifest,
    domain,
    worker,
)

FINALIZER = "resource.nvidia.com/computeDomain"
TARGET_LABEL = "resource.nvidia.com/computeDomainTarget"
ACCOUNT = "system:serviceaccount:gpu-mirage:gpu-mirage-compute-domain"
MANAGER = "gpu-mirage/compute-domain"
CLIQUES = "computedomaincliques"
DEAD_UID = "dead0000-1111-4222-8333-444444444444"
WRITES = ("create", "update", "patch", "delete", "deletecollection")
SLOW = 60.0  # seconds; for what the control plane itself takes its time with


@pytest.fixture
def cluster(controller: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(controller.environment, namespace)


@pytest.fixture
def other_namespace(environment: Environment, used_namespaces: list[str]) -> Iterator[str]:
    """A second namespace, deleted after the test."""
    name = f"other-{unique()}"
    environment.create_namespace(name)
    yield name
    environment.delete_namespace(name)
    used_namespaces.append(name)


def members(status: Manifest) -> dict[str, tuple[str, int]]:
    """The clique and the index of each entry of a status, by node."""
    return {node["name"]: (node["cliqueID"], node["index"]) for node in status["nodes"]}


def at_place(status: Manifest, clique: str, index: int) -> str:
    """The node with an index in a clique."""
    return next(name for name, place in members(status).items() if place == (clique, index))


def template_spec(uid: str, mode: str = "Single") -> Manifest:
    """The spec of the template that a domain generates."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
        "allocationMode": mode,
    }
    return {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "channel",
                        "exactly": {
                            "deviceClassName": "compute-domain-default-channel.nvidia.com",
                            "allocationMode": "ExactCount",
                            "count": 1,
                        },
                    }
                ],
                "config": [
                    {
                        "requests": ["channel"],
                        "opaque": {"driver": "compute-domain.nvidia.com", "parameters": parameters},
                    }
                ],
            }
        }
    }


def template(namespace: str, name: str, labels: Mapping[str, str], uid: str) -> Manifest:
    """A template that looks like the one of the domain with that uid."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": template_spec(uid),
    }


def clique(name: str, uid: str, daemons: Iterable[Manifest] = ()) -> Manifest:
    """A clique that looks like one of the domain with that uid."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainClique",
        "metadata": {
            "name": name,
            "namespace": DRIVER_NAMESPACE,
            "labels": {DOMAIN_KEY: uid, f"{DOMAIN_KEY}.cliqueID": EAST},
        },
        "daemons": list(daemons),
    }


def allocation(node: str, uid: str) -> Manifest:
    """What the scheduler would write to give a domain's claim the channel of a node."""
    config = template_spec(uid)["spec"]["devices"]["config"][0]
    result = {"request": "channel", "driver": "compute-domain.nvidia.com", "pool": node, "device": "channel-0"}
    return {"status": {"allocation": {"devices": {"results": [result], "config": [{"source": "FromClaim", **config}]}}}}


def apply_as(cluster: Cluster, manager: str, *objects: Manifest) -> None:
    """Writes objects under a field manager of choice."""
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    arguments = ("apply", "--server-side", f"--field-manager={manager}", "-f", "-")
    cluster.environment.kubectl(*arguments, input=json.dumps(listing))


def wait_template_of(cluster: Cluster, name: str, uid: str, *, not_uid: str = "") -> Manifest:
    """Waits for a living template that belongs to a domain, and is not the one with a certain uid of its own."""

    def found() -> Manifest | None:
        made = cluster.get("resourceclaimtemplates", name)
        if made is None or made["metadata"]["uid"] == not_uid or "deletionTimestamp" in made["metadata"]:
            return None
        return made if made["metadata"].get("labels", {}).get(DOMAIN_KEY) == uid else None

    return cluster.wait(found, lambda: f"template {name} of {uid}: {cluster.get('resourceclaimtemplates', name)}")


def wait_nothing_left(cluster: Cluster, uid: str, nodes: Iterable[str]) -> None:
    """Waits until neither cliques nor node labels nor templates of a domain are left."""
    for node in nodes:
        cluster.wait_domain_label(node, None)
    cluster.wait(
        lambda: not cluster.clique_daemons(uid) or None, lambda: f"cliques to go: {cluster.clique_daemons(uid)}"
    )
    cluster.wait(
        lambda: not cluster.list("resourceclaimtemplates", selector=f"{DOMAIN_KEY}={uid}") or None,
        lambda: f"templates of {uid} to go",
    )


def wait_claim(cluster: Cluster, pod: str) -> str:
    """Waits for the claim that the cluster makes for a pod; returns its name."""

    def found() -> str | None:
        claims = cluster.list("resourceclaims")
        names = [c["metadata"]["name"] for c in claims if c["metadata"]["ownerReferences"][0]["name"] == pod]
        return names[0] if names else None

    return cluster.wait(found, lambda: f"a claim of pod {pod}")


def snapshot(cluster: Cluster, *references: tuple[str, str, str]) -> list[Manifest | None]:
    """Objects in full, so that equality means that nobody wrote them; each must exist."""
    objects = [cluster.get(kind, name, namespace) for kind, name, namespace in references]
    assert None not in objects
    return objects


def own_writes(environment: Environment, *, to: str) -> list[tuple[str, str]]:
    """Verb and target of each successful write by the controller to an object whose name ends so; Events are none."""
    return [
        (event["verb"], "/".join(filter(None, (reference["resource"], reference.get("subresource")))))
        for event in environment.audit_events()
        if is_own_write(event) and (reference := event["objectRef"]).get("name", "").endswith(to)
    ]


def is_own_write(event: Mapping[str, Any]) -> bool:
    reference = event.get("objectRef", {})
    wanted = event["verb"] in WRITES and reference.get("resource") != "events"
    return wanted and event["user"]["username"] == ACCOUNT and event["responseStatus"]["code"] < 300


# -- serving ----------------------------------------------------------------------------------------------------------


def test_four_nodes_in_two_cliques_are_ready_with_all_that_belongs_to_them(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    nodes = pool_nodes({EAST: 2, WEST: 2})

    cluster.apply(domain(cluster.namespace), *(worker(cluster.namespace, f"worker-{number}") for number in range(4)))
    status = cluster.wait_status("Ready", members=4)

    uid = cluster.uid("computedomains", "pair")
    assert set(members(status)) == set(nodes)
    assert sorted(members(status).values()) == [(EAST, 0), (EAST, 1), (WEST, 0), (WEST, 1)]
    assert {members(status)[node][0] for node in nodes[:2]} == {EAST}
    assert {node["status"] for node in status["nodes"]} == {"Ready"}
    addresses = {ipaddress.ip_address(node["ipAddress"]) for node in status["nodes"]}
    assert len(addresses) == 4
    assert all(address in ipaddress.ip_network("fd67:7075:6d69::/48") for address in addresses)
    assert [cluster.domain_label(node) for node in nodes] == [uid, uid, uid, uid]


def test_a_clique_object_lists_the_members_of_one_clique(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    nodes = pool_nodes({EAST: 2, "": 1})

    uid = cluster.bring_up(nodes)

    entries = {node["name"]: node for node in cluster.status()["nodes"]}
    assert (entries[nodes[2]]["cliqueID"], entries[nodes[2]]["index"]) == ("", -1)
    found = cluster.list("computedomaincliques", DRIVER_NAMESPACE, f"{DOMAIN_KEY}={uid}")
    assert [made["metadata"]["name"] for made in found] == [f"{uid}.11111111-2222-3333-4444-555555555555.1"]
    assert found[0]["metadata"]["labels"] == {
        "resource.nvidia.com/computeDomain": uid,
        "resource.nvidia.com/computeDomain.cliqueID": "11111111-2222-3333-4444-555555555555.1",
    }
    assert "ownerReferences" not in found[0]["metadata"]
    assert sorted(found[0]["daemons"], key=lambda daemon: str(daemon["nodeName"])) == [
        {
            "nodeName": node,
            "ipAddress": entries[node]["ipAddress"],
            "cliqueID": "11111111-2222-3333-4444-555555555555.1",
            "index": entries[node]["index"],
            "status": "Ready",
        }
        for node in nodes[:2]
    ]


@pytest.mark.parametrize("mode", ["Single", "All"])
def test_the_template_names_its_domain(cluster: Cluster, mode: str) -> None:
    cluster.apply(domain(cluster.namespace, mode=mode))
    uid = cluster.uid("computedomains", "pair")

    made = wait_template_of(cluster, "pair-channel", uid)

    assert made["metadata"]["labels"] == {
        "resource.nvidia.com/computeDomain": uid,
        "resource.nvidia.com/computeDomainTarget": "Workload",
    }
    assert made["metadata"]["finalizers"] == ["resource.nvidia.com/computeDomain"]
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "name": "pair",
            "uid": uid,
            "controller": True,
        }
    ]
    assert {key: value for key, value in made["spec"].items() if value} == template_spec(uid, mode)


def test_tables_show_what_a_person_wants_to_know(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    uid = cluster.bring_up(pool_nodes({EAST: 1}))

    assert table(cluster, "computedomains", cluster.namespace) == [
        ["NAME", "STATUS", "NODES WANTED", "TEMPLATE", "MODE", "AGE"],
        ["pair", "Ready", "1", "pair-channel", "Single"],
    ]
    header, *rows = table(cluster, "computedomaincliques", DRIVER_NAMESPACE)
    assert header == ["NAME", "DOMAIN", "CLIQUE", "AGE"]
    assert [f"{uid}.{EAST}", uid, EAST] in rows


def table(cluster: Cluster, kind: str, namespace: str) -> list[list[str]]:
    """What kubectl prints: the header, and the rows without their age."""
    lines = cluster.environment.kubectl("get", kind, "-n", namespace).splitlines()
    header, *rows = [re.split(r" {2,}", line.strip()) for line in lines]
    return [header, *(row[:-1] for row in rows)]


def test_five_domains_on_nodes_of_their_own_are_ready_at_once(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    nodes = pool_nodes({EAST: 10})
    pairs = {f"pair-{number}": nodes[2 * number : 2 * number + 2] for number in range(5)}

    cluster.apply(
        *(domain(cluster.namespace, name, nodes=2) for name in pairs),
        *(
            worker(cluster.namespace, f"worker-{node}", template=f"{name}-channel", node=node)
            for name, pair in pairs.items()
            for node in pair
        ),
    )

    for name, pair in pairs.items():
        status = cluster.wait_status("Ready", name, members=2)
        assert set(members(status)) == set(pair)
        assert sorted(members(status).values()) == [(EAST, 0), (EAST, 1)]
        uid = cluster.uid("computedomains", name)
        assert list(cluster.clique_daemons(uid)) == [f"{uid}.{EAST}"]
        labelled = cluster.list("nodes", selector=f"{DOMAIN_KEY}={uid}")
        assert {node["metadata"]["name"] for node in labelled} == set(pair)


def test_a_domain_goes_ready_with_no_write_too_many(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    name = f"frugal-{unique()}"
    nodes = pool_nodes({EAST: 1})

    cluster.apply(domain(cluster.namespace, name, nodes=1))
    cluster.wait_status("NotReady", name)
    cluster.apply(worker(cluster.namespace, "worker", template=f"{name}-channel", node=nodes[0]))
    cluster.wait_status("Ready", name, members=1)

    environment, uid = cluster.environment, cluster.uid("computedomains", name)
    assert own_writes(environment, to=f"{name}-channel") == [("create", "resourceclaimtemplates")]
    assert own_writes(environment, to=nodes[0]) == [("patch", "nodes")]
    assert own_writes(environment, to=f"{uid}.{EAST}") == [("patch", "computedomaincliques")]
    assert sorted(own_writes(environment, to=name)) == [
        ("patch", "computedomains"),
        ("patch", "computedomains/status"),
        ("patch", "computedomains/status"),
    ]


# -- members come and go ----------------------------------------------------------------------------------------------


def test_a_deleted_pod_takes_its_node_out_of_the_domain(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    east, east_leaving, west_leaving = nodes = pool_nodes({EAST: 2, WEST: 1})
    uid = cluster.bring_up(nodes)
    index = members(cluster.status())[east][1]

    cluster.delete("pods", f"pair-{east_leaving}")
    status = cluster.wait_status("NotReady", members=2)
    assert set(members(status)) == {east, west_leaving}
    cluster.delete("pods", f"pair-{west_leaving}")
    status = cluster.wait_status("NotReady", members=1)

    assert members(status) == {east: (EAST, index)}
    assert [cluster.domain_label(node) for node in nodes] == [uid, None, None]
    daemons = cluster.clique_daemons(uid)
    assert list(daemons) == [f"{uid}.{EAST}"]
    assert [(daemon["nodeName"], daemon["index"]) for daemon in daemons[f"{uid}.{EAST}"]] == [(east, index)]


def test_a_node_serves_one_domain_at_a_time(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1})
    first = cluster.bring_up([node], "first")

    cluster.apply(
        domain(cluster.namespace, "second", nodes=1),
        worker(cluster.namespace, "waiting", template="second-channel", node=node),
    )
    second = cluster.uid("computedomains", "second")
    cluster.wait_unschedulable("waiting")
    assert cluster.wait_status("NotReady", "second", members=0)

    cluster.patch("resourceclaims", wait_claim(cluster, "waiting"), allocation(node, second), subresource="status")
    event = cluster.wait_event("NodeInOtherDomain", "second")

    assert event["type"] == "Warning"
    assert event["note"].startswith(f"node {node} belongs to the ComputeDomain with uid {first} ")
    assert cluster.status("second") == {"status": "NotReady", "nodes": []}
    assert members(cluster.status("first")) == {node: (EAST, 0)}
    assert cluster.domain_label(node) == first

    cluster.delete("pods", f"first-{node}")

    assert members(cluster.wait_status("Ready", "second", members=1)) == {node: (EAST, 0)}
    assert cluster.domain_label(node) == second
    cluster.wait_status("NotReady", "first", members=0)


def test_a_changed_clique_label_moves_the_entry_to_the_smallest_free_index(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    uid = cluster.bring_up(pool_nodes({EAST: 2, WEST: 2}))
    before = cluster.status()
    moving, staying = at_place(before, EAST, 0), at_place(before, EAST, 1)
    leaving, resident = at_place(before, WEST, 0), at_place(before, WEST, 1)
    cluster.delete("pods", f"pair-{leaving}")
    cluster.wait_status("NotReady", members=3)

    cluster.patch("nodes", moving, {"metadata": {"labels": {CLIQUE_LABEL: WEST}}})

    expected = {moving: (WEST, 0), staying: (EAST, 1), resident: (WEST, 1)}
    cluster.wait(lambda: members(cluster.status()) == expected or None, lambda: f"the move: {cluster.status()}")
    daemons = cluster.clique_daemons(uid)
    assert {name: {d["nodeName"]: d["index"] for d in entries} for name, entries in daemons.items()} == {
        f"{uid}.{EAST}": {staying: 1},
        f"{uid}.{WEST}": {moving: 0, resident: 1},
    }


def test_a_node_that_is_not_ready_makes_its_domain_not_ready_until_it_is_back(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    failing, healthy = nodes = pool_nodes({EAST: 2})
    uid = cluster.bring_up(nodes)
    before = cluster.status()

    set_ready(cluster.environment, failing, ready=False)
    status = cluster.wait_status("NotReady", members=2)

    assert {node["name"]: node["status"] for node in status["nodes"]} == {failing: "NotReady", healthy: "Ready"}
    daemons = cluster.clique_daemons(uid)[f"{uid}.{EAST}"]
    assert {daemon["nodeName"]: daemon["status"] for daemon in daemons} == {failing: "NotReady", healthy: "Ready"}

    set_ready(cluster.environment, failing, ready=True)
    assert cluster.wait_status("Ready", members=2) == before


def test_a_deleted_node_leaves_its_domain(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    gone, staying = nodes = pool_nodes({EAST: 1, WEST: 1})
    uid = cluster.bring_up(nodes)

    cluster.delete("nodes", gone)

    assert members(cluster.wait_status("NotReady", members=1)) == {staying: (WEST, 0)}
    assert list(cluster.clique_daemons(uid)) == [f"{uid}.{WEST}"]
    assert cluster.domain_label(staying) == uid


# -- templates --------------------------------------------------------------------------------------------------------


def test_a_users_template_under_the_wanted_name_is_not_touched(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1})
    users = template(cluster.namespace, "pair-channel", {"owner": "a-person"}, DEAD_UID)
    cluster.apply(users)
    before = snapshot(cluster, ("resourceclaimtemplates", "pair-channel", cluster.namespace))

    cluster.apply(domain(cluster.namespace, nodes=1))
    event = cluster.wait_event("TemplateNameTaken", "pair")
    assert cluster.wait_status("NotReady") == {"status": "NotReady", "nodes": []}

    assert event["type"] == "Warning"
    assert event["note"].startswith("ResourceClaimTemplate pair-channel exists and was not made for this domain")
    assert snapshot(cluster, ("resourceclaimtemplates", "pair-channel", cluster.namespace)) == before

    cluster.delete("resourceclaimtemplates", "pair-channel")
    wait_template_of(cluster, "pair-channel", cluster.uid("computedomains", "pair"))
    cluster.apply(worker(cluster.namespace, "worker", node=node))
    cluster.wait_status("Ready", members=1)


def test_a_domain_takes_a_template_name_over_when_the_domain_that_had_it_goes(cluster: Cluster) -> None:
    cluster.apply(domain(cluster.namespace, "first", template="shared"))
    first = cluster.uid("computedomains", "first")
    wait_template_of(cluster, "shared", first)

    cluster.apply(domain(cluster.namespace, "second", template="shared"))
    event = cluster.wait_event("TemplateNameTaken", "second")
    assert f"belongs to the ComputeDomain with uid {first}:" in event["note"]
    assert cluster.wait_status("NotReady", "second") == {"status": "NotReady", "nodes": []}
    wait_template_of(cluster, "shared", first)

    cluster.delete("computedomains", "first")
    wait_template_of(cluster, "shared", cluster.uid("computedomains", "second"))
    cluster.wait_gone("computedomains", "first")


def test_a_template_that_a_user_deletes_is_made_again_while_pods_run(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    first, second = pool_nodes({EAST: 2})
    uid = cluster.bring_up([first], "remade")
    deleted = cluster.uid("resourceclaimtemplates", "remade-channel")
    pod = cluster.uid("pods", f"remade-{first}")

    cluster.delete("resourceclaimtemplates", "remade-channel")

    made = wait_template_of(cluster, "remade-channel", uid, not_uid=deleted)
    assert {key: value for key, value in made["spec"].items() if value} == template_spec(uid)
    cluster.apply(worker(cluster.namespace, "worker", template="remade-channel", node=second))
    status = cluster.wait_status("Ready", "remade", members=2)
    assert members(status) == {first: (EAST, 0), second: (EAST, 1)}
    assert cluster.uid("pods", f"remade-{first}") == pod


# -- deletion ---------------------------------------------------------------------------------------------------------


def test_a_domain_made_again_under_its_name_has_nothing_of_the_old_one(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1})
    old = cluster.bring_up([node], "remade")
    cluster.delete("computedomains", "remade")
    cluster.wait_gone("computedomains", "remade")

    cluster.apply(domain(cluster.namespace, "remade", nodes=1))
    new = cluster.uid("computedomains", "remade")
    made = wait_template_of(cluster, "remade-channel", new)

    assert new != old
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [new]
    assert cluster.wait_status("NotReady", "remade") == {"status": "NotReady", "nodes": []}
    wait_nothing_left(cluster, old, [node])

    cluster.delete("pods", f"remade-{node}")
    cluster.apply(worker(cluster.namespace, "again", template="remade-channel", node=node))
    assert members(cluster.wait_status("Ready", "remade", members=1)) == {node: (EAST, 0)}
    assert cluster.domain_label(node) == new
    assert list(cluster.clique_daemons(new)) == [f"{new}.{EAST}"]
    assert cluster.clique_daemons(old) == {}


def test_a_domain_deleted_in_use_takes_everything_back_and_leaves_the_pods_running(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    nodes = pool_nodes({EAST: 1, WEST: 1})
    uid = cluster.bring_up(nodes)
    cluster.apply(
        template(cluster.namespace, "users-template", {}, uid),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "users-map", "namespace": cluster.namespace}},
    )
    foreign = (
        ("resourceclaimtemplates", "users-template", cluster.namespace),
        ("configmaps", "users-map", cluster.namespace),
        *(("pods", f"pair-{node}", cluster.namespace) for node in nodes),
        *(("resourceclaims", wait_claim(cluster, f"pair-{node}"), cluster.namespace) for node in nodes),
    )
    for node in nodes:
        wait_running(cluster, f"pair-{node}")
    before = snapshot(cluster, *foreign)

    cluster.delete("computedomains", "pair")
    cluster.wait_gone("computedomains", "pair")

    wait_nothing_left(cluster, uid, nodes)
    event = cluster.wait_event("DeletedInUse", "pair")
    assert (event["type"], event["note"].partition(";")[0]) == (
        "Warning",
        "deleted while 2 ResourceClaims of it are allocated",
    )
    assert cluster.get("resourceclaimtemplates", "pair-channel") is None
    assert snapshot(cluster, *foreign) == before


def wait_running(cluster: Cluster, pod: str) -> None:
    """Waits for KWOK's last write to a pod."""

    def running() -> bool | None:
        status = (cluster.get("pods", pod) or {}).get("status", {})
        return (status.get("phase") == "Running" and bool(status.get("podIP"))) or None

    cluster.wait(running, lambda: f"pod {pod} to run: {cluster.get('pods', pod)}")


def test_a_namespace_deleted_under_a_live_domain_goes_with_all_of_it(
    controller: ControllerProcess, pool_nodes: PoolNodes
) -> None:
    environment = controller.environment
    cluster = Cluster(environment, f"going-{unique()}")
    nodes = pool_nodes({EAST: 1, WEST: 1})
    environment.create_namespace(cluster.namespace)
    uid = cluster.bring_up(nodes)

    environment.kubectl("delete", "namespace", cluster.namespace, "--wait=false")

    cluster.wait(
        lambda: cluster.get("namespaces", cluster.namespace) is None or None,
        lambda: f"the namespace to go: {cluster.get('namespaces', cluster.namespace)}",
        timeout=SLOW,
    )
    wait_nothing_left(cluster, uid, nodes)


# -- objects that only look like ours ---------------------------------------------------------------------------------


def test_labels_that_users_write_make_nothing_ours(
    cluster: Cluster, other_namespace: str, pool_nodes: PoolNodes
) -> None:
    serving, spoofed = pool_nodes({EAST: 2})
    outside = node_manifest(f"outside-{unique()}", clique=EAST)
    del outside["metadata"]["labels"][POOL_LABEL]
    outside_name, users_clique = outside["metadata"]["name"], f"users-{unique()}"
    cluster.apply(domain(cluster.namespace, nodes=1))
    uid = cluster.uid("computedomains", "pair")
    outside["metadata"]["labels"][DOMAIN_KEY] = uid
    labels = {DOMAIN_KEY: uid, TARGET_LABEL: "Workload"}
    spoofed_entry = {"nodeName": serving, "ipAddress": "fd00::1", "cliqueID": EAST, "index": 7, "status": "Ready"}
    cluster.apply(
        template(other_namespace, "users-template", labels, uid),
        template(cluster.namespace, "users-template", labels, uid),
        clique(users_clique, uid, [spoofed_entry]),
        outside,
    )
    cluster.patch("nodes", spoofed, {"metadata": {"labels": {DOMAIN_KEY: uid}}})
    foreign = (
        ("resourceclaimtemplates", "users-template", other_namespace),
        ("resourceclaimtemplates", "users-template", cluster.namespace),
        ("computedomaincliques", users_clique, DRIVER_NAMESPACE),
    )
    before = snapshot(cluster, *foreign)

    try:
        wait_template_of(cluster, "pair-channel", uid)
        cluster.apply(worker(cluster.namespace, "worker", node=serving))
        assert members(cluster.wait_status("Ready", members=1)) == {serving: (EAST, 0)}

        cluster.delete("computedomains", "pair")
        cluster.wait_gone("computedomains", "pair")
        sweep(cluster)

        assert snapshot(cluster, *foreign) == before
        assert (cluster.domain_label(outside_name), cluster.domain_label(spoofed)) == (uid, uid)
        assert cluster.domain_label(serving) is None
        environment = cluster.environment
        for name in ("users-template", users_clique, outside_name, spoofed):
            assert own_writes(environment, to=name) == []
    finally:
        cluster.delete("computedomaincliques", users_clique, DRIVER_NAMESPACE)
        delete_nodes(cluster.environment, [outside_name])


def sweep(cluster: Cluster) -> None:
    """Makes a leftover that the controller wrote, and a domain whose end wakes the sweeper; waits for its removal."""
    leftover = f"leftover-{unique()}"
    labels = {DOMAIN_KEY: DEAD_UID, TARGET_LABEL: "Workload"}
    apply_as(cluster, MANAGER, template(cluster.namespace, leftover, labels, DEAD_UID))
    cluster.apply(domain(cluster.namespace, "waking"))
    wait_template_of(cluster, "waking-channel", cluster.uid("computedomains", "waking"))
    cluster.delete("computedomains", "waking")
    cluster.wait_gone("resourceclaimtemplates", leftover)


def test_leftovers_of_dead_domains_are_swept_if_we_wrote_them(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    ours, users = pool_nodes({EAST: 2})
    our_clique, users_clique = f"{DEAD_UID}.{EAST}", f"users-{unique()}"
    leftover = leftovers(cluster.namespace, "leftover-template", our_clique, ours)
    leftover[0]["metadata"]["finalizers"] = [FINALIZER]
    apply_as(cluster, MANAGER, *leftover)
    apply_as(cluster, "somebody", *leftovers(cluster.namespace, "users-template", users_clique, users))
    foreign = (
        ("resourceclaimtemplates", "users-template", cluster.namespace),
        ("computedomaincliques", users_clique, DRIVER_NAMESPACE),
    )
    before = snapshot(cluster, *foreign)

    try:
        sweep(cluster)

        cluster.wait_gone("resourceclaimtemplates", "leftover-template")
        cluster.wait_gone("computedomaincliques", our_clique, DRIVER_NAMESPACE)
        cluster.wait_domain_label(ours, None)
        assert snapshot(cluster, *foreign) == before
        assert cluster.domain_label(users) == DEAD_UID
    finally:
        cluster.delete("computedomaincliques", users_clique, DRIVER_NAMESPACE)


def leftovers(namespace: str, template_name: str, clique_name: str, node: str) -> list[Manifest]:
    """One of each kind that a domain leaves behind, naming a domain that does not live."""
    daemon = {"nodeName": node, "ipAddress": "fd00::1", "cliqueID": EAST, "index": 0, "status": "Ready"}
    return [
        template(namespace, template_name, {DOMAIN_KEY: DEAD_UID, TARGET_LABEL: "Workload"}, DEAD_UID),
        clique(clique_name, DEAD_UID, [daemon]),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {DOMAIN_KEY: DEAD_UID}}},
    ]


# -- other writers and other CRDs -------------------------------------------------------------------------------------


def test_a_domain_whose_status_somebody_else_writes_is_left_to_them_until_it_is_deleted(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    name = f"foreign-{unique()}"
    *nodes, other = pool_nodes({EAST: 3})
    uid = cluster.bring_up(nodes, name)
    cluster.bring_up([other], "witness")
    claim = wait_claim(cluster, f"{name}-{nodes[0]}")

    cluster.patch("computedomains", name, {"status": {"status": "NotReady"}}, subresource="status")
    event = cluster.wait_event("ForeignController", name)
    edited = cluster.status(name)
    writes = own_writes(cluster.environment, to=name)
    cluster.delete("pods", f"{name}-{nodes[0]}")
    cluster.wait_gone("resourceclaims", claim)
    # Claims are seen in the order of their changes, so the end of that one has been seen once this one's has.
    cluster.delete("pods", f"witness-{other}")
    cluster.wait_status("NotReady", "witness", members=0)

    assert event["type"] == "Warning"
    assert event["note"].startswith("also served by kubectl-patch: standing down.")
    assert edited["status"] == "NotReady"
    assert cluster.status(name) == edited
    assert own_writes(cluster.environment, to=name) == writes
    assert [cluster.domain_label(node) for node in nodes] == [uid, uid]

    cluster.delete("computedomains", name)
    cluster.wait_gone("computedomains", name)
    wait_nothing_left(cluster, uid, nodes)


def test_a_domain_whose_finalizer_is_somebody_elses_is_left_to_them(cluster: Cluster) -> None:
    name = f"foreign-{unique()}"
    served = domain(cluster.namespace, name)
    served["metadata"]["finalizers"] = [FINALIZER]
    apply_as(cluster, "another-controller", served)

    event = cluster.wait_event("ForeignController", name)
    cluster.delete("computedomains", name)
    cluster.apply(domain(cluster.namespace, "witness"))
    wait_template_of(cluster, "witness-channel", cluster.uid("computedomains", "witness"))

    assert event["note"].startswith("also served by another-controller: standing down.")
    assert cluster.get("resourceclaimtemplates", f"{name}-channel") is None
    assert own_writes(cluster.environment, to=name) == []
    cluster.patch("computedomains", name, {"metadata": {"finalizers": None}})
    cluster.wait_gone("computedomains", name)


@pytest.fixture
def bare_crds(installed: Environment) -> Iterator[Environment]:
    """The CRDs with the same schema as ours and nothing else of ours: no columns, no labels."""
    ours = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "crds").glob("computedomain*.yaml"))]
    assert len(ours) == 2
    for crd in ours:
        crd["metadata"] = {"name": crd["metadata"]["name"], "annotations": {"example.com/installed-by": "a-driver"}}
        crd["spec"]["versions"][0].pop("additionalPrinterColumns")
    apply_crds(installed, ours)
    yield installed
    installed.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(REPOSITORY / "crds"))


def apply_crds(environment: Environment, crds: list[Manifest]) -> None:
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": crds})
    environment.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=listing)


def test_a_domain_works_with_the_drivers_crds_instead_of_ours(
    cluster: Cluster, bare_crds: Environment, pool_nodes: PoolNodes
) -> None:
    nodes = pool_nodes({EAST: 1, WEST: 1})
    cluster.apply(domain(cluster.namespace, "early"))
    cluster.wait(
        lambda: table(cluster, "computedomains", cluster.namespace)[0] == ["NAME", "AGE"] or None,
        lambda: "the tables to have no columns of ours",
    )

    uid = cluster.bring_up(nodes)
    assert table(cluster, "computedomains", cluster.namespace) == [["NAME", "AGE"], ["early"], ["pair"]]
    assert sorted(members(cluster.status()).values()) == [(EAST, 0), (WEST, 0)]
    assert sorted(cluster.clique_daemons(uid)) == [f"{uid}.{EAST}", f"{uid}.{WEST}"]

    cluster.delete("pods", f"pair-{nodes[0]}")
    cluster.wait_status("NotReady", members=1)
    cluster.delete("computedomains", "pair")
    cluster.wait_gone("computedomains", "pair")
    wait_nothing_left(cluster, uid, nodes)


# -- what the audit log says of all of it -----------------------------------------------------------------------------


def test_no_call_is_denied(environment: Environment, controller: ControllerProcess) -> None:
    calls = [event for event in environment.audit_events() if event["user"]["username"] == ACCOUNT]

    assert calls
    denied = [e for e in calls if e.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"]
    assert [describe(event) for event in denied] == []
    # A namespace that is going takes nothing new, which the server also says with this code.
    forbidden = [e for e in calls if e["responseStatus"]["code"] == 403]
    messages = [e["responseStatus"].get("message", "") for e in forbidden]
    assert [message for message in messages if "because it is being terminated" not in message] == []


def describe(event: Mapping[str, Any]) -> str:
    return f"{event['verb']} {event['requestURI']} as {event['user']['username']}: {event['responseStatus']['code']}"


def test_every_child_is_created_once(environment: Environment, controller: ControllerProcess) -> None:
    """Those called ``remade-channel`` are created twice: somebody takes the first one away."""
    created = Counter(
        (reference["resource"], reference["namespace"], reference["name"])
        for event in environment.audit_events()
        if event["user"]["username"] == ACCOUNT
        and (reference := event.get("objectRef", {})).get("resource") in ("resourceclaimtemplates", CLIQUES)
        and event["responseStatus"]["code"] == 201
    )
    templates = {key: count for key, count in created.items() if key[0] == "resourceclaimtemplates"}
    cliques = {key: count for key, count in created.items() if key[0] == CLIQUES}

    assert len(templates) >= 1
    assert len(cliques) >= 1
    expected = {key: 2 if key[2] in ("remade-channel", "shared") else 1 for key in templates}
    assert templates == expected
    assert cliques == dict.fromkeys(cliques, 1)


def test_nothing_is_written_that_is_not_ours(environment: Environment, controller: ControllerProcess) -> None:
    """Of a kind that is wholly ours only objects that we made; of the others only what we have to."""
    ours: dict[tuple[str, str, str], bool] = {}
    strange = []
    for event in environment.audit_events():
        reference = event.get("objectRef", {})
        if event["verb"] not in WRITES or event["responseStatus"]["code"] >= 300 or "name" not in reference:
            continue
        key = (reference["resource"], reference.get("namespace", ""), reference["name"])
        if event["responseStatus"]["code"] == 201:
            as_us = f"fieldManager={MANAGER}&" in unquote(event["requestURI"])
            ours[key] = as_us or event["user"]["username"] == ACCOUNT
        if is_own_write(event) and not is_permitted(event, made_by_us=ours.get(key, False)):
            strange.append(describe(event))

    assert any(ours.values())
    assert strange == []


def is_permitted(event: Mapping[str, Any], *, made_by_us: bool) -> bool:
    reference = event["objectRef"]
    what = (event["verb"], reference["resource"], reference.get("subresource", ""))
    if reference["resource"] in ("resourceclaimtemplates", CLIQUES, "resourceslices"):
        return made_by_us and not reference.get("subresource")
    if what == ("patch", "nodes", ""):
        return not reference["name"].startswith("outside-")
    return what in (("patch", "computedomains", ""), ("patch", "computedomains", "status"))
