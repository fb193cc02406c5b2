"""The typed client.

Reads return projections. Writes take what they change as plain mappings and know the traps of the API, so that a
controller cannot forget them:

* an apply to an object that exists carries its uid, since an apply to a deleted object would make a ghost of it;
* finalizers go by JSON patch that tests uid and resourceVersion, since apply never removes one that a POST set;
* a delete carries the uid, so that a namesake made in the meantime survives.

A client made by ``restricted_to`` refuses every verb that its controller has not declared. The same declarations
generate the RBAC rules, so what works here works in a cluster.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any, Generic, TypeVar, cast

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from controllers.runtime import finalizers
from controllers.runtime.clock import Clock, SystemClock
from controllers.runtime.collector import collector_paused
from controllers.runtime.errors import (
    ApiError,
    ConfigurationError,
    Conflict,
    DecodeError,
    FieldConflict,
    Invalid,
    NotFound,
    ObjectGone,
    PermissionNotDeclared,
    ResourceVersionTooLarge,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    TransportError,
    error_from_response,
    error_from_status,
)
from controllers.runtime.meta import Key, KubeObject, Resource, without_nulls
from controllers.runtime.rbac import Permission
from controllers.runtime.reachability import Reachability
from controllers.runtime.transport import ByteStream, HttpRequest, HttpResponse, Transport

T = TypeVar("T", bound=KubeObject)

Guard = Callable[[], None]
"""Raises where nothing may be written at present."""

JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
METADATA_ONLY_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
APPLY_PATCH = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"

WATCH_GRACE = 15.0
"""Seconds beyond the server's own watch timeout after which a silent connection counts as half-open."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the state with which a watch of ``initial_events`` begins."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves towards an overloaded or absent server."""

    field_manager: str
    attempts: int = 4  # requests sent at most for one call, the first included
    retry_delay: float = 0.5  # seconds before the first repetition where the server names no time; doubles
    timeout: float = 30.0  # seconds for one request


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: a namespace ("" for all), a label selector and a field selector in the API's syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> tuple[tuple[str, str], ...]:
        pairs = (("labelSelector", self.labels), ("fieldSelector", self.fields))
        return tuple(pair for pair in pairs if pair[1])


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Undecodable:
    """An object that the projection could not take: as much of its identity as can be read, and why.

    ``key`` is None where not even a name is readable; ``uid`` and ``resource_version`` are "" likewise.
    ``held_by`` are the finalizers that keep it, where its deletion has been asked for.
    """

    key: Key | None
    uid: str
    resource_version: str
    error: DecodeError
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; objects that the projection could not take are in ``undecodable``."""

    items: tuple[T, ...]
    resource_version: str
    continue_token: str = ""
    undecodable: tuple[Undecodable, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One watch event. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ``object`` is None where ``undecodable`` says
    why; ``resource_version`` is known in either case, but "" for an object of a kind that is not watched. Only
    bookmarks carry ``annotations``."""

    type: str
    object: T | None
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    undecodable: Undecodable | None = None

    @property
    def ends_initial(self) -> bool:
        """Whether the state with which a watch of ``initial_events`` begins is complete with this bookmark."""
        return self.annotations.get(INITIAL_EVENTS_END) == "true"


@dataclass(frozen=True, slots=True)
class Write:
    """A successful write: which object, and the resourceVersion after it; "" where the object went with it.

    ``kind`` is the kind that the writer knows the object by, which tells where it reads the object, too; ``cluster`` is
    the name of the manager's cluster that it is in, "" for the manager's own.
    """

    kind: type[KubeObject]
    key: Key
    uid: str
    resource_version: str
    cluster: str = ""


writes_in_progress: ContextVar[list[Write] | None] = ContextVar("writes_in_progress", default=None)
"""Where a reconcile collects its own writes, so that the next one of its key can wait until the cache has them."""


