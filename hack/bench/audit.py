"""Who wrote what, from the API server's audit log."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
FLUSH = 0.5  # seconds in which the server has written the lines of requests that it has answered

Sort = tuple[str, str]
"""A verb, and a resource with its subresource."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What one user did between two moments: writes and single reads by sort."""

    writes: Counter[Sort]
    reads: Counter[Sort]


@dataclass(frozen=True, slots=True)
class Write:
    """One write: to which object, when it was answered in seconds of ``time.time``, and the status code."""

    sort: Sort
    name: str
    at: float
    code: int


class AuditLog:
    """Follows one user's lines."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user
        self._position = 0
        self._events: list[dict[str, Any]] = []

    async def restart(self) -> None:
        """Begins an episode now."""
        await asyncio.sleep(FLUSH)
        self._position = self._path.stat().st_size
        self._events = []

    async def episode(self) -> Episode:
        """What was done since ``restart``."""
        await asyncio.sleep(FLUSH)
        events = self.events()
        return Episode(
            Counter(_sort(event) for event in events if event["verb"] in WRITES),
            Counter(_sort(event) for event in events if event["verb"] == "get"),
        )

    def writes(self) -> list[Write]:
        """The writes that are in the log since ``restart``, as they were answered."""
        return [_write(event) for event in self.events() if event["verb"] in WRITES]

    def events(self) -> list[dict[str, Any]]:
        """The user's lines since ``restart``."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        name = self._user.encode()
        # Most lines are of others: those need not be parsed.
        events = [msgspec.json.decode(line) for line in whole.splitlines() if name in line]
        self._events += [event for event in events if event["user"]["username"] == self._user and "objectRef" in event]
        return self._events


def _write(event: dict[str, Any]) -> Write:
    at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
    return Write(_sort(event), event["objectRef"].get("name", ""), at, event["responseStatus"]["code"])


def _sort(event: dict[str, Any]) -> Sort:
    reference = event["objectRef"]
    subresource = reference.get("subresource")
    return event["verb"], f"{reference['resource']}/{subresource}" if subresource else reference["resource"]
