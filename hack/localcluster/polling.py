"""Waiting for something in another process to become true."""

import time
from collections.abc import Callable


def wait_until(probe: Callable[[], bool], timeout: float, what: str, interval: float = 0.05) -> None:
    """Call `probe` every `interval` seconds until it is true.

    Raises TimeoutError naming `what` after `timeout` seconds. What `probe` raises ends the wait.
    """
    deadline = time.monotonic() + timeout
    while not probe():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what} did not happen within {timeout:g} s")
        time.sleep(interval)
