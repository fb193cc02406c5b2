"""Requests to the sandbox itself, below ``/sandbox``: faults, forgotten versions, worthless tokens, restarts.

Served only where the sandbox was started with ``--admin``, and to its administrator. The same can be done from Python
without any of this.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controllers.sandbox.errors import bad_request, method_not_allowed, no_such_page
from controllers.sandbox.faults import Fault, Faults, described

FIELDS = ", ".join(Fault.__struct_fields__)


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to restart: with the state of the last checkpoint instead of the present one, after ``down`` seconds."""

    restore: bool = False
    down: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not 0 <= self.down <= 3600:
            raise ValueError(f"down must be seconds from 0 to 3600, not {self.down}")


@dataclass(frozen=True, slots=True)
class Administration:
    """Answers such requests; ``restart`` and the other functions are the sandbox's own."""

    faults: Faults
    compact: Callable[[], None]
    checkpoint: Callable[[], None]
    revoke_tokens: Callable[[], None]
    restart: Callable[[Restart], None]

    def __call__(self, method: str, segments: Sequence[str], body: Any) -> Any:
        """Raises StatusError: 404 for paths that do not exist, 405 for other methods, 400 for bodies without sense."""
        match method, *segments:
            case "GET", "faults":
                pass
            case "POST", "faults":
                self.faults.add(*_faults_of(body))
            case "DELETE", "faults":
                self.faults.clear()
            case "DELETE", "faults", number if number.isdigit() and self.faults.remove(int(number)):
                pass
            case _, "faults":
                raise method_not_allowed()
            case _:
                return self._act(method, segments, body)
        return {"faults": [described(each) for each in self.faults.pending], "struck": self.faults.struck}

    def _act(self, method: str, segments: Sequence[str], body: Any) -> Any:
        actions: Mapping[str, Callable[[], None]] = {
            "compact": self.compact,
            "checkpoint": self.checkpoint,
            "revoke-tokens": self.revoke_tokens,
            "restart": lambda: self.restart(_read(body or {}, Restart, ", ".join(Restart.__struct_fields__))),
        }
        action = actions.get(segments[0]) if len(segments) == 1 else None
        if action is None:
            raise no_such_page()
        if method != "POST":
            raise method_not_allowed()
        action()
        return {"done": segments[0]}


def _faults_of(body: Any) -> list[Fault]:
    each = body if isinstance(body, list) else [body]
    if not each:
        raise bad_request(f"the list of faults is empty; a fault has the fields {FIELDS}")
    faults: list[Fault] = _read(each, list[Fault], FIELDS)
    return faults


def _read(body: Any, kind: Any, fields: str) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        why = f"{error}; the fields are {fields}"
        raise bad_request(f"the request to the sandbox cannot be understood: {why}") from None
