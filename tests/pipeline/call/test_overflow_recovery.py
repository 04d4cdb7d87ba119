"""An upstream that says "too long": its limit is learned and the request answered within the same call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.conversations.answer_fingerprints import COUNT_FACT
from app.pipeline.turn.resolved_request import UNANSWERED_MESSAGES
from tests.live import DONE, Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import summaries_asked, user, world
from tests.support.raw_http import chunks, long_talk, summarizing, text_of

WINDOW = 32_768


def error(message: str, status: int = 400, **fields: Any) -> Reply:
    return Reply(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}}, status
    )


STATED: dict[str, Reply] = {
    "openai": error(
        "This model's maximum context length is 6000 tokens. However, your messages resulted in 16100 tokens. Please "
        "reduce the length of the messages.",
        code="context_length_exceeded",
    ),
    "vllm": error(
        "You passed 16100 input tokens and requested 10 output tokens. However, the model's context length is only "
        "6000 tokens, resulting in a maximum input length of 5990 tokens.",
        code=400,
    ),
    "older vllm": Reply(
        {
            "object": "error",
            "message": "This model's maximum context length is 6000 tokens. However, you requested 16110 tokens (16100 "
            "in the messages, 10 in the completion). Please reduce the length of the messages or completion.",
            "code": 400,
        },
        400,
    ),
    "llama.cpp": error(
        "request (16100 tokens) exceeds the available context size (6000 tokens), try increasing it",
        type="exceed_context_size_error",
        n_prompt_tokens=16100,
        n_ctx=6000,
    ),
    "gemini": Reply(
        b'[{"error":{"code":400,"message":"The input token count (16100) exceeds the maximum number of tokens allowed '
        b'(6000).","status":"INVALID_ARGUMENT"}}]',
        400,
    ),
    "anthropic": Reply(
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 16100 tokens > 6000 maximum"},
        },
        400,
    ),
    "mistral": Reply(b"Prompt contains 16100 tokens, too large for model with 6000 maximum context length", 400),
    "xai": Reply(b"This model's maximum prompt length is 6000 but the request contains 16100 tokens", 400),
    "sglang": Reply(b"The input (16100 tokens) is longer than the model's context length (6000 tokens).", 400),
    "kimi": Reply(b"Your request exceeded model token limit: 6000 (requested: 16100)", 400),
    "tgi": Reply(b"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 6000", 422),
    "wrapped in a 500": error("prompt is too long: 16100 tokens > 6000 maximum", status=500),
    "wrapped in a 200": error("prompt is too long: 16100 tokens > 6000 maximum", status=200),
}
UNSTATED: dict[str, Reply] = {
    "groq": error("Please reduce the length of the messages or completion."),
    "ollama": Reply(b"prompt too long; exceeded max context length by 4096 tokens", 400),
    "lm studio": error(
        "Trying to keep the first 15500 tokens when context the overflows. However, the number of tokens to keep from "
        "the initial prompt is greater than the context length.",
    ),
    "minimax": error("invalid params, context window exceeds limit (2013)"),
    "bedrock": error("Input is too long for requested model."),
    "bare 413": Reply(b"", 413),
    "bare 400": Reply(b"", 400),
    "200 in words": Reply(b"Your input exceeds the context window of this model.", 200, {"content-type": "text/plain"}),
}
ALL_MESSAGES = 61


async def recovered(refusal: Reply, window: int, streamed: bool) -> tuple[dict[str, Any], Any]:
    """What the answer says of its context after one refusal; the talk is some 15,500 tokens by our count."""
    upstream = ScriptedUpstream(refusal)
    async with world(upstream, window=window) as w:
        answer = await w.post(long_talk(), stream=streamed)
        assert answer.status_code == 200, answer.text
        body = chunks(answer)[-1] if streamed else answer.json()
        assert len(upstream.bodies) == 2
        assert summaries_asked(upstream) == []
        assert len(upstream.requests[1]["messages"]) < ALL_MESSAGES
        assert upstream.requests[1]["messages"][-1] == upstream.requests[0]["messages"][-1]
        again = await w.post([user("something else")])
        facts = {name: one for name, one in (await w.store.read_model_facts()).items() if name.startswith("upstream/")}
        assert again.json()["context"]["recovered"] is False
    assert body["context"]["recovered"] is True
    return body, (facts, again.json()["context"]["window"])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", STATED)
async def test_a_stated_limit_is_kept_to_in_this_request_and_changes_no_other(name: str, streamed: bool) -> None:
    body, (facts, next_window) = await recovered(STATED[name], WINDOW, streamed)
    assert facts["upstream/m"]["limit"]["tokens"] == 6000
    assert next_window == WINDOW
    assert body["context"]["window"] == 6000
    assert body["context_status"] in ("trimmed", "summarized")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", UNSTATED)
async def test_without_a_stated_limit_a_smaller_view_is_tried(name: str, streamed: bool) -> None:
    _, (facts, next_window) = await recovered(UNSTATED[name], 24_000, streamed)
    assert facts["upstream/m"]["limit"]["is_stated"] is False
    assert next_window == 24_000


@pytest.mark.parametrize("first", [b"", b": wait\n\n"])
async def test_a_refusal_as_the_first_event_of_a_stream_is_recovered_from(first: bytes) -> None:
    event = b"data: " + json.dumps(STATED["openai"].body).encode() + b"\n\n"
    pieces = [first, event, DONE] if first else [event, DONE]
    body, _ = await recovered(Reply(pieces=pieces), WINDOW, True)
    assert body["context"]["window"] == 6000


async def test_a_learned_limit_is_kept_to_without_a_second_refusal() -> None:
    upstream = summarizing(lambda body: STATED["openai"] if len(json.dumps(body)) > 33_000 else completion())
    async with world(upstream, window=WINDOW) as w:
        first = await w.post(long_talk())
        assert first.json()["context"]["recovered"] is True
        asked = len(upstream.bodies)
        second = await w.post([*long_talk(), first.json()["choices"][0]["message"], user("and then?")])
        body = second.json()
        assert second.status_code == 200
        assert body["context"]["recovered"] is False
        assert body["context"]["window"] == 6000
        assert all(len(sent) < 33_000 for sent in upstream.bodies[asked:])


async def test_two_refusals_in_a_row_end_in_a_compaction() -> None:
    refusals = [STATED["openai"], error("Please reduce the length of the messages or completion.")]
    upstream = summarizing(lambda _: refusals.pop(0) if refusals else completion())
    async with world(upstream, window=WINDOW) as w:
        answer = await w.post(long_talk())
        body = answer.json()
        assert answer.status_code == 200, answer.text
        assert len(w.chunks()) > 0
    context = body["context"]
    assert (context["recovered"], context["compaction"]["ran"], body["context_status"]) == (True, True, "summarized")
    assert len(upstream.bodies) - len(summaries_asked(upstream)) == 3


async def test_a_third_refusal_is_the_upstreams_own_answer() -> None:
    refusal = STATED["mistral"]
    upstream = summarizing(lambda _: refusal)
    async with world(upstream, window=WINDOW) as w:
        answer = await w.post(long_talk())
        assert (answer.status_code, answer.content) == (400, refusal.body)
        assert len(upstream.bodies) - len(summaries_asked(upstream)) == 3
        assert all(conversation.state[UNANSWERED_MESSAGES] for conversation in w.conversations())


async def test_an_answer_that_alone_is_too_long_is_asked_for_shorter() -> None:
    refusal = error("input length and `max_tokens` exceed context limit: 6500 + 64000 > 16000, decrease one of them")
    upstream = ScriptedUpstream(refusal)
    async with world(upstream, window=WINDOW) as w:
        body = await w.say(long_talk(12), max_tokens=64_000, temperature=0.5)
        assert len(upstream.bodies) == 2
    first, second = upstream.requests
    assert second["messages"] == first["messages"]
    assert 0 < second["max_tokens"] <= 16_000 - 6_500
    assert second["temperature"] == 0.5
    assert (body["context"]["recovered"], body["context_status"]) == (True, "full")


TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 6000, Requested 16100. The "
    "input or output tokens must be reduced in order to run successfully."
)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_above_the_rate_limit_of_a_minute_is_sent_smaller_and_not_again(streamed: bool) -> None:
    refusal = error(TOO_LARGE, 429, type="tokens", code="rate_limit_exceeded")
    body, (facts, next_window) = await recovered(refusal, WINDOW, streamed)
    assert body["context"]["window"] == 6000
    assert facts == {}
    assert next_window == WINDOW


async def test_a_rate_limit_that_only_the_requested_answer_exceeds_keeps_the_whole_prompt() -> None:
    upstream = ScriptedUpstream(error(TOO_LARGE.replace("6000", "16000").replace("16100", "16500"), 429))
    async with world(upstream, window=WINDOW) as w:
        body = await w.say(long_talk(25), max_tokens=3500)
    first, second = upstream.requests
    assert second["messages"] == first["messages"]
    assert second["max_tokens"] < 3500
    assert body["context_status"] == "full"


async def test_a_rate_limit_that_a_pause_helps_is_waited_for() -> None:
    said = "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 9000. Try again."
    upstream = ScriptedUpstream(error(said, 429, code="rate_limit_exceeded"))
    async with world(upstream, window=WINDOW) as w:
        body = await w.say(long_talk())
    assert upstream.requests[0]["messages"] == upstream.requests[1]["messages"]
    assert body["context"]["recovered"] is False


OTHERS: dict[str, Reply] = {
    "throttled": Reply(b"Throttling error: Too many tokens, please wait before trying again.", 400),
    "per minute": error(
        "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000",
        413,
        code="rate_limit_exceeded",
    ),
    "field too long": error("Invalid 'user': string too long. (string_above_max_length)"),
    "unknown parameter": error("Unknown parameter"),
    "roles": error("Unexpected role 'user' after role 'tool'"),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_other_refusals_pass_as_they_are(name: str) -> None:
    upstream = ScriptedUpstream(OTHERS[name])
    async with world(upstream) as w:
        answer = await w.post([user("x " * 3000)])
        assert len(upstream.bodies) == 1
        assert (await w.store.read_model_facts()).keys() == {COUNT_FACT}
    assert answer.status_code == OTHERS[name].status


async def test_a_bare_refusal_of_a_small_request_is_no_overflow() -> None:
    for status in (400, 413):
        upstream = ScriptedUpstream(Reply(b"", status))
        async with world(upstream) as w:
            answer = await w.post([user("x")])
        assert (answer.status_code, answer.content, len(upstream.bodies)) == (status, b"", 1)


async def test_an_answer_that_speaks_of_context_windows_is_an_answer() -> None:
    text = "They said: prompt is too long: 16100 tokens > 6000 maximum. " * 2000
    upstream = ScriptedUpstream(completion(text), stream(text))
    async with world(upstream) as w:
        assert (await w.say([user("x")]))["choices"][0]["message"]["content"] == text
        assert text_of(chunks(await w.post([user("y")], stream=True))) == text
    assert len(upstream.bodies) == 2


async def test_what_a_conversation_has_learned_is_known_after_a_restart() -> None:
    async with world(ScriptedUpstream(STATED["openai"]), window=WINDOW) as w:
        first = await w.say(long_talk())
        async with world(summarizing(), store=w.store, window=WINDOW) as later:
            body = await later.say([*long_talk(), first["choices"][0]["message"], user("and then?")])
    assert body["context"]["window"] == 6000


async def test_after_an_early_start_an_overflow_is_recovered_from_too() -> None:
    refusals = [error("prompt is too long: 4400 tokens > 2500 maximum")]
    upstream = summarizing(lambda _: refusals.pop(0) if refusals else stream("Fine", "."))
    async with world(upstream) as w:
        events = chunks(await w.post(long_talk(), stream=True))
    assert text_of(events) == "Fine."
    assert events[-1]["context"]["recovered"] is True
    assert events[-1]["context"]["compaction"]["ran"] is True
