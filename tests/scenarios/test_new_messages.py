"""What a client brings that the model has not seen reaches it whole, over HTTP, where it fits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import ScriptedUpstream, completion
from tests.support.gateway import (
    answering,
    assistant,
    call,
    is_summary,
    result,
    shown,
    summaries_asked,
    system,
    user,
    world,
)

QUESTION = user("What do they have in common?")


def document(words: int, name: str) -> dict[str, Any]:
    """About a token a word."""
    return user(" ".join(f"{name}{number % 90}" for number in range(words // 2)))


def talk(turns: int, words: int) -> list[dict[str, Any]]:
    return [
        message
        for turn in range(turns)
        for message in (
            user(f"Question {turn}: {document(words, 'w')['content']}"),
            assistant(f"Answer {turn}: " + "well " * words),
        )
    ]


FIRST_REQUESTS = {
    "a document, then the question": [document(93_000, "doc"), QUESTION],
    "three files, then the question": [*(document(31_000, name) for name in ("map", "doc", "log")), QUESTION],
    "a note before the question": [document(93_000, "doc"), system("The user opened a file."), QUESTION],
    "a short talk, then a document": [*talk(3, 2_000), document(80_000, "doc"), QUESTION],
}


@pytest.mark.parametrize("name", FIRST_REQUESTS)
@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune"])
async def test_the_first_request_with_new_documents_is_sent_as_it_is(name: str, policy: str) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=128_000, policy=policy) as gateway:
        body = await gateway.say(FIRST_REQUESTS[name])
    assert body["context"]["prompt_tokens"] > 80_000
    assert (shown(upstream), summaries_asked(upstream)) == ([FIRST_REQUESTS[name]], [])


async def test_files_that_an_editor_adds_before_each_question_are_whole_in_every_turn() -> None:
    upstream = ScriptedUpstream(default=answering)
    history: list[dict[str, Any]] = []
    usual = {"additive": {"blocking": False, "prepare_ratio": 0.6}}
    async with world(upstream, window=8_192, policies=usual) as gateway:
        for turn in range(16):
            files = [document(2_400, f"t{turn}a"), document(1_200, f"t{turn}b")]
            asked = user(f"Change number {turn}.")
            body = await gateway.say([*history, *files, asked])
            assert shown(upstream)[-1][-3:] == [*files, asked]
            history += [asked, body["choices"][0]["message"]]


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune"])
async def test_two_rounds_that_an_agent_sends_at_once_are_whole(policy: str) -> None:
    upstream = ScriptedUpstream(default=answering)
    history = [*talk(4, 400), user("Find it."), assistant(None, tool_calls=[call("read", call_id="one")])]
    async with world(upstream, window=8_192, policy=policy) as gateway:
        await gateway.say(history[:-1])
        rounds = [
            result(document(2_000, "first")["content"], "one"),
            assistant(None, tool_calls=[call("read", call_id="two")]),
            result(document(2_000, "second")["content"], "two"),
        ]
        await gateway.say([*history, *rounds])
    assert shown(upstream)[-1][-3:] == rounds


async def test_the_last_words_stay_after_a_switch_to_a_smaller_model() -> None:
    """128k to 8k with 70k of log: what was just said is there, and the window is used."""
    summary = " ".join(f"w{number}" for number in range(60))
    upstream = ScriptedUpstream(default=lambda body: completion(summary) if is_summary(body) else answering(body))
    history = talk(260, 125)
    windows = {name: {"provider": "upstream", "context_window": size} for name, size in SWITCHED.items()}
    async with world(upstream, window=128_000, models=windows) as gateway:
        body = await gateway.say([*history, user("Go on.")], model="wide")
        history += [user("Go on."), body["choices"][0]["message"]]
        for model in ("small", "middle", "tiny", "wide", "tiny", "small"):
            for turn in range(2):
                asked = user(f"What did you just say? I ask {model} {turn}.")
                body = await gateway.say([*history, asked], model=model)
                context = body["context"]
                assert shown(upstream)[-1][-5:] == [*history[-4:], asked], model
                history += [asked, body["choices"][0]["message"]]
            assert context["prompt_tokens"] >= 0.45 * min(context["window"], 60_000), (model, context)


SWITCHED = {"wide": 128_000, "middle": 32_000, "small": 8_192, "tiny": 4_096}
