"""Running controllers within a test: a client of a cluster, and a manager for as long as a block takes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.entrypoint import set_up
from controllers.runtime.manager import Manager
from controllers.runtime.options import ManagerOptions
from controllers.runtime.transport import AiohttpTransport, Credentials

QUIET = ManagerOptions(metrics_bind_address="0", health_probe_bind_address="0", grace_period=5.0)
"""No ports, so that managers run side by side, and a reconcile that hangs does not hold up the test for long."""


@asynccontextmanager
async def connected(kubeconfig: str | Path, field_manager: str = "test") -> AsyncIterator[Client]:
    """A client of the cluster that a kubeconfig leads to, with all the rights of its user; closed after the block.

    Raises ConfigurationError where there is no such file, when the first request is sent.
    """
    transport = AiohttpTransport(Credentials(str(kubeconfig)), user_agent=field_manager)
    try:
        yield Client(transport, ClientOptions(field_manager))
    finally:
        await transport.close()


@asynccontextmanager
async def running(
    client: Client, setup: Callable[[Manager], object], options: ManagerOptions = QUIET
) -> AsyncIterator[Manager]:
    """Runs the controllers that ``setup`` declares while the block runs, which begins at once: ``eventually`` waits.

    The block is cancelled where the manager fails before its end, and what made it fail is raised in its place. On
    virtual time, with a ``ScriptedTransport`` under the client, it works just as well.
    """
    manager = Manager(client, options)
    set_up(manager, setup)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager.run(), name="manager")
            try:
                yield manager
            finally:
                manager.stop()
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """The one error in a group of one, which says more in a test's report than the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
