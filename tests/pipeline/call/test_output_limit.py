"""A prompt that fits is not shortened because its client asks for a long answer: the answer's limit is lowered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import user, world
from tests.support.raw_http import chunks, long_talk, summarizing

WINDOW = 32_768
RESERVE = 1638
ASKED = 64_000
FIELDS = ("max_tokens", "max_completion_tokens")


def model() -> ScriptedUpstream:
    return ScriptedUpstream(default=lambda body: stream("Fine", ".") if body.get("stream") else completion())


def told(context: dict[str, Any]) -> list[str]:
    return [warning for warning in context["warnings"] if "limit was lowered" in warning]


@pytest.mark.parametrize("policy", ["additive", "window", "fade", "checkpoint", "prune"])
@pytest.mark.parametrize("field", FIELDS)
async def test_a_prompt_that_is_too_long_only_because_of_the_answer_stays_whole(
    field: str,
    policy: str,
) -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, policy=policy) as gateway:
        body = await gateway.say(long_talk(), **{field: ASKED})
    (sent,) = upstream.requests
    context = body["context"]
    limit = WINDOW - RESERVE - context["prompt_tokens"]
    assert 14_746 < context["prompt_tokens"] < 16_000
    assert sent == {"model": "m", "messages": long_talk(), field: limit}
    assert (body["context_status"], context["dropped_messages"], context["trimmed_messages"]) == ("full", 0, 0)
    assert context["max_output_tokens"] == limit
    assert told(context) == [
        f"The answer's limit was lowered from 64000 to {limit} tokens: prompt and answer share a window of 32768."
    ]


@pytest.mark.parametrize(
    ("asked", "sent_fields"),
    [
        ({"max_tokens": 64_000, "max_completion_tokens": None}, ("max_tokens",)),
        ({"max_tokens": 9, "max_completion_tokens": 64_000}, ("max_completion_tokens",)),
        ({"max_tokens": 64_000, "max_completion_tokens": 65_000}, FIELDS),
        ({"max_tokens": 64_000, "max_output_tokens": 64_000, "max_new_tokens": 64_000}, ("max_tokens",)),
    ],
)
async def test_only_the_fields_that_ask_for_too_much_are_lowered(
    asked: dict[str, int | None],
    sent_fields: tuple[str, ...],
) -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        body = await gateway.say(long_talk(), **asked)
    (sent,) = upstream.requests
    limit = body["context"]["max_output_tokens"]
    assert 0 < limit < WINDOW
    assert {name: sent[name] for name in asked} == {**asked, **dict.fromkeys(sent_fields, limit)}


async def test_an_answer_that_fits_beside_the_prompt_leaves_the_body_untouched() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        answer = await gateway.post(long_talk(), max_tokens=16_000)
    assert upstream.bodies == [answer.request.content]
    assert answer.json()["context"]["max_output_tokens"] is None
    assert told(answer.json()["context"]) == []


async def test_a_guessed_window_lowers_nothing() -> None:
    upstream = model()
    async with world(upstream, models={"*": {"provider": "upstream"}}) as gateway:
        body = await gateway.say([user("Hello")], max_tokens=ASKED)
    assert (upstream.requests[0]["max_tokens"], body["context"]["max_output_tokens"]) == (ASKED, None)


async def test_an_eighth_of_the_window_is_left_for_the_answer_before_the_prompt_is_shortened() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, policy="window") as gateway:
        body = await gateway.say(long_talk(60), max_tokens=ASKED)
        small = await gateway.say(long_talk(56), max_tokens=500)
    context = body["context"]
    assert context["limit"] == WINDOW - RESERVE - WINDOW // 8
    assert body["context_status"] == "trimmed"
    assert upstream.requests[0]["max_tokens"] == WINDOW - RESERVE - context["prompt_tokens"] >= WINDOW // 8
    assert small["context"]["limit"] == WINDOW - RESERVE - 500
    assert (small["context_status"], upstream.requests[1]["max_tokens"]) == ("full", 500)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_repeated_answer_tells_the_same_of_its_limit(streamed: bool) -> None:
    def context(answer: Any) -> dict[str, Any]:
        bodies = chunks(answer) if streamed else [answer.json()]
        found: dict[str, Any] = next(body["context"] for body in reversed(bodies) if "context" in body)
        return found

    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        key = {"idempotency-key": "one"}
        first = await gateway.post(long_talk(), headers=key, max_tokens=ASKED, stream=streamed)
        again = await gateway.post(long_talk(), headers=key, max_tokens=ASKED, stream=streamed)
    names = ("limit", "pressure", "compacts_above", "max_output_tokens")
    before, after = context(first), context(again)
    assert again.headers["idempotent-replayed"] == "true"
    assert len(upstream.requests) == 1
    assert told(before) == told(after) != []
    assert [before[name] for name in names] == [after[name] for name in names]
    assert first.headers["x-context-tokens"] == again.headers["x-context-tokens"]


REFUSALS = {
    "vllm": "'max_tokens' or 'max_completion_tokens' is too large: 24000. This model's maximum context length is "
    "32768 tokens and your request has 15700 input tokens (24000 > 32768 - 15700).",
    "newer vllm": "This model's maximum context length is 32768 tokens. However, you requested 24000 output tokens "
    "and your prompt contains 15700 input tokens, for a total of 39700 tokens.",
    "vllm that stops to count": "This model's maximum context length is 32768 tokens. However, you requested 24000 "
    "output tokens and your prompt contains at least 8769 input tokens, for a total of at least 32769 tokens.",
    "openai": "This model's maximum context length is 32768 tokens. However, you requested 39700 tokens (15700 in the "
    "messages, 24000 in the completion). Please reduce the length of the messages or completion.",
    "anthropic": "input length and `max_tokens` exceed context limit: 15700 + 24000 > 32768",
    "tgi": "`inputs` tokens + `max_new_tokens` must be <= 32768. Given: 15700 `inputs` tokens and 24000 "
    "`max_new_tokens`",
}


def refusal(message: str) -> Reply:
    return Reply({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, 400)


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("field", FIELDS)
async def test_a_provider_that_refuses_prompt_and_answer_together_is_asked_for_a_shorter_answer(
    field: str,
    name: str,
) -> None:
    upstream = ScriptedUpstream(refusal(REFUSALS[name]))
    async with world(upstream, window=65_536) as gateway:
        body = await gateway.say(long_talk(), **{field: 24_000})
        facts = await gateway.store.read_model_facts()
        again = await gateway.say([*long_talk(), body["choices"][0]["message"], user("More?")], **{field: 24_000})
    first, second, third = upstream.requests
    context = body["context"]
    assert second == {**first, field: context["max_output_tokens"]}
    assert 15_000 < context["max_output_tokens"] <= 32_768 - 15_700
    assert (body["context_status"], context["recovered"], context["window"]) == ("full", True, 32_768)
    assert len(told(context)) == 1
    assert facts["upstream/m"]["limit"]["tokens"] == 32_768
    assert (again["context"]["recovered"], again["context_status"]) == (False, "full")
    assert third[field] <= 32_768 - 15_700


async def test_where_hardly_room_is_left_for_an_answer_the_prompt_is_shortened() -> None:
    upstream = summarizing()
    message = "input length and `max_tokens` exceed context limit: 15700 + 24000 > 16000"
    upstream.replies.append(refusal(message))
    async with world(upstream, window=65_536) as gateway:
        body = await gateway.say(long_talk(), max_tokens=24_000)
    first, second = upstream.requests
    assert len(json.dumps(second["messages"])) < len(json.dumps(first["messages"]))
    assert (body["context_status"], body["context"]["window"]) == ("trimmed", 16_000)
    assert 2000 <= second["max_tokens"] == body["context"]["max_output_tokens"]


async def test_a_limit_that_is_refused_again_ends_in_a_shorter_prompt() -> None:
    said = REFUSALS["vllm that stops to count"]
    upstream = ScriptedUpstream(refusal(said), refusal(said))
    async with world(upstream, window=WINDOW, policy="window") as gateway:
        body = await gateway.say(long_talk(), max_tokens=14_000)
    first, second, third = upstream.requests
    assert second["messages"] == first["messages"]
    assert len(third["messages"]) < len(first["messages"])
    assert body["context_status"] == "trimmed"
