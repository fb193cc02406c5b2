"""Optional spans: one for each reconcile and one for each API request, for those who run OpenTelemetry.

Spans are made by wrappers around the reconciler and the transport. Where there is no tracer nothing is wrapped, so that
tracing costs nothing while it is off, and nothing of OpenTelemetry is imported.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from controllers.runtime import logs
from controllers.runtime.errors import ConfigurationError
from controllers.runtime.reconcile import Reconciler, Request, Result
from controllers.runtime.transport import ByteStream, HttpRequest, HttpResponse, Transport

Attribute = str | int | float | bool


class Span(Protocol):
    """The part of OpenTelemetry's span that is used here."""

    def set_attribute(self, key: str, value: Attribute) -> None: ...

    def get_span_context(self) -> Any: ...


class Tracer(Protocol):
    """Makes spans; the current span is the parent of the next."""

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        """A span for work in this process; what leaves the block as an exception is recorded on it."""
        ...

    def client_span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        """A span for a request to another process."""
        ...


class OpenTelemetryTracer:
    """Spans of an OpenTelemetry tracer; ``api`` is the module ``opentelemetry.trace``."""

    def __init__(self, api: Any, tracer: Any) -> None:
        self._start = tracer.start_as_current_span
        self._client = api.SpanKind.CLIENT

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        started: AbstractContextManager[Span] = self._start(name, attributes=attributes)
        return started

    def client_span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        started: AbstractContextManager[Span] = self._start(name, kind=self._client, attributes=attributes)
        return started


def tracer_of(provider: Any, name: str) -> Tracer:
    """The tracer of a provider that the program has set up itself; ``name`` is what its spans come from.

    Raises ConfigurationError where OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigurationError("tracing needs opentelemetry-api: pip install 'gpu-mirage[otel]'") from error
    return OpenTelemetryTracer(trace, provider.get_tracer(name))


def active_tracer(name: str) -> Tracer | None:
    """The tracer of the provider that whoever started the process has set, as ``opentelemetry-instrument`` does.

    None where nobody did, and OpenTelemetry is not even imported then.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    # Until somebody sets a provider, a stand-in is given out whose spans go nowhere.
    return None if isinstance(provider, api.ProxyTracerProvider) else tracer_of(provider, name)


class TracedReconciler:
    """One span for each reconcile, with the controller, the object and the id that its log lines carry."""

    def __init__(self, reconciler: Reconciler, tracer: Tracer, controller: str) -> None:
        self._reconciler = reconciler
        self._tracer = tracer
        self._controller = controller

    async def reconcile(self, request: Request) -> Result:
        bound = {key: value for key, value in logs.bound().items() if isinstance(value, Attribute)}
        attributes = {**bound, "controller": self._controller, "namespace": request.namespace, "name": request.name}
        with self._tracer.span(f"reconcile {self._controller}", attributes) as span:
            try:
                result = await self._reconciler.reconcile(request)
            except asyncio.CancelledError:
                # OpenTelemetry records exceptions, but this is none to it: the span would look like one that went well.
                span.set_attribute("cancelled", True)
                raise
            if result.requeue_after is not None:
                span.set_attribute("requeue_after", result.requeue_after)
            return result


class TracedTransport:
    """One span for each request, with OpenTelemetry's names for HTTP; the server is told of it by ``traceparent``.

    The span of a stream ends where its answer begins: a watch that lasts for minutes is no unit of work.
    """

    def __init__(self, transport: Transport, tracer: Tracer) -> None:
        self._transport = transport
        self._tracer = tracer

    async def request(self, request: HttpRequest) -> HttpResponse:
        with self._tracer.client_span(*_description(request)) as span:
            response = await self._transport.request(_announced(request, span))
            _note_status(span, response.status)
            return response

    @asynccontextmanager
    async def stream(self, request: HttpRequest) -> AsyncIterator[ByteStream]:
        async with AsyncExitStack() as connection:
            with self._tracer.client_span(*_description(request)) as span:
                stream = await connection.enter_async_context(self._transport.stream(_announced(request, span)))
                _note_status(span, stream.status)
            yield stream

    async def close(self) -> None:
        await self._transport.close()


def resource_in(path: str) -> str:
    """What a path of the API is about, without names: ``pods``, ``pods/status``; the path itself for all else."""
    parts = path.strip("/").split("/")
    rest = parts[{"api": 2, "apis": 3}.get(parts[0], len(parts)) :]
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    if not rest:
        return path
    return "/".join([rest[0], *rest[2:]])


def _description(request: HttpRequest) -> tuple[str, dict[str, Attribute]]:
    attributes: dict[str, Attribute] = {"http.request.method": request.method, "url.path": request.path}
    if request.attempt > 1:
        attributes["http.request.resend_count"] = request.attempt - 1
    return f"{request.method} {resource_in(request.path)}", attributes


def _announced(request: HttpRequest, span: Span) -> HttpRequest:
    """The request with the header by which the server's own spans become children of this one (W3C Trace Context)."""
    context = span.get_span_context()
    if not context.is_valid:
        return request
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return replace(request, headers={**request.headers, "traceparent": parent})


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 400:
        span.set_attribute("error.type", str(status))
