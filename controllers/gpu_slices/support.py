"""Whether a server takes devices that share counters, which partitioned GPUs need."""

import asyncio

from controllers.api.dra import DraApi, ResourceSlice
from controllers.gpu_slices.devices import DRIVER
from controllers.runtime import Client
from controllers.runtime.clock import Clock
from controllers.runtime.errors import Invalid

ASK_AGAIN = 600.0
"""Seconds for which an answer holds: servers are upgraded, and feature gates switched."""

FIX = "serve Kubernetes 1.36 or newer with the feature gate DRAPartitionableDevices, or take mig out of the pool"

_NAME = "gpu-mirage-probe"
_SET = {"counterSet": "gpu-0-counter-set", "counters": {"memory": {"value": "1Gi"}}}


class PartitionSupport:
    """Asks the server by creating what it would not store."""

    def __init__(self, client: Client, kind: type[ResourceSlice], api: DraApi, clock: Clock) -> None:
        self._client = client
        self._kind = kind
        self._clock = clock
        self._devices = [api.device("gpu-0", {"type": {"string": "gpu"}}, None, [_SET])]
        self._asking = asyncio.Lock()
        self._refused = ""
        self._holds_until = -1.0

    async def refusal(self) -> str:
        """Why the server cannot take them; "" where it can. Raises what else may be wrong with the server."""
        async with self._asking:
            if self._clock.monotonic() >= self._holds_until:
                self._refused = await self._ask()
                self._holds_until = self._clock.monotonic() + ASK_AGAIN
        return self._refused

    def lost(self) -> None:
        """Tells that the server left counters out after all, as it does once the feature gate is off."""
        self._holds_until = -1.0

    @property
    def known_refusal(self) -> str:
        """The last answer, without asking."""
        return self._refused

    async def _ask(self) -> str:
        pool = {"name": _NAME, "generation": 1, "resourceSliceCount": 2}
        # Without the counters themselves: before 1.35 a server wanted them in the same slice, and refuses this.
        spec = {"driver": DRIVER, "nodeName": _NAME, "pool": pool, "devices": self._devices}
        try:
            answer = await self._client.dry_run_create(self._kind, {"metadata": {"name": _NAME}, "spec": spec})
        except Invalid as error:
            return f"the server refuses devices whose counters are in another slice: {error.message}"
        return "" if answer.spec.get("devices") == self._devices else "the server leaves out the counters of devices"
