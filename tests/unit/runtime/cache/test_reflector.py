"""The reflector's decisions, one by one, without server or loop."""

import pytest

from controllers.runtime.cache import Check, ListPage, Reflector, StreamList, Wait, Watch
from controllers.runtime.client import Page, WatchEvent
from controllers.runtime.errors import (
    ApiError,
    Cause,
    DecodeError,
    Expired,
    Forbidden,
    InternalError,
    NotFound,
    ResourceVersionTooLarge,
    RuntimeFault,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    TransportError,
)
from controllers.runtime.meta import KubeObject, ObjectMeta, Resource


class Thing(KubeObject, frozen=True, kw_only=True):
    resource = Resource("example.com", "v1", "things", "Thing", namespaced=True)


A, B, C = (Thing(metadata=ObjectMeta(name=name)) for name in "abc")

EXPIRED = Expired("too old", code=410, reason="Expired")
TOO_LARGE = ResourceVersionTooLarge("too large", code=504)
INTERNAL = InternalError("oops", code=500)


def reflector(random: float = 0.0) -> Reflector[Thing]:
    return Reflector(page_size=500, random=lambda: random)


def watching(resource_version: str = "10", random: float = 0.0) -> Reflector[Thing]:
    r = reflector(random)
    assert r.page_received(Page((), resource_version), 0.0) is not None
    return r


def event(resource_version: str, type_: str = "MODIFIED") -> WatchEvent[Thing]:
    return WatchEvent(type_, None if type_ == "BOOKMARK" else A, resource_version)


def after_pause(r: Reflector[Thing], now: float) -> tuple[float, ListPage | StreamList | Watch | Check]:
    """How long the reflector wants to pause, and what it does then."""
    action = r.next_action(now)
    if not isinstance(action, Wait):
        return 0.0, action
    then = r.next_action(action.until)
    assert not isinstance(then, Wait)
    return action.until - now, then


# -- lists ------------------------------------------------------------------------------------------------------------


def test_the_first_list_takes_what_the_server_has_at_hand() -> None:
    assert reflector().next_action(0.0) == ListPage("0", "", 500)


def test_a_list_is_complete_with_its_last_page_and_has_the_version_of_its_first() -> None:
    r = reflector()
    assert r.page_received(Page((A,), "7", "t1"), 0.0) is None
    assert r.next_action(0.0) == ListPage("", "t1", 500)
    assert r.page_received(Page((B,), "8", "t2"), 0.0) is None
    assert r.next_action(0.0) == ListPage("", "t2", 500)
    replacement = r.page_received(Page((C,), "9"), 0.0)
    assert replacement is not None
    assert (replacement.items, replacement.resource_version) == ((A, B, C), "7")
    assert r.resource_version == "7"
    assert r.next_action(0.0) == Watch("7", 300.0)


def test_nothing_counts_as_known_before_the_last_page() -> None:
    r = reflector()
    r.page_received(Page((A,), "7", "t1"), 0.0)
    assert r.resource_version == ""


@pytest.mark.parametrize("first", ["", "0"])
def test_a_list_without_a_version_to_watch_from_is_a_failure(first: str) -> None:
    r = reflector()
    assert r.page_received(Page((A,), first), 0.0) is None
    assert "no resourceVersion" in r.last_error
    assert after_pause(r, 0.0) == (0.8, ListPage("0", "", 500))


def test_an_expired_page_token_leads_to_one_full_list_at_once() -> None:
    r = reflector()
    r.page_received(Page((A,), "7", "t1"), 0.0)
    r.list_failed(EXPIRED, 0.0)
    assert r.next_action(0.0) == ListPage("0", "", 0)
    replacement = r.page_received(Page((B,), "9"), 0.0)
    assert replacement is not None
    assert (replacement.items, replacement.resource_version) == ((B,), "9")


