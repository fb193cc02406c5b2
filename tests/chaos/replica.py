"""The all-in-one binary as schedules run it: with a name, a wall clock that can be set, and shorter pauses.

`python -m tests.chaos.replica NAME CLOCK ...`: the name ends the User-Agent, so that the audit log tells replicas of
one account apart; the file CLOCK has the seconds by which this process's wall clock is wrong; the rest is for the
binary.
"""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp

from controllers.all_in_one.__main__ import BINARY, main
from controllers.runtime import client, clock, entrypoint, transport
from controllers.runtime.cache import reflector

SHORTENED: tuple[tuple[ModuleType, str, float], ...] = (
    (reflector, "WATCH_TIMEOUT", 2.0),
    (reflector, "BACKOFF_LIMIT", 2.0),
    (client, "WATCH_GRACE", 1.5),
)
"""What would otherwise let minutes pass before a half-open watch is given up, and half of one after many failures."""
REQUEST_TIMEOUT = 3.0
"""Seconds instead of 30."""
IDLE_TIMEOUT = 1.0
"""Seconds instead of 60 after which an idle connection, which may be half-open, too, is not used again; as much shorter
than a silent watch takes to be given up as it really is."""


def agent(name: str) -> str:
    """The User-Agent of a replica."""
    return f"{BINARY}/{name}"


def shorten() -> None:
    for module, constant, seconds in SHORTENED:
        if not hasattr(module, constant):
            raise AttributeError(f"{module.__name__} has no {constant} any more: shorten what took its place")
        setattr(module, constant, seconds)
    connector = aiohttp.TCPConnector

    def impatient(**options: Any) -> aiohttp.TCPConnector:
        return connector(**{**options, "keepalive_timeout": IDLE_TIMEOUT})

    setattr(aiohttp, "TCPConnector", impatient)  # noqa: B010 - mypy knows that it is a class
    replace("ClientOptions", partial(client.ClientOptions, timeout=REQUEST_TIMEOUT))


def give_name(name: str) -> None:
    original = transport.AiohttpTransport

    def named(credentials: Any, *, user_agent: str, **options: Any) -> Any:
        return original(credentials, user_agent=f"{user_agent}/{name}", **options)

    replace("AiohttpTransport", named)


def replace(name: str, substitute: Any) -> None:
    """Replaces what the entry point makes its connection of."""
    if not hasattr(entrypoint, name):
        raise AttributeError(f"{entrypoint.__name__} has no {name} any more")
    setattr(entrypoint, name, substitute)


def set_clock(file: Path) -> None:
    def utcnow(_: clock.SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(file.read_text()))

    setattr(clock.SystemClock, "utcnow", utcnow)  # noqa: B010 - mypy knows that it is a method


if __name__ == "__main__":
    shorten()
    give_name(sys.argv[1])
    set_clock(Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
