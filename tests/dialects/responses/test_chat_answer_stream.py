"""A chat provider's stream becomes the events of a response, whatever chunks the provider makes of its answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items
from app.errors import UpstreamUnavailable
from tests.dialects.responses.streams import (
    DONE,
    RESPONSE_ID,
    RelayedStream,
    call_chunk,
    chunk,
    make_format,
    raw_text_chunk,
    usage_chunk,
)
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import accumulate_events, validate_event

BROKEN = UpstreamUnavailable("The connection broke.")
ROLE = chunk({"role": "assistant", "content": ""})


def relay_and_check(stream: RelayedStream) -> list[dict[str, Any]]:
    """Checks all that must be true of any stream, and returns its events."""
    events = read_events(stream.frames)
    for event in events:
        validate_event(event)
    items = check_event_order(events)
    snapshot, completed = accumulate_events(events)
    seen, shown = [read_texts(item.to_dict()) for item in snapshot], [read_texts(item) for item in items]
    if events[-1]["type"] == "response.failed":
        # Half of a surrogate pair, and a call without a name, wait for more, and that does not come.
        assert str(seen).replace("\ufffd", "") == str(shown[: len(seen)]).replace("\ufffd", "")
    else:
        assert seen == shown
    if events[-1]["type"] == "response.completed":
        assert [read_texts(item.to_dict()) for item in completed.output] == [read_texts(item) for item in items]
    if stream.message is not None:
        assert build_output_items(stream.message, RESPONSE_ID) == items
    return events


def read_texts(item: dict[str, Any]) -> tuple[object, ...]:
    # The official client accumulates the texts of messages and the arguments of functions only.
    if item["type"] == "message":
        return item["type"], item["id"], [part["text"] for part in item["content"] if part["type"] == "output_text"]
    return item["type"], item["id"], item.get("call_id"), item.get("arguments")


def list_types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_comes_in_the_documented_order() -> None:
    stream = RelayedStream([ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), DONE])
    events = relay_and_check(stream)
    assert list_types(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert [event["delta"] for event in events if "delta" in event] == ["Hel", "lo"]
    assert isinstance(stream.message, ChatMessage)
    assert stream.message.body == {"role": "assistant", "content": "Hello"}


def test_the_last_event_has_usage_model_and_all_our_fields() -> None:
    stream = RelayedStream([chunk({"content": "Hi"}), chunk({}, "stop"), usage_chunk(), DONE])
    first, *_, last = relay_and_check(stream)
    assert last["response"]["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    assert last["response"]["model"] == "provider-model"
    assert last["response"]["context"] == {"policy": "additive"}
    for response in (first["response"], last["response"]):
        assert (response["id"], response["context_status"], response["conversation_id"]) == (
            RESPONSE_ID,
            "full",
            "conv_1",
        )
    assert "context" not in first["response"]


def test_fields_that_changed_after_the_write_are_in_the_last_event() -> None:
    changed = b'"context_status":"degraded","conversation_id":null'
    stream = RelayedStream([chunk({"content": "Hi"}), chunk({}, "stop"), DONE], changed_fields=changed)
    assert relay_and_check(stream)[-1]["response"]["context_status"] == "degraded"


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    stream = RelayedStream(
        [
            chunk({"reasoning_content": "hm", "content": None}),
            chunk({"reasoning_content": "m"}),
            chunk({"content": "I look."}),
            call_chunk(0, id="call_a", type="function", name="look"),
            call_chunk(0, '{"at"'),
            call_chunk(1, "{", id="call_b", type="function", name="find"),
            call_chunk(0, ":1}"),
            call_chunk(1, "}"),
            chunk({}, "tool_calls"),
            DONE,
        ]
    )
    events = relay_and_check(stream)
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    deltas = [(event["output_index"], event["delta"]) for event in events if "arguments.delta" in event["type"]]
    assert deltas == [(2, '{"at"'), (3, "{"), (2, ":1}"), (3, "}")]
    assert isinstance(stream.message, ChatMessage)


def test_custom_calls_and_refusals_have_events_of_their_own() -> None:
    begin = {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": "*** "}}
    stream = RelayedStream(
        [
            chunk({"refusal": "I must "}),
            chunk({"refusal": "not."}),
            chunk({"tool_calls": [begin]}),
            chunk({"tool_calls": [{"index": 0, "custom": {"input": "Begin"}}]}),
            chunk({}, "tool_calls"),
            DONE,
        ]
    )
    message, call = relay_and_check(stream)[-1]["response"]["output"]
    assert message["content"] == [{"type": "refusal", "refusal": "I must not."}]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "*** Begin")
    assert isinstance(stream.message, ChatMessage)


def test_a_call_of_a_tool_in_a_namespace_has_the_name_that_the_request_has() -> None:
    tools = [{"type": "function", "name": "find", "parameters": {}, "strict": True}]
    answer_format = make_format(tools=[{"type": "namespace", "name": "crm", "description": "d", "tools": tools}])
    pieces = [call_chunk(0, "{}", id="call_a", type="function", name="crm__find"), chunk({}, "tool_calls"), DONE]
    stream = RelayedStream(pieces, answer_format=answer_format)
    (call,) = relay_and_check(stream)[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == ("crm", "find")
    # A chat message could not say the namespace, and a later read must.
    assert isinstance(stream.message, ResponsesMessage)
    assert stream.message.calls[0].name == "crm__find"


def test_citations_are_annotations() -> None:
    url = {"url": "https://example.com", "title": "Example", "start_index": 0, "end_index": 2}
    citation = {"type": "url_citation", "url_citation": url}
    stream = RelayedStream([chunk({"content": "Hi"}), chunk({"annotations": [citation]}), chunk({}, "stop"), DONE])
    events = relay_and_check(stream)
    assert "output_text.annotation.added" in list_types(events)
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [{"type": "url_citation", **url}]
    assert isinstance(stream.message, ChatMessage)


@pytest.mark.parametrize("asks", [False, True])
def test_blocks_of_reasoning_are_shown_and_sealed_ones_only_if_asked_for(asks: bool) -> None:
    blocks = [
        {"type": "reasoning.text", "index": 0, "text": "Let "},
        {"type": "reasoning.text", "index": 0, "text": "me see."},
        {"type": "reasoning.text", "index": 1, "text": "Yes."},
        {"type": "reasoning.encrypted", "index": 2, "data": "c2VhbGVk"},
    ]
    pieces = [*(chunk({"reasoning_details": [block]}) for block in blocks), chunk({"content": "Hi"}, "stop"), DONE]
    answer_format = make_format(include=["reasoning.encrypted_content"] if asks else [])
    stream = RelayedStream(pieces, answer_format=answer_format)
    events = read_events(stream.frames)
    reasoning, _ = check_event_order(events)
    assert [part["text"] for part in reasoning["content"]] == ["Let me see.", "Yes."]
    assert reasoning.get("encrypted_content") == ("c2VhbGVk" if asks else None)
    # The log keeps the blocks with what items do not have: the provider needs them again.
    assert isinstance(stream.message, ChatMessage)
    assert stream.message.body["reasoning_details"][-1] == blocks[-1]


@pytest.mark.parametrize("asks", [False, True])
def test_logarithmic_probabilities_come_with_their_deltas_if_asked_for(asks: bool) -> None:
    best = {"token": "Ho", "logprob": -2.0, "bytes": [72, 111]}
    tokens = [
        {"token": "Hel", "logprob": -0.5, "bytes": None, "top_logprobs": [best]},
        {"token": "lo", "logprob": -0.1, "bytes": [108, 111], "top_logprobs": []},
    ]
    pieces = []
    for token in tokens:
        body = {"index": 0, "delta": {"content": token["token"]}, "logprobs": {"content": [token], "refusal": None}}
        pieces.append(b"data: %b\n\n" % orjson.dumps({"choices": [body]}))
    answer_format = make_format(include=["message.output_text.logprobs"] if asks else [])
    stream = RelayedStream([*pieces, chunk({}, "stop"), DONE], answer_format=answer_format)
    events = read_events(stream.frames)
    for event in events:
        validate_event(event)
    (message,) = check_event_order(events)
    expected = [{**tokens[0], "bytes": []}, tokens[1]] if asks else []
    assert [one for event in events for one in event.get("logprobs", ()) if "delta" in event] == expected
    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.done"] == [expected]
    assert message["content"][0]["logprobs"] == expected
    # They are many times longer than the text, so the log keeps none.
    assert isinstance(stream.message, ChatMessage)


def test_text_after_a_call_is_a_message_after_it() -> None:
    pieces = [
        call_chunk(0, "{}", id="call_a", type="function", name="look"),
        chunk({"content": "Done?"}),
        chunk({}, "tool_calls"),
        DONE,
    ]
    stream = RelayedStream(pieces)
    assert [item["type"] for item in relay_and_check(stream)[-1]["response"]["output"]] == ["function_call", "message"]
    assert isinstance(stream.message, ResponsesMessage)
    assert (stream.message.text, stream.message.calls[0].name) == ("Done?", "look")


def test_parts_of_thinking_are_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    pieces = [
        chunk({"content": [thinking]}),
        chunk({"content": "Hi"}),
        chunk({"content": "!"}),
        chunk({}, "stop"),
        DONE,
    ]
    stream = RelayedStream(pieces)
    reasoning, message = relay_and_check(stream)[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Hi!"


@pytest.mark.parametrize(
    ("finish_reason", "expected"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_off_is_incomplete(finish_reason: str, expected: str) -> None:
    stream = RelayedStream([chunk({"reasoning": "hm"}), chunk({"content": "Hel"}), chunk({}, finish_reason), DONE])
    last = relay_and_check(stream)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": expected}
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]


def test_only_the_item_that_came_last_was_cut_off() -> None:
    calls = [call_chunk(at, "{", id=f"call_{at}", type="function", name="look") for at in (0, 1)]
    stream = RelayedStream([*calls, call_chunk(0, "}"), call_chunk(1, "x"), chunk({}, "length"), DONE])
    output = relay_and_check(stream)[-1]["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]


def test_an_answer_without_content_has_no_items() -> None:
    stream = RelayedStream([ROLE, chunk({}, "stop"), DONE])
    assert list_types(relay_and_check(stream)) == ["created", "in_progress", "completed"]


def test_halves_of_a_surrogate_pair_are_joined_before_they_are_sent() -> None:
    stream = RelayedStream(
        [
            raw_text_chunk(b'"a\\ud83d"'),
            raw_text_chunk(b'"\\ude00b"'),
            raw_text_chunk(b'"\\ud83d"'),
            raw_text_chunk(b'"c\\ud83d"'),
            chunk({}, "stop"),
            DONE,
        ]
    )
    events = relay_and_check(stream)
    assert [event["delta"] for event in events if "delta" in event] == ["a", "😀b", "\ufffdc", "\ufffd"]


def test_a_call_waits_for_its_name_and_gets_an_id_if_it_has_none() -> None:
    stream = RelayedStream(
        [
            call_chunk(0, ""),
            call_chunk(0, "", name="look"),
            call_chunk(0, "{}"),
            chunk({}, "tool_calls"),
            DONE,
        ]
    )
    (call,) = relay_and_check(stream)[-1]["response"]["output"]
    assert (call["name"], call["arguments"]) == ("look", "{}")
    assert call["call_id"].startswith("call_")
    assert isinstance(stream.message, ChatMessage)


def test_a_failure_before_any_content_still_begins_the_stream() -> None:
    error = b'data: {"error":{"message":"No room.","code":"context_length_exceeded"}}\n\n'
    events = relay_and_check(RelayedStream([error]))
    assert list_types(events) == ["created", "in_progress", "failed"]
    assert events[-1]["response"]["error"] == {"code": "context_length_exceeded", "message": "No room."}


def test_an_answer_that_was_not_stored_fails_after_its_items() -> None:
    pieces = [chunk({"content": "Hi"}), chunk({}, "stop"), DONE]
    stream = RelayedStream(pieces, store_failure=UpstreamUnavailable("Not stored.", status=503))
    last = relay_and_check(stream)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["status"] == "completed"


def test_all_clients_that_wait_for_one_answer_get_the_same_end() -> None:
    answer_format = make_format()
    stream = RelayedStream([chunk({"content": "Hi"})], answer_format=answer_format, broken_by=BROKEN)
    assert stream.frames.endswith(answer_format.render_error_frames(BROKEN))


TEXTS = st.one_of(st.sampled_from(["", " ", "\n", '"', "\\", "😀", "data: ", "}\n\n"]), st.text(max_size=4))
HALVES = st.sampled_from([b'"\\ud83d"', b'"x\\ud83d"', b'"\\ude00"', b'"\\ude00y"', b'"\\ud83d\\ud83d"'])


@st.composite
def chunks(draw: st.DrawFn) -> list[bytes]:
    """Chunks of one answer, in any order that a provider might choose."""
    kinds = st.sampled_from(["text", "half", "reasoning", "refusal", "call", "custom", "empty", "usage", "extra"])
    pieces: list[bytes] = []
    for kind in draw(st.lists(kinds, max_size=12)):
        text = draw(TEXTS)
        match kind:
            case "text":
                pieces.append(chunk({"content": text}))
            case "half":
                pieces.append(raw_text_chunk(draw(HALVES)))
            case "reasoning" | "refusal":
                name = "refusal" if kind == "refusal" else draw(st.sampled_from(["reasoning", "reasoning_content"]))
                pieces.append(chunk({name: text}))
            case "call":
                index = draw(st.integers(0, 2))
                named: dict[str, Any] = {"id": f"call_{index}", "type": "function", "name": f"f{index}"}
                pieces.append(call_chunk(index, text, **(named if draw(st.booleans()) else {})))
            case "custom":
                index = draw(st.integers(3, 4))
                begin = {"id": f"call_{index}", "type": "custom"} if draw(st.booleans()) else {}
                body = {"name": f"c{index}", "input": text}
                pieces.append(chunk({"tool_calls": [{"index": index, "custom": body, **begin}]}))
            case "empty":
                pieces.append(draw(st.sampled_from([chunk({}), ROLE, b": ping\n\n", chunk({"content": None})])))
            case "usage":
                pieces.append(usage_chunk())
            case "extra":
                pieces.append(chunk({"content": text, "signature": "s"}))
    return pieces


@given(
    pieces=chunks(),
    end=st.sampled_from([b"", DONE]),
    finish=st.sampled_from([None, "stop", "tool_calls", "length", "content_filter"]),
    cuts=st.lists(st.integers(0, 4000), max_size=6),
    breaks=st.booleans(),
)
def test_the_events_of_any_stream_fit_together_and_make_the_stored_answer(
    pieces: list[bytes], end: bytes, finish: str | None, cuts: list[int], breaks: bool
) -> None:
    whole = b"".join(pieces) + (b"" if finish is None else chunk({}, finish)) + end
    places = [0, *sorted(place % (len(whole) + 1) for place in cuts), len(whole)]
    cut_pieces = [whole[start:stop] for start, stop in itertools.pairwise(places)]
    stream = RelayedStream(cut_pieces, broken_by=BROKEN if breaks and not end else None)
    events = relay_and_check(stream)
    assert (events[-1]["type"] == "response.failed") == (finish is None)
    if stream.message is not None:
        assert isinstance(stream.relay.answer, ChatStreamDecoder)
        collected = ChatMessage.from_body(stream.relay.answer.build_message())
        kept_calls = sorted((call.name, call.arguments) for call in stream.message.calls)
        assert kept_calls == sorted((call.name, call.arguments) for call in collected.calls)
    uncut = RelayedStream([whole])
    if not breaks:
        assert uncut.frames == stream.frames


@given(pieces=chunks(), place=st.integers(0, 12), failure=st.sampled_from(["error", "event", "garbage", "break"]))
def test_a_failure_at_any_place_ends_the_response_with_its_items(pieces: list[bytes], place: int, failure: str) -> None:
    ends = {
        "error": b'data: {"error":{"message":"no","type":"server_error"}}\n\n',
        "event": b'event: error\ndata: {"message":"no"}\n\n',
        "garbage": b"data: {no json\n\n",
        "break": b"",
    }
    stream = RelayedStream([*pieces[:place], ends[failure]], broken_by=BROKEN if failure == "break" else None)
    events = relay_and_check(stream)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    statuses = [item["status"] for item in events[-1]["response"]["output"]]
    assert statuses == [] or "incomplete" in statuses


def test_no_frame_has_a_line_break_in_its_data() -> None:
    fields = {"model": b'"m"', "tools": json.dumps([{"type": "function", "name": "f"}], indent=2).encode()}
    from_client = {name: orjson.loads(value) for name, value in fields.items()}
    stream = RelayedStream([chunk({"content": "a\nb"}, "stop"), DONE], answer_format=make_format(**from_client))
    relay_and_check(stream)
