"""Free TCP ports of 127.0.0.1."""

import random
import socket

# Below Linux' default ephemeral range (32768-60999): an outgoing connection never takes the port of a component while
# that component restarts.
FIRST, LAST = 20000, 29999


def free_ports(count: int) -> list[int]:
    """Return `count` distinct ports that were free a moment ago. Raises OSError where there are not that many."""
    candidates = random.SystemRandom().sample(range(FIRST, LAST + 1), LAST - FIRST + 1)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return found
        if _is_free(port):
            found.append(port)
    raise OSError(f"fewer than {count} free ports between {FIRST} and {LAST} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
