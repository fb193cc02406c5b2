"""The HTTP face of a cluster: one handler for all paths, on aiohttp.

A request passes authentication, routing, authorization and its verb in that order, as in a real server, and whatever
refuses it becomes a ``Status``. Bodies are bounded, watches are streamed at the pace of the client.
"""

import asyncio
import contextlib
import functools
import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controllers.runtime import logs
from controllers.sandbox import discovery, patch, reviews, scale, subresources, tables
from controllers.sandbox.access import Access, Attributes, attributes_of
from controllers.sandbox.audit import AuditLog
from controllers.sandbox.cluster import Cluster, Listing, ListOptions, WriteOptions, Written
from controllers.sandbox.errors import (
    Cause,
    StatusError,
    bad_request,
    cannot_render,
    invalid,
    invalid_options,
    method_not_allowed,
    no_such_page,
    no_such_path,
    not_supported,
    too_large,
    unsupported_media_type,
    unsupported_patch,
)
from controllers.sandbox.faults import Disturbance, Faults, Subject
from controllers.sandbox.lifecycle import Object
from controllers.sandbox.openapi import OpenApi, document_v2
from controllers.sandbox.registry import ResourceInfo
from controllers.sandbox.requests import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    PLAIN,
    STRATEGIC_PATCH,
    YAML,
    Rendering,
    Target,
    check_document,
    decode_body,
    decode_patch,
    duplicate_fields,
    is_true,
    query_of,
    rendering_of,
    resource_target,
    split_path,
    verb_of,
    wants_aggregated,
    wants_yaml,
    whole_number,
)
from controllers.sandbox.selectors import Selector, parse, parse_labels
from controllers.sandbox.storage import Forgotten, Stored
from controllers.sandbox.tokens import Identity
from controllers.sandbox.watch import Watcher, WatchOptions, check_options, error_line

MAXIMUM_BODY = 3 * 2**20  # bytes, the API's
MAXIMUM_MANAGER = 128  # characters of a field manager's name, the API's
BODY_TIMEOUT = 60.0  # seconds in which the body of a request must have come, the API's for whole requests
CHUNK = 256 * 2**10  # bytes of a watch's initial state that are sent at once
GATHER = 0.004  # seconds after events of a watch were sent in which further ones are gathered
BOOKMARK_INTERVAL = 60.0  # seconds between bookmarks, the API's
BOOKMARK_MARGIN = 2.0  # seconds before the end of a watch at which it gets a last bookmark, the API's
MINIMUM_WATCH = 1800.0  # seconds that a watch without timeoutSeconds lasts at least; twice that at most
HEALTH = frozenset({"healthz", "livez", "readyz"})
HEALTH_CHECKS = ("ping", "log", "etcd")
"""The checks of the real server that have a meaning here; the store stands for etcd."""
NOT_SUPPORTED: Mapping[str, frozenset[str]] = {
    "pods": frozenset({"attach", "ephemeralcontainers", "exec", "log", "portforward", "proxy", "resize"}),
    "services": frozenset({"proxy"}),
    "nodes": frozenset({"proxy"}),
}
"""Subresources of a real server that need what is not here: containers and a network."""
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

ADMINISTRATION = "sandbox"
"""The first part of the paths that are about the sandbox itself."""
Administration = Callable[[str, Sequence[str], Any], Any]
"""Does what a method, a path and a body ask of the sandbox itself, and returns what to answer. Raises StatusError."""

logger = logs.get_logger(__name__)


class Call(msgspec.Struct, frozen=True):
    """A request, read and routed."""

    request: web.BaseRequest
    identity: Identity
    method: str
    query: Mapping[str, str]
    rendering: Rendering


class Route(msgspec.Struct, frozen=True):
    """The resource that a call is for."""

    target: Target
    info: ResourceInfo

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.name


Write = Callable[[Call, Route, WriteOptions], Awaitable[Written]]


