"""A response is the same whole, streamed, stored, and read again; a compaction may run before it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from app.conversation.conversation_types import LogMessage
from app.conversation.item import Item
from app.dialects.answer_decoding import Answer
from app.dialects.answer_format import EventStyle, Progress, StoredAnswer
from app.dialects.body.message import ChatMessage
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.responses.answer_format import ResponsesAnswerFormat
from app.errors import ContextLengthExceeded, UpstreamUnavailable
from tests.dialects.responses.streams import (
    ALL_FIELDS,
    CREATED_AT,
    DONE,
    RESPONSE_ID,
    STATUS_FIELDS,
    RelayedStream,
    call_chunk,
    chunk,
    make_format,
    usage_chunk,
)
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import accumulate_events, validate_event, validate_response

CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
CUSTOM_CALL = {"id": "call_b", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
MESSAGES: Mapping[str, dict[str, Any]] = {
    "text": {"content": "Hello."},
    "reasoning and text": {"reasoning_content": "hm", "content": "Hello."},
    "calls": {"content": "I look.", "tool_calls": [CALL, {**CALL, "id": "call_c"}]},
    "a custom call": {"content": None, "tool_calls": [CUSTOM_CALL]},
    "a refusal": {"content": None, "refusal": "I will not."},
    "a namespaced call": {
        "content": None,
        "tool_calls": [{**CALL, "function": {"name": "crm__find", "arguments": ""}}],
    },
    "nothing": {"content": ""},
}
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{"type": "function", "name": "find", "parameters": {}, "strict": True}],
}
STARTED = {"type": "compaction_started", "input_tokens": 9000, "context_window": 8192}
COMPLETED = {"type": "compaction_completed", "duration_ms": 12}


def make_completion(message: Mapping[str, Any], finish_reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return orjson.dumps({"id": "chatcmpl-1", "model": "provider-model", "choices": [choice], "usage": USAGE})


def read_whole(answer_format: ResponsesAnswerFormat, body: bytes, protocol: str = "openai") -> Answer:
    """Reads a provider's body, as the pipeline does before the answer is rendered."""
    answer = PROVIDER_DIALECTS[protocol].make_decoder("upstream")
    answer.add_whole(body)
    return answer_format.translate_whole_answer(answer, body)[0]


def stream_of(message: Mapping[str, Any], finish_reason: str) -> RelayedStream:
    pieces = [chunk({name: value}) for name, value in message.items() if name != "tool_calls" and value is not None]
    for index, call in enumerate(message.get("tool_calls", ())):
        pieces.append(chunk({"tool_calls": [{"index": index, **call}]}))
    pieces += [chunk({}, finish_reason), b'data: {"choices":[],"usage":%b}\n\n' % orjson.dumps(USAGE), DONE]
    return RelayedStream(pieces, answer_format=make_format(tools=[CRM]))


def make_entry(message: Item, finish_reason: str, **more_facts: object) -> LogMessage:
    facts = {"id": RESPONSE_ID, "model": "provider-model", "finish_reason": finish_reason, "usage": USAGE, **more_facts}
    created_at = datetime.fromtimestamp(CREATED_AT + 60, UTC)
    return LogMessage(1, message, b"", b"", True, 1, 1, True, created_at=created_at, meta=facts)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("name", MESSAGES)
