"""What the compute-domain controller can be told."""

import argparse
from dataclasses import dataclass

from controllers.api.core import POOL_LABEL
from controllers.runtime.options import positive_float, positive_int


@dataclass(frozen=True, slots=True)
class ComputeDomainOptions:
    """Which domains and nodes are ours, and the limits of a domain."""

    driver_namespace: str = "gpu-mirage"  # where ComputeDomainCliques live
    pool_label: str = POOL_LABEL  # only nodes with this label become members
    namespaces: frozenset[str] = frozenset()  # domains are served only there; empty: everywhere
    domain_selector: str = ""  # label selector of the domains that are served; empty: all
    max_nodes_per_clique: int = 18  # members that one NVLink clique can have in a domain, as the real driver
    sweep_interval: float = 600.0  # seconds between searches for leftovers of domains that no longer live

    def serves(self, namespace: str) -> bool:
        """Whether domains of a namespace are ours."""
        return not self.namespaces or namespace in self.namespaces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of this controller."""
    default = ComputeDomainOptions()
    parser.add_argument(
        "--driver-namespace",
        metavar="NAMESPACE",
        default=default.driver_namespace,
        help="where ComputeDomainCliques live (default: %(default)s)",
    )
    parser.add_argument(
        "--pool-label",
        metavar="LABEL",
        default=default.pool_label,
        help="label of simulated nodes; no other node is written (default: %(default)s)",
    )
    parser.add_argument(
        "--namespaces",
        metavar="A,B",
        default="",
        help="serve only ComputeDomains of these namespaces (default: all)",
    )
    parser.add_argument(
        "--domain-selector",
        metavar="SELECTOR",
        default=default.domain_selector,
        help="serve only ComputeDomains that this label selector matches (default: all)",
    )
    parser.add_argument(
        "--max-nodes-per-clique",
        metavar="N",
        type=positive_int,
        default=default.max_nodes_per_clique,
        help="members of one clique in one domain at most (default: %(default)s)",
    )
    parser.add_argument(
        "--sweep-interval",
        metavar="SECONDS",
        type=positive_float,
        default=default.sweep_interval,
        help="time between searches for leftovers (default: %(default)s)",
    )


def compute_domain_options(arguments: argparse.Namespace) -> ComputeDomainOptions:
    """The options that parsed flags give."""
    return ComputeDomainOptions(
        driver_namespace=arguments.driver_namespace,
        pool_label=arguments.pool_label,
        namespaces=frozenset(part.strip() for part in arguments.namespaces.split(",") if part.strip()),
        domain_selector=arguments.domain_selector,
        max_nodes_per_clique=arguments.max_nodes_per_clique,
        sweep_interval=arguments.sweep_interval,
    )
