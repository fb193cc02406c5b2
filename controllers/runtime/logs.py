"""Structured logs on top of ``logging``: one line per event, as text for people or as JSON for machines.

Fields bound with ``bind`` appear on every line that is written inside it, by whichever logger, also in tasks that
are started inside. No value can break a line or raise.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TextIO

import msgspec

from controllers.runtime.clock import rfc3339_micro
from controllers.runtime.errors import ConfigurationError

LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_SHORT_LEVELS: Final[Mapping[int, str]] = {logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}
_RESERVED: Final = frozenset({"ts", "level", "logger", "msg"})

_bound: ContextVar[Mapping[str, Any]] = ContextVar("bound_log_fields", default=MappingProxyType({}))


@contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Adds fields to every line written inside; an inner ``bind``, or the line itself, may override them."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def bound() -> Mapping[str, Any]:
    """The fields that every line written here carries."""
    return _bound.get()


class Logger:
    """Writes events: a fixed text, and everything that varies as fields.

    ``exc_info`` adds an exception with its traceback as the field ``error``. An exception given as an ordinary field
    is written as its type and text only.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._write(logging.DEBUG, event, exc_info, fields)

    def info(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._write(logging.INFO, event, exc_info, fields)

    def warning(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._write(logging.WARNING, event, exc_info, fields)

    def error(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._write(logging.ERROR, event, exc_info, fields)

    def _write(self, level: int, event: str, exc_info: BaseException | None, fields: Mapping[str, Any]) -> None:
        self._logger.log(level, event, exc_info=exc_info, extra={"fields": fields}, stacklevel=3)


def get_logger(name: str) -> Logger:
    """The logger of that name; it shares levels and handlers with the standard logger of the same name."""
    return Logger(logging.getLogger(name))


def configure(format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002 - named as the flag is
    """Sends all logs of the process to ``stream`` (standard error) in place of where they went before.

    ``format`` is ``text`` or ``json``. Raises ConfigurationError for any other format, or for an unknown level.
    """
    formatters: Mapping[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
    _require("--log-format", format, formatters)
    _require("--log-level", level, LEVELS)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatters[format]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])


def _require(flag: str, value: str, allowed: Mapping[str, Any]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{flag} {value!r} is unknown: use one of {', '.join(allowed)}")


class TextFormatter(logging.Formatter):
    """``2026-01-01T12:00:00.123Z INFO  logger  event  key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = _SHORT_LEVELS.get(record.levelno, record.levelname)
        fields = " ".join(f"{_escaped(name)}={_quoted(value)}" for name, value in _fields_of(record, self).items())
        line = f"{at} {level:<5} {record.name}  {_escaped(_message(record))}"
        return f"{line}  {fields}" if fields else line


class JsonFormatter(logging.Formatter):
    """One object per line: ``ts``, ``level``, ``logger``, ``msg``, then the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "ts": rfc3339_micro(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _encodable(_message(record)),
        }
        fields = {f"{k}_" if k in _RESERVED else k: v for k, v in _fields_of(record, self).items()}
        return _json({**head, **fields})


def _fields_of(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    # Bound fields are read here and not when a record is made, so that lines of libraries get them too.
    fields = {**_bound.get(), **getattr(record, "fields", {})}
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = formatter.formatException(record.exc_info)
    return fields


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # a library's format string does not fit its arguments
        return _text(record.msg)


def _json(fields: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode({_encodable(k): _plain(v) for k, v in fields.items()}).decode()
    except Exception:  # noqa: BLE001 - endless nesting, huge numbers: whatever it is, the line must be written
        return msgspec.json.encode({_encodable(k): _text(v) for k, v in fields.items()}).decode()


def _plain(value: Any) -> Any:
    """The value in terms of JSON; what JSON does not know becomes its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the line
        text = f"<{type(value).__name__} without text>"
    return _encodable(text)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _quoted(value: Any) -> str:
    text = _text(value)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """The text without anything that could end a line or move a cursor."""
    text = _encodable(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