@dataclass(frozen=True, slots=True)
class FieldsEntry:
    """One entry of ``metadata.managedFields``."""

    manager: str
    operation: str
    subresource: str
    fields: Mapping[str, Any]

    def owns(self, *path: str) -> bool:
        """Whether the entry covers a path, given in FieldsV1 keys such as ``f:metadata``."""
        at: Any = self.fields
        for step in path:
            if not isinstance(at, Mapping) or step not in at:
                return False
            at = at[step]
        return True


@dataclass(frozen=True, slots=True)
class LiveOwnership:
    """What a live look at an object says of it: its uid and who manages which fields."""

    uid: str
    entries: tuple[FieldsEntry, ...]

    def managers_of(self, *path: str, subresource: str = "") -> frozenset[str]:
        """The managers that own a path of FieldsV1 keys."""
        return frozenset(e.manager for e in self.entries if e.subresource == subresource and e.owns(*path))


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _AnswerMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class _Answer(msgspec.Struct):
    """What the answer to a write says of the object's life."""

    kind: str = ""
    metadata: _AnswerMeta = msgspec.field(default_factory=_AnswerMeta)


class _RawList(msgspec.Struct):
    metadata: _ListMeta
    kind: str = ""
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


class _Sort(msgspec.Struct):
    kind: str = ""


class _SortedEvent(msgspec.Struct):
    """What an event is and what it is about, without either."""

    type: str
    object: _Sort


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ErrorEvent(msgspec.Struct):
    object: dict[str, Any]


class _TypedEvent(msgspec.Struct, Generic[T]):
    object: T


