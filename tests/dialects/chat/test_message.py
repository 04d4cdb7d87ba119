"""A chat message as an item: what the core reads of it, whatever shape the client gave it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.item import Audio, CountedContent, File, Image, OtherPart, ToolCall
from app.dialects.body.message import ChatMessage
from app.errors import InvalidRequest

FUNCTION = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "ls"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id"]), inner),
    max_leaves=6,
)
FIELDS = ["role", "content", "name", "refusal", "tool_calls", "tool_call_id", "function_call", "reasoning", "audio"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"tool_calls": []}, []),
        ({"tool_calls": [FUNCTION]}, [ToolCall("call_1", "look", '{"a": 1}', "function")]),
        ({"tool_calls": [CUSTOM]}, [ToolCall("call_2", "run", "ls", "custom")]),
        ({"function_call": {"name": "look", "arguments": "{}"}}, [ToolCall(None, "look", "{}", "function")]),
        ({"tool_calls": [{"id": 7, "function": {"arguments": {"a": 1}}}]}, [ToolCall(None, "", '{"a":1}', "function")]),
        ({"tool_calls": [{"type": "mcp"}]}, [ToolCall(None, "mcp", '{"type":"mcp"}', "other")]),
    ],
)
def test_calls_of_every_kind_are_read(fields: dict[str, Any], expected: list[ToolCall]) -> None:
    message = ChatMessage.from_body({"role": "assistant", "content": None, **fields})
    assert message.calls == expected
    assert message.calls_tools == bool(expected)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("plain", "plain"),
        ({"type": "text", "text": "said"}, "said"),
        (
            {"type": "image_url", "image_url": {"url": "http://x/y", "detail": "low"}},
            Image("http://x/y", "low"),
        ),
        ({"type": "image_url", "image_url": "http://x/y"}, Image("http://x/y")),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, Audio("AAAA")),
        ({"type": "file", "file": {"file_id": "file-1"}}, File(None)),
        ({"type": "image", "source": {}}, OtherPart({"type": "image", "source": {}})),
    ],
)
def test_parts_are_counted_by_their_kind(part: object, expected: object) -> None:
    counted = ChatMessage.from_body({"role": "user", "content": [part]}).counted_content
    assert counted == CountedContent("user", [expected], "", [])  # type: ignore[list-item]


def test_a_message_is_decoded_when_something_of_it_is_read() -> None:
    message = ChatMessage(b"[no JSON")
    assert message.raw == b"[no JSON"
    with pytest.raises(InvalidRequest):
        _ = message.role


def test_an_edited_message_keeps_what_the_operations_do_not_touch() -> None:
    body = {"role": "tool", "tool_call_id": "call_1", "content": "long", "extra": 1}
    edited = ChatMessage.from_body(body).edit([("say", "gone")])
    assert orjson.loads(edited.raw) == {**body, "content": "gone"}
    assert (edited.result_for, edited.text) == ("call_1", "gone")


@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_whatever_a_message_holds_can_be_read(body: dict[str, Any]) -> None:
    message = ChatMessage(orjson.dumps(body))
    read = (message.role, message.name, message.text, message.transcript_text, message.refusal_text, message.result_for)
    assert all(isinstance(one, str | None) for one in read)
    assert all(isinstance(one, str) for call in message.calls for one in (call.name, call.arguments))
    assert isinstance(message.counted_content.role, str)
    assert (message.canonical_form or message.canonical_note) is not None
    assert message.is_in_skeleton in (True, False)
    assert message.has_reasoning in (True, False)
    assert isinstance(message.canonical_answer, str)
    assert message.attachments == []
