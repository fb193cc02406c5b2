"""The state of a sandbox in a directory: every object as it was last written, and the secrets of the server.

It is one SQLite file. Each change is committed before it becomes visible, so that whatever a client was told is there
after the process was killed. The disk is not waited for at each write: after a loss of power the latest changes may be
missing, but the file is whole. A file that cannot be read completely is refused, never replaced.
"""

import contextlib
import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from controllers.runtime.errors import ConfigurationError
from controllers.sandbox.errors import StatusError
from controllers.sandbox.storage import Change, State, Stored

FILE: Final = "sandbox.db"
APPLICATION: Final = 0x67706D73
"""Marks the file as a sandbox's, in the place that SQLite has for that."""
FORMAT: Final = 1
"""The version of the tables below."""

_TABLES: Final = """
    CREATE TABLE objects (
        resource TEXT NOT NULL,
        key TEXT NOT NULL,
        version INTEGER NOT NULL,
        json BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (resource, key)
    );
    CREATE TABLE removals (version INTEGER NOT NULL);
    INSERT INTO removals VALUES (1);
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_PUT: Final = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_IN_USE: Final = "another process uses it; stop that one, or choose another --data-dir"
_RIGHTS: Final = "give this user the right to read and write it, or choose another --data-dir"
_REASONS: Final = {
    "SQLITE_BUSY": _IN_USE,
    "SQLITE_CANTOPEN": f"it cannot be opened; {_RIGHTS}",
    "SQLITE_PERM": f"it cannot be opened; {_RIGHTS}",
    "SQLITE_READONLY": f"it cannot be written; {_RIGHTS}",
    "SQLITE_FULL": "there is no space left; make some on that disk",
    "SQLITE_IOERR": "the disk does not accept it; is it full or damaged?",
    "SQLITE_NOTADB": "it is no database of gpu-mirage-sandbox; choose another --data-dir",
    "SQLITE_CORRUPT": "it is damaged; put a copy of it back, or choose another --data-dir",
}


class Database:
    """The file of one sandbox, which nobody else can open meanwhile."""

    def __init__(self, directory: Path) -> None:
        """Opens the file, or makes it where there is none. Raises ConfigurationError naming what is wrong with it."""
        self.path = directory / FILE
        self._directory = _locked(directory)
        try:
            with self._explained():
                self._connection = self._open()
        except BaseException:
            os.close(self._directory)
            raise

    def close(self) -> None:
        self._connection.close()
        os.close(self._directory)

    def load(self) -> State:
        """All that was written. Raises ConfigurationError where anything of it is damaged."""
        objects: dict[str, dict[str, Stored]] = {}
        with self._explained():
            removals = self._connection.execute("SELECT version FROM removals").fetchall()
            if len(removals) != 1:
                raise self._refusal(_REASONS["SQLITE_CORRUPT"])
            version = removals[0][0]
            rows = self._connection.execute("SELECT resource, key, version, json, checksum FROM objects")
            for resource, key, written, json, checksum in rows:
                objects.setdefault(resource, {})[key] = self._stored(resource, key, written, json, checksum)
                version = max(version, written)
        return State(version, objects)

    def write(self, resource: str, change: Change) -> None:
        """Keeps a change. Raises StatusError 500 where that is not possible; nothing is changed then."""
        stored = change.stored
        try:
            if change.type == "DELETED":
                self._remove(resource, change.key, stored.version)
            else:
                self._connection.execute(_PUT, (resource, change.key, *_row(resource, change.key, stored)))
        except sqlite3.Error as error:
            why = f"{resource} {change.key} cannot be stored in {self.path}: {_reason(error)}"
            raise StatusError(500, "InternalError", f"Internal error occurred: {why}") from error

    def restore(self, state: State) -> None:
        """Keeps a state in place of all that was written. Raises ConfigurationError."""
        with self._explained(), self._connection:
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM objects")
            self._connection.execute("UPDATE removals SET version = ?", (state.version,))
            for resource, found in state.objects.items():
                rows = ((resource, key, *_row(resource, key, stored)) for key, stored in found.items())
                self._connection.executemany(_PUT, rows)

    def keep_secret(self, name: str, value: bytes) -> None:
        """Keeps a secret in place of the one before. Raises ConfigurationError."""
        with self._explained():
            self._connection.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (name, value))

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of the server; made and kept where there is none yet. Raises ConfigurationError."""
        with self._explained():
            found = self._connection.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
            if found:
                return bytes(found[0])
            value = make()
            self._connection.execute("INSERT INTO secrets VALUES (?, ?)", (name, value))
        return value

    def _remove(self, resource: str, key: str, version: int) -> None:
        """The version is kept apart: no object has it, and it must not be given out again."""
        self._connection.execute("BEGIN")
        try:
            self._connection.execute("DELETE FROM objects WHERE resource = ? AND key = ?", (resource, key))
            self._connection.execute("UPDATE removals SET version = ?", (version,))
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            # Some errors have ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            self._make()
        if self.path.stat().st_size == 0:
            raise self._refusal("it is empty, so what was in it is lost; put a copy of it back, or remove the file")
        # SQLite would go on with a file that may only be read, and fail later with less to say.
        self.path.open("rb+").close()
        connection = _connect(self.path)
        try:
            self._check(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """Makes the file under another name first: a half-made one must not be taken for one that lost its data."""
        if log := next(self.path.parent.glob(f"{FILE}-*"), None):
            raise self._refusal(f"it is missing, although {log.name} is there; put it back, or remove that file too")
        draft = self.path.with_name(f"{FILE}.draft")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        with contextlib.closing(_connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.executescript(f"BEGIN; {_TABLES} COMMIT")
        draft.rename(self.path)

    def _check(self, connection: sqlite3.Connection) -> None:
        def pragma(name: str) -> Any:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

        if pragma("application_id") != APPLICATION:
            raise self._refusal(_REASONS["SQLITE_NOTADB"])
        if (found := pragma("user_version")) != FORMAT:
            why = f"it has format {found}, and this version of gpu-mirage-sandbox reads format {FORMAT}"
            raise self._refusal(f"{why}; use the version that wrote it, or choose another --data-dir")
        if pragma("quick_check") != "ok":
            raise self._refusal(_REASONS["SQLITE_CORRUPT"])

    def _stored(self, resource: str, key: str, version: int, json: bytes, checksum: int) -> Stored:
        if _checksum(resource, key, json) != checksum:
            why = "is damaged; put a copy of the file back, or choose another --data-dir"
            raise self._refusal(f"{resource} {key} in it {why}")
        return Stored(msgspec.json.decode(json), version, json)

    def _refusal(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path}: {why}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._refusal(_reason(error)) from error
        except OSError as error:
            raise self._refusal(f"{error.strerror}; {_RIGHTS}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    # With it the log of changes needs no shared memory, and other programs cannot open the file at all.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def _locked(directory: Path) -> int:
    """The directory, made where there is none, opened and locked; the lock ends with the process, however it ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        why = f"{error.strerror}; choose a directory that this user may write to"
        raise ConfigurationError(f"--data-dir {directory}: {why}") from error
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(opened)
        raise ConfigurationError(f"--data-dir {directory}: {_IN_USE}") from error
    return opened


def _row(resource: str, key: str, stored: Stored) -> tuple[int, bytes, int]:
    """The columns of an object behind its key."""
    return stored.version, stored.encoded, _checksum(resource, key, stored.encoded)


def _checksum(resource: str, key: str, json: bytes) -> int:
    return zlib.crc32(json, zlib.crc32(f"{resource} {key}".encode()))


def _reason(error: sqlite3.Error) -> str:
    """What went wrong and what to do about it."""
    # Extended codes begin with the names of what they are kinds of.
    name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
    return f"{_REASONS[name]} ({error})" if name in _REASONS else str(error)