def test_an_expired_full_list_asks_for_the_newest_and_then_pauses() -> None:
    r = reflector()
    r.page_received(Page((A,), "7", "t1"), 0.0)
    r.list_failed(EXPIRED, 0.0)
    r.list_failed(EXPIRED, 0.0)
    assert r.next_action(0.0) == ListPage("", "", 500)
    r.list_failed(EXPIRED, 0.0)
    assert after_pause(r, 0.0) == (0.8, ListPage("", "", 500))


def test_a_server_that_expires_every_token_cannot_cause_a_hot_loop() -> None:
    r, now, requests = reflector(), 0.0, 0
    while now < 60.0 and requests < 100:
        match r.next_action(now):
            case Wait(until=until):
                now = until
            case ListPage(continue_token=""):
                requests += 1
                r.page_received(Page((A,), "7", "t1"), now)
            case _:
                requests += 1
                r.list_failed(EXPIRED, now)
    assert 0 < requests < 40


@pytest.mark.parametrize("error", [EXPIRED, TOO_LARGE])
def test_a_refused_version_of_a_list_leads_to_the_newest_at_once(error: RuntimeFault) -> None:
    r = watching("10")
    r.watch_failed(Forbidden("no", code=403), 0.0)
    assert after_pause(r, 0.0)[1] == ListPage("10", "", 0)
    r.list_failed(error, 1.0)
    assert r.next_action(1.0) == ListPage("", "", 500)


@pytest.mark.parametrize("error", [Forbidden("f", code=403), NotFound("n", code=404), TransportError("refused")])
def test_a_failing_list_is_repeated_with_growing_pauses_and_its_error_shows(error: RuntimeFault) -> None:
    r, now, pauses = reflector(), 0.0, []
    for _ in range(8):
        r.list_failed(error, now)
        assert r.last_error == f"list: {error}"
        pause, action = after_pause(r, now)
        assert action == ListPage("0", "", 500)
        pauses.append(round(pause, 3))
        now += pause
    assert pauses == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    r.page_received(Page((), "5"), now)
    assert r.last_error == ""


def test_a_failure_between_pages_begins_the_list_anew() -> None:
    r = reflector()
    r.page_received(Page((A,), "7", "t1"), 0.0)
    r.list_failed(TransportError("reset"), 0.0)
    assert after_pause(r, 0.0) == (0.8, ListPage("0", "", 500))
    replacement = r.page_received(Page((B,), "9"), 1.0)
    assert replacement is not None
    assert replacement.items == (B,)


def test_a_list_of_a_certain_version_is_paged_only_where_the_first_list_was() -> None:
    plain, paged = watching("10"), reflector()
    paged.page_received(Page((A,), "10", "t1"), 0.0)
    paged.page_received(Page((B,), "10"), 0.0)
    for r, limit in ((plain, 0), (paged, 500)):
        r.watch_failed(Forbidden("no", code=403), 0.0)
        assert after_pause(r, 0.0)[1] == ListPage("10", "", limit)


# -- watches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("random", "timeout"), [(0.0, 300.0), (0.5, 450.0), (0.999, 599.7)])
def test_watch_timeouts_are_spread_between_five_and_ten_minutes(random: float, timeout: float) -> None:
    action = watching("10", random).next_action(0.0)
    assert isinstance(action, Watch)
    assert action.timeout == pytest.approx(timeout)


@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
def test_every_event_moves_the_version_to_resume_from(type_: str) -> None:
    r = watching("10")
    r.watch_opened(0.0)
    r.event_received(event("12", type_), 0.0)
    r.watch_closed(400.0)
    assert r.next_action(400.0) == Watch("12", 300.0)
    assert r.resource_version == "12"


def test_an_event_without_a_version_moves_nothing() -> None:
    r = watching("10")
    r.event_received(event(""), 0.0)
    assert r.next_action(0.0) == Watch("10", 300.0)


def test_a_version_is_taken_as_it_comes_even_where_it_is_smaller() -> None:
    r = watching("10")
    r.event_received(event("9"), 0.0)
    assert r.next_action(0.0) == Watch("9", 300.0)


