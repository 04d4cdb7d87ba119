"""Estimates beside providers that count otherwise: nothing that fits is refused, whoever taught the gateway what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.context.count.token_counter import load_token_counter
from app.context.count.tokenizers import load_tokenizer
from app.store.contract.conversations import LogAppend
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, usage_chunk
from tests.support.chat_counter import ChatCounter, as_item
from tests.support.gateway import World, assistant, summaries_asked, system, user, world
from tests.support.raw_http import chunks, until

COUNTER = ChatCounter(load_tokenizer("o200k_base"))
FILE_TOKENS = 60_000
WORD = " lamp"
"""One token."""


def count(body: dict[str, Any]) -> int:
    """Our own count, in which a file's id is nothing."""
    tokens = COUNTER.count_request(body["messages"], tools=body.get("tools"))
    return tokens - sum(COUNTER.count_attachments(message) for message in body["messages"])


def provider(
    *, slope: float = 1.0, overhead: int = 0, window: int = 1 << 30, cuts: bool = False, answer: str = "Fine."
) -> ScriptedUpstream:
    """An upstream that counts in a line of its own, a file's 60,000 tokens on top; what is too long for its window it
    refuses, or cuts without a word."""

    def reply(body: dict[str, Any]) -> Reply:
        files = json.dumps(body["messages"]).count('"file_id"')
        tokens = round(overhead + slope * count(body)) + FILE_TOKENS * files
        if tokens > window and not cuts:
            message = (
                f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
                "tokens. Please reduce the length of the messages."
            )
            return Reply({"error": {"message": message, "code": "context_length_exceeded"}}, 400)
        return completion(answer, prompt_tokens=min(tokens, window))

    return ScriptedUpstream(default=reply)


def text(tokens: int) -> dict[str, Any]:
    return user(WORD * tokens)


async def talk(w: World, *questions: dict[str, Any], key: str = "sk-one", before: Any = ()) -> list[dict[str, Any]]:
    """The answers to a conversation that is resent with each question; each must succeed, with everything shown."""
    messages, answers = list(before), []
    for question in questions:
        messages.append(question)
        body = await w.say(messages, key=key)
        assert body["context_status"] == "full"
        answers.append(body)
        messages.append(body["choices"][0]["message"])
    return answers


def off(body: dict[str, Any]) -> float:
    reported: int = body["usage"]["prompt_tokens"]
    return abs(float(body["context"]["prompt_tokens"]) - reported) / reported


