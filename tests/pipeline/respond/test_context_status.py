"""What an answer says of its limit, and of the line above which the next turn compacts, is what happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.dialects.usage import TokenUsage
from app.pipeline.respond.context_status import ContextReport
from app.upstream.provider_contract import ModelDeployment, TokenPrice
from tests.live import ScriptedUpstream, completion, stream
from tests.support.conversations_client import done, question
from tests.support.gateway import World, is_summary, pick_word, user, world
from tests.support.raw_http import chunks
from tests.upstream.scripted_provider import ScriptedProvider

WINDOW = 8192
RESERVE = 410
KEPT = WINDOW // 8
"""The most that is kept free for the answer that is asked for."""
ASKED: list[dict[str, int]] = [{}, {"max_tokens": 1000}, {"max_completion_tokens": 4000}, {"max_tokens": 64_000}]
AT_ONCE: dict[str, Any] = {"prepare_ratio": 1, "blocking": True}
POLICIES: dict[str, dict[str, Any]] = {
    "additive": AT_ONCE,
    "early": {**AT_ONCE, "kind": "checkpoint", "trigger": {"type": "token_ratio", "value": 0.5}},
    "late": {**AT_ONCE, "kind": "checkpoint", "trigger": {"type": "remaining_tokens", "value": 2500}},
}


def model() -> ScriptedUpstream:
    """Sums up in a paragraph, and answers every question alike."""
    return ScriptedUpstream(
        default=lambda body: (
            completion(f"They counted {pick_word(body)}. " * 12) if is_summary(body) else stream("Noted. " * 40)
        )
    )


async def turn(gateway: World, number: int, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """What a stream told of a compaction, the `context` of the answer, and `X-Context-Tokens`."""
    answer = await gateway.post([user(question(number, 120))], conversation="c", stream=True, **fields)
    events = chunks(answer)
    context: dict[str, Any] = next(event["context"] for event in events if "context" in event)
    return (
        [event["context_event"] for event in events if "context_event" in event],
        context,
        answer.headers["x-context-tokens"],
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fields", ASKED, ids=json.dumps)
async def test_the_next_turn_compacts_when_its_prompt_passes_the_line_that_was_told(
    fields: dict[str, int],
    policy: str,
) -> None:
    compactions = 0
    async with world(model(), window=WINDOW, policy=policy, policies=POLICIES) as gateway:
        _, before, _ = await turn(gateway, 0, **fields)
        for number in range(1, 40):
            told, context, _ = await turn(gateway, number, **fields)
            line = before["compacts_above"] - before["quoted_tokens"]
            if told:
                compactions += 1
                assert told[0]["input_tokens"] > line
            else:
                assert context["prompt_tokens"] - context["quoted_tokens"] <= line
            assert context["prompt_tokens"] <= context["limit"]
            before = context
            if compactions == 2:
                break
    assert compactions == 2


@pytest.mark.parametrize("fields", ASKED, ids=json.dumps)
async def test_the_limit_counts_the_answer_that_was_asked_for(
    fields: dict[str, int],
) -> None:
    limit = WINDOW - RESERVE - min(KEPT, next(iter(fields.values()), 0))
    async with world(model(), window=WINDOW) as gateway:
        _, context, header = await turn(gateway, 0, **fields)
        preview = await done(gateway, "GET", "c/context")
        seen = await done(gateway, "GET", f"c/items/{preview['messages']['data'][0]['id']}/context")
        body = {"model": "m", "messages": [user("Hello")], **fields}
        count = (await gateway.client.post(f"{gateway.base_url}/context/count", json=body)).json()
        turns = await done(gateway, "GET", "c/turns")
    assert context["limit"] == limit
    assert header == f"{context['prompt_tokens']}/{limit}"
    assert context["pressure"] == round(context["prompt_tokens"] / limit, 4)
    assert {one["limit"] for one in (preview, seen, count, *turns["data"])} == {limit}
    assert {one["compacts_above"] for one in (context, preview, seen, count)} == {5734}
    assert turns["data"][0]["threshold_tokens"] == 5734
    assert preview["pressure"] == round(preview["prompt_tokens"] / limit, 4)


async def test_the_line_of_a_policy_without_summaries_is_its_limit() -> None:
    async with world(model(), window=WINDOW, policy="window") as gateway:
        _, context, _ = await turn(gateway, 0, max_tokens=500)
    assert context["compacts_above"] == context["limit"] == WINDOW - RESERVE - 500


def test_an_answers_cost_tells_each_token_once_and_no_dollars_without_all_prices() -> None:
    usage = TokenUsage(1000, cached_tokens=600, written_tokens=300, output_tokens=50)
    tokens = {"input": 100, "cached": 600, "written": 300, "output": 50}
    summary = {"prompt_tokens": 400, "completion_tokens": 40}
    price = TokenPrice(input=2.0, cached_input=0.5, output=8.0)
    priced, unpriced = (ModelDeployment(ScriptedProvider("p"), "m", price=one) for one in (price, TokenPrice()))

    def build(
        deployment: ModelDeployment, usage: TokenUsage | None, summary_usage: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        unused: Any = None
        usages = [summary_usage] * 2 if summary_usage else []
        report = ContextReport("full", None, "additive", unused, unused, 0, 0, {}, usages)
        return report.build_cost_object(deployment, usage)

    assert build(priced, None, summary) is None
    own = (100 * 2 + 600 * 0.5 + 300 * 2 + 50 * 8) / 1e6
    assert build(priced, usage, None) == {**tokens, "summaries": 0, "usd": pytest.approx(own)}
    assert build(unpriced, usage, None) == {**tokens, "summaries": 0, "usd": None}
    assert build(priced, usage, summary) == {**tokens, "summaries": 880, "usd": None}
    told = build(priced, usage, {**summary, "cost_usd": 0.25})
    assert told == {**tokens, "summaries": 880, "usd": pytest.approx(own + 0.5)}
