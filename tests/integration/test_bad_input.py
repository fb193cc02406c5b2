"""What nobody should ask for, on a real control plane: each has one defined outcome that its author can see."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hack.localcluster import ControllerProcess, Environment, KubectlError, node_manifest
from hack.localcluster.polling import wait_until
from tests.integration.conftest import PoolNodes, unique
from tests.integration.scenario import (
    DOMAIN_KEY,
    EAST,
    WEST,
    Cluster,
    Manifest,
    channel_claim,
    channel_parameters,
    domain,
    worker,
)

CRD = "computedomains.resource.nvidia.com"
SCHEMA_PATH = "/spec/versions/0/schema/openAPIV3Schema"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
LONGEST_NAME = 253


@pytest.fixture
def cluster(controller: ControllerProcess, namespace: str) -> Cluster:
    return Cluster(controller.environment, namespace)


@pytest.fixture
def other_namespace(environment: Environment, used_namespaces: list[str]) -> Iterator[str]:
    name = f"test-{unique()}"
    environment.create_namespace(name)
    yield name
    environment.delete_namespace(name)
    used_namespaces.append(name)


@pytest.fixture
def plain_node(environment: Environment) -> Iterator[str]:
    """A node that KWOK plays and that is in no pool."""
    manifest = node_manifest(f"plain-{unique()}", clique=EAST)
    del manifest["metadata"]["labels"]["run.ai/simulated-gpu-node-pool"]
    environment.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(manifest))
    yield manifest["metadata"]["name"]
    environment.kubectl("delete", "node", manifest["metadata"]["name"])


@contextmanager
def crd_without_schema(cluster: Cluster) -> Iterator[None]:
    """Inside, the CRD lets in whatever is an object, as an old or edited one might."""
    schema = cluster.environment.kubectl_json("get", "crd", CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    invalid = domain(cluster.namespace, "probe", mode="Some", nodes=-1)
    set_schema(cluster, ANYTHING)
    try:
        wait_until(lambda: accepts(cluster, invalid), 30.0, "the CRD without a schema")
        yield
    finally:
        set_schema(cluster, schema)
        wait_until(lambda: not accepts(cluster, invalid), 30.0, "the CRD with its schema again")


def set_schema(cluster: Cluster, schema: Manifest) -> None:
    patch = json.dumps([{"op": "replace", "path": SCHEMA_PATH, "value": schema}])
    cluster.environment.kubectl("patch", "crd", CRD, "--type=json", f"--patch={patch}")


def accepts(cluster: Cluster, manifest: Manifest) -> bool:
    """Whether the server would take an object. After a change of its CRD it may not know the kind for a moment."""
    try:
        cluster.environment.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
    except KubectlError:
        return False
    return True


def labelled_nodes(cluster: Cluster, domain_uid: str) -> list[str]:
    return [node["metadata"]["name"] for node in cluster.list("nodes", selector=f"{DOMAIN_KEY}={domain_uid}")]


def assert_deletable(cluster: Cluster, name: str) -> None:
    """Deletes a domain and demands that nothing of it is left."""
    uid = cluster.uid("computedomains", name)
    cluster.delete("computedomains", name)
    cluster.wait_gone("computedomains", name)
    assert cluster.leftovers(name, uid) == set()


# -- domains -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        (
            {"mode": "Some"},
            r'allocationMode: Unsupported value: "Some": supported values: "All", "Single"',
        ),
        ({"nodes": -1}, r"spec.numNodes: Invalid value: -1: .* should be greater than or equal to 0"),
    ],
    ids=["unknown allocationMode", "negative numNodes"],
)
def test_the_schema_refuses_a_domain_with(changes: dict[str, Any], refusal: str, cluster: Cluster) -> None:
    with pytest.raises(KubectlError, match=refusal):
        cluster.apply(domain(cluster.namespace, **changes))
    assert cluster.get("computedomains", "pair") is None


def test_what_a_crd_without_schema_lets_in_is_not_ready_with_a_warning_and_can_be_deleted(cluster: Cluster) -> None:
    namespace = cluster.namespace
    with crd_without_schema(cluster):
        cluster.apply(domain(namespace, "mode", mode="Some"), domain(namespace, "negative", nodes=-1))
        for name in ("mode", "negative"):
            cluster.wait_status("NotReady", name, members=0)
        assert cluster.wait_event("InvalidSpec", "mode")["note"] == (
            "spec.channel.allocationMode 'Some' is unknown: use Single or All"
        )
        assert cluster.wait_event("InvalidSpec", "negative")["note"] == "spec.numNodes is -1: use 0 or more"
    assert cluster.list("resourceclaimtemplates") == []
    for name in ("mode", "negative"):
        assert_deletable(cluster, name)


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("", "spec.channel.resourceClaimTemplate.name is empty"),
        ("UPPER", "spec.channel.resourceClaimTemplate.name 'UPPER' cannot name an object"),
        ("a/b", "spec.channel.resourceClaimTemplate.name 'a/b' cannot name an object"),
        ("t" * (LONGEST_NAME + 1), "use at most 253 characters"),
    ],
    ids=["empty", "upper case", "slash", "254 characters"],
)
def test_an_impossible_template_name_is_not_ready_with_a_warning(template: str, note: str, cluster: Cluster) -> None:
    manifest = domain(cluster.namespace)
    manifest["spec"]["channel"]["resourceClaimTemplate"]["name"] = template
    cluster.apply(manifest)

    cluster.wait_status("NotReady", members=0)
    event = cluster.wait_event("InvalidSpec", "pair")
    assert event["type"] == "Warning"
    assert note in event["note"]
    assert cluster.list("resourceclaimtemplates") == []
    assert_deletable(cluster, "pair")


def test_a_domain_without_spec_is_not_ready_with_a_warning_and_takes_members_once_it_has_one(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    namespace = cluster.namespace
    (node,) = pool_nodes({EAST: 1})
    manifest = domain(namespace, nodes=1)
    cluster.apply({key: value for key, value in manifest.items() if key != "spec"})
    uid = cluster.uid("computedomains", "pair")

    cluster.wait_status("NotReady", members=0)
    assert cluster.wait_event("InvalidSpec", "pair")["note"].startswith("spec is missing")

    cluster.allocate(channel_claim(namespace, "by-hand", channel_parameters(uid)), node)
    cluster.bring_up(pool_nodes({WEST: 1}), "later")  # by when this is Ready, the claim was seen as well
    assert (cluster.status()["status"], cluster.domain_label(node)) == ("NotReady", None)

    cluster.apply(manifest)
    status = cluster.wait_status("Ready", members=1)
    assert ([entry["name"] for entry in status["nodes"]], cluster.domain_label(node)) == ([node], uid)


def test_names_of_253_characters_work_to_ready_and_back(cluster: Cluster, pool_nodes: PoolNodes) -> None:
    (node,) = pool_nodes({EAST: 1})
    name, template = "d" * LONGEST_NAME, "t" * LONGEST_NAME
    cluster.apply(
        domain(cluster.namespace, name, nodes=1, template=template),
        worker(cluster.namespace, "worker", template=template, node=node),
    )

    status = cluster.wait_status("Ready", name, members=1)
    assert [(entry["name"], entry["cliqueID"], entry["index"]) for entry in status["nodes"]] == [(node, EAST, 0)]
    assert cluster.wait_event("Ready", name)["regarding"]["name"] == name
    assert cluster.get("resourceclaimtemplates", template) is not None
    assert_deletable(cluster, name)


def test_an_undecodable_domain_is_logged_and_all_others_are_served(
    cluster: Cluster, controller: ControllerProcess, pool_nodes: PoolNodes
) -> None:
    namespace = cluster.namespace
    (node,) = pool_nodes({EAST: 1})
    broken = domain(namespace, "broken")
    broken["spec"]["channel"] = "imex"
    with crd_without_schema(cluster):
        cluster.apply(broken)
        # Once through the watch that runs, once through the list of a fresh start.
        cluster.apply(domain(namespace, "watched", nodes=1))
        cluster.wait_status("NotReady", "watched")
        controller.stop()
        read_before = controller.log.stat().st_size
        controller.start()
        cluster.apply(domain(namespace, nodes=1), worker(namespace, "worker", node=node))
        cluster.wait_status("Ready", members=1)

        assert cluster.status("broken") == {}
        with controller.log.open() as log:
            log.seek(read_before)
            complaints = [line for line in log if f"{namespace}/broken" in line]
        assert len(complaints) == 1
        assert "an object cannot be read" in complaints[0]
        assert "$.spec.channel" in complaints[0]
        cluster.delete("computedomains", "broken")
        cluster.wait_gone("computedomains", "broken")


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "note"),
    [
        ({"domainID": 5}, "InvalidChannelConfig", "Expected `str`, got `int`"),
        ({"colour": "blue"}, "InvalidChannelConfig", "unknown field `colour`"),
        ({"kind": "Channel"}, "InvalidChannelConfig", "is resource.nvidia.com/v1beta1 Channel, not"),
        ({"allocationMode": "Some"}, "InvalidChannelConfig", "allocationMode 'Some' is unknown: use Single or All"),
        ({"domainID": "../../x"}, "InvalidDomainID", "domainID '../../x' is not the uid of a ComputeDomain"),
        (
            {"domainID": "00000000-0000-4000-8000-000000000000"},
            "UnknownDomain",
            "domainID 00000000-0000-4000-8000-000000000000 is the uid of no ComputeDomain",
        ),
    ],
    ids=["undecodable", "unknown field", "other kind", "unknown mode", "malicious domainID", "nobody's domainID"],
)
def test_a_bad_claim_gets_a_warning_and_takes_part_in_nothing(
    changes: Manifest, reason: str, note: str, cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    claimed, good = pool_nodes({EAST: 2})
    cluster.apply(domain(cluster.namespace, nodes=1))
    uid = cluster.uid("computedomains", "pair")

    cluster.allocate(channel_claim(cluster.namespace, "bad", channel_parameters(uid) | changes), claimed)
    event = cluster.wait_event(reason, "bad")
    assert (event["type"], event["regarding"]["kind"]) == ("Warning", "ResourceClaim")
    assert note in event["note"]

    cluster.allocate(channel_claim(cluster.namespace, "good", channel_parameters(uid)), good)
    status = cluster.wait_status("Ready", members=1)
    assert [(entry["name"], entry["index"]) for entry in status["nodes"]] == [(good, 0)]
    assert labelled_nodes(cluster, uid) == [good]


def test_a_claim_of_another_namespace_gets_a_warning_and_takes_part_in_nothing(
    cluster: Cluster, other_namespace: str, pool_nodes: PoolNodes
) -> None:
    claimed, good = pool_nodes({EAST: 2})
    cluster.apply(domain(cluster.namespace, nodes=1))
    uid = cluster.uid("computedomains", "pair")
    other = Cluster(cluster.environment, other_namespace)

    other.allocate(channel_claim(other_namespace, "stranger", channel_parameters(uid)), claimed)
    assert other.wait_event("DomainInOtherNamespace", "stranger")["type"] == "Warning"

    cluster.allocate(channel_claim(cluster.namespace, "good", channel_parameters(uid)), good)
    status = cluster.wait_status("Ready", members=1)
    assert [entry["name"] for entry in status["nodes"]] == [good]
    assert labelled_nodes(cluster, uid) == [good]


def test_a_claim_allocated_by_hand_on_a_node_of_another_domain_gets_a_warning_and_no_entry(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    namespace = cluster.namespace
    taken, free = pool_nodes({EAST: 1, WEST: 1})
    cluster.apply(
        domain(namespace, "first", nodes=1),
        domain(namespace, "second", nodes=1),
        worker(namespace, "worker", template="first-channel", node=taken),
    )
    cluster.wait_status("Ready", "first", members=1)
    first, second = cluster.uid("computedomains", "first"), cluster.uid("computedomains", "second")

    cluster.allocate(channel_claim(namespace, "intruder", channel_parameters(second)), taken)
    event = cluster.wait_event("NodeInOtherDomain", "second")
    assert event["type"] == "Warning"
    assert f"node {taken} belongs to the ComputeDomain with uid {first}" in event["note"]

    cluster.allocate(channel_claim(namespace, "good", channel_parameters(second)), free)
    status = cluster.wait_status("Ready", "second", members=1)
    assert [entry["name"] for entry in status["nodes"]] == [free]
    assert labelled_nodes(cluster, first) == [taken]
    assert [entry["name"] for entry in cluster.status("first")["nodes"]] == [taken]


def test_a_claim_allocated_by_hand_outside_any_pool_gets_a_warning_and_the_node_is_not_written(
    cluster: Cluster, plain_node: str, pool_nodes: PoolNodes
) -> None:
    (good,) = pool_nodes({EAST: 1})
    cluster.apply(domain(cluster.namespace, nodes=1))
    uid = cluster.uid("computedomains", "pair")

    cluster.allocate(channel_claim(cluster.namespace, "outside", channel_parameters(uid)), plain_node)
    event = cluster.wait_event("NodeNotSimulated", "pair")
    assert event["type"] == "Warning"
    assert f"node {plain_node} has no label run.ai/simulated-gpu-node-pool" in event["note"]

    cluster.allocate(channel_claim(cluster.namespace, "good", channel_parameters(uid)), good)
    status = cluster.wait_status("Ready", members=1)
    assert [entry["name"] for entry in status["nodes"]] == [good]
    node = cluster.environment.kubectl_json("get", "node", plain_node, "--show-managed-fields")
    writers = {entry["manager"] for entry in node["metadata"]["managedFields"]}
    assert [writer for writer in writers if writer.startswith("gpu-mirage/")] == []
    slices = cluster.list("resourceslices")
    assert {entry["spec"]["nodeName"] for entry in slices} >= {good}
    assert plain_node not in {entry["spec"]["nodeName"] for entry in slices}


def test_a_nineteenth_node_of_a_clique_gets_a_warning_and_joins_when_a_place_is_free(
    cluster: Cluster, pool_nodes: PoolNodes
) -> None:
    nodes = pool_nodes({EAST: 19})
    workers = [worker(cluster.namespace, node, node=node) for node in nodes]
    cluster.apply(domain(cluster.namespace, nodes=18), *workers)

    status = cluster.wait_status("Ready", members=18)
    event = cluster.wait_event("CliqueFull", "pair")
    assert event["type"] == "Warning"
    members = {entry["name"]: entry["index"] for entry in status["nodes"]}
    assert sorted(members.values()) == list(range(18))
    (nineteenth,) = set(nodes) - set(members)
    assert f"so node {nineteenth} does not become one" in event["note"]
    assert sorted(labelled_nodes(cluster, cluster.uid("computedomains", "pair"))) == sorted(members)

    leaving = next(name for name, index in members.items() if index == 7)
    cluster.delete("pod", leaving)

    def places() -> dict[str, int]:
        return {entry["name"]: entry["index"] for entry in cluster.status()["nodes"]}

    wanted = {nineteenth if name == leaving else name: index for name, index in members.items()}
    cluster.wait(lambda: places() == wanted or None, lambda: f"{wanted}, but there is {places()}")
    assert sorted(labelled_nodes(cluster, cluster.uid("computedomains", "pair"))) == sorted(wanted)
