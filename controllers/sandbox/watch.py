"""Watches: from a change in the store to a line on the wire.

A watcher is a position in its resource's window of changes and nothing else, so that a client that never reads costs
no memory. One that the window has overtaken is cut off and must list again, as slow clients of a real server are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from controllers.sandbox.cluster import Cluster, parse_version
from controllers.sandbox.errors import Cause, StatusError, expired, invalid, version_too_large
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.selectors import EVERYTHING, Selector
from controllers.sandbox.storage import Change, Forgotten, Stored
from controllers.sandbox.typeschema import zero

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
BATCH = 500  # changes that are looked at at once
BATCH_SIZE = 64 * 2**10  # bytes that are sent at once, one line at least

Render = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch's query parameters say; ``timeout`` is in seconds."""

    namespace: str = ""
    selector: Selector = EVERYTHING
    resource_version: str = ""
    match: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: float = 1800.0


def check_options(options: WatchOptions) -> None:
    """Raises StatusError 422 for parameters that contradict each other."""
    causes = list(_option_causes(options))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def _option_causes(options: WatchOptions) -> Iterator[Cause]:
    path, match = "resourceVersionMatch", options.match
    if options.initial_events is not None and match != "NotOlderThan":
        text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        yield Cause("FieldValueForbidden", text, path)
    if options.initial_events is None and match:
        text = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        yield Cause("FieldValueForbidden", text, path)
    if match not in {"", "NotOlderThan"}:
        text = f'Unsupported value: "{match}": supported values: "NotOlderThan"'
        yield Cause("FieldValueNotSupported", text, path)


class Watcher:
    """One watch: ``start`` gives the first lines, ``advance`` those of the changes since."""

    def __init__(self, cluster: Cluster, info: ResourceInfo, options: WatchOptions, render: Render | None) -> None:
        self._store = cluster.store
        self._info = info
        self._options = options
        self._render = render
        self._prefix = f"{options.namespace}/" if options.namespace else ""
        self._collection = cluster.store.collection(info.collection)
        self._position = 0
        self._sent: int = 0

    def start(self) -> Iterator[bytes]:
        """The lines before any change. Raises StatusError 410 where the version asked for is forgotten, 504 where its
        state is asked for before it is reached, and 400."""
        asked = parse_version(self._options.resource_version)
        if self._options.initial_events and asked > self._store.version:
            raise version_too_large(asked, self._store.version)
        wants_state = self._options.initial_events is True or (self._options.initial_events is None and asked == 0)
        if asked and not wants_state:
            self._position = self._resume(asked)
            self._sent = asked
            return iter(())
        self._position = self._collection.end
        self._sent = self._store.version
        return self._state(list(self._collection.select(self._prefix))) if wants_state else iter(())

    def _resume(self, version: int) -> int:
        try:
            return self._collection.position_after(version)
        except Forgotten as forgotten:
            raise expired(f"too old resource version: {version} ({forgotten.oldest})") from None

    def _state(self, snapshot: list[tuple[str, Stored]]) -> Iterator[bytes]:
        for _, stored in snapshot:
            if self._matches(stored):
                yield self._line("ADDED", stored)
        # Also whoever gets the state because of asking for no version or any learns where it ends.
        if self._options.initial_events is not False and self._options.bookmarks:
            yield self.bookmark(self._sent, {INITIAL_EVENTS_END: "true"})

    def advance(self) -> tuple[bytes, bool]:
        """The lines of some further changes, and whether there are more. Raises Forgotten."""
        lines: list[bytes] = []
        size = 0
        for change in self._collection.changes_from(self._position, BATCH):
            self._position += 1
            # What was sent as initial state must not come again; a version from the future is waited for.
            if change.version > self._sent and (line := self._event(change)):
                lines.append(line)
                size += len(line)
            if size >= BATCH_SIZE:
                break
        return b"".join(lines), self._position < self._collection.end

    def bookmark(self, version: int | None = None, annotations: Mapping[str, str] | None = None) -> bytes:
        """A line that tells the client how far it has come, when all changes so far have been sent."""
        metadata: dict[str, Any] = {"resourceVersion": str(version or max(self._store.version, self._sent))}
        if annotations:
            metadata["annotations"] = dict(annotations)
        nothing = {} if self._info.custom else zero(self._info.schema)
        obj = {"kind": self._info.kind, "apiVersion": self._info.api_version, **nothing, "metadata": metadata}
        shown = self._render(obj) if self._render else obj
        return msgspec.json.encode({"type": "BOOKMARK", "object": shown}) + b"\n"

    def _event(self, change: Change) -> bytes:
        if not change.key.startswith(self._prefix):
            return b""
        now = change.type != "DELETED" and self._matches(change.stored)
        before = change.previous is not None and self._matches(change.previous)
        if now:
            return self._line("MODIFIED" if before else "ADDED", change.stored)
        if not before:
            return b""
        if change.type == "DELETED":
            return self._line("DELETED", change.stored)
        assert change.previous is not None
        return self._line("DELETED", _as_of(change.previous, change.version))

    def _matches(self, stored: Stored) -> bool:
        selector = self._options.selector
        return not selector or selector.matches(self._info.served(stored.object))

    def _line(self, kind: str, stored: Stored) -> bytes:
        served = self._info.served(stored.object)
        if self._render is None and served is stored.object:
            return b'{"type":"' + kind.encode() + b'","object":' + stored.encoded + b"}\n"
        shown = self._render(served) if self._render else served
        return msgspec.json.encode({"type": kind, "object": shown}) + b"\n"

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every change of the resource."""
        self._collection.listeners.add(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        self._collection.listeners.discard(listener)


def error_line(error: StatusError) -> bytes:
    """The line that ends a watch with an error."""
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"


def _as_of(stored: Stored, version: int) -> Stored:
    """An object that left a selection is shown as it was in it, at the version of the change that took it out."""
    obj = {**stored.object, "metadata": {**stored.object["metadata"], "resourceVersion": str(version)}}
    return Stored(obj, version, msgspec.json.encode(obj))
