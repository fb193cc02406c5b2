"""The command line that every controller binary shares."""

import argparse
from dataclasses import dataclass

MAX_WORKERS = 1_000
"""Workers of one controller at most: far more requests than any API server takes at the same time from one client."""

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
    grace_period: float = 30.0  # seconds that running reconciles get when the manager stops
    workers: int = 16  # reconciles at the same time in each controller
    log_format: str = "text"  # text or json
    log_level: str = "info"  # debug, info, warning or error


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
