"""What a request looks like as a trace: its spans, whose child each is, and what travels on to the upstream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.observability import opentelemetry_tracing
from tests.api.edge.test_disconnect import BEGUN, leave_after
from tests.live import DROP, Reply, ScriptedUpstream, completion, stream
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.gateway import World, assistant, user, world
from tests.support.raw_http import long_talk, summarizing, until

TRACES = {"traces": {"endpoint": "http://collector.invalid:4318"}}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, PARENT_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


class Trace:
    """The spans that a gateway has exported by its end."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def parent(self, span: ReadableSpan) -> str | None:
        """The name of a span's parent."""
        names = {each.context.span_id: each.name for each in self.spans}
        return None if span.parent is None else names.get(span.parent.span_id, "the client")


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    found = Trace()
    monkeypatch.setattr(opentelemetry_tracing, "build_span_exporter", lambda *_: found.exporter)
    return found


@asynccontextmanager
async def traced(upstream: ScriptedUpstream, **sections: Any) -> AsyncIterator[World]:
    async with world(upstream, telemetry=sections.pop("telemetry", TRACES), **sections) as w:
        yield w


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


async def test_what_an_embedding_application_has_set_up_gets_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")])
    assert exporter.get_finished_spans() == ()


async def test_a_turn_is_a_trace_of_its_steps(trace: Trace) -> None:
    async with traced(ScriptedUpstream()) as w:
        body = await w.say([user("Hi")])
        port = int(re.findall(r":(\d+)", w.upstream.headers[0]["host"])[0])
    server = trace.one("POST /v1/chat/completions")
    steps = {span.name: trace.parent(span) for span in trace.spans if span is not server}
    assert steps == dict.fromkeys(["recall", "plan", "store question", "chat m", "store answer"], server.name)
    assert server.parent is None
    assert {span.context.trace_id for span in trace.spans} == {server.context.trace_id}
    of_server = told(server)
    assert re.fullmatch("req_[0-9a-f]{32}", of_server.pop("concertina.request_id"))
    assert of_server == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "gen_ai.conversation.id": body["conversation_id"],
        "gen_ai.conversation.compacted": False,
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": False,
        "concertina.context.status": "full",
        "concertina.context.policy": "additive",
        "concertina.context.pressure": body["context"]["prompt_tokens"] / body["context"]["limit"],
        "concertina.context.prompt_tokens": body["context"]["prompt_tokens"],
        "concertina.context.saved_tokens": 0,
        "concertina.context.window": 8192,
    }
    assert events(server) == ["first_byte"]
    assert told(trace.one("chat m")) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "upstream",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": False,
        "gen_ai.conversation.id": body["conversation_id"],
        "gen_ai.conversation.compacted": False,
        "gen_ai.response.id": "chatcmpl-upstream",
        "gen_ai.response.model": "upstream-model",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert (server.kind.name, trace.one("chat m").kind.name) == ("SERVER", "CLIENT")
    assert server.resource.attributes["service.name"] == "concertina"


async def test_a_stream_ends_its_spans_with_its_last_byte(trace: Trace) -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, 0.05, *(stream(*"and more words" * 5).pieces or ())]))
    async with traced(upstream) as w:
        answer = await w.post([user("Hi")], stream=True)
        assert answer.text.endswith("data: [DONE]\n\n")
    server, chat = trace.one("POST /v1/chat/completions"), trace.one("chat m")
    assert events(server) == ["first_byte"]
    # The answer is stored before the last byte is sent.
    assert (server.end_time or 0) >= (trace.one("store answer").end_time or 0) > server.events[0].timestamp
    assert 0 < told(chat).pop("gen_ai.response.time_to_first_chunk") < 5
    assert told(chat)["gen_ai.response.finish_reasons"] == ("stop",)
    assert told(chat)["gen_ai.usage.input_tokens"] == 10
    assert told(chat)["gen_ai.request.stream"] is True
    assert "error.type" not in {**told(server), **told(chat)}
    assert trace.parent(trace.one("store answer")) == server.name


