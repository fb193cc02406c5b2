"""Lines about what happens, each with the seconds since the start. Plain text, so a terminal is not needed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

LOOK_INTERVAL = 0.3  # seconds between two looks at the cluster


@dataclass(frozen=True, slots=True)
class State:
    """How far something is: what to print of it, and whether it has come about."""

    text: str
    reached: bool


class Progress:
    """Prints the steps of one run."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)

    def follow(self, look: Callable[[], State], timeout: float, what: str) -> None:
        """Print the state each time it changes, until it is reached.

        Raises TimeoutError naming `what` and the last state after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        shown = ""
        while True:
            state = look()
            if state.text != shown:
                self.say(state.text)
                shown = state.text
            if state.reached:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{what} did not come about within {timeout:g} s; the last state was: {shown}")
            time.sleep(LOOK_INTERVAL)