def test_a_clean_close_resumes_at_once_without_a_list_or_an_error() -> None:
    r, now = watching("10"), 0.0
    for _ in range(10):
        r.watch_opened(now)
        now += 300.0
        r.watch_closed(now)
        assert r.next_action(now) == Watch("10", 300.0)
        assert r.last_error == ""


def test_a_short_watch_with_news_is_routine() -> None:
    r = watching("10")
    r.watch_opened(0.0)
    r.event_received(event("11"), 0.0)
    r.watch_closed(0.1)
    assert r.next_action(0.1) == Watch("11", 300.0)


def test_a_very_short_watch_without_news_pauses_and_keeps_the_version() -> None:
    r = watching("10")
    r.watch_opened(0.0)
    r.watch_closed(0.1)
    assert "closed it within 1 s" in r.last_error
    pause, action = after_pause(r, 0.1)
    assert pause == pytest.approx(0.8)
    assert action == Watch("10", 300.0)


def test_a_bookmark_that_says_nothing_new_does_not_excuse_a_very_short_watch() -> None:
    r = watching("10")
    r.watch_opened(0.0)
    r.event_received(event("10", "BOOKMARK"), 0.0)
    r.watch_closed(0.1)
    assert isinstance(r.next_action(0.1), Wait)


def closed_at_once(r: Reflector[Thing], now: float) -> tuple[float, ListPage | StreamList | Watch | Check]:
    r.watch_opened(now)
    r.watch_closed(now)
    pause, action = after_pause(r, now)
    return now + pause, action


def test_five_very_short_watches_in_a_row_lead_to_the_newest_list() -> None:
    r, now = watching("10"), 0.0
    for _ in range(4):
        now, action = closed_at_once(r, now)
        assert action == Watch("10", 300.0)
    now, action = closed_at_once(r, now)
    assert action == ListPage("", "", 500)


def test_one_good_watch_ends_a_row_of_very_short_ones() -> None:
    r, now = watching("10"), 0.0
    for _ in range(4):
        now, _action = closed_at_once(r, now)
    r.watch_opened(now)
    r.watch_closed(now + 300.0)
    for _ in range(4):
        now, action = closed_at_once(r, now + 300.0)
        assert action == Watch("10", 300.0)


@pytest.mark.parametrize("error", [EXPIRED, TOO_LARGE])
def test_a_forgotten_version_leads_to_the_newest_list_after_a_pause(error: RuntimeFault) -> None:
    r = watching("10")
    r.watch_failed(error, 0.0)
    assert after_pause(r, 0.0) == (0.8, ListPage("", "", 500))


def test_a_server_that_always_says_expired_cannot_cause_a_hot_loop() -> None:
    r, now, requests = reflector(), 0.0, 0
    while now < 120.0 and requests < 100:
        match r.next_action(now):
            case Wait(until=until):
                now = until
            case ListPage():
                requests += 1
                r.page_received(Page((), "10"), now)
            case Watch():
                requests += 1
                r.watch_failed(EXPIRED, now)
    assert 0 < requests < 20


@pytest.mark.parametrize(
    "error",
    [
        TransportError("refused"),
        TooManyRequests("slow down", code=429),
        ServiceUnavailable("gone fishing", code=503),
        INTERNAL,
    ],
)
def test_a_watch_that_failed_for_a_moment_resumes_after_a_pause(error: RuntimeFault) -> None:
    r = watching("10")
    r.event_received(event("12"), 0.0)
    r.watch_opened(0.0)
    r.watch_failed(error, 0.0)
    assert r.last_error == f"watch: {error}"
    assert after_pause(r, 0.0) == (0.8, Watch("12", 300.0))
    r.watch_opened(1.0)
    assert r.last_error == ""


def test_the_pause_is_at_least_what_the_server_asks_for() -> None:
    r = watching("10")
    r.watch_failed(TooManyRequests("slow down", code=429, retry_after=7.0), 0.0)
    assert after_pause(r, 0.0) == (7.0, Watch("10", 300.0))


