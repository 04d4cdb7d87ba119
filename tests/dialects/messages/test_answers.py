"""Answers of the Messages API: what a decoder reads, an encoder writes, however it was cut."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.answer_events import AnswerValue, Begin, CallBegin, CallText, Finish, Reasoning, Sealed, Text, Usage
from app.dialects.assembled_answer import AssembledAnswer
from app.dialects.body.message import decode_body
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.provider_dialect import MessagesProviderDialect
from app.dialects.messages.stream_decoder import MessagesStreamDecoder, translate_usage
from app.dialects.messages.stream_encoder import MessagesStreamEncoder, build_usage, write_event, write_whole_block
from app.dialects.sse import SseDecoder

THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, 2]}}
EMPTY_USE = {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}
SEARCH = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}}
BLOCKS = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=9).map(lambda text: {"type": "text", "text": text}),
        st.sampled_from([THINKING, REDACTED, USE, EMPTY_USE, SEARCH]),
    ),
    max_size=6,
)
USAGE = {"input_tokens": 5, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 4}


def read(decoder: MessagesStreamDecoder, stream: bytes) -> list[AnswerValue]:
    return [value for event in SseDecoder().feed(stream) for value in decoder.decode(event.data or b"", event.name)]


def write_stream(blocks: list[dict[str, Any]], reason: str = "end_turn") -> bytes:
    begun = {"id": "msg_1", "model": "m", "usage": {**USAGE, "output_tokens": 1}}
    frames = [write_event("message_start", {"message": begun})]
    frames += [write_whole_block(index, block) for index, block in enumerate(blocks)]
    ended = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 4}}
    return b"".join([*frames, write_event("message_delta", ended), write_event("message_stop", {})])


@given(BLOCKS)
def test_a_stream_and_a_whole_answer_say_the_same(blocks: list[dict[str, Any]]) -> None:
    streamed, whole = MessagesStreamDecoder(), MessagesStreamDecoder()
    body = orjson.dumps({"id": "msg_1", "model": "m", "content": blocks, "stop_reason": "end_turn", "usage": USAGE})
    whole.add_whole(body)
    values = read(streamed, write_stream(blocks))
    assert streamed.build_item().blocks == whole.build_item().blocks == blocks
    assert streamed.build_facts() == whole.build_facts()
    assert streamed.is_complete
    said, said_whole = AssembledAnswer(values), AssembledAnswer(whole.decode_whole(body))
    assert decode_body(said.build_item()) == decode_body(said_whole.build_item())


@given(BLOCKS)
def test_values_become_the_same_blocks(blocks: list[dict[str, Any]]) -> None:
    """Blocks that no value tells of are left out, and texts that then are neighbours are one."""
    encoder = MessagesStreamEncoder("msg_1")
    frames = encoder.encode(read(MessagesStreamDecoder(), write_stream(blocks))) + encoder.write_end()
    decoder = MessagesStreamDecoder()
    read(decoder, frames)
    assert decoder.build_item().blocks == encoder.blocks
    kinds = ("tool_use", "thinking", "redacted_thinking")
    assert [one for one in encoder.blocks if one["type"] in kinds] == [one for one in blocks if one["type"] in kinds]
    texts = "".join(one["text"] for one in blocks if one["type"] == "text")
    assert "".join(one["text"] for one in encoder.blocks if one["type"] == "text").replace("\n\n", "") == texts.replace(
        "\n\n", ""
    )


def test_a_call_waits_until_the_input_before_it_is_whole() -> None:
    encoder = MessagesStreamEncoder("msg_1")
    values: list[AnswerValue] = [CallBegin(0, "a", "f"), CallBegin(1, "", "g"), CallText(0, '{"x"'), CallText(1, "{}")]
    frames = encoder.encode(values) + encoder.encode([CallText(0, ":1}")]) + encoder.write_end()
    decoder = MessagesStreamDecoder()
    read(decoder, frames)
    first, second = decoder.build_item().blocks
    assert (first["input"], second["input"], second["id"]) == ({"x": 1}, {}, "toolu_1_1")
    assert first == {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}


def test_texts_of_different_blocks_are_paragraphs() -> None:
    encoder = MessagesStreamEncoder("msg_1")
    encoder.encode([Text("a", 0), Text("b", 0), Text("c", 1), Reasoning("hm"), Text("d", 2)])
    message = MessagesMessage.from_raw_blocks("assistant", list(map(orjson.dumps, encoder.blocks)))
    assert [block["type"] for block in encoder.blocks] == ["text", "thinking", "text"]
    assert message.text == "ab\n\nc\n\nd"


def test_what_another_provider_has_sealed_is_left_out() -> None:
    encoder = MessagesStreamEncoder("msg_1")
    assert encoder.encode([Sealed("reasoning", "gAAA")]) == b""


def test_usage_counts_the_tokens_of_the_cache_once() -> None:
    usage = translate_usage(USAGE)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 4, 14)
    assert build_usage(usage) == USAGE


@pytest.mark.parametrize(
    ("frame", "start"),
    [
        (b'{"type":"message_start","message":{}}', None),
        (b'{"type":"ping"}', None),
        (b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}', True),
    ],
)
def test_the_first_event_tells_what_a_stream_is(frame: bytes, start: object) -> None:
    assert MessagesProviderDialect().find_answer_start(frame, b"") is start


def test_an_error_ends_the_stream() -> None:
    decoder, error = MessagesStreamDecoder(), {"type": "error", "error": {"type": "overloaded_error", "message": "No."}}
    assert MessagesProviderDialect().find_answer_start(orjson.dumps(error), b"error") == orjson.dumps(error)
    decoder.decode(orjson.dumps(error))
    assert decoder.error_data == orjson.dumps(error)
    assert decoder.has_ended


def test_the_end_is_told_in_the_words_of_the_log() -> None:
    for reason, finish in (("tool_use", "tool_calls"), ("max_tokens", "length"), ("pause_turn", "pause_turn")):
        values = read(MessagesStreamDecoder(), write_stream([], reason))
        assert [value.reason for value in values if isinstance(value, Finish)] == [finish]
        assert isinstance(values[0], Begin)
        assert isinstance(values[-1], Usage)