def test_an_answer_is_the_same_whole_streamed_and_read_again(name: str, finish_reason: str) -> None:
    message, answer_format = MESSAGES[name], make_format(tools=[CRM])
    body = make_completion(message, finish_reason)
    answer = read_whole(answer_format, body)
    stored = answer_format.build_answer_message(answer)
    whole = orjson.loads(answer_format.render_whole_answer(answer, body, ALL_FIELDS))
    validate_response(whole)
    assert build_output_items(stored, RESPONSE_ID) == whole["output"]

    streamed = stream_of(message, finish_reason)
    assert read_events(streamed.frames)[-1]["response"] == whole
    if streamed.message is not None:
        assert streamed.message.raw == stored.raw

    gateway_fields = {"context_status": "full", "conversation_id": "conv_1"}
    context = {"policy": "additive"}
    entry = make_entry(stored, finish_reason)
    again = make_format(tools=[CRM])
    assert (
        orjson.loads(again.render_stored_answer(StoredAnswer(entry, "asked-model", gateway_fields, context))) == whole
    )

    frames = b"".join(again.render_stored_stream(StoredAnswer(entry, "asked-model", gateway_fields, context)))
    events = read_events(frames)
    for event in events:
        validate_event(event)
    check_event_order(events)
    accumulate_events(events)
    assert events[-1]["response"] == whole


def test_a_plain_answer_is_kept_as_the_chat_message_that_it_was() -> None:
    body = make_completion(MESSAGES["calls"], "tool_calls")
    answer_format = make_format()
    stored = answer_format.build_answer_message(read_whole(answer_format, body))
    assert isinstance(stored, ChatMessage)
    assert stored.body == {"role": "assistant", **MESSAGES["calls"]}
    streamed = stream_of(MESSAGES["calls"], "tool_calls").message
    assert streamed is not None
    assert streamed.raw == stored.raw


def test_a_whole_answer_has_logarithmic_probabilities_if_asked_for() -> None:
    token = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    choice = {"index": 0, "message": {"content": "Hi"}, "logprobs": {"content": [token]}, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice]})
    for asks in (False, True):
        answer_format = make_format(include=["message.output_text.logprobs"] if asks else [])
        answer = read_whole(answer_format, body)
        whole = orjson.loads(answer_format.render_whole_answer(answer, body, ALL_FIELDS))
        validate_response(whole)
        assert whole["output"][0]["content"][0]["logprobs"] == ([token] if asks else [])
        assert isinstance(answer_format.build_answer_message(answer), ChatMessage)


def test_an_original_object_is_ours_and_its_items_are_kept_with_their_bytes() -> None:
    item = b'{"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}'
    original = (
        b'{"id":"resp_x","object":"response","created_at":1,"status":"completed","model":"m","output":[%b],' % item
    )
    original += b'"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"store":false,"error":null}'
    answer_format = make_format()
    answer = read_whole(answer_format, original, "responses")
    whole = orjson.loads(answer_format.render_whole_answer(answer, original, ALL_FIELDS))
    validate_response(whole)
    assert (whole["id"], whole["created_at"], whole["store"]) == (RESPONSE_ID, CREATED_AT, True)
    assert (whole["parallel_tool_calls"], whole["context_status"]) == (False, "full")
    assert "encrypted_content" not in whole["output"][0]
    stored = answer_format.build_answer_message(answer)
    assert isinstance(stored, ResponsesMessage)
    assert stored.raw == b"[%b]" % item
    asked = make_format(include=["reasoning.encrypted_content"])
    assert item in asked.render_whole_answer(answer, original, ALL_FIELDS)


def test_a_repeated_answer_says_what_the_first_one_said() -> None:
    original = (
        b'{"id":"resp_x","object":"response","created_at":1,"completed_at":9,"status":"completed","model":"m","output":'
        b'[],"temperature":0.7,"top_p":1.0,"service_tier":"flex","usage":{"input_tokens":1,"more":[2]},"text":null}'
    )
    answer_format = make_format()
    answer = read_whole(answer_format, original, "responses")
    whole = orjson.loads(answer_format.render_whole_answer(answer, original, b""))
    stored = answer_format.build_answer_message(answer)
    facts = answer_format.build_facts(answer)
    assert facts["response"] == {
        "completed_at": 9,
        "service_tier": "flex",
        "temperature": 0.7,
        "text": None,
        "usage": {"input_tokens": 1, "more": [2]},
    }
    entry = make_entry(stored, **{**facts, "id": RESPONSE_ID, "model": "m"})
    for later_format in (make_format(), ResponsesAnswerFormat("resp_later", CREATED_AT + 120, {})):
        again = orjson.loads(later_format.render_stored_answer(StoredAnswer(entry, "asked-model", {}, {})))
        for name in ("id", "created_at", "completed_at", "service_tier", "temperature", "text", "usage"):
            assert again[name] == whole[name]