@pytest.mark.parametrize("error", [Forbidden("f", code=403), NotFound("n", code=404), DecodeError("garbage")])
def test_any_other_failure_lists_again_from_the_last_version(error: RuntimeFault) -> None:
    r = watching("10")
    r.event_received(event("12"), 0.0)
    r.watch_failed(error, 0.0)
    assert after_pause(r, 0.0) == (0.8, ListPage("12", "", 0))


def fail_until_list(r: Reflector[Thing], error: ApiError, start: float) -> float:
    now = start
    while True:
        r.watch_failed(error, now)
        pause, action = after_pause(r, now)
        if isinstance(action, ListPage):
            return now - start
        now += pause


def test_internal_errors_lead_to_a_list_only_after_a_minute_of_them() -> None:
    r = watching("10")
    assert 60.0 <= fail_until_list(r, INTERNAL, 0.0) < 120.0


def test_news_in_between_start_the_minute_of_internal_errors_anew() -> None:
    r = watching("10")
    r.watch_failed(INTERNAL, 0.0)
    r.event_received(event("11"), 0.0)
    assert fail_until_list(r, INTERNAL, 1000.0) >= 60.0


def test_pauses_are_stretched_at_random_up_to_twofold_and_capped() -> None:
    r, now, pauses = watching("10", random=0.999), 0.0, []
    for _ in range(8):
        r.watch_failed(TransportError("refused"), now)
        pause, _action = after_pause(r, now)
        pauses.append(pause)
        now += pause
    assert pauses[0] == pytest.approx(0.8 * 1.999)
    assert pauses[-1] == pytest.approx(30.0 * 1.999)


@pytest.mark.parametrize(("peace", "pause"), [(119.0, 1.6), (120.0, 0.8)])
def test_two_minutes_of_peace_reset_the_pause(peace: float, pause: float) -> None:
    r = watching("10")
    r.watch_failed(TransportError("refused"), 0.0)
    r.watch_failed(TransportError("refused"), 0.8 + peace)
    assert after_pause(r, 0.8 + peace)[0] == pytest.approx(pause)


# -- what a watch says without words ----------------------------------------------------------------------------------


def test_a_version_forgotten_during_an_outage_is_listed_at_once() -> None:
    r, now = watching("10"), 0.0
    for _ in range(8):
        r.watch_failed(TransportError("refused"), now)
        pause, _action = after_pause(r, now)
        now += pause
    assert pause == 30.0
    r.watch_failed(EXPIRED, now)
    assert r.next_action(now) == ListPage("", "", 500)


def test_a_server_that_soon_forgets_what_it_listed_gets_a_pause() -> None:
    for age, pause in ((29.0, 0.8), (30.0, 0.0)):
        r = watching("10")
        r.watch_opened(0.0)
        r.event_received(event("12"), 1.0)
        r.watch_failed(EXPIRED, age)
        asked_for, action = after_pause(r, age)
        assert asked_for == pytest.approx(pause)
        assert action == ListPage("", "", 500)


def watched_in_silence(
    r: Reflector[Thing], opened: float, closed: float
) -> ListPage | StreamList | Watch | Check | Wait:
    r.watch_opened(opened)
    r.watch_closed(closed)
    return r.next_action(closed)


def test_a_watch_without_bookmarks_from_a_server_that_sends_them_leads_to_a_list() -> None:
    """As after a restore from a backup: a watch from a version that is not reached again yet is silent for ever."""
    r = watching("10")
    r.watch_opened(0.0)
    r.event_received(event("12", "BOOKMARK"), 60.0)
    r.watch_closed(300.0)
    assert r.next_action(300.0) == Watch("12", 300.0)
    assert watched_in_silence(r, 300.0, 600.0) == ListPage("", "", 500)


