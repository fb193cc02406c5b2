"""Spans of reconciles and requests, seen through a stand-in for OpenTelemetry."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from controllers.runtime import entrypoint, logs
from controllers.runtime.client import Client, ClientOptions
from controllers.runtime.clock import SystemClock
from controllers.runtime.controller import Controller, ControllerOptions
from controllers.runtime.errors import ConfigurationError, TransportError
from controllers.runtime.manager import Manager
from controllers.runtime.meta import Key, KubeObject, Resource
from controllers.runtime.metrics import Metrics
from controllers.runtime.options import ManagerOptions
from controllers.runtime.rbac import permissions
from controllers.runtime.reconcile import DONE, Request, Result
from controllers.runtime.testing import STALL, Answer, Reply, ScriptedTransport, run_virtual
from controllers.runtime.tracing import TracedReconciler, TracedTransport, active_tracer, resource_in, tracer_of
from controllers.runtime.transport import HttpRequest
from controllers.runtime.watchdog import TimedReconciler

ROOT = Path(__file__).parents[3]

_current: ContextVar["FakeSpan | None"] = ContextVar("current_span", default=None)


@dataclass
class FakeSpan:
    name: str
    kind: str
    attributes: dict[str, Any]
    parent: "FakeSpan | None"
    number: int
    error: BaseException | None = None
    ended_at: float | None = None
    valid: bool = True

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def get_span_context(self) -> Any:
        return SimpleNamespace(is_valid=self.valid, trace_id=0xABC, span_id=self.number, trace_flags=1)


@dataclass
class FakeProvider:
    """Keeps the spans of all its tracers, and does with exceptions what OpenTelemetry does."""

    spans: list[FakeSpan] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    valid: bool = True

    def get_tracer(self, name: str) -> "FakeProvider":
        self.names.append(name)
        return self

    @contextmanager
    def start_as_current_span(
        self, name: str, *, kind: str = "internal", attributes: Mapping[str, Any]
    ) -> Iterator[FakeSpan]:
        span = FakeSpan(name, kind, dict(attributes), _current.get(), len(self.spans) + 1, valid=self.valid)
        self.spans.append(span)
        token = _current.set(span)
        try:
            yield span
        except Exception as error:
            span.error = error
            raise
        finally:
            _current.reset(token)
            span.ended_at = asyncio.get_running_loop().time()


class ProxyTracerProvider:
    """What OpenTelemetry gives out until a provider is set."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(
        SpanKind=SimpleNamespace(CLIENT="client"),
        ProxyTracerProvider=ProxyTracerProvider,
        get_tracer_provider=ProxyTracerProvider,
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", SimpleNamespace(trace=module))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)
    return module


@pytest.fixture
def provider(api: SimpleNamespace) -> FakeProvider:
    provider = FakeProvider()
    api.get_tracer_provider = lambda: provider
    return provider


class Widget(KubeObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)


STORED = Answer(body={"metadata": {"name": "w", "namespace": "ns", "uid": "u", "resourceVersion": "1"}})


class Reconciles:
    """A reconciler that is a function."""

    def __init__(self, reconcile: Callable[[Request], Any]) -> None:
        self._reconcile = reconcile

    async def reconcile(self, request: Request) -> Result:
        result: Result = await self._reconcile(request)
        return result


def traced(provider: FakeProvider, *replies: Reply) -> tuple[TracedTransport, ScriptedTransport]:
    transport = ScriptedTransport(replies)
    return TracedTransport(transport, tracer_of(provider, "tests")), transport


# -- off and on -------------------------------------------------------------------------------------------------------


def test_nothing_of_opentelemetry_is_imported_by_itself() -> None:
    program = "import sys, controllers.runtime.entrypoint as e, controllers.runtime.tracing as t\n"
    program += "assert t.active_tracer('x') is None and not [m for m in sys.modules if m.startswith('opentelemetry')]"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_no_tracer_until_somebody_has_set_a_provider(api: SimpleNamespace) -> None:
    assert active_tracer("x") is None
    provider = FakeProvider()
    api.get_tracer_provider = lambda: provider
    assert active_tracer("x") is not None
    assert provider.names == ["x"]


def test_a_provider_without_the_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'gpu-mirage\[otel\]'"):
        tracer_of(FakeProvider(), "x")


def test_without_a_tracer_the_reconciler_is_called_as_it_is() -> None:
    reconciler = Reconciles(lambda _: None)
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions())
    controller = manager.controller("c").for_(Widget).reconciles_with(reconciler)
    assert isinstance(controller._reconciler, TimedReconciler)
    assert controller._reconciler._reconciler is reconciler


