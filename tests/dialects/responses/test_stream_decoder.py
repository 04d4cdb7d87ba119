"""Replies of the Responses API as chat completions: whole, and streamed in whatever pieces they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from app.dialects.answer_decoding import drop_cut_events
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import ChatStreamEncoder, encode_completion
from app.dialects.responses.stream_decoder import ResponsesStreamDecoder
from app.dialects.sse import DONE_DATA, SseDecoder, SseEvent
from app.errors import UpstreamUnavailable
from app.upstream.protocols.overflow_detection import detect_overflow
from tests.support.responses_upstream import (
    ScriptedResponse,
    build_events,
    build_response,
    custom_call_item,
    function_call_item,
    number_events,
    reasoning_item,
    refusal_item,
    render_event,
    respond,
    text_item,
    web_search_item,
)

IDS = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
CITATION = {"type": "url_citation", "start_index": 3, "end_index": 5, "url": "https://a.test", "title": "A"}
UNREADABLE = "The provider sent a stream event that cannot be read:"
FILE_CITATION = {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 0}


def whole(answer: ScriptedResponse) -> dict[str, Any]:
    output = [{"id": f"{IDS.get(item['type'], 'x_')}{at}", **item} for at, item in enumerate(answer.items)]
    return build_response(answer, {"model": "m"}, "resp_1", output, tokens=20)


def streamed(answer: ScriptedResponse) -> list[bytes]:
    return [render_event(event) for event in number_events(build_events(whole(answer), answer))]


def translate_response(body: bytes) -> bytes:
    """A whole response as a chat completion, or the body of an error."""
    decoder = ResponsesStreamDecoder()
    decoder.add_whole(body)
    return decoder.error_data or encode_completion(decoder.decode_whole(body))


def translate(answer: ScriptedResponse) -> dict[str, Any]:
    completion: dict[str, Any] = orjson.loads(translate_response(json.dumps(whole(answer)).encode()))
    return completion


def decode(frames: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    events = decoder.feed(frames)
    assert decoder.flush() == []
    return events


def translate_stream(pieces: Iterable[bytes]) -> list[SseEvent]:
    cutter, decoder = SseDecoder(), ResponsesStreamDecoder()
    encoder = ChatStreamEncoder()
    events = [event for piece in pieces for event in cutter.feed(piece)]
    chunks: list[bytes] = []
    for event in [*events, *drop_cut_events(cutter.flush(), decoder.protocol)]:
        if event.data and not decoder.has_ended:
            chunks += map(encoder.encode, decoder.decode(event.data.strip(), event.name))
            chunks += [DONE_DATA] if decoder.is_complete else []
    return [SseEvent(b"", chunk) for chunk in chunks if chunk]


def chunks_in(events: Iterable[SseEvent]) -> list[dict[str, Any]]:
    return [orjson.loads(event.data or b"") for event in events if not event.name and event.data != DONE_DATA]


def collect(events: Iterable[SseEvent]) -> ChatStreamDecoder:
    collector = ChatStreamDecoder()
    for event in events:
        if event.data and not event.name and event.data != DONE_DATA:
            collector.add_chunk(event.data)
    return collector


def event(kind: str, **fields: Any) -> bytes:
    return render_event({"type": kind, "sequence_number": 0, **fields})


CALL_A = function_call_item("a", '{"x": "first one"}', "call_a")
CALL_B = function_call_item("b", '{"z": "second one"}', "call_b")
ANSWERS = {
    "text": respond("Hello, dear world."),
    "nothing": respond(),
    "an empty text": respond(""),
    "two texts": respond(text_item("I look.", phase="commentary"), text_item("It rains.", phase="final_answer")),
    "an empty text before another": respond("", "It rains."),
    "a text of parts": respond(
        {**text_item(""), "content": [*text_item("One ")["content"], *text_item("two.")["content"]]}
    ),
    "citations": respond(text_item("It is so.", CITATION), text_item("And so on.", FILE_CITATION, CITATION)),
    "reasoning": respond(reasoning_item("First this.", "Then that."), reasoning_item("At last."), "Done."),
    "open reasoning": respond(reasoning_item(texts=["I think of it."]), "Done."),
    "sealed reasoning": respond({**reasoning_item(), "encrypted_content": "gAAAA"}, "Done."),
    "a call": respond(CALL_A),
    "text and parallel calls": respond("I look.", CALL_A, CALL_B),
    "calls in turns": respond(CALL_A, CALL_B, interleaves=True),
    "a call without arguments": respond(function_call_item("a", "", "call_a")),
    "a custom call": respond(custom_call_item("patch", "*** Begin Patch", "call_c"), CALL_A),
    "a shell call": respond({"type": "apply_patch_call", "call_id": "call_p", "operation": {"type": "delete_file"}}),
    "a search by the provider": respond(web_search_item("rain"), "It rains."),
    "a refusal": respond(refusal_item("I will not.")),
    "a long answer": respond("It was", incomplete="max_output_tokens"),
    "a long call": respond(CALL_A, incomplete="max_output_tokens"),
    "a filtered answer": respond("It", incomplete="content_filter"),
    "no usage": respond("Hello.", has_usage=False),
}
SCRIPTED_KINDS = {"message", "reasoning", "function_call", "custom_tool_call", "web_search_call"}
STREAMED = [name for name, answer in ANSWERS.items() if {item["type"] for item in answer.items} <= SCRIPTED_KINDS]


class TestWholeResponses:
    @pytest.mark.parametrize("name", ANSWERS)
    def test_a_response_becomes_a_chat_completion(self, name: str) -> None:
        completion = translate(ANSWERS[name])

        assert ChatCompletion.model_validate(completion).choices[0].message.role == "assistant"
        assert (completion["id"], completion["model"], completion["created"]) == ("resp_1", "m", 1_700_000_000)
        assert completion["object"] == "chat.completion"

    def test_texts_of_several_items_are_paragraphs(self) -> None:
        message = translate(ANSWERS["two texts"])["choices"][0]["message"]

        assert message == {"role": "assistant", "content": "I look.\n\nIt rains.", "refusal": None}
        assert translate(ANSWERS["a text of parts"])["choices"][0]["message"]["content"] == "One two."
        assert translate(ANSWERS["an empty text before another"])["choices"][0]["message"]["content"] == "It rains."

    def test_calls_stand_beside_the_text(self) -> None:
        choice = translate(ANSWERS["text and parallel calls"])["choices"][0]

        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "I look."
        assert choice["message"]["tool_calls"] == [
            {"id": "call_a", "type": "function", "function": {"name": "a", "arguments": CALL_A["arguments"]}},
            {"id": "call_b", "type": "function", "function": {"name": "b", "arguments": CALL_B["arguments"]}},
        ]

    def test_a_custom_call_keeps_its_input(self) -> None:
        message = translate(ANSWERS["a custom call"])["choices"][0]["message"]

        assert message["content"] is None
        assert message["tool_calls"][0] == {
            "id": "call_c",
            "type": "custom",
            "custom": {"name": "patch", "input": "*** Begin Patch"},
        }

    def test_arguments_that_are_no_text_become_one(self) -> None:
        item = {**CALL_A, "arguments": {"x": 1}, "call_id": None, "id": "fc_1"}
        calls = translate(respond(item))["choices"][0]["message"]["tool_calls"]

        assert calls == [{"id": "fc_1", "type": "function", "function": {"name": "a", "arguments": '{"x":1}'}}]

    def test_reasoning_is_told_in_paragraphs(self) -> None:
        def read_reasoning(name: str) -> Any:
            return translate(ANSWERS[name])["choices"][0]["message"].get("reasoning_content")

        assert read_reasoning("reasoning") == "First this.\n\nThen that.\n\nAt last."
        assert read_reasoning("open reasoning") == "I think of it."
        assert read_reasoning("sealed reasoning") is None

    def test_a_refusal_is_no_content(self) -> None:
        message = translate(ANSWERS["a refusal"])["choices"][0]["message"]

        assert (message["content"], message["refusal"]) == (None, "I will not.")

    def test_citations_count_from_the_beginning_of_the_whole_text(self) -> None:
        message = translate(ANSWERS["citations"])["choices"][0]["message"]
        first, second = message["annotations"]

        assert first == {"type": "url_citation", "url_citation": {k: v for k, v in CITATION.items() if k != "type"}}
        cited = message["content"][second["url_citation"]["start_index"] : second["url_citation"]["end_index"]]
        assert cited == "And so on."[3:5]

    def test_log_probabilities_are_kept(self) -> None:
        item = text_item("Hi")
        item["content"][0]["logprobs"] = [{"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": []}]

        assert translate(respond(item))["choices"][0]["logprobs"]["content"][0]["token"] == "Hi"

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("text", "stop"),
            ("a refusal", "stop"),
            ("a search by the provider", "stop"),
            ("a call", "tool_calls"),
            ("a shell call", "tool_calls"),
            ("a long answer", "length"),
            ("a long call", "length"),
            ("a filtered answer", "content_filter"),
        ],
    )
    def test_the_finish_reason(self, name: str, reason: str) -> None:
        assert translate(ANSWERS[name])["choices"][0]["finish_reason"] == reason

    def test_usage_is_that_of_a_completion(self) -> None:
        usage = translate(ANSWERS["reasoning"])["usage"]

        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (20, 10)
        assert usage["total_tokens"] == 20 + usage["completion_tokens"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
        assert "usage" not in translate(ANSWERS["no usage"])

    @pytest.mark.parametrize(
        ("response", "error"),
        [
            (
                {"status": "failed", "error": {"code": "server_error", "message": "Broken."}},
                {"code": "server_error", "message": "Broken.", "type": "server_error", "param": None},
            ),
            (
                {
                    "status": "failed",
                    "error": {"code": "context_length_exceeded", "message": "Long.", "param": "input"},
                },
                {
                    "code": "context_length_exceeded",
                    "message": "Long.",
                    "type": "invalid_request_error",
                    "param": "input",
                },
            ),
            (
                {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Slow.", "type": "tokens"}},
                {"code": "rate_limit_exceeded", "message": "Slow.", "type": "tokens", "param": None},
            ),
            (
                {"status": "failed", "error": None},
                {
                    "code": None,
                    "message": "The response has the status 'failed'.",
                    "type": "server_error",
                    "param": None,
                },
            ),
            (
                {"status": ["queued"], "error": "Odd."},
                {"code": None, "message": "Odd.", "type": "server_error", "param": None},
            ),
        ],
    )
    def test_a_failed_response_is_an_error_body(self, response: dict[str, Any], error: dict[str, Any]) -> None:
        body = translate_response(orjson.dumps({"object": "response", "output": [], **response}))

        assert orjson.loads(body) == {"error": error}

    def test_an_overflow_is_recognised_in_a_failed_response(self) -> None:
        failed = {
            "object": "response",
            "status": "failed",
            "error": {"code": "context_length_exceeded", "message": "x"},
        }

        assert detect_overflow(200, translate_response(orjson.dumps(failed))) is not None

    @pytest.mark.parametrize("body", [b' {"error":{"message":"No."}}', b'{"object":"error","message":"No."}'])
    def test_an_error_body_is_left_as_it_is(self, body: bytes) -> None:
        assert translate_response(body) == body

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>",
            b"[]",
            b"null",
            b'"x"',
            b"{",
            b"{}",
            b'{"choices":[{"message":{"content":"Hi."}}]}',
            b'{"object":"response","output":null}',
            b'{"object":"list","data":[]}',
        ],
    )
    def test_anything_else_is_refused(self, body: bytes) -> None:
        with pytest.raises(UpstreamUnavailable):
            translate_response(body)

    @given(
        st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3))
    )
    def test_an_item_of_any_form_does_no_harm(self, value: Any) -> None:
        fields = ("type", "role", "content", "summary", "arguments", "call_id", "name", "phase", "status")
        items = [{"type": kind, **dict.fromkeys(fields[1:], value)} for kind in [*SCRIPTED_KINDS, value]]
        for item in items:
            body = orjson.dumps({"object": "response", "usage": value, "output": [item, value]})
            assert b'"choices"' in translate_response(body)
            translate_stream([event("response.output_item.added", output_index=0, item=item)])
            translate_stream([event("response.output_item.done", output_index=0, item=item)])


class TestStreams:
    @pytest.mark.parametrize("name", STREAMED)
    def test_a_stream_says_what_the_whole_response_says(self, name: str) -> None:
        events = translate_stream(streamed(ANSWERS[name]))
        collector, completion = collect(events), ChatStreamDecoder()
        completion.add_whole(translate_response(json.dumps(whole(ANSWERS[name])).encode()))

        assert collector.build_message() == completion.build_message()
        assert collector.build_facts() == completion.build_facts()
        assert events[-1].data == DONE_DATA
        for chunk in chunks_in(events):
            # The package has no custom calls in chunks.
            if b'"custom"' not in orjson.dumps(chunk):
                ChatCompletionChunk.model_validate(chunk)

    def test_the_chunks_of_a_text(self) -> None:
        chunks = chunks_in(translate_stream(streamed(ANSWERS["text"])))

        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert deltas == [
            {"role": "assistant", "content": ""},
            {"content": "Hello,"},
            {"content": " dear"},
            {"content": " world."},
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]] == [*[None] * 4, "stop"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens"] == 20
        assert {(chunk["id"], chunk["model"], chunk["object"]) for chunk in chunks} == {
            ("resp_1", "m", "chat.completion.chunk")
        }

    def test_parallel_calls_have_an_index_each(self) -> None:
        fragments = [
            fragment
            for chunk in chunks_in(translate_stream(streamed(ANSWERS["calls in turns"])))
            for choice in chunk["choices"]
            for fragment in choice["delta"].get("tool_calls", ())
        ]

        assert [(one["index"], one["id"]) for one in fragments if "id" in one] == [(0, "call_a"), (1, "call_b")]
        assert [one["index"] for one in fragments[2:]] == [0, 1, 0, 1, 0, 1]

    def test_nothing_is_said_before_the_first_item(self) -> None:
        pieces = streamed(ANSWERS["text"])

        assert translate_stream(pieces[:2]) == []
        assert len(chunks_in(translate_stream(pieces[:3]))) == 1

    @given(st.sampled_from(STREAMED), st.data())
    def test_the_cuts_of_the_bytes_make_no_difference(self, name: str, data: st.DataObject) -> None:
        stream = b"".join(streamed(ANSWERS[name]))
        cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
        pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

        assert translate_stream(pieces) == translate_stream(streamed(ANSWERS[name]))

    @pytest.mark.parametrize(
        ("failure", "code", "message"),
        [
            (
                event("response.failed", response={"error": {"code": "context_length_exceeded", "message": "Long."}}),
                "context_length_exceeded",
                "Long.",
            ),
            (event("error", code="context_length_exceeded", message="Long."), "context_length_exceeded", "Long."),
            (event("error", error={"code": "server_error", "message": "Broken."}), "server_error", "Broken."),
            (b'data: {"error":{"message":"Of a gateway.","code":7}}\n\n', 7, "Of a gateway."),
            (event("response.failed", response=None), None, "The response failed."),
            (
                event("response.output_text.delta", output_index="0", delta="x"),
                None,
                f"{UNREADABLE} Expected `int | null`, got `str` - at `$.output_index`.",
            ),
        ],
    )
    def test_a_failure_becomes_an_error_chunk(self, failure: bytes, code: Any, message: str) -> None:
        pieces = streamed(ANSWERS["text"])
        for begun in (pieces[:2], pieces[:6]):
            events = translate_stream([*begun, failure, *pieces[6:]])

            assert orjson.loads(events[-1].data or b"")["error"].items() >= {"code": code, "message": message}.items()
            assert collect(events).error_data == events[-1].data
            assert (detect_overflow(200, events[-1].data or b"") is not None) == (code == "context_length_exceeded")

    def test_a_stream_that_breaks_off_stays_broken_off(self) -> None:
        pieces = streamed(ANSWERS["text"])
        for count in range(len(pieces)):
            events = translate_stream(pieces[:count])
            assert DONE_DATA not in [one.data for one in events]
            assert not collect(events).is_complete

    @given(st.sampled_from(STREAMED), st.data())
    def test_a_stream_cut_within_an_event_says_what_came_before(self, name: str, data: st.DataObject) -> None:
        pieces = streamed(ANSWERS[name])
        count = data.draw(st.integers(0, len(pieces) - 1))
        cut = pieces[count][: data.draw(st.integers(0, len(pieces[count]) - 3))]

        assert translate_stream([*pieces[:count], cut]) == translate_stream(pieces[:count])

    def test_a_last_event_without_its_blank_line_counts(self) -> None:
        stream = b"".join(streamed(ANSWERS["text"]))

        assert translate_stream([stream.removesuffix(b"\n\n")]) == translate_stream([stream])

    @pytest.mark.parametrize(
        "kinds",
        [
            ("response.created", "response.in_progress"),
            ("response.output_item.added",),
            ("response.output_item.done",),
            ("response.function_call_arguments.done", "response.output_text.done"),
            ("response.completed",),
        ],
    )
    def test_events_that_come_twice_say_nothing_twice(self, kinds: tuple[str, ...]) -> None:
        for name in ("text", "text and parallel calls", "reasoning", "a custom call"):
            pieces = streamed(ANSWERS[name])
            doubled = [
                twice for piece in pieces for twice in [piece] * (1 + any(b'"%b"' % k.encode() in piece for k in kinds))
            ]
            assert (
                collect(translate_stream(doubled)).build_message() == collect(translate_stream(pieces)).build_message()
            )

    def test_nothing_counts_after_the_end(self) -> None:
        pieces = streamed(ANSWERS["text"])
        after = [b"data: [DONE]\n\n", *pieces, b"data: <html>\n\n"]

        assert translate_stream([*pieces, *after]) == translate_stream(pieces)

    def test_the_end_of_a_chat_stream_is_not_the_end(self) -> None:
        assert translate_stream([*streamed(ANSWERS["text"])[:5], b"data: [DONE]\n\n"])[-1].data != DONE_DATA

    def test_an_event_without_a_type_has_that_of_its_name(self) -> None:
        pieces = [
            piece.replace(b'"type":"response.', b'"kind":"response.') for piece in streamed(ANSWERS["a custom call"])
        ]

        assert translate_stream(pieces) == translate_stream(streamed(ANSWERS["a custom call"]))

    def test_an_event_without_type_and_name_says_nothing(self) -> None:
        unknown = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

        assert translate_stream([unknown]) == []

    @pytest.mark.parametrize("data", [b"<html>", b"5", b"{"])
    def test_data_that_is_no_json_object_is_refused(self, data: bytes) -> None:
        with pytest.raises(UpstreamUnavailable, match="'p' answered with data that is not"):
            ResponsesStreamDecoder("p").decode(data)

    def test_a_long_event_in_many_pieces_comes_whole(self) -> None:
        text = "word " * 200_000
        delta = event("response.output_text.delta", output_index=0, delta=text)
        pieces = [delta[start : start + 4096] for start in range(0, len(delta), 4096)]

        assert collect(translate_stream(pieces)).build_message()["content"] == text

    def test_items_without_deltas_come_with_their_ends(self) -> None:
        for name in STREAMED:
            pieces = [piece for piece in streamed(ANSWERS[name]) if b".delta" not in piece[:60]]
            collector = collect(translate_stream(pieces))
            assert collector.build_message() == collect(translate_stream(streamed(ANSWERS[name]))).build_message()

    def test_items_without_a_beginning_come_with_their_ends(self) -> None:
        for name in STREAMED:
            pieces = [
                piece
                for piece in streamed(ANSWERS[name])
                if b"output_item.added" not in piece and b".delta" not in piece[:60]
            ]
            collector = collect(translate_stream(pieces))
            assert collector.build_message() == collect(translate_stream(streamed(ANSWERS[name]))).build_message()

    def test_a_stream_of_nothing_but_the_whole_response(self) -> None:
        for name in STREAMED:
            last = translate_stream(streamed(ANSWERS[name])[-1:])
            assert collect(last).build_message() == collect(translate_stream(streamed(ANSWERS[name]))).build_message()
            assert collect(last).id == "resp_1"

    def test_calls_that_all_have_one_index_are_told_apart(self) -> None:
        pieces = [
            piece.replace(b'"output_index":1', b'"output_index":0') for piece in streamed(respond(CALL_A, CALL_B))
        ]
        message = collect(translate_stream(pieces)).build_message()

        assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
            CALL_A["arguments"],
            CALL_B["arguments"],
        ]

    def test_a_call_without_deltas_after_one_of_the_same_index_keeps_its_arguments(self) -> None:
        counted = [piece for piece in streamed(respond(CALL_A, CALL_B)) if b'"item_id":"fc_1"' not in piece]
        pieces = [piece.replace(b'"output_index":1', b'"output_index":0') for piece in counted]
        message = collect(translate_stream(pieces)).build_message()

        assert message["tool_calls"][1]["function"]["arguments"] == CALL_B["arguments"]

    def test_an_incomplete_response_that_says_no_more_has_reached_a_limit(self) -> None:
        pieces = [*streamed(ANSWERS["text"])[:-1], event("response.incomplete", response=None)]

        assert collect(translate_stream(pieces)).finish == "length"

    def test_events_without_an_index_belong_together(self) -> None:
        pieces = [piece.replace(b'"output_index":0', b'"output_index":null') for piece in streamed(ANSWERS["text"])]

        assert collect(translate_stream(pieces)).build_message()["content"] == "Hello, dear world."

    def test_a_character_in_two_halves_is_put_together(self) -> None:
        halves = [
            b'data: {"type":"response.output_text.delta","output_index":0,"delta":"\\ud83d"}\n\n',
            b'data: {"type":"response.output_text.delta","output_index":0,"delta":"\\ude00"}\n\n',
        ]

        assert collect(translate_stream(halves)).build_message()["content"] == "😀"

    def test_log_probabilities_stand_in_their_chunk(self) -> None:
        logprobs = [{"token": "Hi", "logprob": -0.1, "top_logprobs": []}]
        delta = event("response.output_text.delta", output_index=0, delta="Hi", logprobs=logprobs)

        for chunk in chunks_in(translate_stream([delta, delta]))[1:]:
            assert chunk["choices"][0]["logprobs"] == {"content": logprobs, "refusal": None}

    def test_a_delta_that_is_no_text_is_left_out(self) -> None:
        for delta in ({"text": "x"}, None, 7, ""):
            for kind in ("output_text", "refusal", "reasoning_summary_text", "function_call_arguments"):
                events = translate_stream([event(f"response.{kind}.delta", output_index=0, delta=delta)])
                assert not collect(events).has_content