async def test_a_client_that_hangs_up_ends_the_trace(trace: Trace) -> None:
    async with traced(ScriptedUpstream(Reply(pieces=[*BEGUN, 60]))) as w:
        await leave_after(w, [user("x")], 4)
        await until(lambda: w.rows() == 2)
    server, chat = trace.one("POST /v1/chat/completions"), trace.one("chat m")
    assert (told(server)["error.type"], told(chat)["error.type"]) == ("cancelled", "cancelled")
    assert "store answer" in trace.names


async def test_an_answer_that_breaks_off_fails_both_spans(trace: Trace) -> None:
    async with traced(ScriptedUpstream(Reply(pieces=[*BEGUN, DROP]))) as w:
        assert "upstream_unavailable" in (await w.post([user("x")], stream=True)).text
    server, chat = trace.one("POST /v1/chat/completions"), trace.one("chat m")
    assert told(chat)["error.type"] == "UpstreamUnavailable"
    assert told(server)["error.type"] == "upstream_unavailable"
    assert told(server)["http.response.status_code"] == 200
    assert {server.status.status_code.name, chat.status.status_code.name} == {"ERROR"}


async def test_each_try_is_a_span_and_each_pause_an_event(trace: Trace) -> None:
    upstream = ScriptedUpstream(Reply({"error": {"message": "busy"}}, 503), Reply({}, 429))
    async with traced(upstream) as w:
        await w.say([user("Hi")])
    tries = trace.all("chat m")
    assert [told(span)["http.response.status_code"] for span in tries] == [503, 429, 200]
    assert [told(span).get("error.type") for span in tries] == ["503", "429", None]
    assert [told(span).get("http.request.resend_count") for span in tries] == [None, 1, 2]
    assert events(trace.one("POST /v1/chat/completions")) == ["retry", "retry", "first_byte"]
    contexts = [headers["traceparent"][:-3] for headers in upstream.headers]
    assert contexts == [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in tries]


async def test_a_refusal_is_no_fault_of_the_server_and_its_own_fault_is(trace: Trace) -> None:
    upstream = ScriptedUpstream(*[Reply({}, 500)] * 3)
    async with traced(upstream) as w:
        assert (await w.post([])).status_code == 400
        assert (await w.post([user("x")])).status_code == 500
    refused, failed = trace.all("POST /v1/chat/completions")
    assert (told(refused)["http.response.status_code"], refused.status.status_code.name) == (400, "UNSET")
    assert (told(failed)["error.type"], failed.status.status_code.name) == ("500", "ERROR")


async def test_the_summary_call_is_a_child_of_the_compaction(trace: Trace) -> None:
    upstream = summarizing()
    async with traced(upstream) as w:
        answer = await w.post(long_talk(), stream=True)
        assert answer.headers["x-context-status"] == "summarizing"
    server = trace.one("POST /v1/chat/completions")
    assert events(server) == ["compaction_started", "first_byte", "compaction_completed"]
    summary = next(span for span in trace.all("chat m") if trace.parent(span) == "compact")
    (answered,) = [span for span in trace.all("chat m") if trace.parent(span) == server.name]
    assert "gen_ai.conversation.compacted" not in told(summary)
    assert told(answered)["gen_ai.conversation.compacted"] is True
    assert told(trace.one("compact"))["concertina.compaction.outcome"] == "completed"
    assert told(server)["concertina.context.status"] == "summarized"
    assert told(server)["concertina.context.saved_tokens"] > 1000


async def test_what_is_prepared_behind_an_answer_is_a_trace_of_its_own_with_a_link(trace: Trace) -> None:
    policies = {"additive": {"prepare_ratio": 0.3, "token_floor": 1, "threshold_ratio": 0.7}}
    async with traced(summarizing(), policies=policies) as w:
        assert (await w.say(long_talk(11)))["context_status"] == "full"
        await until(lambda: len(w.upstream.bodies) > 1)
        await until(nothing_is_prepared)
    server, prepared = trace.one("POST /v1/chat/completions"), trace.one("prepare")
    assert prepared.parent is None
    assert prepared.context.trace_id != server.context.trace_id
    assert [link.context.span_id for link in prepared.links] == [server.context.span_id]
    assert {trace.parent(span) for span in trace.all("chat m")} == {server.name, "prepare"}