async def test_a_first_hi_behind_a_chat_template_refuses_no_long_message_after_it() -> None:
    upstream = provider(overhead=23, window=8_192)
    async with world(upstream, window=8_192) as w:
        first, second = await talk(w, user("Hi"), text(5_000))
        (other,) = await talk(w, text(5_000), key="sk-two")
    assert first["usage"]["prompt_tokens"] == 31
    assert second["context"]["calibration"]["offset"] == 23
    assert second["context"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert other["context"]["calibration"] | {"slope": 1.0, "offset": 0} == other["context"]["calibration"]


async def test_a_file_of_one_tenant_refuses_and_summarizes_nothing_of_another() -> None:
    upstream = provider(window=128_000)
    asking = user([{"type": "text", "text": "Hi"}, {"type": "file", "file": {"file_id": "file-1"}}])
    async with world(upstream, window=128_000) as w:
        with_file = await talk(w, asking, text(100), text(100))
        (other,) = await talk(w, text(30_000), key="sk-two")
        (own,) = await talk(w, text(24_000))
    assert off(with_file[-1]) < 0.05
    assert off(other) == off(own) == 0
    assert summaries_asked(upstream) == []


async def test_a_prompt_of_24k_after_a_hi_buys_no_summary() -> None:
    upstream = provider(overhead=40, window=128_000)
    async with world(upstream, window=128_000) as w:
        *_, last = await talk(w, user("Hi"), text(24_000))
        (new,) = await talk(w, text(24_000))
    assert last["context"]["prompt_tokens"] == last["usage"]["prompt_tokens"]
    assert new["context"]["calibration"]["offset"] == 0
    assert summaries_asked(upstream) == []


async def test_instructions_of_25k_and_a_heavy_tokenizer_refuse_nobody() -> None:
    upstream = provider(slope=1.23, window=128_000)
    instructions = [system(WORD * 25_000)]
    async with world(upstream, window=128_000) as w:
        answers = await talk(w, *(user("hi"), text(300), text(300)), before=instructions)
        (other,) = await talk(w, user("hi"), before=instructions, key="sk-two")
    assert max(off(body) for body in answers[1:]) < 0.05
    assert other["context"]["calibration"]["offset"] == 0


@pytest.mark.parametrize("slope", [0.8, 1.0, 1.23, 1.4])
@pytest.mark.parametrize("overhead", [0, 1_000])
async def test_a_conversation_that_is_compacted_is_estimated_within_five_percent(slope: float, overhead: int) -> None:
    upstream = provider(slope=slope, overhead=overhead, window=8_192, answer=WORD * 150)
    messages: list[dict[str, Any]] = []
    compactions = 0
    async with world(upstream, window=8_192) as w:
        for turn in range(1, 17):
            messages.append(text(450))
            body = await w.say(messages, key="sk-one")
            assert body["context_status"] in ("full", "summarized")
            compactions += body["context"]["compaction"]["ran"]
            if turn >= 5:
                assert off(body) <= 0.05, (turn, body["context"], body["usage"])
            messages.append(body["choices"][0]["message"])
        assert compactions
        assert slope == 1 or list(w.model_facts()["upstream/m"]) == ["slopes"]
        own, other = await w.say([user("new")]), await w.say([user("new")], key="sk-two")
    assert own["context"]["calibration"]["slope"] == pytest.approx(slope, abs=0.02)
    assert other["context"]["calibration"]["slope"] == 1.0
    assert own["context"]["calibration"]["offset"] == other["context"]["calibration"]["offset"] == 0


async def test_a_conversation_keeps_its_image_rule_beside_an_encoding_that_the_former_release_reads() -> None:
    picture = user([{"type": "image_url", "image_url": {"url": "https://host.example/a.png"}}])
    messages: list[dict[str, Any]] = []
    async with world(ScriptedUpstream()) as w:
        for model in ("claude-sonnet-4-5", "gpt-4o"):
            messages.append(picture)
            body = await w.say(messages, model=model)
            messages.append(body["choices"][0]["message"])
        other = user([*picture["content"], {"type": "text", "text": ""}])
        branched = await w.say([*messages[:2], other], model="gpt-4o")
        stored = w.conversations()
        tokens = [[entry.tokens for entry in await w.store.read_log(one, 0, one.head_seq + 1)] for one in stored]
    assert branched["conversation_id"] == stored[-1].id != stored[0].id
    assert {one.encoding for one in stored} == {"o200k_base"}
    assert {one.token_counter_name for one in stored} == {"o200k_base+claude"}
    by_claude = load_token_counter("o200k_base+claude").count_message(as_item(picture))
    assert by_claude != COUNTER.count_message(picture)
    assert {row[at] for row in tokens for at in range(0, len(row), 2)} == {by_claude}


async def test_a_provider_that_cuts_silently_teaches_its_window() -> None:
    upstream = provider(window=4_096, cuts=True, answer=WORD * 100)
    messages: list[dict[str, Any]] = []
    async with world(upstream, window=32_768) as w:
        for _ in range(9):
            messages.append(text(600))
            body = await w.say(messages)
            messages.append(body["choices"][0]["message"])
        await until(lambda: "limit" in w.model_facts().get("upstream/m", {}))
        facts = await w.store.read_model_facts()
    assert facts["upstream/m"]["limit"]["tokens"] == 4_096
    assert body["context"]["window"] == 4_096
    assert body["usage"]["prompt_tokens"] < 4_096, "the view is cut by the gateway now"
    assert off(body) <= 0.05


@pytest.mark.parametrize("fits", [True, False])
async def test_where_only_an_estimate_says_too_long_the_provider_decides(fits: bool) -> None:
    upstream = provider(slope=0.8 if fits else 1.0, window=8_192)
    async with world(upstream, window=8_192) as w:
        answer = await w.post([text(9_000)])
    assert len(upstream.bodies) == 1
    assert answer.status_code == (200 if fits else 400)
    if fits:
        (warning,) = answer.json()["context"]["warnings"]
        assert "The provider decides." in warning
    else:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_what_cannot_fit_at_the_lowest_slope_is_refused_unasked() -> None:
    upstream = provider(window=8_192)
    async with world(upstream, window=8_192) as w:
        answer = await w.post([text(12_000)])
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert upstream.bodies == []


async def test_a_calibration_is_kept_for_the_model_that_answered() -> None:
    spare = provider(overhead=500)
    down: Callable[[dict[str, Any]], Reply] = lambda body: (  # noqa: E731
        spare.default(body) if body["model"] == "spare-1" else Reply({"error": {"message": "down"}}, 503)
    )
    models = {
        "m": {"provider": "upstream", "context_window": 8_192, "fallbacks": ["spare"]},
        "spare": {"provider": "upstream", "model": "spare-1", "context_window": 8_192},
    }
    retries = {"attempts": 1, "base_seconds": 0.01}
    async with world(ScriptedUpstream(default=down), models=models, retries=retries) as w:
        await w.say([text(200)])
        (kept,) = w.conversations()
    assert list(kept.state["calibration"]) == ["upstream/spare-1"]


async def test_a_fallback_learns_nothing_from_what_the_first_deployment_reported() -> None:
    counting, is_down = provider(overhead=500), False

    def answer(body: dict[str, Any]) -> Reply:
        return (
            Reply({"error": {"message": "down"}}, 503) if is_down and body["model"] == "m" else counting.default(body)
        )

    models = {
        "m": {"provider": "upstream", "context_window": 8_192, "fallbacks": ["spare"]},
        "spare": {"provider": "upstream", "model": "spare-1", "context_window": 8_192},
    }
    retries = {"attempts": 1, "base_seconds": 0.01}
    async with world(ScriptedUpstream(default=answer), models=models, retries=retries) as w:
        (first,) = await talk(w, text(200))
        is_down = True
        await talk(w, text(100), before=[text(200), first["choices"][0]["message"]])
        (kept,) = w.conversations()
    compared = {key: calibration.get("changed_reported", 0) for key, calibration in kept.state["calibration"].items()}
    assert compared == {"upstream/m": 0, "upstream/spare-1": 0}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_of_a_smaller_fallback_describes_the_view_that_was_sent(streamed: bool) -> None:
    def down(body: dict[str, Any]) -> Reply:
        if body["model"] != "spare-1":
            return Reply({"error": {"message": "down"}}, 503)
        if streamed:
            return Reply(pieces=[chunk({"content": "Fine."}), chunk({}, "stop"), usage_chunk(count(body)), DONE])
        return completion("Fine.", prompt_tokens=count(body))

    models = {
        "m": {"provider": "upstream", "context_window": 32_768, "fallbacks": ["spare"]},
        "spare": {"provider": "upstream", "model": "spare-1", "context_window": 4_096},
    }
    retries = {"attempts": 1, "base_seconds": 0.01}
    upstream = ScriptedUpstream(default=down)
    async with world(upstream, models=models, retries=retries) as w:
        history = [said for _ in range(8) for said in (text(500), assistant(WORD * 500))]
        answer = await w.post([*history, text(100)], stream=streamed)
        body = chunks(answer)[-1] if streamed else answer.json()
        (kept,) = w.conversations()
        path, headers = f"{w.base_url}/conversations/{kept.id}", {"authorization": "Bearer sk-one"}
        told = (await w.client.get(f"{path}/turns", headers=headers)).json()["data"][-1]
        seen = (await w.client.get(f"{path}/items/{told['id']}/context", headers=headers)).json()
    context = body["context"]
    assert (body["context_status"], context["window"], context["limit"]) == ("trimmed", 4_096, 3_891)
    assert context["dropped_messages"] > 8
    assert context["prompt_tokens"] == count(upstream.requests[-1]) <= 3_891
    assert answer.headers["x-context-tokens"] == f"{context['prompt_tokens']}/3891"
    assert [key for key in kept.state["views"] if key.endswith(":4096")]
    assert (told["window"], told["prompt_tokens"]) == (4_096, context["prompt_tokens"])
    assert (seen["exact"], seen["window"], seen["status"]) == (True, 4_096, "trimmed")


async def test_an_answer_after_an_overflow_reports_no_slope_that_could_not_be() -> None:
    upstream = provider(slope=2.4, window=8_192)
    history = [said for _ in range(6) for said in (text(400), assistant(WORD * 400))]
    async with world(upstream, window=8_192) as w:
        body = await w.say([*history, text(100)])
    calibration = body["context"]["calibration"]
    assert body["context"]["recovered"]
    assert calibration["slope"] == 1.6
    assert calibration["offset"] == pytest.approx(calibration["estimated_tokens"] * (1 - 1.6 / 2.4), rel=0.02)
    assert off(body) < 0.05


async def test_a_calibration_of_an_earlier_version_is_none() -> None:
    former = {"reported": 31.0, "estimated": 8.0, "overhead": [31.0, 3, 2.0], "last": [5, 3, 31, None]}
    upstream = provider(overhead=23, window=8_192)
    async with world(upstream, window=8_192) as w:
        first = await w.say([user("Hi")])
        (kept,) = w.conversations()
        kept.state["calibration"]["upstream/m"] = former
        await w.store.append(LogAppend(kept, kept.head_seq, []))
        body = await w.say([user("Hi"), assistant(first["choices"][0]["message"]["content"]), text(300)])
    assert body["context"]["calibration"]["slope"] == 1.0
    assert body["context"]["calibration"]["offset"] == 0
