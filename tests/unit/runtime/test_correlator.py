"""Which notes are one too many, and which keys have tokens left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.runtime.correlator import SimilarNotes, TokenBuckets


def test_notes_beyond_the_allowed_are_too_many() -> None:
    notes = SimilarNotes(10, 600.0, 100)
    assert [notes.too_many("g", f"note {n}", 0.0) for n in range(12)] == [False] * 10 + [True] * 2


def test_a_note_that_is_known_is_never_too_many() -> None:
    notes = SimilarNotes(2, 600.0, 100)
    assert [notes.too_many("g", note, 0.0) for note in ("a", "b", "c", "a", "b")] == [False, False, True, False, False]


def test_groups_do_not_count_together() -> None:
    notes = SimilarNotes(1, 600.0, 100)
    assert not notes.too_many("g", "a", 0.0)
    assert not notes.too_many("h", "b", 0.0)


def test_a_group_starts_afresh_only_after_it_was_silent_for_its_window() -> None:
    notes = SimilarNotes(1, 600.0, 100)
    notes.too_many("g", "a", 0.0)
    assert notes.too_many("g", "b", 600.0)
    assert notes.too_many("g", "c", 1200.0)
    assert not notes.too_many("g", "d", 1800.1)


def test_the_group_used_least_recently_is_forgotten_first() -> None:
    notes = SimilarNotes(1, 600.0, 2)
    notes.too_many("g", "a", 0.0)
    notes.too_many("h", "a", 1.0)
    notes.too_many("g", "a", 2.0)
    notes.too_many("i", "a", 3.0)
    assert notes.too_many("g", "b", 4.0)
    assert not notes.too_many("h", "b", 5.0)


def test_a_burst_passes_and_then_one_for_each_refill() -> None:
    buckets = TokenBuckets(25, 300.0, 100)
    taken = [second for second in range(1000) if buckets.take("k", float(second))]
    # While the burst is used up the bucket refills already.
    assert taken == [*range(25), 300, 600, 900]


def test_a_bucket_that_rests_is_full_again_and_no_fuller() -> None:
    buckets = TokenBuckets(3, 10.0, 100)
    assert [buckets.take("k", 0.0) for _ in range(4)] == [True, True, True, False]
    assert [buckets.take("k", 1e6) for _ in range(4)] == [True, True, True, False]


def test_keys_have_buckets_of_their_own() -> None:
    buckets = TokenBuckets(1, 10.0, 100)
    assert buckets.take("k", 0.0)
    assert buckets.take("l", 0.0)
    assert not buckets.take("k", 0.0)


def test_the_bucket_used_least_recently_is_forgotten_first() -> None:
    buckets = TokenBuckets(1, 10.0, 1)
    assert buckets.take("k", 0.0)
    assert buckets.take("l", 0.0)
    assert buckets.take("k", 0.0)


histories = st.lists(st.floats(0.0, 500.0), min_size=1, max_size=40)


@given(st.integers(1, 30), st.floats(1.0, 1000.0), st.floats(0.0, 1e9))
def test_a_full_bucket_gives_its_whole_burst_at_any_time(burst: int, refill: float, now: float) -> None:
    buckets = TokenBuckets(burst, refill, 10)
    assert [buckets.take("k", now) for _ in range(burst + 1)] == [True] * burst + [False]


@given(st.integers(1, 5), st.floats(1.0, 1000.0), histories)
def test_next_at_names_a_moment_at_which_take_succeeds(burst: int, refill: float, pauses: list[float]) -> None:
    buckets = TokenBuckets(burst, refill, 10)
    now = 0.0
    for pause in pauses:
        now += pause
        at = buckets.next_at("k", now)
        if at > now:
            assert not buckets.take("k", now)
        assert buckets.take("k", at)
        now = at


@given(st.integers(1, 5), st.floats(1.0, 1000.0), histories)
def test_no_stretch_of_time_sees_more_than_a_burst_and_its_refills(
    burst: int, refill: float, pauses: list[float]
) -> None:
    buckets = TokenBuckets(burst, refill, 10)
    times = [sum(pauses[: n + 1]) for n in range(len(pauses))]
    taken = [at for at in times if buckets.take("k", at)]
    for n, began in enumerate(taken):
        for count, ended in enumerate(taken[n:], start=1):
            assert count <= burst + (ended - began) / refill + 2e-3


@pytest.mark.parametrize("refill", [0.0, 1.0])
def test_first_take_always_succeeds(refill: float) -> None:
    assert TokenBuckets(1, refill, 1).take("k", 0.0)