def test_a_binary_traces_where_its_process_was_started_with_a_provider(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(entrypoint, "AiohttpTransport", lambda *_, **__: ScriptedTransport([STORED]))
    kubeconfig = tmp_path / "config"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    config = {
        "current-context": "c",
        "contexts": [context],
        "clusters": [cluster],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(config))
    managers: list[Manager] = []

    async def look(manager: Manager) -> None:
        await manager.client.get_json("/version")
        manager.stop()

    def setup(manager: Manager) -> None:
        managers.append(manager)
        manager.prepare(look)

    options = ManagerOptions(kubeconfig=str(kubeconfig), metrics_bind_address="0", health_probe_bind_address="0")
    asyncio.run(entrypoint._serve("gpu-mirage-x", setup, options))
    assert provider.names == ["gpu-mirage-x"]
    assert [span.name for span in provider.spans] == ["GET /version"]
    assert managers[0]._tracer is not None


# -- reconciles -------------------------------------------------------------------------------------------------------


def reconciled(provider: FakeProvider, reconcile: Callable[[Request], Any], seconds: float = 1.0) -> list[FakeSpan]:
    """The spans of a controller that looks at one object."""

    def server(request: HttpRequest) -> Answer:
        watched = ("watch", "true") in request.query
        return Answer(stream=[STALL]) if watched else Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})

    async def main() -> None:
        client = Client(ScriptedTransport(server), ClientOptions("tests"))
        manager = Manager(client, ManagerOptions(workers=1), tracer=tracer_of(provider, "tests"))
        controller = manager.controller("widgets", reconcile_timeout=5.0).for_(Widget)
        controller.reconciles_with(Reconciles(reconcile)).enqueue(Key("ns", "w"))
        cache = asyncio.create_task(manager.informer(Widget).run())
        asyncio.get_running_loop().call_later(seconds, controller.stop)
        await controller.run()
        cache.cancel()

    run_virtual(main)
    return provider.spans


def test_each_reconcile_is_a_span_with_the_fields_of_its_log_lines(provider: FakeProvider) -> None:
    bound: list[Mapping[str, Any]] = []

    async def look(_: Request) -> Result:
        bound.append(logs.bound())
        return Result(requeue_after=30.0)

    (span,) = reconciled(provider, look)
    assert (span.name, span.kind, span.error) == ("reconcile widgets", "internal", None)
    assert span.attributes == {**bound[0], "requeue_after": 30.0}
    assert span.attributes["reconcileID"]
    assert (span.attributes["controllerKind"], span.attributes["name"]) == ("Widget", "w")


def test_what_a_reconcile_raises_is_on_its_span(provider: FakeProvider) -> None:
    fault = TransportError("reset")

    async def fail(_: Request) -> Result:
        raise fault

    spans = reconciled(provider, fail, seconds=0.001)
    assert [span.error for span in spans] == [fault]


def test_a_reconcile_that_ran_out_of_time_does_not_look_like_one_that_went_well(provider: FakeProvider) -> None:
    async def hang(_: Request) -> Result:
        await asyncio.sleep(1000)
        return DONE

    span, *_ = reconciled(provider, hang)
    assert span.attributes["cancelled"] is True
    assert span.ended_at == 5.0


def test_requests_of_a_reconcile_are_its_children_whatever_runs_beside_it(provider: FakeProvider) -> None:
    transport = TracedTransport(ScriptedTransport(lambda _: STORED), tracer_of(provider, "tests"))
    client = Client(transport, ClientOptions("tests")).restricted_to(permissions(Widget, "get"))

    async def get(request: Request) -> Result:
        await asyncio.sleep(1)
        await client.get(Widget, request.name, request.namespace)
        return DONE

    async def main() -> None:
        reconciler = TracedReconciler(Reconciles(get), tracer_of(provider, "tests"), "widgets")
        await asyncio.gather(*(reconciler.reconcile(Key("ns", name)) for name in ("a", "b")))

    run_virtual(main)
    requests = [span for span in provider.spans if span.kind == "client"]
    assert len(requests) == 2
    for span in requests:
        assert span.parent is not None
        assert span.attributes["url.path"].endswith("/" + span.parent.attributes["name"])


# -- requests ---------------------------------------------------------------------------------------------------------


