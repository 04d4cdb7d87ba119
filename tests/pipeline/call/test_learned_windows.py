"""Providers whose real window is smaller than the known one: each conversation learns it once, and nobody else pays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from app.context.count.tokenizers import load_tokenizer
from tests.live import DONE, TEST_DEPENDENCIES, Reply, ScriptedUpstream, chunk, completion, usage_chunk
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.chat_counter import ChatCounter
from tests.support.gateway import World, assistant, is_summary, pick_word, shown, until, user, world
from tests.support.raw_http import SUMMARY, chunks, long_talk

COUNTER = ChatCounter(load_tokenizer("o200k_base"))
UNCONFIGURED: dict[str, Any] = {"models": {"*": {"provider": "upstream"}}}
REAL_WINDOW = 4096


def count(body: dict[str, Any]) -> int:
    return COUNTER.count_request(body["messages"], tools=body.get("tools"))


def stated(window: int, tokens: int) -> str:
    return (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
    )


WORDINGS: dict[str, Callable[[int, int], str]] = {
    "stated": stated,
    "lm studio": lambda *_: "The number of tokens to keep from the initial prompt is greater than the context length.",
    "ollama": lambda window, tokens: f"prompt too long; exceeded max context length by {tokens - window} tokens",
    "minimax": lambda *_: "invalid params, context window exceeds limit (2013)",
    "bedrock": lambda *_: "Input is too long for requested model.",
}


class Provider(ScriptedUpstream):
    """Counts as the gateway does. Its hosts, each with a window, take turns; `refusals` has the sizes refused."""

    def __init__(self, *windows: int, wording: str = "stated", words: str = "Fine.") -> None:
        super().__init__(default=self.answer_or_refuse)
        self.windows, self.wording, self.words = windows, WORDINGS[wording], words
        self.refusals: list[int] = []

    def answer_or_refuse(self, body: dict[str, Any]) -> Reply:
        window, tokens = self.windows[len(self.bodies) % len(self.windows)], count(body)
        if tokens > window:
            self.refusals.append(tokens)
            return Reply({"error": {"message": self.wording(window, tokens), "code": None}}, 400)
        words = SUMMARY if is_summary(body) else self.words
        if body.get("stream"):
            return Reply(pieces=[chunk({"content": words}), chunk({}, "stop"), usage_chunk(tokens), DONE])
        return completion(words, prompt_tokens=tokens)


async def talk(
    w: World, turns: int, words: int = 90, name: str = "a", messages: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The `context` of each answer in a conversation whose client resends everything; `messages` grows. The client
    is slower than the work in the background."""
    messages = [] if messages is None else messages
    contexts = []
    for turn in range(turns):
        messages.append(user(f"{name} asks {turn}: " + " lamp" * words))
        body = await w.say(messages)
        messages.append(assistant(body["choices"][0]["message"]["content"]))
        contexts.append({**body["context"], "status": body["context_status"]})
        await until(nothing_is_prepared)
    return contexts


@pytest.mark.parametrize("wording", WORDINGS)
async def test_a_conversation_is_refused_once_and_then_summarized_below_what_was_refused(wording: str) -> None:
    upstream = Provider(REAL_WINDOW, wording=wording)
    async with world(upstream, policies={"additive": {"prepare_ratio": 0.85}}) as w:
        contexts = await talk(w, 60)

    assert len(upstream.refusals) == 1
    recovered = [turn for turn, context in enumerate(contexts) if context["recovered"]]
    assert len(recovered) == 1
    assert [context["status"] for context in contexts[recovered[0] + 1 :]] == ["summarized"] * (59 - recovered[0])
    assert contexts[-1]["window"] < 8192


async def test_no_other_conversation_is_planned_by_what_one_has_taught_where_a_window_is_configured() -> None:
    upstream = Provider(1 << 30)
    upstream.replies = [Reply({"error": {"message": stated(2000, 5300)}}, 400)]
    async with world(upstream) as w:
        assert (await w.say(long_talk(10)))["context"]["window"] == 2000
        for key in ("sk-one", "sk-two"):
            body = await w.say([user(" lamp" * 5217)], key=key)
            assert (body["context"]["window"], body["context_status"]) == (8192, "full")


