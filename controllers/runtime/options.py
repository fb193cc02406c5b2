"""The command line that every controller binary shares."""

import argparse
import re
from dataclasses import dataclass

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.leader_election import ElectionOptions, own_namespace
from controllers.runtime.names import MAX_NAME

MAX_WORKERS = 1_000
"""Workers of one controller at most: far more requests than any API server takes at the same time from one client."""

MAX_SHARDS = 64
"""Shards at most; every replica asks for each of their Leases every few seconds."""

LEASE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""An RFC 1123 subdomain, as the API server checks it."""

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """How a manager connects, serves and stops."""

    kubeconfig: str | None = None  # path; None: $KUBECONFIG, ~/.kube/config, then the pod's own account
    context: str | None = None  # of the kubeconfig; None: its current one
    metrics_bind_address: str = ":8080"  # host:port of /metrics; "0" switches it off
    health_probe_bind_address: str = ":8081"  # host:port of /healthz and /readyz; "0" switches it off
    cache_sync_timeout: float = 120.0  # seconds until every kind must have been listed once
    grace_period: float = 30.0  # seconds that running reconciles get when the manager stops; 0: none, below: no end
    workers: int = 16  # reconciles at the same time in each controller
    log_format: str = "text"  # text or json
    log_level: str = "info"  # debug, info, warning or error
    leader_elect: bool = False  # whether to work only while holding a Lease, so that several replicas can run
    leader_elect_lease_duration: float = 15.0  # whole seconds without renewal after which others take over
    leader_elect_renew_deadline: float = 10.0  # seconds without renewal after which a leader gives up
    leader_elect_retry_period: float = 2.0  # seconds between two attempts
    leader_elect_resource_name: str = ""  # of the Lease; entrypoint.run gives the binary's name where it is ""
    leader_elect_resource_namespace: str = ""  # of the Lease; "": the one that the process runs in
    leader_elect_release_on_cancel: bool = True  # whether an orderly stop lets go of the Lease at once
    shards: int = 1  # parts that the keys are split into, for replicas to share; 1: a leader does everything


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shared flags; their defaults are those of ManagerOptions."""
    default = ManagerOptions()
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, then the pod's account")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--metrics-bind-address",
        metavar="ADDRESS",
        default=default.metrics_bind_address,
        help="host:port of /metrics, 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--health-probe-bind-address",
        metavar="ADDRESS",
        default=default.health_probe_bind_address,
        help="host:port of /healthz and /readyz, 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-sync-timeout",
        metavar="SECONDS",
        type=positive_float,
        default=default.cache_sync_timeout,
        help="give up when a kind cannot be listed for that long (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=worker_count,
        default=default.workers,
        help="reconciles at the same time in each controller (default: %(default)s)",
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=default.log_format)
    parser.add_argument("--log-level", choices=LOG_LEVELS, default=default.log_level)
    _add_election_arguments(parser, default)


def _add_election_arguments(parser: argparse.ArgumentParser, default: ManagerOptions) -> None:
    parser.add_argument(
        "--leader-elect",
        action="store_true",
        help="work only while holding a Lease, so that several replicas can run (default: off)",
    )
    for name, what in (
        ("lease-duration", "whole seconds without renewal after which another replica takes over"),
        ("renew-deadline", "seconds without renewal after which a leader gives up; shorter than the lease duration"),
        ("retry-period", "seconds between two attempts"),
    ):
        parser.add_argument(
            f"--leader-elect-{name}",
            metavar="SECONDS",
            type=positive_float,
            default=getattr(default, f"leader_elect_{name.replace('-', '_')}"),
            help=f"{what} (default: %(default)s)",
        )
    parser.add_argument(
        "--leader-elect-resource-name", metavar="NAME", default="", help="of the Lease (default: the binary's name)"
    )
    parser.add_argument(
        "--leader-elect-resource-namespace",
        metavar="NAME",
        default="",
        help="of the Lease (default: $POD_NAMESPACE, then the pod's own)",
    )
    parser.add_argument(
        "--leader-elect-release-on-cancel",
        action=argparse.BooleanOptionalAction,
        default=default.leader_elect_release_on_cancel,
        help="let go of the Lease at once when stopping in order (default: on)",
    )
    parser.add_argument(
        "--shards",
        metavar="N",
        type=shard_count,
        default=default.shards,
        help="split the keys into so many parts, which replicas share; needs --leader-elect (default: %(default)s)",
    )


def manager_options(arguments: argparse.Namespace) -> ManagerOptions:
    """The options that parsed flags give."""
    return ManagerOptions(
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        metrics_bind_address=arguments.metrics_bind_address,
        health_probe_bind_address=arguments.health_probe_bind_address,
        cache_sync_timeout=arguments.cache_sync_timeout,
        workers=arguments.workers,
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        leader_elect=arguments.leader_elect,
        leader_elect_lease_duration=arguments.leader_elect_lease_duration,
        leader_elect_renew_deadline=arguments.leader_elect_renew_deadline,
        leader_elect_retry_period=arguments.leader_elect_retry_period,
        leader_elect_resource_name=arguments.leader_elect_resource_name,
        leader_elect_resource_namespace=arguments.leader_elect_resource_namespace,
        leader_elect_release_on_cancel=arguments.leader_elect_release_on_cancel,
        shards=arguments.shards,
    )


def election_options(options: ManagerOptions) -> ElectionOptions:
    """Which Lease a manager asks for, and how. Raises ConfigurationError where that cannot work, naming the flag."""
    if not options.leader_elect_resource_name:
        raise ConfigurationError("the leader's Lease has no name: give --leader-elect-resource-name")
    _require_lease_name(options)
    flag = "--leader-elect-resource-namespace"
    return ElectionOptions(
        name=options.leader_elect_resource_name,
        namespace=options.leader_elect_resource_namespace or own_namespace(flag),
        lease_duration=options.leader_elect_lease_duration,
        renew_deadline=options.leader_elect_renew_deadline,
        retry_period=options.leader_elect_retry_period,
        release=options.leader_elect_release_on_cancel,
    )


def _require_lease_name(options: ManagerOptions) -> None:
    name = options.leader_elect_resource_name
    # The Leases of shards and members are named after it.
    longest = MAX_NAME - len(f"-shard-{MAX_SHARDS}") if options.shards > 1 else MAX_NAME
    if not LEASE_NAME.fullmatch(name) or len(name) > longest:
        raise ConfigurationError(
            f"--leader-elect-resource-name {name!r} cannot be the name of a Lease: use lower case letters, digits, - "
            f"and ., with a letter or digit at both ends of each part, and at most {longest} characters"
        )


def positive_int(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def worker_count(text: str) -> int:
    """For argparse: a whole number from 1 to MAX_WORKERS."""
    number = positive_int(text)
    if number > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MAX_WORKERS}: each worker is a task that takes memory")
    return number


def shard_count(text: str) -> int:
    """For argparse: a whole number from 1 to MAX_SHARDS."""
    number = positive_int(text)
    if number > MAX_SHARDS:
        raise argparse.ArgumentTypeError(
            f"{text} is more than {MAX_SHARDS}: each shard costs a write every two seconds"
        )
    return number


def positive_float(text: str) -> float:
    """For argparse: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def parser_for(name: str, description: str) -> argparse.ArgumentParser:
    """An argument parser with the shared flags."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    add_arguments(parser)
    return parser