def test_silence_says_nothing_where_no_bookmarks_come_or_the_watch_was_short() -> None:
    assert watched_in_silence(watching("10"), 0.0, 600.0) == Watch("10", 300.0)
    r = watching("10")
    r.event_received(event("12", "BOOKMARK"), 0.0)
    assert watched_in_silence(r, 0.0, 119.0) == Watch("12", 300.0)


def test_a_minute_of_peace_starts_the_minute_of_internal_errors_anew() -> None:
    r = watching("10")
    for now in (0.0, 100.0):
        r.watch_opened(now)
        r.watch_failed(INTERNAL, now + 70.0)
        assert after_pause(r, now + 70.0)[1] == Watch("10", 300.0)


def test_watches_that_open_only_to_fail_are_no_peace() -> None:
    r, now = watching("10"), 0.0
    while isinstance(r.next_action(now), Wait | Watch) and now < 1000.0:
        r.watch_opened(now)
        r.watch_failed(INTERNAL, now)
        now += after_pause(r, now)[0]
    assert 60.0 <= now < 120.0


@pytest.mark.parametrize(
    "error",
    [
        TOO_LARGE,
        ServerTimeout("Timeout", code=504, causes=(Cause(message="Too large resource version"),)),
        ServerTimeout("Too large resource version: 20, current: 10", code=504),
    ],
    ids=["cause", "1.17", "older"],
)
def test_a_version_too_large_is_recognised_in_each_of_its_forms(error: RuntimeFault) -> None:
    r = watching("10")
    r.watch_failed(Forbidden("no", code=403), 0.0)
    r.list_failed(error, 1.0)
    assert r.next_action(1.0) == ListPage("", "", 500)


def test_any_other_timeout_of_a_list_keeps_its_version() -> None:
    r = watching("10")
    r.watch_failed(Forbidden("no", code=403), 0.0)
    r.list_failed(ServerTimeout("took too long", code=504), 1.0)
    assert after_pause(r, 1.0)[1] == ListPage("10", "", 0)


def test_a_list_that_the_store_cannot_take_is_repeated_after_a_pause() -> None:
    r = watching("10")
    r.replacement_failed(ValueError("no room"), 0.0)
    assert "ValueError: no room" in r.last_error
    assert after_pause(r, 0.0) == (0.8, ListPage("10", "", 0))


def test_a_stream_that_was_given_up_keeps_the_reason_and_the_pause_of_that() -> None:
    r: Reflector[Thing] = Reflector(page_size=500, random=lambda: 0.0, stream_lists=True)
    for now, pause in ((0.0, 0.8), (1.0, 1.6)):  # the second one comes to the version that the first one came to
        r.next_action(now)
        r.watch_opened(now)
        r.event_received(WatchEvent("BOOKMARK", None, "10", {"k8s.io/initial-events-end": "true"}), now)
        r.replacement_failed(ValueError("no room"), now)
        r.watch_closed(now + 0.1)
        assert r.last_error == "list: the cache could not take it: ValueError: no room"
        assert r.next_action(now + 0.1) == Wait(now + pause)


ABSENT = [TransportError("refused"), ServiceUnavailable("gone fishing", code=503)]


def absent(error: RuntimeFault = ABSENT[0]) -> Reflector[Thing]:
    r = watching("10")
    r.watch_failed(error, 0.0)
    return r


@pytest.mark.parametrize("error", ABSENT)
def test_a_server_that_was_absent_is_asked_whether_it_has_reached_the_version(error: RuntimeFault) -> None:
    """It may have been restored from a backup, and a watch would say nothing of that."""
    r = absent(error)
    assert after_pause(r, 0.0) == (0.8, Check("10"))
    r.check_passed()
    assert r.next_action(1.0) == Watch("10", 300.0)


