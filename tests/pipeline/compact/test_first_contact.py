"""A history that is much longer than the window arrives at once: how many summaries its client waits for, and how many
one after another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.context.count.tokenizers import load_tokenizer
from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.chat_counter import ChatCounter
from tests.support.conversations_client import WINDOW, question
from tests.support.gateway import assistant, is_summary, pick_word, summaries_asked, until, user, world

COUNTER = ChatCounter(load_tokenizer("o200k_base"))
HISTORY_TOKENS = 20_000
SUMMARY = " ".join(f"fact{number}" for number in range(60))
AHEAD = {"additive": {"prepare_ratio": 0.6, "blocking": False}}


QUIET_SECONDS = 1.0
"""After so long without a further call a round is over; on a busy machine the calls of one round come apart."""


@dataclass
class Rounds:
    """Answers summary calls `QUIET_SECONDS` after the last call of their round. A call that comes after that, since it
    waited for another one, begins the next round."""

    number: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    def answer(self, body: dict[str, Any]) -> Reply:
        if not is_summary(body):
            return completion("Noted.")
        if not self.number or self.gate.is_set():
            self.number, self.gate = self.number + 1, asyncio.Event()
        elif self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self.gate.set)
        reply = completion(f"{SUMMARY} {pick_word(body)}")
        reply.gate = self.gate
        return reply


def history(words: int) -> list[dict[str, Any]]:
    """Turns of so many words, up to the history's size."""
    messages: list[dict[str, Any]] = []
    tokens = 0
    while tokens < HISTORY_TOKENS:
        turn = [user(question(len(messages), words)), assistant("Noted.")]
        tokens += sum(map(COUNTER.count_message, turn))
        messages += turn
    return messages


@pytest.mark.parametrize("words", [10, 60, 200])
async def test_a_long_history_is_summarized_in_one_round_before_the_first_answer(words: int) -> None:
    rounds = Rounds()
    upstream = ScriptedUpstream(default=rounds.answer)
    messages = [*history(words), user("And now?")]
    async with world(upstream, window=WINDOW, policies=AHEAD) as gateway:
        body = await gateway.say(messages)
        asked, waited = len(summaries_asked(upstream)), rounds.number
        assert (body["context_status"], waited) == ("summarized", 1)
        assert 6 <= asked <= 12
        await until(nothing_is_prepared)
        assert [chunk for chunk in gateway.chunks() if chunk.folds], "made after the answer"
        asked = len(summaries_asked(upstream))
        await gateway.say([*messages, body["choices"][0]["message"], user("And then?")])
        assert len(summaries_asked(upstream)) == asked


async def test_a_long_history_of_a_checkpoint_is_read_in_one_round_and_told_in_a_second() -> None:
    rounds = Rounds()
    upstream = ScriptedUpstream(default=rounds.answer)
    async with world(upstream, window=WINDOW, policy="checkpoint") as gateway:
        await gateway.say([*history(60), user("And now?")])
    assert rounds.number == 2


async def test_who_has_nothing_made_ahead_waits_for_the_fold_too() -> None:
    rounds = Rounds()
    upstream = ScriptedUpstream(default=rounds.answer)
    async with world(upstream, window=WINDOW, policies={"additive": {"prepare_ratio": 1.0}}) as gateway:
        await gateway.say([*history(60), user("And now?")])
        assert [chunk for chunk in gateway.chunks() if chunk.folds]
    assert rounds.number == 2