async def test_a_limit_that_was_learned_never_refuses_a_request() -> None:
    upstream = Provider(1 << 30)
    upstream.replies = [Reply({"error": {"message": stated(2000, 5300)}}, 400)]
    async with world(upstream, **UNCONFIGURED) as w:
        await w.say(long_talk(10))
        assert (await w.say([user("x")]))["context"]["window"] == 2000
        body = await w.say([user(" lamp" * 5217)])
        assert body["context_status"] == "full"
        # The larger prompt has passed, so the limit was wrong.
        assert (await w.say([user("y")]))["context"]["window"] == 8192


async def test_a_limit_of_a_conversation_never_refuses_its_next_turn() -> None:
    upstream = Provider(1 << 30)
    upstream.replies = [Reply({"error": {"message": stated(2000, 5300)}}, 400)]
    async with world(upstream) as w:
        first = await w.say(long_talk(10))
        history = [*long_talk(10), first["choices"][0]["message"]]
        body = await w.say([*history, user(" lamp" * 5217)])
    assert shown(upstream)[-1][-1]["content"] == " lamp" * 5217
    assert body["context"]["window"] == 8192


async def test_a_limit_that_was_learned_expires_after_a_day() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    dependencies = dataclasses.replace(TEST_DEPENDENCIES, now=lambda: now[0])
    upstream = Provider(1 << 30)
    upstream.replies = [Reply({"error": {"message": stated(2000, 5300)}}, 400)]
    async with world(upstream, dependencies=dependencies) as w:
        first = await w.say(long_talk(10))
        history = [*long_talk(10), first["choices"][0]["message"], user("and then?")]
        assert (await w.say(history))["context"]["window"] == 2000
        now[0] += timedelta(hours=25)
        assert (await w.say([*history, user("really?")]))["context"]["window"] == 8192


@pytest.mark.parametrize("options", [{"window": 16_384}, UNCONFIGURED], ids=["configured", "unknown"])
async def test_a_router_with_hosts_of_different_windows_does_not_make_views_flap(options: dict[str, Any]) -> None:
    upstream = Provider(6000, 16_384, 16_384)
    async with world(upstream, policies={"additive": {"prepare_ratio": 0.85}}, **options) as w:
        contexts: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = []
        for turn in range(80):
            if turn % 8 == 7:
                # A prompt that fits the larger hosts only: it passes there, and refutes what the small one said.
                await w.post([user(f"Number {turn}:" + " lamp" * 7000)])
            contexts += await talk(w, 1, 140, f"turn {turn}", messages)

    windows = [context["window"] for context in contexts]
    assert min(windows) == 6000
    assert sum(one != other for one, other in pairwise(windows)) <= 3
    assert sum(context["recovered"] for context in contexts) <= 2


async def test_a_view_on_a_smaller_fallback_is_summarized_for_its_next_turn() -> None:
    def reply(body: dict[str, Any]) -> Reply:
        if body["model"] == "large":
            return Reply({"error": {"message": "down"}}, 503)
        return completion(f"{SUMMARY} {pick_word(body)}" if is_summary(body) else "Fine.", prompt_tokens=count(body))

    upstream = ScriptedUpstream(default=reply)
    models = {
        "m": {"provider": "upstream", "model": "large", "context_window": 32_768, "fallbacks": ["small"]},
        "small": {"provider": "upstream", "context_window": 4096},
    }
    async with world(
        upstream, models=models, retries={"attempts": 1}, policies={"additive": {"prepare_ratio": 0.85}}
    ) as w:
        contexts = await talk(w, 60)

    statuses = [context["status"] for context in contexts]
    first = next(turn for turn, status in enumerate(statuses) if status != "full")
    assert statuses[first + 2 :].count("trimmed") <= 2
    assert statuses[-1] == "summarized"


@pytest.mark.parametrize("asks_usage", [False, True])
async def test_the_last_chunk_of_a_stream_says_what_the_provider_has_counted(asks_usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks_usage else {}
    async with world(Provider(8192)) as w:
        events = chunks(await w.post([user("Hello")], stream=True, **options))

    (last,) = (event for event in events if event.get("choices") and event["choices"][0]["finish_reason"])
    assert last["context"]["calibration"]["reported_tokens"] == 8
    assert [bool(event.get("usage")) for event in events].count(True) == asks_usage
    assert events.index(last) == len(events) - 1 - asks_usage
