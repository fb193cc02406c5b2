"""What is published of a domain: its status and its cliques."""

from collections.abc import Iterable, Mapping
from typing import Any

from controllers.api import nvidia
from controllers.api.nvidia import ComputeDomain, ComputeDomainClique, ComputeDomainStatus, Daemon, DomainNode


def desired_status(domain: ComputeDomain, members: tuple[DomainNode, ...], *, servable: bool) -> ComputeDomainStatus:
    """Ready when the domain can be served and has ``numNodes`` members or more, at least one, all of them Ready."""
    wanted = max(1, domain.spec.num_nodes if domain.spec else 1)
    ready = servable and len(members) >= wanted and all(member.status == nvidia.READY for member in members)
    return ComputeDomainStatus(status=nvidia.READY if ready else nvidia.NOT_READY, nodes=members)


def status_body(status: ComputeDomainStatus) -> Mapping[str, Any]:
    """The status for the API, with every key that either CRD requires."""
    return {
        "status": {
            "status": status.status,
            "nodes": [
                {
                    "name": node.name,
                    "ipAddress": node.ip_address,
                    "cliqueID": node.clique_id,
                    "index": node.index,
                    "status": node.status,
                }
                for node in status.nodes
            ],
        }
    }


def desired_cliques(domain: ComputeDomain, members: Iterable[DomainNode]) -> Mapping[str, tuple[Daemon, ...]]:
    """The members of each clique by the name of its object; members without a clique are in none."""
    cliques: dict[str, list[Daemon]] = {}
    for member in members:
        if member.clique_id:
            cliques.setdefault(clique_name(domain.uid, member.clique_id), []).append(
                Daemon(
                    node_name=member.name,
                    ip_address=member.ip_address,
                    clique_id=member.clique_id,
                    index=member.index,
                    status=member.status,
                )
            )
    return {name: tuple(daemons) for name, daemons in cliques.items()}


def clique_name(domain_uid: str, clique_id: str) -> str:
    """What a clique's object is called."""
    return f"{domain_uid}.{clique_id}"


def clique_body(name: str, namespace: str, domain_uid: str, daemons: tuple[Daemon, ...]) -> Mapping[str, Any]:
    """A clique for the API."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {nvidia.DOMAIN_KEY: domain_uid, nvidia.CLIQUE_ID_LABEL: daemons[0].clique_id},
        },
        "daemons": [
            {
                "nodeName": daemon.node_name,
                "ipAddress": daemon.ip_address,
                "cliqueID": daemon.clique_id,
                "index": daemon.index,
                "status": daemon.status,
            }
            for daemon in daemons
        ],
    }


def entries_of(cliques: Iterable[ComputeDomainClique]) -> tuple[DomainNode, ...]:
    """The entries of cliques in the form of the domain's status; an object under another name than ours has none."""
    return tuple(
        DomainNode(
            name=daemon.node_name,
            ip_address=daemon.ip_address,
            clique_id=daemon.clique_id,
            index=daemon.index,
            status=daemon.status,
        )
        for clique in cliques
        for daemon in clique.daemons
        if clique.name == clique_name(clique.domain_uid, daemon.clique_id)
    )
