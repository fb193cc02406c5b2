"""Helpers for tests of controllers: virtual time, a clock moved by hand, an API server that follows a script.

::

    async def scenario() -> None:
        transport = ScriptedTransport([Answer(body={"kind": "Pod"}), Answer(503)])
        ...
        await asyncio.sleep(3600)

    run_virtual(scenario)  # takes no time

Nothing here needs a server, or pytest. ``controllers.sandbox.testing`` has fixtures of an API server that answers as
Kubernetes does, for ``connected`` and ``running`` to talk to.
"""

from controllers.runtime.recorder import FakeRecorder, RecordedEvent
from controllers.runtime.testing.clock import EPOCH, FakeClock
from controllers.runtime.testing.eventually import eventually
from controllers.runtime.testing.managers import connected, running
from controllers.runtime.testing.script import STALL, Answer, Json, Pause, Reply, ScriptedTransport, Step
from controllers.runtime.testing.virtual import Deadlock, TimeLimit, VirtualTimeError, VirtualTimeLoop, run_virtual

__all__ = [
    "EPOCH",
    "STALL",
    "Answer",
    "Deadlock",
    "FakeClock",
    "FakeRecorder",
    "Json",
    "Pause",
    "RecordedEvent",
    "Reply",
    "ScriptedTransport",
    "Step",
    "TimeLimit",
    "VirtualTimeError",
    "VirtualTimeLoop",
    "connected",
    "eventually",
    "run_virtual",
    "running",
]
