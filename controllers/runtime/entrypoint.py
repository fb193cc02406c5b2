"""What a binary's ``main`` does around its controllers: logs, event loop, connection, signals, exit code."""

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from controllers.runtime import logs
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.errors import ConfigurationError, RuntimeFault
from controllers.runtime.manager import Manager
from controllers.runtime.metrics import Metrics
from controllers.runtime.options import ManagerOptions
from controllers.runtime.tracing import TracedTransport, Tracer, active_tracer
from controllers.runtime.transport import AiohttpTransport, Credentials
from controllers.runtime.watchdog import watched

Setup = Callable[[Manager], None]

logger = logs.get_logger(__name__)


def run(name: str, setup: Setup, options: ManagerOptions) -> int:
    """Runs a manager that ``setup`` fills until SIGTERM or SIGINT; returns the process's exit code.

    The first signal stops in order, the second one at once. What blocks the event loop for a second is told.
    """
    code = 0
    try:
        logs.configure(options.log_format, options.log_level)
        # Not on uvloop, whose requests cost a fifth less: where connections are reset in their handshake it aborts the
        # process, or refuses to connect (https://github.com/MagicStack/uvloop/issues/653).
        asyncio.run(_serve(name, setup, options))
    except* RuntimeFault as group:
        code = 1
        _tell(name, _leaves(group))
    return code


def _tell(name: str, failures: list[BaseException]) -> None:
    for failure in failures:
        logger.error("stopped", binary=name, reason=str(failure))


async def _serve(name: str, setup: Setup, options: ManagerOptions) -> None:
    options = replace(options, leader_elect_resource_name=options.leader_elect_resource_name or name)
    metrics = Metrics()
    tracer = active_tracer(name)
    credentials = Credentials(options.kubeconfig, options.context)
    # Without them nothing can begin; where the first request reads them, all that it was for tell of a failure.
    await credentials.load()
    async with (
        _client(name, credentials, metrics, tracer) as client,
        _client(name, credentials, metrics, tracer) as leases,
    ):
        # Elections have connections of their own: a half-open one out of a big pool could cost one attempt each.
        manager = Manager(client, options, metrics=metrics, tracer=tracer, leases=leases, on_stuck=_end_at_once)
        set_up(manager, setup)
        _stop_on_signals(manager)
        async with watched():
            await manager.run()
    logger.info("stopped", binary=name)


def set_up(manager: Manager, setup: Callable[[Manager], object]) -> None:
    """Lets ``setup`` fill the manager. Raises ConfigurationError for a coroutine function, which would do nothing."""
    made = setup(manager)
    if inspect.iscoroutine(made):
        made.close()
        name = getattr(setup, "__qualname__", repr(setup))
        raise ConfigurationError(
            f"{name} is a coroutine function: make it a plain one; manager.prepare() takes what waits"
        )


@asynccontextmanager
async def _client(
    name: str, credentials: Credentials, metrics: Metrics, tracer: Tracer | None
) -> AsyncIterator[Client]:
    transport = AiohttpTransport(
        credentials,
        user_agent=name,
        observer=metrics.rest_observer,
        resolution_observer=metrics.resolution_observer,
    )
    try:
        yield Client(TracedTransport(transport, tracer) if tracer else transport, ClientOptions(field_manager=name))
    finally:
        await transport.close()


def _stop_on_signals(manager: Manager) -> None:
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)
        logger.info("stopping", signal=signal.Signals(number).name)
        manager.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _end_at_once() -> None:
    # Neither an exception nor the end of the loop would do: both wait for the very task that does not end.
    logger.error("ending at once")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _leaves(group: BaseExceptionGroup[RuntimeFault]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