def test_each_try_of_a_request_is_a_span_with_opentelemetrys_names(provider: FakeProvider) -> None:
    transport, _ = traced(provider, Answer(503), STORED)
    client = Client(transport, ClientOptions("tests")).restricted_to(permissions(Widget, "get"))
    run_virtual(client.get(Widget, "w", "ns"))
    path = "/apis/example.com/v1/namespaces/ns/widgets/w"
    common = {"http.request.method": "GET", "url.path": path}
    assert [(span.name, span.kind, span.attributes) for span in provider.spans] == [
        ("GET widgets", "client", {**common, "http.response.status_code": 503, "error.type": "503"}),
        ("GET widgets", "client", {**common, "http.response.status_code": 200, "http.request.resend_count": 1}),
    ]


def test_a_request_without_an_answer_has_the_error_on_its_span(provider: FakeProvider) -> None:
    transport, _ = traced(provider, TransportError("reset"))
    with pytest.raises(TransportError):
        run_virtual(transport.request(HttpRequest("GET", "/version")))
    assert isinstance(provider.spans[0].error, TransportError)


def test_the_server_is_told_of_the_span(provider: FakeProvider) -> None:
    transport, scripted = traced(provider, STORED)
    run_virtual(transport.request(HttpRequest("GET", "/version", headers={"Accept": "x"})))
    assert scripted.requests[0].headers == {
        "Accept": "x",
        "traceparent": "00-00000000000000000000000000000abc-0000000000000001-01",
    }


def test_the_server_is_not_told_of_a_span_that_goes_nowhere(provider: FakeProvider) -> None:
    provider.valid = False
    transport, scripted = traced(provider, STORED)
    run_virtual(transport.request(HttpRequest("GET", "/version")))
    assert scripted.requests[0].headers == {}


def test_the_span_of_a_watch_ends_where_its_answer_begins(provider: FakeProvider) -> None:
    transport, _ = traced(provider, Answer(stream=[{"type": "ADDED"}, STALL], delay=2.0))

    async def watch() -> list[bytes]:
        got = []
        with pytest.raises(TransportError):
            async with transport.stream(HttpRequest("GET", "/api/v1/pods", timeout=100.0)) as stream:
                got = [chunk async for chunk in stream.chunks()]
        return got

    run_virtual(watch)
    assert [(span.ended_at, span.error) for span in provider.spans] == [(2.0, None)]


def test_what_is_raised_while_a_stream_is_read_reaches_the_connection(provider: FakeProvider) -> None:
    left: list[BaseException | None] = []

    class Connection(ScriptedTransport):
        @asynccontextmanager
        async def stream(self, request: HttpRequest) -> Any:
            async with super().stream(request) as stream:
                try:
                    yield stream
                except KeyError as error:
                    left.append(error)
                    raise

    async def read() -> None:
        transport = TracedTransport(Connection([STORED]), tracer_of(provider, "tests"))
        with pytest.raises(KeyError):
            async with transport.stream(HttpRequest("GET", "/x")):
                raise KeyError("mine")

    run_virtual(read)
    assert [str(error) for error in left] == ["'mine'"]


def test_closing_closes_the_connection(provider: FakeProvider) -> None:
    transport, scripted = traced(provider)
    run_virtual(transport.close())
    assert scripted.closed


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/ns/pods/p", "pods"),
        ("/api/v1/namespaces/ns/pods/p/status", "pods/status"),
        ("/apis/apps/v1/namespaces/ns/deployments", "deployments"),
        ("/apis/example.com/v1/widgets/w/scale", "widgets/scale"),
        ("/api/v1/namespaces", "namespaces"),
        ("/api/v1/namespaces/ns", "namespaces"),
        ("/api/v1/namespaces/ns/finalize", "namespaces/finalize"),
        ("/apis/apps/v1", "/apis/apps/v1"),
        ("/api", "/api"),
        ("/version", "/version"),
    ],
)
def test_spans_are_named_after_resources_and_never_after_objects(path: str, resource: str) -> None:
    assert resource_in(path) == resource


def test_controller_made_by_hand_takes_a_tracer(provider: FakeProvider) -> None:
    manager = Manager(Client(ScriptedTransport([]), ClientOptions("tests")), ManagerOptions())
    tracer = tracer_of(provider, "tests")
    controller = Controller("c", manager, Metrics(), ControllerOptions(), SystemClock(), tracer)
    assert isinstance(controller.reconciles_with(Reconciles(lambda _: None))._reconciler, TracedReconciler)