class Server:
    """Answers requests to a cluster, as far as ``faults`` let it; ``administration`` those to the sandbox itself."""

    def __init__(
        self,
        cluster: Cluster,
        access: Access,
        faults: Faults,
        administration: Administration | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._cluster = cluster
        self._access = access
        self._faults = faults
        self._administration = administration
        self._audit = audit
        self._stopping = False
        self._watches: set[Callable[[], None]] = set()
        self._openapi = OpenApi(cluster.registry)
        self._encode = msgspec.json.Encoder().encode

    def stop(self) -> None:
        """Ends all watches, as they would otherwise go on for hours."""
        self._stopping = True
        for wake in tuple(self._watches):
            wake()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request."""
        response = await self._handled(request)
        if isinstance(response, web.Response) and wants_yaml(request.headers.get("Accept")):
            _write_yaml(response)
        if self._audit is not None:
            self._audit.record(request, response, self._cluster.clock.utcnow())
        return response

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            return self._refusal(error)
        except RecursionError:
            return self._refusal(bad_request("the object provided is nested too deeply"))
        except ConnectionResetError:
            # Nobody is left to read an answer; to raise would be reported as an error of the server.
            return web.Response()
        except Exception as error:  # noqa: BLE001
            # One broken request must not end the server.
            return self._failure(request, error)

    def _failure(self, request: web.BaseRequest, error: Exception) -> web.Response:
        logger.error("request failed", method=request.method, path=request.path, exc_info=error)
        return self._refusal(StatusError(500, "InternalError", f"Internal error occurred: {error}"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        identity = self._access.authenticate(request.headers.get("Authorization"))
        if "Impersonate-User" in request.headers:
            raise not_supported("impersonation is not supported by gpu-mirage-sandbox; use a token of that account")
        raw_path, _, raw_query = request.path_qs.partition("?")
        segments = split_path(raw_path) if raw_path != "/" else []
        call = Call(request, identity, request.method, query_of(raw_query), PLAIN)
        target = resource_target(segments)
        if segments[:1] == [ADMINISTRATION]:
            return await self._administer(call, segments[1:])
        if target is None:
            return self._about(call, segments)
        if self._faults:
            return await self._faults.around(
                request, _subject(call, target), functools.partial(self._resource, call, target)
            )
        return await self._resource(call, target)

    async def _administer(self, call: Call, segments: list[str]) -> web.Response:
        path = "/" + "/".join((ADMINISTRATION, *segments))
        self._access.check(call.identity, Attributes(call.method.lower(), path=path))
        if self._administration is None:
            raise no_such_page()
        raw = await self._read(call)
        return self._json(self._administration(call.method, segments, decode_body(raw, JSON) if raw else None))

    def _about(self, call: Call, segments: list[str]) -> web.Response:
        """Health, version and discovery."""
        path = "/" + "/".join(segments)
        self._access.check(call.identity, Attributes(call.method.lower(), path=path))
        if call.method not in {"GET", "HEAD"}:
            self._document(segments)
            raise method_not_allowed()
        if segments and segments[0] in HEALTH:
            return _health(segments, verbose="verbose" in call.query)
        if segments[:2] == ["openapi", "v3"] and len(segments) > 2:
            return web.Response(body=self._openapi.document("/".join(segments[2:])), content_type=JSON)
        if segments == ["openapi", "v2"]:
            body, media_type = document_v2(call.request.headers.get("Accept", ""))
            return web.Response(body=body, headers={"Content-Type": media_type})
        accept = call.request.headers.get("Accept")
        if segments in (["api"], ["apis"]) and wants_aggregated(accept):
            return self._aggregated(call, core=segments == ["api"])
        document = self._document(segments)
        if segments[:1] in (["api"], ["apis"]):
            check_document(accept)
        return self._json(document)

    def _aggregated(self, call: Call, *, core: bool) -> web.Response:
        """Discovery in one document, or the word that the client has the newest one."""
        body = self._encode(discovery.aggregated(self._cluster.registry, core=core))
        tag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
        headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
        if call.request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        kind = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return web.Response(body=body, headers={**headers, "Content-Type": kind})

    def _document(self, segments: list[str]) -> dict[str, Any]:
        registry = self._cluster.registry
        match segments:
            case ["version"]:
                return discovery.VERSION
            case ["api"]:
                return discovery.api_versions()
            case ["apis"]:
                return discovery.group_list(registry)
            case ["api", version]:
                return discovery.resource_list(registry, "", version)
            case ["apis", group]:
                return discovery.group(registry, group)
            case ["apis", group, version]:
                return discovery.resource_list(registry, group, version)
            case ["openapi", "v3"]:
                return self._openapi.index()
            case []:
                return {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        raise no_such_page()

    async def _resource(self, call: Call, target: Target) -> web.StreamResponse:
        if review := reviews.info_of(target.group, target.version, target.resource):
            return await self._review(call, Route(target, review))
        info = self._cluster.registry.find(target.group, target.version, target.resource)
        verb = _verb(call, target)
        self._access.check(call.identity, attributes_of(verb, target))
        if info is None and not self._cluster.registry.serves(target.group, target.version):
            raise no_such_page()
        if info is not None and target.subresource in NOT_SUPPORTED.get(info.plural, ()):
            raise not_supported(f"{info.plural}/{target.subresource} is not supported by gpu-mirage-sandbox")
        if info is None or (target.subresource and target.subresource not in info.subresources):
            raise no_such_path()
        if target.namespace and not info.namespaced:
            raise no_such_path()
        if info.namespaced and not target.namespace and (target.name or call.method != "GET"):
            raise no_such_path() if target.name else method_not_allowed()
        if call.method in {"PUT", "PATCH"} and not target.name:
            raise method_not_allowed()
        route = Route(target, info)
        rendering = rendering_of(call.request.headers.get("Accept"), streamed=verb == "watch")
        if rendering is not PLAIN:
            call = Call(call.request, call.identity, call.method, call.query, rendering)
        if verb == "watch":
            return await self._watch(call, route)
        return await self._verb(call, route, verb)

    async def _verb(self, call: Call, route: Route, verb: str) -> web.Response:
        if route.target.subresource not in {"", "status"}:
            return await self._act(call, route)
        match verb:
            case "get":
                return self._get(call, route)
            case "list":
                return self._list(call, route)
            case "create" if not route.name:
                return await self._write(call, route, self._create)
            case "update":
                return await self._write(call, route, self._update)
            case "patch":
                _check_patch_type(call, route)
                return await self._write(call, route, self._patch)
            case "delete":
                return await self._delete(call, route)
            case "deletecollection" if "deletecollection" in discovery.verbs_of(route.info):
                return await self._delete_collection(call, route)
        raise method_not_allowed()

    def _get(self, call: Call, route: Route) -> web.Response:
        version = call.query.get("resourceVersion", "")
        obj = self._cluster.get(route.info, route.namespace, route.name, version)
        if call.rendering is PLAIN:
            stored = self._cluster.stored(route.info, route.namespace, route.name)
            if stored.object is obj:
                return web.Response(body=stored.encoded, content_type=JSON)
        return self._object(call, route, obj)

    def _list(self, call: Call, route: Route) -> web.Response:
        query = call.query
        # What cannot be read at all is refused before what cannot be combined.
        limit, _ = whole_number(query, "limit"), parse_labels(query.get("labelSelector", ""))
        _check_list(query)
        options = ListOptions(
            namespace=route.namespace,
            selector=_selector(route.info, query),
            resource_version=query.get("resourceVersion", ""),
            match=query.get("resourceVersionMatch", ""),
            limit=limit,
            token=query.get("continue", ""),
        )
        listing = self._cluster.list(route.info, options)
        objects = [route.info.served(stored.object) for stored in listing.items]
        return self._listed(call, route.info, listing, objects)

    def _listed(self, call: Call, info: ResourceInfo, listing: Listing, objects: Sequence[Object]) -> web.Response:
        rendering = call.rendering
        if not rendering.kind:
            return self._json(_list_of(info, listing, objects))
        if rendering.kind == "Table":
            return self._json(self._table(call, info, objects, listing.metadata()))
        if rendering.kind == "PartialObjectMetadata":
            raise cannot_render(f"{rendering.kind}, but the requested object is a list ({_type_name(info)}List)")
        return self._json(tables.metadata_list(objects, listing.metadata(), rendering.version))

    def _table(
        self,
        call: Call,
        info: ResourceInfo,
        objects: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, Any],
        *,
        headers: bool = True,
    ) -> dict[str, Any]:
        return tables.table(
            info.columns,
            objects,
            metadata=metadata,
            version=call.rendering.version,
            include=call.query.get("includeObject") or "Metadata",
            now=self._cluster.clock.utcnow(),
            headers=headers,
        )

    async def _write(self, call: Call, route: Route, write: Write) -> web.Response:
        """The answer to a write, with its warnings, which a client gets with a refusal, too."""
        options = _write_options(call, route)
        try:
            written = await write(call, route, options)
            response = self._written(call, route, written)
        except StatusError as error:
            response = self._refusal(error)
        for warning in (*route.info.warnings, *options.told):
            escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{escaped}"')
        return response

    async def _create(self, call: Call, route: Route, options: WriteOptions) -> Written:
        body, options = await self._object_body(call, options)
        return self._cluster.create(route.info, route.namespace, body, options)

    async def _update(self, call: Call, route: Route, options: WriteOptions) -> Written:
        body, options = await self._object_body(call, options)
        return self._cluster.update(route.info, route.namespace, route.name, body, options)

    async def _patch(self, call: Call, route: Route, options: WriteOptions) -> Written:
        media_type = _media_type(call)
        body = await self._body(call)
        if media_type == APPLY_PATCH:
            _check_field_manager(call)
            return self._cluster.apply(route.info, route.namespace, route.name, body, options)
        change = _change(media_type, body, route.info, options)
        return self._cluster.patch(route.info, route.namespace, route.name, change, options)

    async def _delete(self, call: Call, route: Route) -> web.Response:
        options = await self._delete_options(call)
        deletion, dry_run = subresources.deletion_of(options), _is_dry(options)
        done = self._cluster.delete(route.info, route.namespace, route.name, deletion, dry_run=dry_run)
        if not done.gone or route.info.returns_deleted:
            return self._object(call, route, done.object)
        details = {"name": route.name, "group": route.info.group, "kind": route.info.plural}
        details["uid"] = done.object["metadata"]["uid"]
        return self._json(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {key: value for key, value in details.items() if value},
            }
        )

    async def _delete_collection(self, call: Call, route: Route) -> web.Response:
        asked = await self._delete_options(call)
        deletion, dry_run = subresources.deletion_of(asked), _is_dry(asked)
        options = ListOptions(route.namespace, _selector(route.info, call.query))
        listing = self._cluster.list(route.info, options)
        objects = [route.info.served(stored.object) for stored in listing.items]
        for stored in listing.items:
            metadata = stored.object["metadata"]
            place = (metadata.get("namespace", ""), metadata["name"])
            with contextlib.suppress(StatusError):
                self._cluster.delete(route.info, *place, deletion, dry_run=dry_run)
        return self._listed(call, route.info, listing, objects)

    async def _delete_options(self, call: Call) -> Any:
        """The DeleteOptions of a request: its body or, only where it has none, its query."""
        if raw := await self._read(call):
            return decode_body(raw, call.request.headers.get("Content-Type", JSON))
        query: dict[str, Any] = {}
        if policy := call.query.get("propagationPolicy"):
            query["propagationPolicy"] = policy
        if call.query.get("gracePeriodSeconds"):
            query["gracePeriodSeconds"] = whole_number(call.query, "gracePeriodSeconds")
        if dry_run := call.query.get("dryRun"):
            query["dryRun"] = [dry_run]
        return query

    async def _act(self, call: Call, route: Route) -> web.Response:
        """The subresources that are actions."""
        if route.target.subresource == "scale" and call.method in {"GET", "PUT", "PATCH"}:
            return await self._scale(call, route)
        body = await self._body(call) if call.method in {"POST", "PUT"} else None
        place = (route.namespace, route.name)
        match route.target.subresource, call.method:
            case "token", "POST":
                issued = reviews.issue_token(self._cluster, self._access, route.info, *place, body)
                return self._json(issued, 201)
            case "binding", "POST":
                subresources.bind(self._cluster, route.info, *place, body)
                return self._json(_success(), 201)
            case "eviction", "POST":
                subresources.evict(self._cluster, route.info, *place, body)
                return self._json(_success(), 201)
            case "finalize", "PUT":
                return self._json(subresources.finalize(self._cluster, route.info, route.name, body))
        raise method_not_allowed()

    async def _scale(self, call: Call, route: Route) -> web.Response:
        place, shown = (route.info, route.namespace, route.name), Route(route.target, scale.SCALE)
        if call.method == "GET":
            return self._object(call, shown, scale.scale_of(self._cluster.get(*place)))
        media_type = _media_type(call)
        if call.method == "PATCH" and media_type not in PATCH_TYPES:
            raise unsupported_patch()
        body, options = await self._body(call), _write_options(call, route)
        if call.method == "PUT":
            written = self._cluster.patch(*place, scale.replacement(*place, body), options)
        elif media_type == APPLY_PATCH:
            _check_field_manager(call)
            written = self._cluster.apply(*place, scale.applied(*place, body), options)
        else:
            # A Scale has no lists, so that both ways of merging are the same.
            merging = MERGE_PATCH if media_type == STRATEGIC_PATCH else media_type
            change = _change(merging, body, route.info, options)
            written = self._cluster.patch(*place, scale.change(*place, change), options)
        return self._object(call, shown, scale.scale_of(written.object))

    async def _review(self, call: Call, route: Route) -> web.Response:
        self._access.check(call.identity, attributes_of(_verb(call, route.target), route.target))
        if route.name or bool(route.namespace) is not route.info.namespaced:
            raise no_such_path()
        if call.method != "POST":
            raise method_not_allowed()
        return await self._write(call, route, self._ask)

    async def _ask(self, call: Call, route: Route, options: WriteOptions) -> Written:
        body, options = await self._object_body(call, options)
        asked = self._cluster.asked(route.info, route.namespace, body, options)
        review = reviews.answer(self._access, call.identity, asked, self._cluster.now())
        return Written(review, created=True)

    async def _watch(self, call: Call, route: Route) -> web.StreamResponse:
        options = _watch_options(call, route)
        check_options(options)
        version = call.query.get("resourceVersion", "")
        if version and not version.isdigit():
            why = f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            raise StatusError(500, "", f"resourceVersion: {why}")
        render = self._watch_rendering(call, route.info)
        watcher = Watcher(self._cluster, route.info, options, render)
        try:
            first = watcher.start()
        except StatusError as error:
            if error.code not in {410, 504}:
                raise
            first, options = iter([error_line(error)]), WatchOptions(timeout=0.0)
        if call.rendering.kind == "PartialObjectMetadataList":
            # An event is about one object, which is no list; the real server ends such a watch without a word.
            first, options = iter(()), WatchOptions(timeout=0.0)
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(call.request)
        disturbance = Disturbance(self._faults, call.request, response, _subject(call, route.target))
        with contextlib.suppress(ConnectionResetError):
            await self._send_initial(response, first)
            await self._send_changes(response, watcher, options, disturbance)
        return response

    async def _send_initial(self, response: web.StreamResponse, lines: Iterator[bytes]) -> None:
        for chunk in _chunks(lines):
            await response.write(chunk)

    async def _send_changes(
        self, response: web.StreamResponse, watcher: Watcher, options: WatchOptions, disturbance: Disturbance
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + options.timeout
        bookmark_at = _next_bookmark(loop.time(), end)
        changed = asyncio.Event()
        watcher.listen(changed.set)
        self._faults.listen(changed.set)
        self._watches.add(changed.set)
        try:
            while loop.time() < end and not self._stopping:
                changed.clear()
                lines, more = watcher.advance()
                lines, goes_on = await disturbance.alter(lines)
                if lines:
                    await response.write(lines)
                if not goes_on:
                    return
                if more:
                    continue
                if lines:
                    # What changes meanwhile is sent at once: under load that saves most of what a watch costs.
                    await asyncio.sleep(GATHER)
                if loop.time() >= bookmark_at:
                    bookmark_at = _next_bookmark(loop.time(), end)
                    if options.bookmarks:
                        await response.write(watcher.bookmark())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min(end, bookmark_at)):
                        await changed.wait()
        except Forgotten:
            # The client was too slow: without a word, as the real server does it, so that it resumes and learns more.
            logger.info("watch cut off because its client reads too slowly")
        finally:
            watcher.ignore(changed.set)
            self._faults.ignore(changed.set)
            self._watches.discard(changed.set)

    def _watch_rendering(self, call: Call, info: ResourceInfo) -> Callable[[Mapping[str, Any]], Any] | None:
        if call.rendering.kind.startswith("PartialObjectMetadata"):
            return functools.partial(tables.metadata_only, version=call.rendering.version)
        if call.rendering.kind != "Table":
            return None
        headers = iter([True])

        def render(obj: Mapping[str, Any]) -> dict[str, Any]:
            metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return self._table(call, info, [obj], metadata, headers=next(headers, False))

        return render

    async def _body(self, call: Call) -> Any:
        raw = await self._read(call)
        decode = decode_patch if call.method == "PATCH" else decode_body
        return decode(raw, call.request.headers.get("Content-Type", JSON))

    async def _object_body(self, call: Call, options: WriteOptions) -> tuple[Any, WriteOptions]:
        raw, content_type = await self._read(call), call.request.headers.get("Content-Type", JSON)
        body = decode_body(raw, content_type)
        if options.field_validation != "Ignore" and content_type.startswith(JSON):
            options = msgspec.structs.replace(options, duplicates=duplicate_fields(raw, body))
        return body, options

    async def _read(self, call: Call) -> bytes:
        """The body, unless it is larger than the API allows. Raises StatusError 413."""
        request = call.request
        if (request.content_length or 0) > MAXIMUM_BODY:
            raise too_large(MAXIMUM_BODY)
        if request.content.is_eof():
            # Small bodies come with their heads, and there is nothing to wait for.
            raw = request.content.read_nowait()
            if len(raw) > MAXIMUM_BODY:
                raise too_large(MAXIMUM_BODY)
            return raw
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > MAXIMUM_BODY:
                        raise too_large(MAXIMUM_BODY)
                    parts.append(part)
        except TimeoutError:
            raise StatusError(504, "Timeout", f"Timeout: the body did not come within {BODY_TIMEOUT:g} s") from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise bad_request(f"the body of the request cannot be read: {error}") from None
        return b"".join(parts)

    def _written(self, call: Call, route: Route, written: Written) -> web.Response:
        code = 201 if written.created else 200
        if written.encoded and not call.rendering.kind:
            return web.Response(status=code, body=written.encoded, content_type=JSON)
        return self._object(call, route, written.object, code)

    def _object(self, call: Call, route: Route, obj: Object, code: int = 200) -> web.Response:
        rendering = call.rendering
        if not rendering.kind:
            return self._json(obj, code)
        obj = {"metadata": {}, **obj}
        if rendering.kind == "Table":
            metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return self._json(self._table(call, route.info, [obj], metadata), code)
        if rendering.kind == "PartialObjectMetadataList" and route.info.custom:
            raise StatusError(500, "", "content is not a list")
        if rendering.kind == "PartialObjectMetadataList":
            raise cannot_render(f"{rendering.kind}, but the requested object is not a list ({_type_name(route.info)})")
        return self._json(tables.metadata_only(obj, rendering.version), code)

    def _json(self, content: Any, code: int = 200) -> web.Response:
        return web.Response(status=code, body=self._encode(content), content_type=JSON)

    def _refusal(self, error: StatusError) -> web.Response:
        if error.code == 404 and not error.reason:
            return web.Response(status=404, text=error.message)
        response = self._json(error.status(), error.code)
        if retry_after := (error.details or {}).get("retryAfterSeconds"):
            response.headers["Retry-After"] = str(retry_after)
        return response


def _list_of(info: ResourceInfo, listing: Listing, objects: Sequence[Object]) -> dict[str, Any]:
    """The answer to a list; ``objects`` are its items in the served version."""
    # Lists of custom kinds say that they are complete, too.
    complete = {"continue": ""} if info.custom else {}
    return {
        "kind": info.list_kind or f"{info.kind}List",
        "apiVersion": info.api_version,
        "metadata": {**complete, **listing.metadata()},
        "items": [_item(info, obj, stored) for obj, stored in zip(objects, listing.items, strict=True)],
    }


def _item(info: ResourceInfo, obj: Object, stored: Stored) -> Any:
    """An object as an item of a list; built-in kinds have no kind and apiVersion there."""
    if info.custom:
        return msgspec.Raw(stored.encoded) if obj is stored.object else obj
    if obj is stored.object:
        return msgspec.Raw(stored.encoded_item)
    return {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}


def _health(segments: Sequence[str], *, verbose: bool) -> web.Response:
    """All checks of health, or one of them. Raises StatusError 404 for one that there is not."""
    if len(segments) > 2 or (len(segments) == 2 and segments[1] not in HEALTH_CHECKS):
        raise no_such_page()
    if not verbose or len(segments) == 2:
        return web.Response(text="ok")
    lines = [f"[+]{check} ok" for check in HEALTH_CHECKS]
    return web.Response(text="\n".join([*lines, f"{segments[0]} check passed", ""]))


def _success() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _media_type(call: Call) -> str:
    return call.request.headers.get("Content-Type", "").partition(";")[0].strip()


def _check_patch_type(call: Call, route: Route) -> None:
    """Refuses a patch of a sort that the resource does not take. Raises StatusError 415."""
    media_type = _media_type(call)
    if media_type not in PATCH_TYPES:
        raise unsupported_patch()
    if media_type == STRATEGIC_PATCH and route.info.custom:
        raise unsupported_media_type([kind for kind in PATCH_TYPES if kind != STRATEGIC_PATCH])


def _subject(call: Call, target: Target) -> Subject:
    return Subject(_verb(call, target), target, call.request.headers.get("User-Agent", ""))


def _verb(call: Call, target: Target) -> str:
    """What a request wants to do with a resource. Raises StatusError 405; no resource has HEAD."""
    verb = "" if call.method == "HEAD" else verb_of(call.method, call.query, target)
    if not verb:
        raise method_not_allowed()
    return verb


def _write_yaml(response: web.Response) -> None:
    """Turns an answer in JSON into YAML; aggregated discovery has a type of its own, and none in YAML."""
    if isinstance(response.body, bytes) and response.headers.get("Content-Type") == JSON:
        response.body = yaml.safe_dump(msgspec.json.decode(response.body), allow_unicode=True).encode()
        response.headers["Content-Type"] = YAML


def _type_name(info: ResourceInfo) -> str:
    """The type of a resource's objects in the real server, which some of its messages name."""
    if info.custom:
        return "*unstructured.Unstructured"
    package = "core" if info.stored_as else info.group.partition(".")[0] or "core"
    return f"*{package}.{info.kind}"


def _selector(info: ResourceInfo, query: Mapping[str, str]) -> Selector:
    return parse(query.get("labelSelector", ""), query.get("fieldSelector", ""), info.selectable, custom=info.custom)


def _check_list(query: Mapping[str, str]) -> None:
    """Refuses version parameters that contradict each other. Raises StatusError 422."""
    if causes := list(_list_causes(query)):
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def _list_causes(query: Mapping[str, str]) -> Iterator[Cause]:
    path, match = "resourceVersionMatch", query.get("resourceVersionMatch", "")
    version, token = query.get("resourceVersion", ""), query.get("continue", "")
    if match and not version:
        text = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
        yield Cause("FieldValueForbidden", text, path)
    if match and token:
        text = "Forbidden: resourceVersionMatch is forbidden when continue is provided"
        yield Cause("FieldValueForbidden", text, path)
    if match not in {"", "Exact", "NotOlderThan"}:
        text = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
        yield Cause("FieldValueNotSupported", text, path)
    if match == "Exact" and version == "0":
        text = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        yield Cause("FieldValueForbidden", text, path)
    if "sendInitialEvents" in query:
        text = "Forbidden: sendInitialEvents is forbidden for list"
        yield Cause("FieldValueForbidden", text, "sendInitialEvents")


def _check_field_manager(call: Call) -> None:
    """Raises StatusError 422 for an apply of nobody."""
    if not call.query.get("fieldManager"):
        text = "Required value: is required for apply patch"
        raise invalid_options("PatchOptions", "FieldValueRequired", text, "fieldManager")


def _options_kind(method: str) -> str:
    return {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}.get(method, "DeleteOptions")


def _is_dry_run(call: Call) -> bool:
    value = call.query.get("dryRun", "")
    return _is_dry({"dryRun": [value] if value else []}, _options_kind(call.method))


def _is_dry(options: Mapping[str, Any], kind: str = "DeleteOptions") -> bool:
    """Whether options ask for a dry run. Raises StatusError 422."""
    values = options.get("dryRun") or []
    if values not in ([], ["All"]):
        text = f'Unsupported value: {json.dumps(values)}: supported values: "All"'
        raise invalid_options(kind, "FieldValueNotSupported", text, "dryRun")
    return bool(values)


def _write_options(call: Call, route: Route) -> WriteOptions:
    query = call.query
    validation = query.get("fieldValidation") or "Warn"
    if validation not in {"Strict", "Warn", "Ignore"}:
        text = f'Unsupported value: "{validation}": supported values: "", "Ignore", "Strict", "Warn"'
        raise invalid_options(_options_kind(call.method), "FieldValueNotSupported", text, "fieldValidation")
    agent = call.request.headers.get("User-Agent", "unknown").partition("/")[0]
    manager = query.get("fieldManager") or agent[:MAXIMUM_MANAGER]
    if len(manager) > MAXIMUM_MANAGER:
        text = f"Too long: may not be more than {MAXIMUM_MANAGER} bytes"
        raise invalid_options(_options_kind(call.method), "FieldValueTooLong", text, "fieldManager")
    return WriteOptions(
        manager=manager,
        dry_run=_is_dry_run(call),
        field_validation=validation,
        subresource=route.target.subresource,
        force=is_true(query, "force"),
    )


def _watch_options(call: Call, route: Route) -> WatchOptions:
    query = call.query
    timeout = whole_number(query, "timeoutSeconds")
    selector = _selector(route.info, query)
    return WatchOptions(
        namespace=route.namespace,
        selector=selector,
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        bookmarks=is_true(query, "allowWatchBookmarks"),
        initial_events=is_true(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
        timeout=timeout or MINIMUM_WATCH * (1.0 + random.random()),  # noqa: S311 - spreads reconnections
    )


def _change(media_type: str, body: Any, info: ResourceInfo, options: WriteOptions) -> Callable[[Object], Any]:
    # The real server reads these patches twice, strictly only where it has to tell of unknown fields.
    typed = options.field_validation != "Ignore"
    if media_type == JSON_PATCH:
        return lambda live: patch.json_patch(live, body, typed=typed)
    if media_type == MERGE_PATCH:
        return lambda live: patch.merge_patch(live, body, typed=typed)
    return lambda live: patch.strategic_merge_patch(live, body, info.schema)


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _next_bookmark(now: float, end: float) -> float:
    """When the next bookmark is due: once a minute, and shortly before the end."""
    last = end - BOOKMARK_MARGIN
    return min(now + BOOKMARK_INTERVAL, last) if now < last else end + BOOKMARK_MARGIN