async def test_the_clients_context_is_the_parent_and_ours_is_the_upstreams(trace: Trace) -> None:
    sent = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "baggage": "tenant=blue"}
    upstream = ScriptedUpstream()
    async with traced(upstream) as w:
        await w.say([user("Hi")], headers=sent)
    server, chat = trace.one("POST /v1/chat/completions"), trace.one("chat m")
    assert server.parent is not None
    assert (server.context.trace_id, server.parent.span_id) == (TRACE_ID, PARENT_ID)
    (got,) = upstream.headers
    assert got["traceparent"] == f"00-{TRACE_ID:032x}-{chat.context.span_id:016x}-01"
    assert (got["tracestate"], got["baggage"]) == ("vendor=1", "tenant=blue")


async def test_a_state_without_a_context_is_not_passed_on(trace: Trace) -> None:
    upstream = ScriptedUpstream()
    async with traced(upstream) as w:
        await w.say([user("Hi")], headers={"traceparent": "00-nonsense", "tracestate": "vendor=1"})
    assert "tracestate" not in upstream.headers[0]
    assert upstream.headers[0]["traceparent"].startswith(f"00-{trace.spans[0].context.trace_id:032x}-")


@pytest.mark.parametrize("decided", ["by the client", "by the ratio"])
async def test_what_is_not_sampled_is_not_recorded_but_passed_on(
    decided: str,
    trace: Trace,
) -> None:
    upstream = ScriptedUpstream()
    headers = {"traceparent": TRACEPARENT[:-1] + "0"} if decided == "by the client" else {}
    ratio = 1.0 if decided == "by the client" else 0.0
    telemetry = {"traces": {**TRACES["traces"], "sample_ratio": ratio}}
    async with traced(upstream, telemetry=telemetry) as w:
        await w.say([user("Hi")], headers=headers)
    assert trace.spans == []
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[02]", upstream.headers[0]["traceparent"])


async def test_without_traces_the_clients_context_passes_as_it_came() -> None:
    sent = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "baggage": "tenant=blue"}
    upstream = ScriptedUpstream(default=lambda _: completion())
    async with world(upstream) as w:
        await w.say([user("Hi")], headers=sent)
        await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"}, headers=sent)
    for got in upstream.headers:
        assert {name: got[name] for name in sent} == sent


async def test_other_endpoints_are_named_by_their_route(trace: Trace) -> None:
    upstream = ScriptedUpstream(default=lambda _: completion())
    async with traced(upstream) as w:
        conversation = (await w.say([user("Hi"), assistant("Yes?"), user("Go on")]))["conversation_id"]
        key = {"authorization": "Bearer sk-one"}
        await w.client.get(f"{w.base_url}/conversations/{conversation}/items", headers=key)
        await w.client.get(f"{w.base_url}/nothing/of/mine", headers=key)
        await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"}, headers=key)
        await w.client.get(f"{w.base_url.removesuffix('/v1')}/healthz")
    servers = [span.name for span in trace.spans if span.kind.name == "SERVER"]
    assert servers == [
        "POST /v1/chat/completions",
        "GET /v1/conversations/{conversation_id}/items",
        "GET /v1/{path:path}",
        "POST /v1/{path:path}",
    ]
    passed = trace.spans[-1]
    assert (passed.name, passed.kind.name, trace.parent(passed)) == ("POST", "CLIENT", "POST /v1/{path:path}")
    assert told(passed)["http.response.status_code"] == 200
    assert upstream.headers[-1]["traceparent"].startswith(
        f"00-{passed.context.trace_id:032x}-{passed.context.span_id:016x}"
    )


async def test_requests_at_once_do_not_mix_their_spans(trace: Trace) -> None:
    async with traced(ScriptedUpstream()) as w:
        await asyncio.gather(*(w.say([user(f"Question {n}")]) for n in range(8)))
    by_trace: dict[int, list[str]] = {}
    for span in trace.spans:
        by_trace.setdefault(span.context.trace_id, []).append(span.name)
    names = ["POST /v1/chat/completions", "chat m", "plan", "recall", "store answer", "store question"]
    assert [sorted(spans) for spans in by_trace.values()] == [names] * 8