def test_a_watch_that_was_answered_before_it_broke_needs_no_check() -> None:
    r = watching("10")
    r.watch_opened(0.0)
    r.watch_failed(TransportError("reset"), 100.0)
    assert after_pause(r, 100.0)[1] == Watch("10", 300.0)
    r.watch_failed(TooManyRequests("slow down", code=429), 101.0)
    assert after_pause(r, 101.0)[1] == Watch("10", 300.0)


@pytest.mark.parametrize("error", [EXPIRED, TOO_LARGE])
def test_a_server_that_has_not_reached_the_version_is_listed_at_once(error: RuntimeFault) -> None:
    r = absent()
    r.check_failed(error, 1.0)
    assert r.next_action(1.0) == ListPage("", "", 500)
    r.page_received(Page((), "5"), 1.0)
    assert r.next_action(1.0) == Watch("5", 300.0)


@pytest.mark.parametrize("error", [*ABSENT, TooManyRequests("slow down", code=429), INTERNAL])
def test_a_check_without_an_answer_is_repeated_after_a_pause(error: RuntimeFault) -> None:
    r = absent()
    r.check_failed(error, 1.0)
    pause, action = after_pause(r, 1.0)
    assert (pause, action) == (1.6, Check("10"))
    assert r.last_error == f"list: {error}"


def test_a_check_that_is_refused_leads_to_a_list_of_that_version_or_a_later_one() -> None:
    r = absent()
    r.check_failed(Forbidden("no", code=403), 1.0)
    assert after_pause(r, 1.0) == (1.6, ListPage("10", "", 0))
    r.page_received(Page((), "11"), 3.0)
    assert r.next_action(3.0) == Watch("11", 300.0)


# -- streams ----------------------------------------------------------------------------------------------------------

END: WatchEvent[Thing] = WatchEvent("BOOKMARK", None, "15", {"k8s.io/initial-events-end": "true"})


def streaming() -> Reflector[Thing]:
    return Reflector(page_size=500, random=lambda: 0.0, stream_lists=True)


def test_versions_of_a_state_that_is_not_complete_are_not_resumed_from() -> None:
    r = streaming()
    assert r.next_action(0.0) == StreamList("", 300.0)
    r.watch_opened(0.0)
    assert r.event_received(event("12", "ADDED"), 0.0) is None
    assert (r.resource_version, r.streaming) == ("", True)
    r.watch_failed(TransportError("reset"), 1.0)
    assert after_pause(r, 1.0) == (0.8, StreamList("", 300.0))
    r.watch_opened(2.0)
    replacement = r.event_received(END, 2.0)
    assert replacement is not None
    assert (replacement.items, replacement.resource_version) == ((), "15")
    r.watch_closed(300.0)
    assert r.next_action(300.0) == Watch("15", 300.0)


def test_a_later_state_is_asked_for_from_the_last_version_on() -> None:
    r = streaming()
    r.watch_opened(0.0)
    r.event_received(END, 0.0)
    r.event_received(event("17"), 100.0)
    r.watch_failed(NotFound("n", code=404), 100.0)
    assert after_pause(r, 100.0)[1] == StreamList("17", 300.0)


@pytest.mark.parametrize("error", [EXPIRED, TOO_LARGE])
def test_an_impossible_version_of_a_stream_is_dropped_at_once_and_then_after_pauses(error: RuntimeFault) -> None:
    r = streaming()
    r.watch_opened(0.0)
    r.event_received(END, 0.0)
    r.watch_failed(NotFound("n", code=404), 100.0)
    r.watch_failed(error, 101.0)
    assert r.next_action(101.0) == StreamList("", 300.0)
    r.watch_failed(error, 101.0)
    assert after_pause(r, 101.0)[0] > 0.0


def test_streams_are_asked_for_again_after_a_list_that_stood_in_for_one() -> None:
    r = streaming()
    r.watch_failed(Forbidden("no", code=403), 0.0)
    assert r.next_action(0.0) == ListPage("0", "", 500)
    r.list_failed(Forbidden("no", code=403), 0.0)
    assert after_pause(r, 0.0) == (0.8, StreamList("", 300.0))
