"""A Responses provider's events reach the client as they are, except for what only the gateway can know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.answer_format import Progress
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items
from app.dialects.responses.answer_format import ResponsesAnswerFormat
from app.errors import StoreUnavailable, UpstreamUnavailable
from tests.dialects.responses.provider_streams import Item, build_provider_events, render_event, text_item
from tests.dialects.responses.streams import CREATED_AT, RESPONSE_ID, STATUS_FIELDS, RelayedStream, make_format
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import accumulate_events, validate_event

SECRET = "gAAAAsecret"
BROKEN = UpstreamUnavailable("The connection broke.")
ITEMS: Sequence[Item] = (
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
        "encrypted_content": SECRET,
    },
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "rain"}},
    text_item("It rains here."),
    {
        "type": "function_call",
        "call_id": "call_a",
        "name": "look",
        "arguments": '{"at":1}',
        "status": "completed",
    },
    {"type": "custom_tool_call", "call_id": "call_b", "name": "patch", "input": "*** Begin", "status": "completed"},
    {**text_item(""), "content": [{"type": "refusal", "refusal": "I will not."}]},
)


def relay(
    events: Sequence[dict[str, Any]], answer_format: ResponsesAnswerFormat | None = None, **more: Any
) -> RelayedStream:
    return RelayedStream(
        [render_event(event) for event in events], answer_format=answer_format, protocol="responses", **more
    )


def check(stream: RelayedStream) -> list[dict[str, Any]]:
    events = read_events(stream.frames)
    for event in events:
        validate_event(event)
    check_event_order(events)
    accumulate_events(events)
    return events


def test_events_without_a_response_object_keep_their_bytes() -> None:
    _, provided = build_provider_events(ITEMS[1:])
    stream = relay(provided)
    sent = stream.frames.split(b"\n\n")[2:-2]
    assert sent == [b"event: %b\ndata: %b" % (event["type"].encode(), orjson.dumps(event)) for event in provided[2:-1]]
    check(stream)


def test_response_objects_are_ours_and_say_what_the_provider_says_of_the_answer() -> None:
    tools = [{"type": "web_search"}]
    own_tool = {"type": "function", "name": "search_conversation"}
    provider, provided = build_provider_events(ITEMS, tools=[*tools, own_tool], temperature=0.7)
    answer_format = make_format(
        instructions="Be kind.",
        metadata={"a": "b"},
        conversation="conv_1",
        truncation="auto",
        temperature=0.2,
        tools=tools,
    )
    events = check(relay(provided, answer_format))
    for response in (events[0]["response"], events[1]["response"], events[-1]["response"]):
        assert (response["id"], response["created_at"], response["store"]) == (RESPONSE_ID, CREATED_AT, True)
        assert (response["instructions"], response["metadata"]) == ("Be kind.", {"a": "b"})
        assert (response["conversation"], response["truncation"]) == ({"id": "conv_1"}, "auto")
        assert (response["context_status"], response["conversation_id"]) == ("full", "conv_1")
        assert (response["tools"], response["temperature"]) == (tools, 0.7)
    last = events[-1]["response"]
    assert (last["usage"], last["model"]) == (provider["usage"], "provider-model")
    assert last["context"] == {"policy": "additive"}


@pytest.mark.parametrize("asks", [False, True])
def test_encrypted_reasoning_is_shown_only_if_asked_for_and_always_kept(asks: bool) -> None:
    provider, provided = build_provider_events(ITEMS)
    answer_format = make_format(include=["reasoning.encrypted_content"] if asks else [])
    stream = relay(provided, answer_format)
    check(stream)
    assert (SECRET.encode() in stream.frames) == asks
    assert isinstance(stream.message, ResponsesMessage)
    assert stream.message.items == provider["output"]


def test_the_log_keeps_the_bytes_of_the_items() -> None:
    _, provided = build_provider_events([text_item("x")])
    pieces = [render_event(event) for event in provided]
    pieces[-1] = pieces[-1].replace(b'"output":[', b'"output": [ ').replace(b'"role":', b'"role" :')
    stream = RelayedStream(pieces, protocol="responses")
    assert isinstance(stream.message, ResponsesMessage)
    assert b'"role" :"assistant"' in stream.message.raw


def test_numbers_go_on_after_the_progress_of_a_compaction() -> None:
    _, provided = build_provider_events(ITEMS)
    answer_format = make_format()
    answer_format.begin_progress(Progress(completion_id="c", created=1, model="m", style="chunk", fields=STATUS_FIELDS))
    progress = answer_format.render_progress_start({"type": "compaction_started"})
    progress += answer_format.render_heartbeat()
    stream = relay(provided, answer_format)
    events = read_events(progress + stream.frames)
    for event in events:
        validate_event(event)
    check_event_order(events)
    assert [event["type"] for event in events].count("response.created") == 1


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_stays_one(reason: str) -> None:
    _, provided = build_provider_events([text_item("It")], status="incomplete", incomplete_details={"reason": reason})
    last = check(relay(provided))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": reason}


def test_a_response_that_failed_has_the_providers_error() -> None:
    error = {"code": "rate_limit_exceeded", "message": "Slow down."}
    _, provided = build_provider_events([text_item("It")], status="failed", error=error, max_tool_calls=7)
    stream = relay(provided)
    last = check(stream)[-1]
    assert last["type"] == "response.failed"
    assert (last["response"]["error"], last["response"]["max_tool_calls"]) == (error, 7)
    assert (last["response"]["id"], last["response"]["context"]) == (RESPONSE_ID, {"policy": "additive"})


def test_an_error_event_becomes_a_failed_response() -> None:
    _, provided = build_provider_events([text_item("It rains here.")])
    error = {"type": "error", "sequence_number": 5, "code": "server_error", "message": "Oh.", "param": None}
    events = check(relay([*provided[:5], error]))
    assert [event["type"] for event in events[-2:]] == ["response.output_text.delta", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "Oh."}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_an_answer_that_was_not_stored_fails_with_its_items() -> None:
    _, provided = build_provider_events(ITEMS)
    stream = relay(provided, store_failure=StoreUnavailable("Not stored."))
    last = check(stream)[-1]
    assert last["type"] == "response.failed"
    assert len(last["response"]["output"]) == len(ITEMS)
    assert SECRET.encode() not in stream.frames


def test_items_that_came_are_in_the_last_object_although_the_provider_left_them_out() -> None:
    provider, provided = build_provider_events(ITEMS[2:4])
    last = {"type": "response.completed", "sequence_number": len(provided) - 1, "response": provider | {"output": []}}
    stream = relay([*provided[:-1], last])
    assert check(stream)[-1]["response"]["output"] == provider["output"]
    assert isinstance(stream.message, ResponsesMessage)
    assert stream.message.items == provider["output"]


def test_a_provider_that_begins_without_response_created_gets_one() -> None:
    _, provided = build_provider_events([text_item("x")])
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(provided[2:])]
    assert check(relay(numbered))[0]["type"] == "response.created"


@given(
    items=st.lists(st.sampled_from(ITEMS), max_size=4),
    place=st.integers(0, 60),
    interleaves=st.booleans(),
    offset=st.booleans(),
)
def test_a_stream_that_breaks_off_anywhere_fails_with_its_items(
    items: list[Item], place: int, interleaves: bool, offset: bool
) -> None:
    items = [item | ({"call_id": f"call_{at}"} if "call_id" in item else {}) for at, item in enumerate(items)]
    _, provided = build_provider_events(items, interleaves=interleaves)
    provided = provided[: place % len(provided)]
    answer_format, progress = make_format(), b""
    if offset:
        answer_format.begin_progress(
            Progress(completion_id="c", created=1, model="m", style="chunk", fields=STATUS_FIELDS)
        )
        progress = answer_format.render_progress_start({"type": "compaction_started"})
    stream = relay(provided, answer_format, broken_by=BROKEN)
    events = read_events(progress + stream.frames)
    for event in events:
        validate_event(event)
    done = check_event_order(events)
    assert events[-1]["type"] == "response.failed"
    if stream.message is not None:
        assert isinstance(stream.message, ResponsesMessage)
        kept_items = build_output_items(stream.message, RESPONSE_ID)
        shown = [{name: item[name] for name in item if name != "encrypted_content"} for item in kept_items]
        assert shown == done


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    _, provided = build_provider_events([text_item("a")])
    pieces = [render_event(event) for event in provided[:5]]
    pieces[4] = pieces[4].replace(b'"delta":"a"', b'"delta":"\\ud83d"')
    events = read_events(RelayedStream(pieces, broken_by=BROKEN, protocol="responses").frames)
    check_event_order(events)
    assert events[4]["delta"] == "\ufffd"


def test_data_of_several_lines_is_sent_on_one() -> None:
    _, provided = build_provider_events([text_item("x")])
    pieces = [render_event(event) for event in provided]
    spread = pieces[4].replace(b',"item_id"', b',\ndata: "item_id"')
    assert spread != pieces[4]
    check(RelayedStream([*pieces[:4], spread, *pieces[5:]], protocol="responses"))
