"""Spans as a collector gets them, and what happens where there is none, or where it does not answer."""

from __future__ import annotations

import asyncio
import functools
import gzip
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from aiohttp import web
from opentelemetry import trace as ambient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.assembly.telemetry import build_tracing
from app.observability import opentelemetry_tracing
from app.observability.opentelemetry_tracing import EXPORT_SECONDS, ExportedTracing, build_span_exporter
from app.observability.request_record import timed_step
from app.observability.tracing import (
    NOT_TRACED,
    Tracing,
    current_span,
    is_traced,
    run_in_linked_trace,
    run_in_span,
    share_attributes,
    start_child_span,
)
from app.settings import ConfigurationError, load_settings
from tests.live import ScriptedUpstream, gateway, serving


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry_tracing, "DRAIN_SECONDS", 0.2)


SAMPLED = [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]


class Collector:
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.gate: asyncio.Event | None = None

    @property
    def spans(self) -> list[WireSpan]:
        scopes = (
            scope for request in self.requests for resource in request.resource_spans for scope in resource.scope_spans
        )
        return [span for scope in scopes for span in scope.spans]

    async def take(self, request: web.Request) -> web.Response:
        if self.gate is not None:
            await self.gate.wait()
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        return web.Response(body=b"", content_type="application/x-protobuf")


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    """A collector and its address."""
    collector = Collector()
    application = web.Application()
    application.router.add_post("/{path:.*}", collector.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def ask(base_url: str) -> None:
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.post(f"{base_url}/chat/completions", json=body)
    assert answer.status_code == 200


def otel_to(exporter: SpanExporter, **options: float) -> ExportedTracing:
    return ExportedTracing(exporter, service_name="concertina", version="1", **options)


async def test_a_collector_gets_the_spans_of_a_turn_over_http() -> None:
    async with collecting() as (collector, address), serving(ScriptedUpstream(), lifespan="off") as upstream:
        traces = {"endpoint": address, "headers": {"x-collector-key": "k"}, "service_name": "chat-gateway"}
        async with gateway(upstream, telemetry={"traces": traces}) as base_url:
            await ask(base_url)
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.headers[0]["x-collector-key"] == "k"
    by_name = {span.name: span for span in collector.spans}
    assert sorted(by_name) == [
        "POST /v1/chat/completions",
        "chat m",
        "plan",
        "recall",
        "store answer",
        "store question",
    ]
    server = by_name["POST /v1/chat/completions"]
    assert server.kind == WireSpan.SPAN_KIND_SERVER
    assert {span.parent_span_id for span in collector.spans} == {b"", server.span_id}
    attributes = {pair.key: pair.value for pair in by_name["chat m"].attributes}
    assert attributes["gen_ai.usage.input_tokens"].int_value == 10
    resource = {
        pair.key: pair.value.string_value for pair in collector.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "chat-gateway"


@pytest.mark.parametrize(
    ("written", "asked"),
    [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp", "/otlp/v1/traces"), ("/v1/traces", "/v1/traces")],
)
async def test_the_path_of_traces_is_added_unless_it_is_there(written: str, asked: str) -> None:
    async with collecting() as (collector, address):
        tracing = otel_to(build_span_exporter(address + written, {}))
        tracing.start_request_span("GET", [], {}).span.end()
        await tracing.aclose()
    assert collector.paths == [asked]


@pytest.mark.usefixtures("short_drain")
async def test_a_collector_that_is_away_fails_no_request_and_does_not_hold_up_the_end() -> None:
    traces = {"endpoint": "http://127.0.0.1:9"}
    async with (
        serving(ScriptedUpstream(), lifespan="off") as upstream,
        asyncio.timeout(EXPORT_SECONDS / 2),
        gateway(upstream, telemetry={"traces": traces}) as base_url,
    ):
        for _ in range(5):
            await ask(base_url)


@pytest.mark.usefixtures("short_drain")
async def test_no_request_waits_for_the_collector() -> None:
    async with collecting() as (collector, address), serving(ScriptedUpstream(), lifespan="off") as upstream:
        collector.gate = asyncio.Event()
        traces = {"endpoint": address}
        async with gateway(upstream, telemetry={"traces": traces}) as base_url:
            async with asyncio.timeout(EXPORT_SECONDS / 2):
                await ask(base_url)
        collector.gate.set()


@pytest.mark.usefixtures("short_drain")
async def test_a_collector_that_hangs_holds_up_the_end_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    async with collecting() as (collector, address):
        collector.gate = asyncio.Event()
        tracing = otel_to(build_span_exporter(address, {}))
        tracing.start_request_span("GET", [], {}).span.end()
        async with asyncio.timeout(EXPORT_SECONDS / 2):
            await tracing.aclose()
        collector.gate.set()
    assert "did not accept the last spans" in caplog.text


async def test_a_collector_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Refused(InMemorySpanExporter):
        pass

    caplog.set_level(logging.INFO)
    exporter = build_span_exporter("http://127.0.0.1:9", {})
    tracing = otel_to(exporter)
    await asyncio.to_thread(exporter.shutdown)
    assert [exporter.export([]) for _ in range(3)]
    await tracing.aclose()
    assert caplog.text.count("accepts no spans") == 1


async def test_the_applications_own_tracing_is_left_alone() -> None:
    before = ambient.get_tracer_provider()
    tracing = otel_to(InMemorySpanExporter())
    with run_in_span(tracing.start_request_span("GET", SAMPLED, {})):
        assert ambient.get_current_span() is ambient.INVALID_SPAN
        assert ambient.get_tracer_provider() is before
    await tracing.aclose()


async def test_a_span_is_current_within_and_in_the_tasks_begun_there() -> None:
    exporter = InMemorySpanExporter()
    tracing = otel_to(exporter)

    @timed_step("plan", span="step")
    async def step() -> str:
        start_child_span("inner").end()
        return "done"

    with run_in_span(tracing.start_request_span("GET", [], {})):
        assert await asyncio.create_task(step()) == "done"
    assert current_span() is NOT_TRACED.span
    await tracing.aclose()
    inner, outer, server = exporter.get_finished_spans()
    assert inner.parent is not None
    assert outer.parent is not None
    assert (inner.parent.span_id, outer.parent.span_id) == (outer.context.span_id, server.context.span_id)


async def test_an_error_is_told_by_its_name_alone() -> None:
    exporter = InMemorySpanExporter()
    tracing = otel_to(exporter)
    with pytest.raises(ValueError, match="secret"), run_in_span(tracing.start_request_span("GET", [], {})):
        raise ValueError("secret")
    await tracing.aclose()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert "secret" not in span.to_json()


async def test_a_request_that_is_recorded_has_what_it_causes_recorded() -> None:
    exporter = InMemorySpanExporter()
    tracing = otel_to(exporter, sample_ratio=0.0)
    for headers, name in ((SAMPLED, "later"), ([], "never")):
        with run_in_span(tracing.start_request_span("GET", headers, {})), run_in_linked_trace(name):
            pass
    await tracing.aclose()
    assert [span.name for span in exporter.get_finished_spans()] == ["later", "GET"]


async def test_long_values_are_cut() -> None:
    exporter = InMemorySpanExporter()
    tracing = otel_to(exporter)
    tracing.start_request_span("GET", [], {"gen_ai.request.model": "x" * 1000}).span.end()
    await tracing.aclose()
    assert len(str((exporter.get_finished_spans()[0].attributes or {})["gen_ai.request.model"])) == 200


def settings_with(endpoint: str | None) -> object:
    return load_settings(environ={}, arguments={("telemetry", "traces"): {"endpoint": endpoint}})


def test_without_an_endpoint_the_sdk_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "app.observability.opentelemetry_tracing", None)
    assert not build_tracing(load_settings(environ={})).is_on
    with pytest.raises(ImportError):
        build_tracing(load_settings(environ={"CONCERTINA_TELEMETRY__TRACES__ENDPOINT": "http://localhost:4318"}))


def test_an_endpoint_without_the_library_is_refused_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[otel\]'"):
        settings_with("http://localhost:4318")


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("localhost:4318", "expected the address of a collector"),
        ("http://user:secret@localhost:4318", "a password has no place in an address"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(endpoint: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        settings_with(endpoint)
    assert "secret" not in str(caught.value)


def test_what_nobody_traces_costs_next_to_nothing() -> None:
    """A turn asks about a dozen times for its span: that is to stay far below what it takes altogether."""
    tracing = Tracing()

    def of_turn() -> None:
        with run_in_span(tracing.start_request_span("POST", (), {})) as span:
            share_attributes({"a": 1})
            for _ in range(6):
                start_child_span("step")
            if is_traced():
                span.set_attributes({})

    best = min(_seconds(of_turn, 2000) for _ in range(5))
    assert best < 20e-6


def _seconds(function: functools.partial[None] | object, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        function()  # type: ignore[operator]
    return (time.perf_counter() - began) / times
