"""Sixty turns over ten topics at a window of 8k: every topic's facts stay within reach, at a baseline that grows
linearly.

With recursive summaries, the input after each of four compactions was seen to grow 1,565 → 2,362 → 3,280 → 4,076 tokens
while the last probe had lost the early topics. Summaries that are made once and kept must do better on both.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import httpx
import pytest

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.context.count.vocabulary import find_encoding_name
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from demo.script import SYSTEM, TOPICS, Turn, conversation
from demo.stored import read
from migrations.run import prepare_database
from tests.live import gateway, serving

WINDOW = 8192
THRESHOLD = int(0.7 * WINDOW)
RECURSIVE_BASELINES = (1_565, 2_362, 3_280, 4_076)
MOST_GROWTH = 2.5
"""No step between baselines may be larger than this many times the smallest."""


@dataclass(frozen=True)
class Held:
    """The conversation as it went."""

    turns: list[Turn]
    answers: list[Mapping[str, Any]]
    messages: list[dict[str, Any]]
    asked: list[dict[str, Any]]
    """Bodies that reached the model, summary calls left out."""
    database_url: str

    def text(self, at: int) -> str:
        return str(self.answers[at]["choices"][0]["message"]["content"])

    @property
    def baselines(self) -> list[int]:
        """What was sent in each turn that compacted, quotations aside."""
        return [unquoted_tokens(answer) for answer in self.answers if answer["context"]["compaction"]["ran"]]


def unquoted_tokens(answer: Mapping[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens"]) - int(answer["context"]["quoted_tokens"])


@cache
def _counter(model: str) -> TokenCounter:
    return TokenCounter(load_tokenizer(find_encoding_name(model)))


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    database_url = f"sqlite:///{tmp_path_factory.mktemp('proof')}/proof.db"
    prepare_database(database_url, auto_migrate=True)
    return asyncio.run(_hold(database_url))


async def _hold(database_url: str) -> Held:
    simulator = Simulator(SimulatorOptions(), _counter, clock=lambda: 0.0, new_id=lambda: uuid.uuid4().hex)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    answers = []
    async with (
        serving(SimulatorApp(simulator), lifespan="off") as upstream,
        # User text raises the threshold by what it takes; here summaries alone are looked at.
        gateway(
            upstream, database=database_url, window=WINDOW, policies={"additive": {"user_text_ratio": 0}}
        ) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=30) as client,
    ):
        for turn in conversation():
            messages.append({"role": "user", "content": turn.text})
            answered = await client.post("/chat/completions", json={"model": "sim-8k", "messages": messages})
            assert answered.status_code == 200, answered.text
            answers.append(answered.json())
            messages.append({"role": "assistant", "content": answers[-1]["choices"][0]["message"]["content"]})
    bodies = [request["body"] for request in simulator.recorded_requests if request["path"] == "/chat/completions"]
    asked = [body for body in bodies if "material to be summarized" not in body["messages"][-1]["content"]]
    return Held(conversation(), answers, messages[1:], asked, database_url)


def test_every_turn_is_answered(held: Held) -> None:
    assert len(held.answers) == len(held.asked) == 60
    assert all(held.text(at) for at in range(60))


def test_no_prompt_is_ever_over_the_threshold(held: Held) -> None:
    assert max(unquoted_tokens(answer) for answer in held.answers) <= THRESHOLD
    assert max(answer["usage"]["prompt_tokens"] for answer in held.answers) <= WINDOW - round(0.05 * WINDOW)


def test_the_count_is_within_a_twentieth_of_the_models(held: Held) -> None:
    for answer in held.answers:
        assert answer["context"]["prompt_tokens"] == pytest.approx(answer["usage"]["prompt_tokens"], rel=0.05)


def test_each_probe_is_answered_with_the_fact(held: Held) -> None:
    missed = [
        (turn.number, turn.expected, held.text(at))
        for at, turn in enumerate(held.turns)
        if turn.expected is not None and turn.expected not in held.text(at)
    ]
    assert missed == []


def test_every_topics_facts_are_in_the_last_request(held: Held) -> None:
    last = "\n".join(message["content"] for message in held.asked[-1]["messages"])
    reachable = {topic: sum(fact in last for fact, _ in said) for topic, said in TOPICS}
    assert reachable == {topic: len(said) for topic, said in TOPICS}


def test_the_baseline_grows_about_linearly_and_slower_than_with_recursive_summaries(held: Held) -> None:
    assert len(held.baselines) >= 4
    steps = [after - before for before, after in pairwise(held.baselines)]
    assert all(step > 0 for step in steps)
    assert max(steps) <= MOST_GROWTH * min(steps)
    recursive = [after - before for before, after in pairwise(RECURSIVE_BASELINES)]
    assert max(steps) < min(recursive)


def test_summaries_are_added_and_never_rewritten(held: Held) -> None:
    shown = [[(one["id"], one["tokens"]) for one in answer["context"]["summaries"]] for answer in held.answers]
    assert all(after[: len(before)] == before for before, after in pairwise(shown))
    assert [len(summaries) for summaries in shown][-1] == len(held.baselines)


def test_between_compactions_each_prompt_begins_with_the_one_before(held: Held) -> None:
    for at, (before, after) in enumerate(pairwise(held.asked), 1):
        quoted_before, quoted = (held.answers[place]["context"]["quoted"] for place in (at - 1, at))
        stays = quoted[: len(quoted_before)] == quoted_before
        if stays and not held.answers[at]["context"]["compaction"]["ran"]:
            assert after["messages"][: len(before["messages"])] == before["messages"]


def test_the_status_says_when_a_summary_stood_in(held: Held) -> None:
    first = next(at for at, answer in enumerate(held.answers) if answer["context"]["compaction"]["ran"])
    statuses = [answer["context_status"] for answer in held.answers]
    assert statuses == ["full"] * first + ["summarized"] * (60 - first)


async def test_every_message_is_stored_in_order(held: Held) -> None:
    names = {answer["conversation_id"] for answer in held.answers}
    assert len(names) == 1
    stored = await read(held.database_url, names.pop())
    assert stored.holds(held.messages)
    assert [entry.seq for entry in stored.log] == list(range(120))
    assert [(chunk.from_seq, chunk.to_seq) for chunk in stored.chunks] == list(
        pairwise([0, *(chunk.to_seq for chunk in stored.chunks)])
    )