class _LooseMeta(msgspec.Struct, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class _LooseDeletion(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None


class _LooseDeleted(msgspec.Struct):
    metadata: _LooseDeletion


class _LooseObject(msgspec.Struct):
    metadata: _LooseMeta | None = None


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


class _BookmarkEvent(msgspec.Struct):
    object: _Bookmark


class Client:
    """Talks to one API server with one field manager."""

    def __init__(self, transport: Transport, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self._transport = transport
        self._options = options
        self._clock = clock or SystemClock()
        self._allowed: frozenset[Permission] | None = None
        self._guard: Guard | None = None
        self._cluster = ""
        self.reachability = Reachability(self._clock)

    @property
    def field_manager(self) -> str:
        return self._options.field_manager

    def restricted_to(self, permissions: Iterable[Permission], *, field_manager: str = "") -> "Client":
        """The same connection for one controller: only the declared verbs, and a field manager of its own."""
        options = replace(self._options, field_manager=field_manager or self.field_manager)
        return self._variant(options, frozenset(permissions), self._guard, self._cluster)

    def guarded_by(self, guard: Guard) -> "Client":
        """The same client, which asks ``guard`` before each attempt of a write; what that raises is raised."""
        return self._variant(self._options, self._allowed, guard, self._cluster)

    def of_cluster(self, name: str) -> "Client":
        """The same client, whose writes are looked for in the caches of the manager's cluster of that name."""
        return self._variant(self._options, self._allowed, self._guard, name)

    def _variant(
        self, options: ClientOptions, allowed: frozenset[Permission] | None, guard: Guard | None, cluster: str
    ) -> "Client":
        client = Client(self._transport, options, clock=self._clock)
        client._allowed, client._guard, client._cluster = allowed, guard, cluster
        client.reachability = self.reachability
        return client

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """One object, live. Raises NotFound where there is none, DecodeError where the projection cannot take it."""
        self._check(kind.resource, "get")
        response = await self._send("GET", kind.resource.path(namespace, name), accept=_accepted(kind))
        return kind.decode(response.body)

    async def get_dict(self, kind: type[KubeObject], name: str, namespace: str = "") -> dict[str, Any]:
        """One object, live and whole, fields that no projection has included: what ``update`` needs."""
        self._check(kind.resource, "get")
        response = await self._send("GET", kind.resource.path(namespace, name))
        whole: dict[str, Any] = msgspec.json.decode(response.body)
        return whole

    async def find(self, kind: type[T], name: str, namespace: str = "") -> T | None:
        """One object, live, or None."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def get_ownership(self, kind: type[KubeObject], name: str, namespace: str = "") -> LiveOwnership | None:
        """Who manages which fields of one object, live; None where there is no such object."""
        self._check(kind.resource, "get")
        try:
            response = await self._send("GET", kind.resource.path(namespace, name), accept=METADATA_ONLY)
        except NotFound:
            return None
        metadata = without_nulls(msgspec.json.decode(response.body))["metadata"]
        entries = tuple(
            FieldsEntry(e.get("manager", ""), e.get("operation", ""), e.get("subresource", ""), e.get("fieldsV1", {}))
            for e in metadata.get("managedFields", ())
        )
        return LiveOwnership(metadata["uid"], entries)

    async def list_page(
        self,
        kind: type[T],
        selection: Selection = EVERYTHING,
        *,
        limit: int = 500,
        continue_token: str = "",
        resource_version: str | None = None,
    ) -> Page[T]:
        """One page. ``resource_version`` None asks for the newest state, "0" for whatever the server has at hand."""
        self._check(kind.resource, "list")
        query = selection.query()
        query += (("limit", str(limit)),) if limit else ()
        if continue_token:
            query += (("continue", continue_token),)
        elif resource_version is not None:
            query += (("resourceVersion", resource_version),)
        accept = _accepted(kind, METADATA_ONLY_LIST)
        response = await self._send("GET", kind.resource.path(selection.namespace), query=query, accept=accept)
        return decode_page(kind, response.body)

    async def list(self, kind: type[T], selection: Selection = EVERYTHING) -> tuple[T, ...]:
        """Every selected object, live and newest, read page by page; those that cannot be decoded are left out."""
        items: list[T] = []
        token = ""
        while True:
            page = await self.list_page(kind, selection, continue_token=token)
            items += page.items
            token = page.continue_token
            if not token:
                return tuple(items)

    @asynccontextmanager
    async def watch(
        self,
        kind: type[T],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str,
        timeout: float,
        initial_events: bool = False,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """A watch from ``resource_version`` on that the server ends after about ``timeout`` seconds.

        With ``initial_events`` it begins with the whole state, at least as new as ``resource_version``, up to a
        bookmark for which ``ends_initial`` holds; a server that cannot do that refuses it.

        Yields an iterator of events that ends when the server closes. Raises ApiError for an ERROR event or a refusal
        (Expired in both its forms), TransportError for a broken or silent connection.
        """
        self._check(kind.resource, "watch")
        query = (
            *selection.query(),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            *((("resourceVersion", resource_version),) if resource_version else ()),
            *((("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")) if initial_events else ()),
            ("timeoutSeconds", str(int(timeout))),
        )
        path, headers = kind.resource.path(selection.namespace), {"Accept": _accepted(kind)}
        async with self._answering(HttpRequest("GET", path, query, headers, None, timeout + WATCH_GRACE)) as stream:
            if stream.status >= 400:
                body = await stream.read()
                raise error_from_response(stream.status, body, retry_after=_retry_after(stream.headers))
            yield _events(kind, stream.chunks())

    @asynccontextmanager
    async def _answering(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        answered = False
        try:
            async with self._transport.stream(request) as stream:
                answered = True
                self.reachability.answered()
                yield stream
        except TransportError as error:
            if not answered:
                self.reachability.failed(error)
            raise

    async def get_json(self, path: str) -> Any:
        """Any path, decoded: for discovery and ``/version``. Needs no declared permission."""
        return msgspec.json.decode((await self._send("GET", path)).body)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def create(self, kind: type[T], body: Mapping[str, Any]) -> T:
        """POSTs a new object. Raises AlreadyExists where the name is taken: nothing is ever adopted."""
        return self._written(kind, await self._create(kind, body))

    async def dry_run_create(self, kind: type[T], body: Mapping[str, Any]) -> T:
        """What the server would make of a new object, which is not stored. Raises as ``create`` does."""
        return kind.decode((await self._create(kind, body, (("dryRun", "All"),))).body)

    async def update(self, kind: type[T], whole: Mapping[str, Any], *, subresource: str = "") -> T:
        """PUTs a whole object, as ``get_dict`` gave it and with changes; what it lacks is deleted.

        Raises Conflict where the object changed since, ObjectGone where it is no more, and ConfigurationError where
        ``whole`` has no uid or resourceVersion: a PUT without them overwrites whatever it meets.
        """
        self._check(kind.resource, "update", subresource)
        metadata = whole["metadata"]
        if not metadata.get("uid") or not metadata.get("resourceVersion"):
            raise ConfigurationError(
                f"update of {kind.resource.kind} {metadata.get('name')}: metadata.uid or metadata.resourceVersion is "
                "missing: change what get_dict gave"
            )
        path = kind.resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        query = (("fieldManager", self.field_manager),)
        try:
            response = await self._send("PUT", path, query=query, body=_identified(kind.resource, whole))
        except (NotFound, Conflict, Invalid) as error:
            if _means_gone(error, versioned=True):
                raise ObjectGone(f"{kind.resource.kind} {metadata['name']}: {error}") from error
            raise
        return self._written(kind, response)

    async def apply(self, observed: T, fields: Mapping[str, Any], *, subresource: str = "", force: bool = False) -> T:
        """Server-side apply of the fields we own on an object that exists and that somebody else made.

        The body gets the observed uid. Raises ObjectGone where that object is no more, FieldConflict where another
        manager holds one of the fields and ``force`` is off. ``fields`` may carry a resourceVersion: then Conflict
        means that the object changed since, or is no more.
        """
        self._check(observed.resource, "patch", subresource)
        metadata = {
            **fields.get("metadata", {}),
            "name": observed.name,
            "uid": observed.uid,
            **({"namespace": observed.namespace} if observed.namespace else {}),
        }
        try:
            response = await self._apply(
                observed.resource, {**fields, "metadata": metadata}, subresource=subresource, force=force
            )
        except (NotFound, Conflict, Invalid) as error:
            if _means_gone(error, versioned="resourceVersion" in metadata):
                raise ObjectGone(f"{observed.resource.kind} {observed.key} (uid {observed.uid}): {error}") from error
            raise
        return self._written(type(observed), response)

    async def apply_owned(self, kind: type[T], body: Mapping[str, Any], *, force: bool = True) -> T:
        """Server-side apply of an object that is wholly ours; it is made where it does not exist."""
        self._check(kind.resource, "create")
        self._check(kind.resource, "patch")
        return self._written(kind, await self._apply(kind.resource, body, force=force))

    async def json_patch(self, observed: T, operations: Sequence[Mapping[str, Any]], *, subresource: str = "") -> T:
        """JSON patch of exactly the object that was observed: uid and resourceVersion are tested first.

        Raises Conflict where it changed, ObjectGone where it is no more.
        """
        self._check(observed.resource, "patch", subresource)
        guarded = [
            {"op": "test", "path": "/metadata/uid", "value": observed.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": observed.metadata.resource_version},
            *operations,
        ]
        try:
            response = await self._send(
                "PATCH",
                observed.resource.path(observed.namespace, observed.name, subresource),
                query=(("fieldManager", self.field_manager),),
                body=guarded,
                content_type=JSON_PATCH,
            )
        except NotFound as error:
            raise ObjectGone(f"{observed.resource.kind} {observed.key}: {error}") from error
        except Invalid as error:
            # The server reports a failed "test" as 422 without a cause that names a field, and does not say what it is.
            if error.causes:
                raise
            what = f"{observed.resource.kind} {observed.key} has changed since version"
            message = f"{what} {observed.metadata.resource_version}, which a patch was made for"
            raise Conflict(message, code=409, reason="Conflict") from error
        return self._written(type(observed), response)

    async def add_finalizer(self, observed: T, finalizer: str) -> T:
        """Puts one finalizer on. Raises Conflict where the object changed, ObjectGone where it is no more, and
        ConfigurationError where it is being deleted."""
        operations = finalizers.addition(observed, finalizer)
        return await self.json_patch(observed, operations) if operations else observed

    async def remove_finalizer(self, observed: T, finalizer: str) -> T | None:
        """Takes one finalizer off; None where the object was already gone. Raises Conflict where it changed."""
        operations = finalizers.removal(observed, finalizer)
        if not operations:
            return observed
        try:
            return await self.json_patch(observed, operations)
        except ObjectGone:
            return None

    async def post(self, observed: KubeObject, subresource: str, body: Mapping[str, Any]) -> None:
        """POSTs to a subresource that is an action, such as the binding of a pod. Raises NotFound or Conflict.

        The answer does not tell what became of the object, so nothing waits until the cache has seen it.
        """
        self._check(observed.resource, "create", subresource)
        path = observed.resource.path(observed.namespace, observed.name, subresource)
        await self._send("POST", path, query=(("fieldManager", self.field_manager),), body=body)

    async def delete(self, observed: KubeObject, *, grace_period: int | None = None) -> None:
        """Deletes exactly the object that was observed, with background propagation; gone already is success.

        Raises Conflict where the server refuses with a 409 that does not say so.
        ``grace_period`` is in seconds and replaces the object's own; 0 ends a pod at once.
        """
        self._check(observed.resource, "delete")
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": observed.uid},
            **({} if grace_period is None else {"gracePeriodSeconds": grace_period}),
        }
        try:
            path = observed.resource.path(observed.namespace, observed.name)
            response = await self._send("DELETE", path, body=body)
        except NotFound:
            return
        except Conflict as error:
            if _names_another_uid(error):
                return
            raise
        _note(Write(type(observed), observed.key, observed.uid, _version_if_it_stays(response.body), self._cluster))

    # -- the wire -----------------------------------------------------------------------------------------------------

    async def _create(
        self, kind: type[KubeObject], body: Mapping[str, Any], query: tuple[tuple[str, str], ...] = ()
    ) -> HttpResponse:
        self._check(kind.resource, "create")
        return await self._send(
            "POST",
            kind.resource.path(body["metadata"].get("namespace", "")),
            query=(("fieldManager", self.field_manager), *query),
            body=_identified(kind.resource, body),
        )

    async def _apply(
        self, resource: Resource, body: Mapping[str, Any], *, subresource: str = "", force: bool
    ) -> HttpResponse:
        metadata = body["metadata"]
        return await self._send(
            "PATCH",
            resource.path(metadata.get("namespace", ""), metadata["name"], subresource),
            query=(("fieldManager", self.field_manager), ("force", "true" if force else "false")),
            body=_identified(resource, body),
            content_type=APPLY_PATCH,
        )

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: tuple[tuple[str, str], ...] = (),
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> HttpResponse:
        headers = {"Accept": accept}
        payload = None
        if body is not None:
            payload = msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        request = HttpRequest(method, path, query, headers, payload, self._options.timeout)
        try:
            # Setting up retries costs more than all else here, and nearly every request succeeds at once.
            return await self._send_once(request)
        except (ApiError, TransportError) as error:
            if not _repeatable(error, method, content_type):
                raise
            failed = error
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._options.attempts),
            retry=retry_if_exception(lambda error: _repeatable(error, method, content_type)),
            wait=self._delay_before_retry,
            sleep=self._clock.sleep,
            reraise=True,
        )
        tries = count(1)

        async def send() -> HttpResponse:
            attempt = next(tries)
            if attempt == 1:
                raise failed
            return await self._send_once(replace(request, attempt=attempt))

        return cast(HttpResponse, await retrying(send))

    async def _send_once(self, request: HttpRequest) -> HttpResponse:
        if self._guard is not None and request.method != "GET":
            self._guard()
        try:
            response = await self._transport.request(request)
        except TransportError as error:
            self.reachability.failed(error)
            raise
        self.reachability.answered()
        if response.status >= 400:
            raise error_from_response(response.status, response.body, retry_after=_retry_after(response.headers))
        return response

    def _delay_before_retry(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, ApiError) and error.retry_after is not None:
            return error.retry_after
        return self._options.retry_delay * float(2 ** (state.attempt_number - 1))

    def _written(self, kind: type[T], response: HttpResponse) -> T:
        written = kind.decode(response.body)
        _note(Write(kind, written.key, written.uid, _version_if_it_stays(response.body), self._cluster))
        return written

    def _check(self, resource: Resource, verb: str, subresource: str = "") -> None:
        if self._allowed is None or Permission.of(resource, verb, subresource) in self._allowed:
            return
        target = f"{resource}/{subresource}" if subresource else str(resource)
        raise PermissionNotDeclared(
            f"{self.field_manager} has not declared {verb} on {target}: add it to the controller's permissions"
        )


def decode_page(kind: type[T], body: bytes) -> Page[T]:
    """Decodes a list item by item, so that one bad object costs only itself."""
    try:
        raw = msgspec.json.decode(body, type=_RawList)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(f"list of {kind.resource}: {error}") from error
    if raw.items is msgspec.UNSET and raw.kind and not raw.kind.endswith("List"):
        # Read as a list it would be an empty one, which says that everything is deleted.
        raise DecodeError(f"list of {kind.resource}: the answer is a {raw.kind}")
    items: list[T] = []
    bad: list[Undecodable] = []
    with collector_paused():
        for item in raw.items or ():
            try:
                items.append(kind.decode(item))
            except DecodeError as error:
                bad.append(_undecodable(item, error))
    return Page(tuple(items), raw.metadata.resource_version, raw.metadata.continue_ or "", tuple(bad))


def decode_event(kind: type[T], line: bytes) -> WatchEvent[T]:
    """Decodes one line of a watch. Raises the ApiError that an ERROR event carries, DecodeError for a broken line.

    An object of a kind that nobody asked for, such as a Table, is undecodable and has no key.
    """
    try:
        type_, sort = _sorted(line)
        if type_ == "ERROR":
            raise error_from_status(without_nulls(msgspec.json.decode(line, type=_ErrorEvent).object))
        if type_ == "BOOKMARK":
            mark = msgspec.json.decode(line, type=_BookmarkEvent).object.metadata
            return WatchEvent(type_, None, mark.resource_version, mark.annotations or {})
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(f"watch of {kind.resource}: {error}: {line[:200]!r}") from error
    if sort not in ("", kind.resource.kind, "PartialObjectMetadata"):
        foreign = DecodeError(f"watch of {kind.resource}: it sent a {sort}")
        return WatchEvent(type_, None, "", undecodable=Undecodable(None, "", "", foreign))
    return _decoded(kind, type_, line)


def _sorted(line: bytes) -> tuple[str, str]:
    """The type of an event and the kind of its object, "" where that says nothing of it."""
    try:
        event = msgspec.json.decode(line, type=_SortedEvent)
    except msgspec.ValidationError:
        return msgspec.json.decode(line, type=_RawEvent).type, ""
    return event.type, event.object.kind


@cache
def _decoder_of_events(kind: type[KubeObject]) -> msgspec.json.Decoder[Any] | None:
    """Decodes event and object in one go; None for a kind with a way of its own to decode."""
    if kind.decode.__func__ is not KubeObject.decode.__func__:  # type: ignore[attr-defined]
        return None
    return msgspec.json.Decoder(_TypedEvent[kind])  # type: ignore[valid-type]


def _decoded(kind: type[T], type_: str, line: bytes) -> WatchEvent[T]:
    decoder = _decoder_of_events(kind)
    if decoder is not None:
        with suppress(msgspec.ValidationError):
            decoded: T = decoder.decode(line).object
            return WatchEvent(type_, decoded, decoded.metadata.resource_version)
    raw = msgspec.json.decode(line, type=_RawEvent).object
    try:
        decoded = kind.decode(raw)
    except DecodeError as error:
        undecodable = _undecodable(raw, error)
        return WatchEvent(type_, None, undecodable.resource_version, undecodable=undecodable)
    return WatchEvent(type_, decoded, decoded.metadata.resource_version)


def _undecodable(raw: msgspec.Raw, error: DecodeError) -> Undecodable:
    try:
        loose = msgspec.json.decode(raw, type=_LooseObject).metadata or _LooseMeta()
    except (msgspec.DecodeError, msgspec.ValidationError):
        loose = _LooseMeta()
    key = Key(loose.namespace or "", loose.name) if loose.name else None
    return Undecodable(key, loose.uid or "", loose.resource_version or "", error, _finalizers_that_hold(raw))


def _finalizers_that_hold(raw: msgspec.Raw) -> tuple[str, ...]:
    # Apart from the identity, which must be readable also where these are what is broken.
    try:
        deleted = msgspec.json.decode(raw, type=_LooseDeleted).metadata
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ()
    return tuple(deleted.finalizers or ()) if deleted.deletion_timestamp else ()


async def _events(kind: type[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent[T]]:
    async for line in _lines(chunks):
        yield decode_event(kind, line)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    # Split on bytes, never on decoded text: a chunk may end inside a UTF-8 character. The parts of an unfinished
    # line are joined once, so that a long line costs linear time.
    parts: list[bytes] = []
    async for chunk in chunks:
        head, newline, rest = chunk.partition(b"\n")
        parts.append(head)
        if not newline:
            continue
        *complete, last = rest.split(b"\n")
        for line in (b"".join(parts), *complete):
            if line:
                yield line
        parts = [last]
    if any(parts):
        raise TransportError("the watch ended in the middle of a line")


def _identified(resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _note(write: Write) -> None:
    writes = writes_in_progress.get()
    if writes is not None:
        writes.append(write)


def _version_if_it_stays(body: bytes) -> str:
    """The resourceVersion that a write left behind, or "" where the object went with it.

    A delete is answered with a Status where nothing holds the object. A write that takes the last finalizer off an
    object under deletion is answered with the object, in a version that no watch will ever show.
    """
    written = msgspec.json.decode(body, type=_Answer)
    metadata = written.metadata
    if written.kind == "Status":
        return ""
    held = metadata.finalizers or metadata.deletion_grace_period_seconds
    return "" if metadata.deletion_timestamp and not held else metadata.resource_version


def _means_gone(error: ApiError, *, versioned: bool) -> bool:
    """404; 409 for a uid that no object has any more; 422 for a namesake with another uid."""
    if isinstance(error, Invalid):
        return any(cause.field == "metadata.uid" for cause in error.causes)
    if isinstance(error, Conflict):
        # Where a resourceVersion was sent too, the same 409 may only say that it is old.
        return not versioned and not isinstance(error, FieldConflict)
    return True


def _names_another_uid(error: Conflict) -> bool:
    """Whether a delete was refused because a namesake lives in the place of what was observed.

    Only the words tell: servers say "UID in precondition" or "UID in the precondition", as they look at it before
    they ask their store or after. Any other 409 has deleted nothing, and the object is still there.
    """
    return "UID in precondition" in error.message or "UID in the precondition" in error.message


def _repeatable(error: BaseException, method: str, content_type: str) -> bool:
    """A refusal for load may always be repeated; a lost answer only where repeating does no harm."""
    if isinstance(error, TooManyRequests | ServiceUnavailable):
        return True
    if isinstance(error, ResourceVersionTooLarge) or not isinstance(error, TransportError | ServerTimeout):
        return False
    # An apply says what the end should be and a delete names the uid; a JSON patch that was done fails its own test.
    return method in ("GET", "PUT", "DELETE") or content_type == APPLY_PATCH


@cache
def _accepted(kind: type[KubeObject], metadata_only: str = METADATA_ONLY) -> str:
    """The media types in which a kind is read. Raises ConfigurationError for a kind that could not be filled."""
    if not kind.metadata_only:
        return JSON
    if further := set(kind.__struct_fields__) - {"metadata"}:
        raise ConfigurationError(
            f"{kind.__name__} reads metadata only, but has {', '.join(sorted(further))}: drop one of the two"
        )
    return metadata_only


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
