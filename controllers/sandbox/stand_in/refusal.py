"""Why a pod is not placed."""

UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
"""What comes of reading a spec that is not as it should be; the API lets some of those in."""


class Refusal(Exception):
    """A node is not for a pod; each of ``reasons`` is a line of the count that the pod's condition shows."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


class Unplaceable(Exception):
    """No node is for a pod; ``message`` and ``reason`` are those of its condition PodScheduled."""

    def __init__(self, message: str, reason: str = "Unschedulable") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


SCHEDULER_ERROR = "SchedulerError"
"""Reason where something cannot be understood or evaluated, as opposed to there being too little of it."""
