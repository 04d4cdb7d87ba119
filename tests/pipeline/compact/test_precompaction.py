"""Summaries that are made ahead, and turns that come while one is being made."""

from __future__ import annotations

import asyncio

from app.conversation.conversation_types import Summary
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.conversations_client import WINDOW, question
from tests.support.gateway import World, is_summary, pick_word, summaries_asked, until, user, world

TURNS = 60


async def streamed(gateway: World, number: int, waits: asyncio.Event) -> None:
    """A turn of conversation `c`; `waits` is set when its client is told to wait for a summary."""
    async with gateway.client.stream(
        "POST",
        f"{gateway.base_url}/chat/completions",
        json={"model": "m", "messages": [user(question(number))], "conversation": "c", "stream": True},
        headers={"authorization": "Bearer sk-one"},
    ) as answer:
        async for line in answer.aiter_lines():
            if "compaction_started" in line:
                waits.set()
            assert "error" not in line


async def test_who_crosses_the_line_while_a_summary_is_being_made_uses_that_one() -> None:
    gate, waits = asyncio.Event(), asyncio.Event()

    def answer(body: dict[str, object]) -> Reply:
        if not is_summary(body):
            return stream("Noted.")
        reply = completion(f"They spoke of {pick_word(body)}.")
        reply.gate = gate
        return reply

    upstream = ScriptedUpstream(default=answer)
    async with world(upstream, window=WINDOW) as gateway:
        for number in range(TURNS):
            turn = asyncio.create_task(streamed(gateway, number, waits))
            told = asyncio.create_task(waits.wait())
            await asyncio.wait({turn, told}, return_when=asyncio.FIRST_COMPLETED)
            if waits.is_set():
                gate.set()
            told.cancel()
            await turn
        await until(nothing_is_prepared)
        made = gateway.chunks()
    assert waits.is_set()
    assert len(summaries_asked(upstream)) == len(made)
    ranges = sorted((chunk.from_seq, chunk.to_seq) for chunk in made if not chunk.folds)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]


async def test_who_crosses_the_line_while_a_checkpoint_is_being_made_waits_for_that_one() -> None:
    gate = asyncio.Event()

    def answer(body: dict[str, object]) -> Reply:
        reply = completion(f"They spoke of {pick_word(body)}." if is_summary(body) else "Noted.")
        reply.gate = gate if is_summary(body) else None
        return reply

    upstream, messages = ScriptedUpstream(default=answer), []
    async with world(upstream, window=WINDOW, policy="checkpoint") as gateway:
        for number in range(TURNS):
            messages.append(user(question(number)))
            turn = asyncio.create_task(gateway.say(messages))
            await asyncio.wait({turn}, timeout=0.3)
            if not turn.done():
                break
            messages.append((await turn)["choices"][0]["message"])
            await asyncio.sleep(0.02)
        assert len(summaries_asked(upstream)) == 1, "it was begun before the line was crossed"
        gate.set()
        body = await turn
        await until(nothing_is_prepared)
    assert len(summaries_asked(upstream)) == 1
    assert body["context_status"] == "summarized"
    assert (body["context"]["compaction"]["ran"], len(body["context"]["summaries"])) == (True, 1)


async def test_a_long_answer_does_not_bring_the_next_summary_forward() -> None:
    """The next request brings a question. Its answer counts when it has been given."""
    window, answer_tokens = 16_384, 1_500
    upstream = ScriptedUpstream(
        default=lambda body: completion(
            f"They spoke of {pick_word(body)}." if is_summary(body) else "word " * answer_tokens
        )
    )
    async with world(upstream, window=window, policies={"additive": {"prepare_ratio": 0.3}}) as gateway:
        for number in range(TURNS):
            body = await gateway.say([user(question(number, 8))], conversation="c")
            await until(nothing_is_prepared)
            if summaries_asked(upstream):
                break
    said = body["context"]["prompt_tokens"] + answer_tokens
    assert 0.65 * window <= said <= 0.7 * window + answer_tokens, "a twentieth of the window before the line"


async def test_a_summary_that_needs_a_fold_gets_it_before_the_next_turn() -> None:
    def answer(body: dict[str, object]) -> Reply:
        said = f"They spoke of {pick_word(body)}. " + "And so it went on. " * 90
        return completion(said if is_summary(body) else "Noted.")

    policies = {"additive": {"blocking": False, "fold_ratio": 0.15, "prepare_ratio": 1, "recall": "off"}}
    async with world(ScriptedUpstream(default=answer), window=8_192, policies=policies) as gateway:
        ranges: list[Summary] = []
        for number in range(120):
            await gateway.say([user(question(number, words=40))], conversation="c")
            await until(nothing_is_prepared)
            ranges = [chunk for chunk in gateway.chunks() if not chunk.folds]
            if len(ranges) == 3:
                break
        folds = [chunk for chunk in gateway.chunks() if chunk.folds]
    assert max(fold.to_seq for fold in folds) == max(chunk.to_seq for chunk in ranges)
