"""The stand-in as a whole: one manager with all its controllers, as a client of a sandbox."""

import asyncio
from pathlib import Path

from controllers.runtime import Client, ClientOptions, Manager, logs
from controllers.runtime.clock import Clock
from controllers.runtime.options import ManagerOptions
from controllers.runtime.transport import AiohttpTransport, Credentials
from controllers.sandbox.cel import AVAILABLE
from controllers.sandbox.stand_in import claims, deployments, jobs, kubelet, nodes, replicasets, scheduler, unplayed
from controllers.sandbox.stand_in.moment import now_of

NAME = "gpu-mirage-stand-in"
STOP_GRACE = 2.0  # seconds that running reconciles get at the end

logger = logs.get_logger(__name__)


class StandIn:
    """Runs in the present event loop between ``start`` and ``close``."""

    def __init__(self, kubeconfig: Path, *, clock: Clock | None = None) -> None:
        """``kubeconfig`` is the administrator's: the parts that it stands in for may do nearly everything, too."""
        self._transport = AiohttpTransport(Credentials(str(kubeconfig)), user_agent=NAME)
        options = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0", grace_period=STOP_GRACE)
        self._manager = Manager(Client(self._transport, ClientOptions(field_manager=NAME)), options, clock=clock)
        now = now_of(self._manager.clock)
        claims.setup(self._manager)
        scheduler.setup(self._manager, now)
        nodes.setup(self._manager, now)
        kubelet.setup(self._manager, now)
        deployments.setup(self._manager, now)
        replicasets.setup(self._manager)
        jobs.setup(self._manager, now)
        unplayed.setup(self._manager)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to act on what is in the cluster and on what comes."""
        logger.warning(
            "a stand-in plays scheduler, controller manager and kubelets: first fit, no preemption, no containers; "
            "what it does proves nothing about a real cluster"
        )
        if not AVAILABLE:
            logger.warning(
                "pods with claims for devices will wait: selectors cannot be evaluated, since the package "
                "cel-expr-python is not installed on this machine"
            )
        self._task = asyncio.create_task(self._run(), name=NAME)

    async def close(self) -> None:
        """Ends it; what has begun is finished."""
        self._manager.stop()
        if self._task is not None:
            await self._task
        await self._transport.close()

    async def _run(self) -> None:
        """Runs to the end; the sandbox goes on without it where it fails, and says so."""
        (failure,) = await asyncio.gather(self._manager.run(), return_exceptions=True)
        if isinstance(failure, Exception):
            logger.error("the stand-in has stopped: pods will wait and nothing will run", exc_info=failure)
