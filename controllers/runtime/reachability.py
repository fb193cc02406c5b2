"""Whether the API server answers at all, told in the log once when it no longer does and once when it does again."""

from controllers.runtime import logs
from controllers.runtime.clock import Clock
from controllers.runtime.errors import TransportError

logger = logs.get_logger(__name__)

UNREACHABLE_AFTER = 5.0
"""Seconds of nothing but failures after which an API server counts as gone; single broken connections are routine."""


class Reachability:
    """What all requests of one connection together know of the server's presence; any answer counts, errors too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self._told = False

    @property
    def failing_for(self) -> float:
        """Seconds since the first of the requests that have all failed; 0 after an answer."""
        return 0.0 if self._failing_since is None else self._clock.monotonic() - self._failing_since

    def failed(self, error: TransportError) -> None:
        """No answer came to a request."""
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()
        if not self._told and self.failing_for >= UNREACHABLE_AFTER:
            self._told = True
            logger.warning("the API server cannot be reached", seconds=round(self.failing_for, 1), reason=str(error))

    def answered(self) -> None:
        """An answer began, whatever it says."""
        if self._told:
            logger.warning("the API server can be reached again", seconds=round(self.failing_for, 1))
        self._failing_since, self._told = None, False
