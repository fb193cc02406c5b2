"""Who wrote what, from the API server's audit log."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
FLUSH = 0.5  # seconds in which the server has written the lines of requests that it has answered

Sort = tuple[str, str]
"""A verb, and a resource with its subresource."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What one user did between two moments: writes and single reads by sort."""

    writes: Counter[Sort]
    reads: Counter[Sort]


class AuditLog:
    """Follows one user's lines."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user
        self._position = 0

    async def restart(self) -> None:
        """Begins an episode now."""
        await asyncio.sleep(FLUSH)
        self._position = self._path.stat().st_size

    async def episode(self) -> Episode:
        """What was done since ``restart``."""
        await asyncio.sleep(FLUSH)
        with self._path.open("rb") as log:
            log.seek(self._position)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        mine = [event for event in events if event["user"]["username"] == self._user and "objectRef" in event]
        return Episode(
            Counter(_sort(event) for event in mine if event["verb"] in WRITES),
            Counter(_sort(event) for event in mine if event["verb"] == "get"),
        )


def _sort(event: dict[str, Any]) -> Sort:
    reference = event["objectRef"]
    subresource = reference.get("subresource")
    return event["verb"], f"{reference['resource']}/{subresource}" if subresource else reference["resource"]
