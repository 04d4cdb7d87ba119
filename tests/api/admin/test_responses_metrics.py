"""`/metrics` about clients and providers of the Responses API: tokens, cost and status as for Chat Completions."""

from __future__ import annotations

import json

import pytest

from tests.api.admin.test_metrics import PRICE, PRICED, Told, told
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion
from tests.support.gateway import user
from tests.support.responses_upstream import ResponsesUpstream, respond
from tests.support.responses_world import ResponsesWorld, responses_world

MODEL = "gpt-5"
OF_MODEL = {"provider": "upstream", "model": MODEL}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 107,
}
CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
COST = (36 * PRICE["input"] + 64 * PRICE["cached_input"] + 7 * PRICE["output"]) / 1_000_000


def check_counts(seen: Told, answers: int) -> None:
    assert seen("prompt_tokens_total", kind="reported", **OF_MODEL) == answers * 100
    assert seen("prompt_tokens_total", kind="cached") == answers * 64
    assert seen("completion_tokens_total", **OF_MODEL) == answers * 7
    assert seen("cost_usd_total", kind="answer", **OF_MODEL) == pytest.approx(answers * COST)
    assert seen("unpriced_calls_total") == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_answers_of_a_responses_provider_are_counted(stream: bool) -> None:
    upstream = ResponsesUpstream(default=lambda body: respond("Fine.", fields={"usage": USAGE}))
    async with responses_world(upstream, models=PRICED) as w:
        got = await w.respond_either("One", stream=stream, model=MODEL)
        await w.post([user("Two")], stream=stream, model=MODEL)
        check_counts(await told(w), answers=2)
        stored = await w.read_response(got["id"])
    assert got["usage"] == stored["usage"] == USAGE


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_answers_of_a_chat_provider_are_counted_for_a_responses_client(stream: bool) -> None:
    whole = Reply({**completion().body, "usage": CHAT_USAGE})
    last = {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": CHAT_USAGE}
    pieces = [chunk({"content": "Fine."}), chunk({}, "stop"), b"data: " + json.dumps(last).encode() + b"\n\n", DONE]
    async with responses_world(ScriptedUpstream(Reply(pieces=pieces) if stream else whole), models=PRICED) as w:
        got = await w.respond_either("One", stream=stream, model=MODEL)
        check_counts(await told(w), answers=1)
    assert got["usage"] == USAGE


async def test_failed_responses_are_counted_as_errors() -> None:
    upstream = ResponsesUpstream()
    upstream.default = lambda body: Reply({"error": {"message": "No.", "code": "server_error"}}, 500)
    async with responses_world(upstream, retries={"attempts": 1}) as w:
        await w.ask("One")
        await count_streamed_failure(w, upstream)
        seen = await told(w)
    assert seen("requests_total", endpoint="/v1/responses", code="500") == 1
    assert seen("requests_total", endpoint="/v1/responses", code="200") == 1
    assert seen("errors_total") == 2


async def count_streamed_failure(w: ResponsesWorld, upstream: ResponsesUpstream) -> None:
    upstream.default = upstream._reply
    upstream.answers = [respond("Two words", error={"code": "server_error", "message": "It broke."})]
    answer = await w.ask("Two", stream=True)
    assert "response.failed" in answer.text
