"""Requests to `/v1/responses` in the request log, the traces, the metrics and the overview."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.api.admin.test_metrics import overview, told
from tests.api.edge.test_disconnect import BEGUN
from tests.api.edge.test_request_log import CANARY, KEY, lines, stream
from tests.api.edge.test_request_traces import TRACES, Trace, trace
from tests.api.edge.test_request_traces import told as attributes
from tests.live import Reply, ScriptedUpstream, completion, serving
from tests.support.gateway import World, answering, world
from tests.support.raw_http import long_talk
from tests.support.responses_upstream import ResponsesUpstream, respond

__all__ = ["stream", "trace"]

ROUTE = "/v1/responses"


@asynccontextmanager
async def responses_world(upstream: ResponsesUpstream, **sections: Any) -> AsyncIterator[World]:
    """A gateway whose provider speaks the Responses API, too."""
    async with serving(upstream, lifespan="off") as address:
        provider = {"protocol": "responses", "base_url": f"{address}/v1", "api_key": "sk-upstream"}
        async with world(upstream, providers={"upstream": provider}, **sections) as w:
            yield w


async def ask(w: World, **fields: Any) -> Any:
    return await w.client.post(f"{w.base_url}/responses", json={"model": "m", "input": "Hi", **fields})


async def test_a_response_has_one_line_in_the_request_log(stream: io.StringIO) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w)
        body = answer.json()
        await ask(w, stream=True)
        await ask(w, previous_response_id="resp_unknown")
    whole, streamed, refused = lines(stream)
    times = [whole.pop(name) for name in ("time", "duration_ms", "first_byte_ms")]
    assert 0 < times[2] <= times[1] < 5000
    assert whole == {
        "level": "info",
        "logger": "concertina.requests",
        "message": "request",
        "method": "POST",
        "route": ROUTE,
        "status": 200,
        "model": "m",
        "stream": False,
        "request_id": answer.headers["x-request-id"],
        "conversation_id": body["conversation_id"],
        "context_status": "full",
        "prompt_tokens": body["context"]["prompt_tokens"],
        "saved_tokens": 0,
        "tenant": "anonymous",
        "provider": "upstream",
        "cached": 0,
    }
    assert (streamed["route"], streamed["stream"], streamed["context_status"]) == (ROUTE, True, "full")
    assert (refused["route"], refused["status"], refused["error"]) == (ROUTE, 400, "previous_response_not_found")


async def test_a_response_has_the_spans_of_a_turn(trace: Trace) -> None:
    async with responses_world(ResponsesUpstream(), telemetry=TRACES) as w:
        body = (await ask(w)).json()
        await ask(w, stream=True, input="Hello")
    (server, _), (call, streamed) = trace.all(f"POST {ROUTE}"), trace.all("chat m")
    found = attributes(server)
    assert (found["http.route"], found["http.response.status_code"]) == (ROUTE, 200)
    assert found["gen_ai.conversation.id"] == body["conversation_id"]
    assert found["concertina.context.prompt_tokens"] == body["context"]["prompt_tokens"]
    for span in (call, streamed):
        found = attributes(span)
        assert (trace.parent(span), found["gen_ai.operation.name"]) == (server.name, "chat")
        assert found["openai.api.type"] == "responses"
        assert found["gen_ai.response.finish_reasons"] == ("stop",)
        assert found["gen_ai.usage.output_tokens"] > 0
    assert attributes(streamed)["gen_ai.response.time_to_first_chunk"] > 0


async def test_responses_are_counted_as_model_calls() -> None:
    async with world(ScriptedUpstream()) as w:
        await ask(w)
        await ask(w, stream=True)
        await ask(w, input=5)
        await w.client.get(f"{w.base_url}/responses/resp_unknown")
        seen, at_a_glance = await told(w), await overview(w)
    assert seen("requests_total", code="200", endpoint=ROUTE) == 2
    assert seen("requests_total", code="400", endpoint=ROUTE) == 1
    assert seen("request_seconds_count", stream="true", endpoint=ROUTE) == 1
    assert seen("first_byte_seconds_count", stream="true") == 1
    assert seen("first_byte_seconds_count", stream="false") == 2
    assert seen("requests_total", endpoint="/v1/responses/{response_id}", code="404") == 1
    assert "resp_unknown" not in seen.text
    assert seen("requests_in_flight") == seen("streams_open") == 0
    assert (at_a_glance["totals"]["requests"], at_a_glance["totals"]["refusals"]) == (4, 2)
    assert at_a_glance["latency"]["request_seconds"]["p50"] > 0


async def test_a_response_is_in_flight_until_its_end() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, 600]))
    async with world(upstream) as w:
        asked = {"model": "m", "input": "Hi", "stream": True}
        async with w.client.stream("POST", f"{w.base_url}/responses", json=asked):
            now = (await overview(w))["now"]
            assert (now["requests_in_flight"], now["streams_open"]) == (1, 1)
        async with asyncio.timeout(30):
            while (await overview(w))["now"]["requests_in_flight"]:  # noqa: ASYNC110 - the gateway has no event for it
                await asyncio.sleep(0.01)


async def test_what_a_summary_saves_of_a_response_is_counted() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        context = (await ask(w, input=long_talk())).json()["context"]
        seen, at_a_glance = await told(w), await overview(w)
    assert seen("compactions_total", outcome="made", trigger="request") == len(context["summaries"]) > 0
    assert seen("turns_total", status="summarized") == 1
    log, sent = (seen("prompt_tokens_total", kind=kind) for kind in ("log", "estimated"))
    assert sent == context["prompt_tokens"] < log
    assert seen("prompt_tokens_total", kind="saved") == log - sent == at_a_glance["totals"]["saved_tokens"]


async def test_a_failure_in_a_stream_of_events_is_counted_once(stream: io.StringIO) -> None:
    failing = respond("Half", error={"code": "server_error", "message": "It broke."})
    async with responses_world(ResponsesUpstream(default=lambda _: failing)) as w:
        answer = await ask(w, stream=True)
        seen = await told(w)
    assert "event: response.failed" in answer.text
    assert seen("requests_total", code="200", endpoint=ROUTE) == seen("errors_total") == 1
    (line,) = lines(stream)
    assert (line["level"], line["route"]) == ("warning", ROUTE)


async def test_no_content_of_a_response_is_in_a_line_or_a_span(stream: io.StringIO, trace: Trace) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": CANARY}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": CANARY}], "encrypted_content": CANARY},
        {"type": "function_call", "call_id": CANARY, "name": CANARY, "arguments": f'{{"x": "{CANARY}"}}'},
        {"type": "function_call_output", "call_id": CANARY, "output": CANARY},
        {"type": CANARY, CANARY: CANARY},
    ]
    upstream = ScriptedUpstream(default=lambda _: completion(f"It is {CANARY}."))
    headers = {"authorization": f"Bearer {KEY}", "session-id": CANARY, "thread-id": CANARY}
    asked = {"model": "m", "input": items, "instructions": CANARY, "prompt_cache_key": CANARY, "user": CANARY}
    async with world(upstream, telemetry=TRACES) as w:
        path = f"{w.base_url}/responses"
        answer = await w.client.post(path, json=asked, headers=headers)
        assert answer.status_code == 200, answer.text
        for more in ({"stream": True}, {"store": False}, {"tools": [{"type": CANARY}]}, {"truncation": CANARY}):
            await w.client.post(path, json={**asked, **more}, headers=headers)
        for below in (answer.json()["id"], f"{CANARY}/input_items", CANARY):
            await w.client.get(f"{path}/{below}", headers=headers)
        await w.client.post(f"{path}/input_tokens", json=asked, headers=headers)
    assert len(lines(stream)) == 9
    assert CANARY not in stream.getvalue()
    assert CANARY not in "".join(span.to_json() for span in trace.spans)
