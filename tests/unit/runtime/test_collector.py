"""The collector rests for as long as somebody decodes, and no longer."""

import gc

import pytest

from controllers.runtime.collector import collector_paused


def test_pauses_that_overlap_in_any_order_end_with_the_last() -> None:
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_an_exception_inside_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="bad"), collector_paused():
        raise ValueError("bad")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
