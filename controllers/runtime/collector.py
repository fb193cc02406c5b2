"""Decoding without the garbage collector.

Thousands of new objects with no garbage among them trigger collection after collection: two thirds of the time that
decoding a page costs.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switches the collector off until the last of those who are inside at the same time has left.

    A collector that was off before stays off. Tasks may wait inside, so pauses overlap in any order.
    """
    global _pauses, _was_enabled
    if _pauses == 0:
        _was_enabled = gc.isenabled()
        gc.disable()
    _pauses += 1
    try:
        yield
    finally:
        _pauses -= 1
        if _pauses == 0 and _was_enabled:
            gc.enable()
