"""ComputeDomains and cliques as controllers see them."""

import msgspec
import pytest

from controllers.api import nvidia
from controllers.api.nvidia import (
    ChannelConfig,
    ComputeDomain,
    ComputeDomainClique,
    Daemon,
    DomainNode,
    channel_parameters,
)

UID = "0f6f2a0e-8b57-4c5c-9d0e-3d9c1f8a7b21"


def test_a_domain_as_it_is_stored() -> None:
    domain = ComputeDomain.decode(
        b"""{"metadata": {"name": "d", "namespace": "a"},
        "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": "All"}},
        "status": {"status": "Ready", "nodes": [
            {"name": "n", "ipAddress": "fd00::1", "cliqueID": "c.1", "index": 3, "status": "Ready"}]}}"""
    )
    assert domain.spec is not None
    assert (domain.spec.num_nodes, domain.template_name, domain.spec.channel.allocation_mode) == (2, "t", "All")
    assert domain.status.nodes == (
        DomainNode(name="n", ip_address="fd00::1", clique_id="c.1", index=3, status="Ready"),
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata":{"name":"d"}}',
        b'{"metadata":{"name":"d"},"spec":null,"status":null}',
        b'{"metadata":{"name":"d"},"spec":{}}',
        b'{"metadata":{"name":"d"},"spec":{"channel":null},"status":{"nodes":null}}',
        b'{"metadata":{"name":"d"},"spec":{"numNodes":0,"channel":{"resourceClaimTemplate":{}}},"status":{}}',
    ],
)
def test_a_domain_that_no_schema_should_let_in_can_still_be_read(raw: bytes) -> None:
    domain = ComputeDomain.decode(raw)
    assert (domain.template_name, domain.status.nodes, domain.status.status) == ("", (), "")


def test_an_entry_of_an_older_writer_lacks_fields_and_is_in_no_clique() -> None:
    entry = msgspec.json.decode(b'{"name":"n"}', type=DomainNode)
    assert (entry.clique_id, entry.index, entry.status) == ("", nvidia.NO_CLIQUE_INDEX, nvidia.NOT_READY)


def test_a_clique_is_known_by_its_labels() -> None:
    clique = ComputeDomainClique.decode(
        msgspec.json.encode(
            {
                "metadata": {"name": "x", "labels": {nvidia.DOMAIN_KEY: UID, nvidia.CLIQUE_ID_LABEL: "c.1"}},
                "daemons": [
                    {"nodeName": "n", "ipAddress": "1.2.3.4", "cliqueID": "c.1", "index": 0, "status": "Ready"}
                ],
            }
        )
    )
    assert (clique.domain_uid, clique.clique_id) == (UID, "c.1")
    expected = Daemon(node_name="n", ip_address="1.2.3.4", clique_id="c.1", index=0, status="Ready")
    assert clique.daemons == (expected,)


def test_a_clique_without_labels_belongs_to_nobody() -> None:
    clique = ComputeDomainClique.decode(b'{"metadata":{"name":"x"},"daemons":null}')
    assert (clique.domain_uid, clique.clique_id, clique.daemons) == ("", "", ())


def test_generated_parameters_pass_the_strict_decoding() -> None:
    config = msgspec.convert(channel_parameters(UID, "All"), type=ChannelConfig)
    assert config == ChannelConfig(
        api_version="resource.nvidia.com/v1beta1",
        kind="ComputeDomainChannelConfig",
        domain_id=UID,
        allocation_mode="All",
    )


def test_names_that_manifests_of_others_rely_on() -> None:
    assert (nvidia.DOMAIN_KEY, nvidia.DRIVER) == ("resource.nvidia.com/computeDomain", "compute-domain.nvidia.com")
    assert nvidia.NODE_CLIQUE_LABEL == "nvidia.com/gpu.clique"
    assert nvidia.CHANNEL_CLASS == "compute-domain-default-channel.nvidia.com"
    assert nvidia.TARGET_LABEL == "resource.nvidia.com/computeDomainTarget"
    assert nvidia.CLIQUE_ID_LABEL == "resource.nvidia.com/computeDomain.cliqueID"
