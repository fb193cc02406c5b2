"""The moment as statuses have it."""

from collections.abc import Callable
from datetime import UTC

from controllers.runtime.clock import Clock

Now = Callable[[], str]
"""The present moment in RFC 3339, in whole seconds."""


def now_of(clock: Clock) -> Now:
    """The present moment by a clock."""
    return lambda: clock.utcnow().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
