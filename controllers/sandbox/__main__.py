"""The binary gpu-mirage-sandbox: a Kubernetes API server without anything behind it, until it is interrupted."""

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from controllers.runtime import logs
from controllers.runtime.errors import ConfigurationError
from controllers.sandbox.sandbox import RunningSandbox, SandboxOptions

BINARY = "gpu-mirage-sandbox"
GC_THRESHOLDS = (50_000, 20, 100)  # objects, then collections of the next younger generation

logger = logs.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    options = SandboxOptions(
        host=parsed.host,
        port=parsed.port,
        allow_remote=parsed.allow_remote,
        kubeconfig=parsed.kubeconfig,
        data_dir=parsed.data_dir,
        stand_in=parsed.stand_in,
        audit_log=parsed.audit_log,
        admin=parsed.admin,
    )
    logs.configure(parsed.log_format, parsed.log_level)
    failure = ""
    try:
        uvloop.run(_serve(options))
    except ConfigurationError as error:
        failure = str(error)
    if failure:
        logger.error("stopped", reason=failure)
    return 1 if failure else 0


def _parser() -> argparse.ArgumentParser:
    default = SandboxOptions()
    parser = argparse.ArgumentParser(
        prog=BINARY, description="Serves the Kubernetes API from memory, for trying things out and for tests."
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=Path,
        default=Path("sandbox.kubeconfig"),
        help="where the administrator's kubeconfig is written (default: %(default)s)",
    )
    parser.add_argument("--port", metavar="N", type=_port, default=6443, help="0 for a free one (default: %(default)s)")
    parser.add_argument("--host", metavar="ADDRESS", default=default.host, help="IP address (default: %(default)s)")
    parser.add_argument(
        "--allow-remote", action="store_true", help="let --host be an address that other machines can reach"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        help="keep the state there and take it up again at the next start (default: in memory only)",
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="place and run pods on simulated nodes, as a much simplified scheduler, controller manager and kubelet",
    )
    parser.add_argument(
        "--audit-log", metavar="FILE", type=Path, help="add a line of audit.k8s.io/v1 for each request to this file"
    )
    parser.add_argument(
        "--admin", action="store_true", help="serve /sandbox, where the administrator can ask for faults and restarts"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


async def _serve(options: SandboxOptions) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # Stored objects live long and have no cycles: to look through tens of thousands of them again and again would hold
    # up requests, and the start, and find nothing.
    gc.set_threshold(*GC_THRESHOLDS)
    async with RunningSandbox(options) as sandbox:
        gc.freeze()
        behind = "a stand-in places and runs pods" if options.stand_in else "nothing is scheduled or run here"
        kept = f"serving, and keeping the state in {options.data_dir}" if options.data_dir else "serving from memory"
        logger.info(f"{kept}; {behind}", url=sandbox.url)
        logger.info("try it", command=f"kubectl --kubeconfig {sandbox.kubeconfig} get namespaces")
        await stopped.wait()
    logger.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
