"""Messages of the Messages API: read as any other, with their bytes, and edited."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given

from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item
from app.dialects.messages.message import MessagesMessage
from app.dialects.missing_tool_results import MISSING_RESULT_TEXT, add_missing_tool_results
from app.dialects.sealed_parts import has_sealed_parts, list_sealed_parts
from tests.dialects.messages.talks import TALKS, Talk, split

CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "x" * 200}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen " * 50}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}


def make(role: str, *blocks: dict[str, Any]) -> MessagesMessage:
    return MessagesMessage.from_native(orjson.dumps({"role": role, "content": [*blocks]}))


@given(TALKS)
def test_a_talk_is_the_same_in_chat_and_in_messages(talk: Talk) -> None:
    chat, messages = talk
    units = [decode_item(raw) for raw in split(messages)]
    expected = [ChatMessage.from_body(body) for body in chat]
    assert [one.role for one in units] == [one.role for one in expected]
    assert [one.canonical_form for one in units] == [one.canonical_form for one in expected]
    assert [one.text for one in units] == [one.text for one in expected]
    assert [one.calls for one in units] == [one.calls for one in expected]
    assert [one.result_for for one in units] == [one.result_for for one in expected]


def test_a_message_keeps_its_bytes() -> None:
    raw = b'{ "role" : "user", "content":[ {"type":"text", "text":"Hi", "new": 1} ] }'
    message = MessagesMessage.from_native(raw)
    assert message.native == raw
    assert decode_item(message.raw) == message
    assert message.raw_blocks == [b'{"type":"text", "text":"Hi", "new": 1}']


def test_what_a_client_moves_about_does_not_change_the_identity() -> None:
    plain = make("user", {"type": "text", "text": "Hi"})
    marked = make("user", {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}})
    assert plain.canonical_form == marked.canonical_form
    answer = {"type": "text", "text": "Yes."}
    assert make("assistant", THINKING, answer).canonical_form == make("assistant", answer).canonical_form


def test_thinking_is_reasoning_and_no_text() -> None:
    message = make("assistant", THINKING, {"type": "text", "text": "Yes."}, CALL)
    assert message.has_reasoning
    assert message.text == message.transcript_text == "Yes."
    assert make("assistant", REDACTED).has_reasoning
    assert has_sealed_parts(message.raw, "anthropic")
    assert list_sealed_parts(make("assistant", THINKING, REDACTED).raw) == ["c2ln", "ZGF0YQ=="]


def test_a_block_that_is_not_known_is_counted_and_told() -> None:
    block = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "tides"}}
    (call,) = make("assistant", block).hosted_calls
    assert (call.kind, call.name) == ("other", "server_tool_use")
    assert "tides" in call.arguments
    assert make("assistant", block).canonical_form is not None


@pytest.mark.parametrize(
    ("operation", "message", "check"),
    [
        (("say", "gone"), make("user", RESULT), lambda one: one[0] == {**RESULT, "content": "gone"}),
        (
            ("say", "gone"),
            make("assistant", THINKING, CALL),
            lambda one: one == [THINKING, {"type": "text", "text": "gone"}, CALL],
        ),
        (("inputs",), make("assistant", CALL), lambda one: one == [{**CALL, "input": {}}]),
        (("arguments", 60), make("assistant", CALL), lambda one: len(orjson.dumps(one[0]["input"])) <= 60),
        (("contents", 80), make("user", RESULT), lambda one: len(one[0]["content"]) < 130),
        (("shorten", 0.2), make("user", {"type": "text", "text": "a " * 200}), lambda one: len(one[0]["text"]) < 150),
        (("thoughtless",), make("assistant", THINKING, REDACTED, CALL), lambda one: one == [CALL]),
    ],
)
def test_messages_are_edited(operation: tuple[Any, ...], message: MessagesMessage, check: Any) -> None:
    edited = message.edit([operation])
    assert edited.native_role == message.native_role
    assert check(edited.blocks)
    assert edited == message.edit([operation])


def test_a_missing_result_is_added_behind_its_message() -> None:
    raws = split(
        [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [CALL, {**CALL, "id": "toolu_2"}]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "Go on."}]},
        ]
    )
    closed = [decode_item(raw) for raw in add_missing_tool_results(raws)]
    assert [one.role for one in closed] == ["user", "assistant", "tool", "tool", "user"]
    assert closed[3].result_for == "toolu_2"
    assert closed[3].text == MISSING_RESULT_TEXT
