"""What the audit log says of our controllers: pure functions of its events, oldest first."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Child = tuple[str, str]
"""Resource and name."""

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
CHILDREN = frozenset(
    {"resourceclaimtemplates", "computedomaincliques", "resourceslices", "configmaps", "noderesourcetopologies"}
)
CREATED = 201


@dataclass
class AuditLog:
    """A log file that is read on from where the last reading ended."""

    path: Path
    _offset: int = field(default=0, init=False)

    def news(self) -> list[Event]:
        """The events since the last call. A line that is not complete yet belongs to the next."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        return [json.loads(line) for line in text.splitlines()]


def of_user(events: Iterable[Event], user: str) -> list[Event]:
    """Answered requests of a user. A server that has just started may not know whose a request is."""
    ours = (event for event in events if event["user"].get("username") == user)
    return [event for event in ours if event["stage"] == "ResponseComplete"]


def creations(events: Iterable[Event]) -> Counter[Child]:
    """How often each child was made; an apply that makes its object answers 201, too."""
    return Counter(
        (event["objectRef"]["resource"], event["objectRef"]["name"])
        for event in events
        if code(event) == CREATED and event["objectRef"]["resource"] in CHILDREN
    )


def excess(made: Mapping[Child, int], allowed: Mapping[Child, int]) -> dict[Child, int]:
    """Children that were made more often than is allowed; what is not in ``allowed`` must not be made at all."""
    return {child: count for child, count in made.items() if count > allowed.get(child, 0)}


def codes(events: Iterable[Event]) -> Counter[int]:
    return Counter(code(event) for event in events)


def code(event: Event) -> int:
    number: int = event["responseStatus"]["code"]
    return number


def is_write(event: Event) -> bool:
    return event["verb"] in WRITES and code(event) < 300 and "objectRef" in event


def is_renewal(event: Event) -> bool:
    """Whether this is a write of a Lease: whoever does that with success has it, or has just let go of it."""
    return is_write(event) and event["objectRef"]["resource"] == "leases"


def holder(events: Sequence[Event]) -> str | None:
    """The User-Agent that wrote the Lease last."""
    return next((event["userAgent"] for event in reversed(events) if is_renewal(event)), None)


def without_lease(events: Iterable[Event], duration: float) -> list[str]:
    """Writes by somebody who was not the last one to write the Lease, or had not renewed it for ``duration`` seconds.

    Events about what happened, which a former leader may still send, count as little as the Lease itself.
    """
    found: list[str] = []
    holds: str | None = None
    since = 0.0
    for event in sorted(events, key=moment):
        if is_renewal(event):
            holds, since = event["userAgent"], moment(event)
        elif is_write(event) and event["objectRef"]["resource"] != "events":
            late = moment(event) - since
            if event["userAgent"] != holds or late > duration:
                what = f"{event['userAgent']} did {event['verb']} {event['requestURI']} at {event['stageTimestamp']}"
                found.append(f"{what}, {late:.3f} s after {holds} wrote the Lease")
    return found


def moment(event: Event) -> float:
    """When a request was answered, in seconds."""
    return datetime.fromisoformat(event["stageTimestamp"]).timestamp()