def test_a_stored_answer_of_a_provider_hides_encrypted_reasoning() -> None:
    items: list[dict[str, Any] | str] = [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "gA",
        },
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
    ]
    entry = make_entry(ResponsesMessage.from_items(items), "stop")
    for asks in (False, True):
        answer_format = make_format(include=["reasoning.encrypted_content"] if asks else [])
        frames = b"".join(answer_format.render_stored_stream(StoredAnswer(entry, "m", {}, {})))
        events = read_events(frames)
        check_event_order(events)
        assert ("encrypted_content" in events[-1]["response"]["output"][0]) == asks
        assert any(event["type"] == "response.reasoning_summary_text.delta" for event in events)


@pytest.mark.parametrize("style", ["chunk", "named", "comment", "off"])
def test_the_progress_of_a_compaction_comes_before_the_answer(style: EventStyle) -> None:
    answer_format = make_format()
    answer_format.begin_progress(Progress(completion_id="c", created=1, model="m", style=style, fields=STATUS_FIELDS))
    progress = answer_format.render_progress_start(STARTED) + answer_format.render_heartbeat()
    progress += answer_format.render_progress_outcome(
        COMPLETED, b'"context_status":"summarized","conversation_id":"conv_1"'
    )
    stream = RelayedStream([chunk({"content": "Hi"}), chunk({}, "stop"), DONE], answer_format=answer_format)
    frames = progress + stream.frames
    named = [frame for frame in frames.split(b"\n\n") if frame.startswith(b"event: compaction")]
    comments = [frame for frame in frames.split(b"\n\n") if frame.startswith(b":")]
    events = read_events(b"".join(frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1] if frame not in named))
    for event in events:
        validate_event(event)
    check_event_order(events)
    accumulate_events(events)
    assert [event["type"] for event in events[:4]] == ["response.created", *["response.in_progress"] * 3]
    assert [event.get("context_event") for event in events[1:4]] == (
        [STARTED, None, COMPLETED] if style == "chunk" else [None] * 3
    )
    assert len(named) == (2 if style == "named" else 0)
    assert len(comments) == (2 if style == "comment" else 0)
    assert [event["response"]["context_status"] for event in events[:4]] == ["full", "full", "full", "summarized"]


def test_a_compaction_that_fails_ends_the_stream_with_a_failed_response() -> None:
    answer_format = make_format()
    answer_format.begin_progress(Progress(completion_id="c", created=1, model="m", style="chunk", fields=STATUS_FIELDS))
    frames = answer_format.render_progress_start(STARTED)
    frames += answer_format.render_error_frames(ContextLengthExceeded("Too long."))
    events = read_events(frames)
    for event in events:
        validate_event(event)
    check_event_order(events)
    assert events[-1]["response"]["error"] == {"code": "context_length_exceeded", "message": "Too long."}
    assert events[-1]["response"]["conversation_id"] == "conv_1"


def test_an_error_before_anything_else_is_a_whole_stream() -> None:
    events = read_events(make_format().render_error_frames(UpstreamUnavailable("No.")))
    for event in events:
        validate_event(event)
    check_event_order(events)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]


def test_a_client_that_leaves_has_its_part_of_the_answer_kept() -> None:
    answer_format = make_format()
    stream = RelayedStream(
        [chunk({"content": "Hel"}), call_chunk(0, "{", id="call_a", type="function", name="look"), usage_chunk()],
        answer_format=answer_format,
    )
    assert isinstance(stream.message, ResponsesMessage)
    assert [item["status"] for item in stream.message.items if isinstance(item, dict)] == ["completed", "incomplete"]
    assert stream.message.text == "Hel"
