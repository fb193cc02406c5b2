"""Log lines: one per event, whatever the fields hold."""

import asyncio
import io
import json
import logging
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from controllers.runtime import logs
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.meta import Key

logger = logs.get_logger("compute-domain")


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def text() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("text", "info", stream)
    return stream


@pytest.fixture
def as_json() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("json", "debug", stream)
    return stream


def only_line(stream: io.StringIO) -> str:
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def only_object(stream: io.StringIO) -> dict[str, Any]:
    found = json.loads(only_line(stream))
    assert isinstance(found, dict)
    return found


def raised_error() -> KeyError:
    with pytest.raises(KeyError) as caught:
        raise KeyError("lost")
    return caught.value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_text_line_has_time_level_logger_event_and_fields(text: io.StringIO) -> None:
    logger.info("domain is ready", nodes=4, key=Key("ns", "d"))
    line = only_line(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  compute-domain  .*", line)
    assert line.endswith("INFO  compute-domain  domain is ready  nodes=4 key=ns/d")


def test_levels_are_aligned_and_lines_below_the_level_are_left_out(text: io.StringIO) -> None:
    logger.debug("one")
    logger.warning("two")
    logger.error("three")
    assert [line.split("Z ")[1] for line in text.getvalue().splitlines()] == [
        "WARN  compute-domain  two",
        "ERROR compute-domain  three",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("one\ntwo", '"one\\ntwo"'),
        ("\x1b[31mred\x85\u2028", '"\\u001b[31mred\\x85\\u2028"'),
        ("Größe", "Größe"),
        (None, "None"),
        (ValueError("bad value"), '"ValueError: bad value"'),
        ("half \ud800", '"half \\\\ud800"'),
        (Broken(), '"<Broken without text>"'),
    ],
)
def test_text_value_is_quoted_where_it_needs_to_be(text: io.StringIO, value: object, shown: str) -> None:
    logger.info("event", value=value)
    assert only_line(text).endswith(f"event  value={shown}")


def test_newline_in_the_event_does_not_end_the_line(text: io.StringIO) -> None:
    logger.info("one\ntwo\rthree")
    assert only_line(text).endswith("one\\ntwo\\rthree")


def test_traceback_is_one_field_of_the_same_line(text: io.StringIO) -> None:
    logger.error("failed", exc_info=raised_error())
    line = only_line(text)
    assert 'error="Traceback' in line
    assert "KeyError: 'lost'" in line


def test_json_line_is_one_object(as_json: io.StringIO) -> None:
    logger.warning("slow", seconds=1.5, tags=("a", "b"), nested={1: {2}}, nothing=None, key=Key("ns", "d"))
    found = only_object(as_json)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("ts"))
    assert found == {
        "level": "warning",
        "logger": "compute-domain",
        "msg": "slow",
        "seconds": 1.5,
        "tags": ["a", "b"],
        "nested": {"1": [2]},
        "nothing": None,
        "key": "ns/d",
    }


def test_json_traceback_is_one_string(as_json: io.StringIO) -> None:
    logger.error("failed", exc_info=raised_error())
    trace = only_object(as_json)["error"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("KeyError: 'lost'")


def test_fields_cannot_replace_what_every_line_has(as_json: io.StringIO) -> None:
    logger.info("event", level="mine", msg="mine", event="x", self="y")
    found = only_object(as_json)
    assert (found["level"], found["msg"]) == ("info", "event")
    assert (found["level_"], found["msg_"], found["event"], found["self"]) == ("mine", "mine", "x", "y")


@pytest.mark.parametrize(
    "value", [Broken(), [Broken()], cyclic(), math.nan, 2**70, "\ud800", {"\ud800": b"\xff"}, object()]
)
def test_no_value_breaks_a_json_line(as_json: io.StringIO, value: object) -> None:
    logger.info("event", value=value, other="kept")
    found = only_object(as_json)
    assert found["msg"] == "event"
    assert found["other"] == "kept"
    assert "value" in found


def test_bound_fields_are_on_every_line_inside_and_none_outside(as_json: io.StringIO) -> None:
    with logs.bind(controller="c", object="ns/a"):
        with logs.bind(object="ns/b"):
            logger.info("inner")
        logger.info("outer", controller="own")
        logging.getLogger("library").info("theirs: %s", "text")
    logger.info("after")
    lines = [json.loads(line) for line in as_json.getvalue().splitlines()]
    assert [(line["msg"], line.get("controller"), line.get("object")) for line in lines] == [
        ("inner", "c", "ns/b"),
        ("outer", "own", "ns/a"),
        ("theirs: text", "c", "ns/a"),
        ("after", None, None),
    ]


def test_bound_fields_follow_into_tasks_and_do_not_leak_between_them(as_json: io.StringIO) -> None:
    async def child() -> None:
        await asyncio.sleep(0)
        logger.info("child")

    async def reconcile(name: str) -> None:
        with logs.bind(object=name):
            await asyncio.gather(child(), child())

    async def main() -> None:
        await asyncio.gather(reconcile("a"), reconcile("b"))

    asyncio.run(main())
    lines = [json.loads(line) for line in as_json.getvalue().splitlines()]
    assert sorted(line["object"] for line in lines if line["msg"] == "child") == ["a", "a", "b", "b"]


def test_a_library_format_that_does_not_fit_its_arguments_is_still_one_line() -> None:
    record = logging.LogRecord("library", logging.WARNING, "", 0, "%d things", ("many",), None)
    assert json.loads(logs.JsonFormatter().format(record))["msg"] == "%d things"
    assert logs.TextFormatter().format(record).endswith("WARN  library  %d things")


def test_configuring_again_does_not_write_lines_twice() -> None:
    old, new = io.StringIO(), io.StringIO()
    logs.configure("text", "info", old)
    logs.configure("text", "info", new)
    logger.info("once")
    assert old.getvalue() == ""
    assert len(new.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("log_format", "level", "message"),
    [
        ("xml", "info", "--log-format 'xml' is unknown: use one of text, json"),
        ("text", "loud", "--log-level 'loud' is unknown: use one of debug, info, warning, error"),
    ],
)
def test_unknown_option_names_the_flag_and_what_is_allowed(log_format: str, level: str, message: str) -> None:
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(ConfigurationError) as caught:
        logs.configure(log_format, level)
    assert str(caught.value) == message
    assert logging.getLogger().handlers == handlers
