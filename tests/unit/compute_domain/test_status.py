"""What is published of a domain."""

import msgspec
import pytest

from controllers.api import nvidia
from controllers.api.nvidia import ComputeDomain, ComputeDomainStatus, Daemon
from controllers.compute_domain.status import clique_body, desired_cliques, desired_status, entries_of, status_body
from tests.unit.compute_domain.world import CLIQUE, FABRIC, UID, clique_of_members, domain, entry

READY, NOT_READY = entry("a", 0), entry("b", 1, ready=False)
OTHER_READY = entry("c", 2)


@pytest.mark.parametrize(
    ("wanted", "members", "servable", "status"),
    [
        (0, (), True, nvidia.NOT_READY),
        (0, (READY,), True, nvidia.READY),
        (0, (NOT_READY,), True, nvidia.NOT_READY),
        (0, (READY, NOT_READY), True, nvidia.NOT_READY),
        (1, (READY,), True, nvidia.READY),
        (1, (READY,), False, nvidia.NOT_READY),
        (2, (READY,), True, nvidia.NOT_READY),
        (2, (READY, OTHER_READY), True, nvidia.READY),
        (1, (READY, OTHER_READY), True, nvidia.READY),
        (3, (READY, OTHER_READY), True, nvidia.NOT_READY),
        (-1, (), True, nvidia.NOT_READY),
    ],
)
def test_ready_takes_a_servable_domain_with_enough_members_all_of_them_ready(
    wanted: int, members: tuple[nvidia.DomainNode, ...], servable: bool, status: str
) -> None:
    desired = desired_status(domain(nodes=wanted), members, servable=servable)
    assert desired == ComputeDomainStatus(status=status, nodes=members)


def test_a_domain_without_spec_needs_one_member() -> None:
    bare = ComputeDomain.decode(b'{"metadata":{"name":"d"}}')
    assert desired_status(bare, (), servable=True).status == nvidia.NOT_READY


def test_every_required_key_is_sent_even_where_it_is_a_default() -> None:
    members = (entry("a", -1, clique="", ready=False),)
    body = status_body(ComputeDomainStatus(status=nvidia.NOT_READY, nodes=members))
    (sent,) = body["status"]["nodes"]
    assert sent == {
        "name": "a",
        "ipAddress": members[0].ip_address,
        "cliqueID": "",
        "index": -1,
        "status": "NotReady",
    }
    assert body["status"]["status"] == "NotReady"


def test_a_status_without_members_sends_an_empty_list() -> None:
    assert status_body(ComputeDomainStatus(status="NotReady")) == {"status": {"status": "NotReady", "nodes": []}}


def test_what_is_sent_reads_back_equal() -> None:
    desired = ComputeDomainStatus(status="Ready", nodes=(READY, entry("b", -1, clique="")))
    sent = msgspec.json.encode({"metadata": {"name": "d"}, **status_body(desired)})
    assert ComputeDomain.decode(sent).status == desired


def test_each_clique_has_an_object_and_members_without_one_have_none() -> None:
    other = f"{FABRIC}.2"
    cliques = desired_cliques(domain(), (READY, entry("x", 0, clique=other), OTHER_READY, entry("y", -1, clique="")))
    assert {name: [daemon.node_name for daemon in daemons] for name, daemons in cliques.items()} == {
        f"{UID}.{CLIQUE}": ["a", "c"],
        f"{UID}.{other}": ["x"],
    }


def test_names_of_cliques_fit_an_object() -> None:
    (name,) = desired_cliques(domain(), (entry("a", 0, clique=f"{FABRIC}.{'9' * 26}"),))
    assert len(name) <= 253


def test_a_clique_for_the_api() -> None:
    daemon = Daemon(node_name="a", ip_address="fd00::1", clique_id=CLIQUE, index=0, status="NotReady")
    assert clique_body("x", "ns", UID, (daemon,)) == {
        "metadata": {
            "name": "x",
            "namespace": "ns",
            "labels": {"resource.nvidia.com/computeDomain": UID, "resource.nvidia.com/computeDomain.cliqueID": CLIQUE},
        },
        "daemons": [{"nodeName": "a", "ipAddress": "fd00::1", "cliqueID": CLIQUE, "index": 0, "status": "NotReady"}],
    }


def test_entries_of_cliques_are_the_members_again() -> None:
    assert entries_of((clique_of_members(domain(), READY, NOT_READY),)) == (READY, NOT_READY)
