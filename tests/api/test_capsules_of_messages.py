"""Compactions that a client of the Messages API asks for and keeps: before an answer, and in place of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest
from anthropic import AsyncAnthropic, BadRequestError
from anthropic.types.beta import BetaMessage

from tests.live import ScriptedUpstream
from tests.support.gateway import answering
from tests.support.messages_world import (
    MessagesUpstream,
    MessagesWorld,
    join_message,
    messages_world,
    text,
    tool_use,
)
from tests.support.responses_upstream import ResponsesUpstream, respond

RULE: Final = "The gate code is 4711. Never write it down."
WINDOW: Final = 8192
COMPACT: Final = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 3000}}
SUMMARIZE: Final = {"type": "summarize"}


def long_talk(turns: int = 12, words: int = 120) -> list[dict[str, Any]]:
    """A rule, then answers with questions."""
    talk = [{"role": "user", "content": RULE}]
    for turn in range(turns):
        talk.append({"role": "assistant", "content": f"Fine {turn}. " + f"word{turn} " * words})
        talk.append({"role": "user", "content": f"Question {turn}? " + f"ask{turn} " * words})
    return talk


def edits(**fields: Any) -> dict[str, Any]:
    return {"edits": [{**COMPACT, **fields}]}


def make_upstream(protocol: str) -> ScriptedUpstream:
    if protocol == "chat":
        return ScriptedUpstream(default=answering)
    return ResponsesUpstream(default=lambda body: respond("A summary: 4711." if is_summary(body) else "Fine."))


def is_summary(body: dict[str, Any]) -> bool:
    return "material to be summarized" in json.dumps(body)


def list_views(w: MessagesWorld) -> list[str]:
    """What the model got, without summarizers."""
    return [json.dumps(body) for body in w.upstream.requests if not is_summary(body)]


async def ask(w: MessagesWorld, messages: Sequence[dict[str, Any]], *, stream: bool, **fields: Any) -> dict[str, Any]:
    if not stream:
        return await w.create(messages, **fields)
    return join_message(await w.stream_events(messages, **fields))


def answer_turn(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": message["content"]}


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_begins_with_its_compaction(stream: bool, protocol: str) -> None:
    async with messages_world(make_upstream(protocol), window=WINDOW) as w:
        message = await ask(w, long_talk(), stream=stream, context_management=edits())
        assert [block["type"] for block in message["content"]] == ["compaction", "text"]
        block = message["content"][0]
        assert block["encrypted_content"].startswith("cc1.")
        assert "4711" in block["content"]
        assert message["stop_reason"] == "end_turn"
        compaction, answer = message["usage"]["iterations"]
        assert (compaction["type"], answer["type"]) == ("compaction", "message")
        assert compaction["output_tokens"] > 0
        assert answer["input_tokens"] == message["usage"]["input_tokens"]
        BetaMessage.model_validate(message, strict=True)
        following = await ask(
            w, [answer_turn(message), {"role": "user", "content": "Go on."}], stream=stream, context_management=edits()
        )
        assert following["conversation_id"] == message["conversation_id"]
        assert following["context_status"] == "summarized"
        assert [block["type"] for block in following["content"]] == ["text"], "nothing is compacted anew"
        assert "iterations" not in following["usage"]
        assert "ask11 ask11" in list_views(w)[-1], "the newest turn is verbatim"
        assert "ask1 ask1" not in list_views(w)[-1]
        assert "cc1." not in json.dumps(w.upstream.requests)
        assert "cc1." not in json.dumps([raw.decode() for raw in await w.raw_log()])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_may_ask_for_a_compaction_alone(stream: bool) -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        message = await ask(w, long_talk(), stream=stream, compaction=SUMMARIZE)
        (block,) = message["content"]
        assert (block["type"], block["signature"][:4]) == ("compaction", "cc1.")
        assert message["stop_reason"] == "compaction"
        assert [one["type"] for one in message["usage"]["iterations"]] == ["compaction"]
        assert message["usage"]["input_tokens"] == 0
        assert list_views(w) == [], "the model is not asked for an answer"
        BetaMessage.model_validate(message, strict=True)
        following = await ask(w, [answer_turn(message), {"role": "user", "content": "Go on."}], stream=stream)
        assert following["conversation_id"] == message["conversation_id"]
        assert "ask11 ask11" in list_views(w)[-1]
        assert "Go on." in list_views(w)[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compaction_may_pause_the_answer(stream: bool) -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        talk = long_talk()
        message = await ask(w, talk, stream=stream, context_management=edits(pause_after_compaction=True))
        assert [block["type"] for block in message["content"]] == ["compaction"]
        assert message["stop_reason"] == "compaction"
        assert list_views(w) == []
        # The client goes on with what it has got, and gets the answer to its question.
        following = await ask(
            w, [*talk, answer_turn(message)], stream=stream, context_management=edits(pause_after_compaction=True)
        )
        assert following["stop_reason"] == "end_turn"
        assert following["conversation_id"] == message["conversation_id"]
        assert "ask11 ask11" in list_views(w)[-1]
        short = await ask(w, [{"role": "user", "content": "Hi"}], stream=stream, context_management=edits())
        assert [block["type"] for block in short["content"]] == ["text"]


async def test_instructions_steer_the_summary() -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        await w.create(long_talk(), compaction={**SUMMARIZE, "instructions": "Keep all animals."})
        assert "Keep all animals." in json.dumps(w.upstream.requests[0])


async def test_the_sdk_streams_a_compaction_and_sends_it_back() -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        async with AsyncAnthropic(base_url=w.base_url.removesuffix("/v1"), api_key="sk-one") as client:
            asked: Any = {
                "model": "m",
                "max_tokens": 100,
                "context_management": edits(),
                "betas": ["compact-2026-01-12"],
            }
            async with client.beta.messages.stream(messages=long_talk(), **asked) as stream:  # type: ignore[arg-type]
                told = [event async for event in stream if event.type == "compaction"]
                message = await stream.get_final_message()
            assert len(told) == 1
            assert message.content[0].type == "compaction"
            following: Any = [{"role": "assistant", "content": message.content}, {"role": "user", "content": "Go on."}]
            answer: Any = await client.beta.messages.create(messages=following, **asked)
        assert answer.conversation_id == message.conversation_id  # type: ignore[attr-defined]
        assert "ask11 ask11" in list_views(w)[-1]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"content": "The gate code is 1234."}, "compaction_content_mismatch"),
        ({"signature": "cc1.AAAA"}, "compaction_signature_invalid"),
    ],
)
async def test_a_changed_block_is_refused_under_the_names_of_the_api(changed: dict[str, str], code: str) -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        message = await w.create(long_talk(), compaction=SUMMARIZE)
        block = {**message["content"][0], **changed}
        sent: Any = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]
        async with AsyncAnthropic(base_url=w.base_url.removesuffix("/v1"), api_key="sk-one", max_retries=0) as client:
            with pytest.raises(BadRequestError) as refused:
                await client.messages.create(model="m", max_tokens=10, messages=sent)
        error: Any = refused.value.body
        assert error["error"]["details"] == {"error_code": code}
        assert error["error"]["message"].startswith("messages.0.content.0: ")
        assert list_views(w) == []


@pytest.mark.parametrize(
    ("messages", "fields", "place", "code"),
    [
        ([], {"context_management": {"edits": []}}, "compaction: cannot be combined", None),
        ([], {"compaction": {"type": "other"}}, "compaction.type", None),
        (
            [{"role": "assistant", "content": [text("Hm."), tool_use()]}],
            {},
            "messages.1",
            "compaction_incomplete_turn",
        ),
    ],
)
async def test_a_compaction_that_cannot_be_made_is_refused(
    messages: list[dict[str, Any]], fields: dict[str, Any], place: str, code: str | None
) -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        talk = [{"role": "user", "content": RULE}, *messages]
        answer = await w.ask(talk, **{"compaction": SUMMARIZE, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["message"].startswith(place)
        assert error.get("details", {}).get("error_code") == code


async def test_nothing_but_a_compaction_is_nothing_to_summarize() -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        message = await w.create(long_talk(), compaction=SUMMARIZE)
        answer = await w.ask([answer_turn(message)], compaction=SUMMARIZE)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"] == {"error_code": "compaction_nothing_to_summarize"}


async def test_a_bad_edit_is_refused_at_its_place() -> None:
    async with messages_world(make_upstream("chat"), window=WINDOW) as w:
        answer = await w.ask(long_talk(1), context_management=edits(trigger={"type": "input_tokens", "value": 0}))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("context_management.edits.0.trigger.value")


@pytest.mark.parametrize("fields", [{"context_management": edits()}, {"compaction": SUMMARIZE}])
async def test_a_provider_of_the_api_compacts_itself(fields: dict[str, Any]) -> None:
    upstream = MessagesUpstream()
    async with messages_world(upstream, window=WINDOW) as w:
        talk = long_talk(2)
        message = await w.create(talk, **fields)
        assert [block["type"] for block in message["content"]] == ["text"]
        assert {name: upstream.requests[-1][name] for name in fields} == fields
