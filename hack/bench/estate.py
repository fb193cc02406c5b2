"""What the measurements run on: a control plane, our controller as a process of its own, and the load's client."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from controllers.runtime import Client, ClientOptions
from controllers.runtime.transport import AiohttpTransport, Credentials
from hack.bench.audit import AuditLog
from hack.bench.plan import Plan
from hack.bench.usage import Usage, child_named, usage_of
from hack.localcluster import ControllerProcess, ControlPlane, install, make_nodes, wait_ready
from hack.localcluster.nodes import clique

NAMESPACE = "bench"
ACCOUNT = "system:serviceaccount:gpu-mirage:gpu-mirage-compute-domain"
NODES_PER_RACK = 10
NODES_READY_TIMEOUT = 120.0  # seconds


@dataclass
class Estate:
    """Everything a measurement needs. ``pairs`` are nodes of one clique each, two and two."""

    plan: Plan
    control_plane: ControlPlane
    controller: ControllerProcess
    pid: int
    pairs: list[tuple[str, str]]
    at_rest: Usage

    @property
    def server_pid(self) -> int:
        return child_named("kube-apiserver")

    def usage(self) -> Usage:
        """Of the controller."""
        return usage_of(self.pid)

    def server_usage(self) -> Usage:
        """Of the API server."""
        return usage_of(self.server_pid)

    def audit(self) -> AuditLog:
        """What the controller's account does."""
        return AuditLog(self.control_plane.layout.audit_log, ACCOUNT)

    async def restart_controller(self) -> None:
        """A fresh process; returns when it is ready."""
        await asyncio.to_thread(self.controller.stop)
        self.pid = await asyncio.to_thread(self.controller.start)


@contextmanager
def estate(plan: Plan) -> Iterator[Estate]:
    """Starts everything in a temporary directory and ends it all."""
    with tempfile.TemporaryDirectory(prefix="gpu-mirage-bench-") as directory, ControlPlane(Path(directory)) as plane:
        install(plane)
        plane.create_namespace(NAMESPACE)
        pairs = _make_pairs(plane, max(plan.members, plan.idle_domains, plan.counted))
        controller = ControllerProcess(plane)
        pid = controller.start()
        yield Estate(plan, plane, controller, pid, pairs, usage_of(pid))
        controller.stop()


@asynccontextmanager
async def admin_client(estate: Estate) -> AsyncIterator[Client]:
    """The load generator's own connection."""
    transport = AiohttpTransport(Credentials(str(estate.control_plane.admin_kubeconfig)), user_agent="bench")
    try:
        yield Client(transport, ClientOptions(field_manager="bench"))
    finally:
        await transport.close()


def _make_pairs(plane: ControlPlane, count: int) -> list[tuple[str, str]]:
    racks = -(-2 * count // NODES_PER_RACK)
    names = make_nodes(plane, {clique(rack): NODES_PER_RACK for rack in range(racks)}, prefix="bench")
    wait_ready(plane, names, NODES_READY_TIMEOUT)
    return list(zip(names[::2], names[1::2], strict=True))[:count]
