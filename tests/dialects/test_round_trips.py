"""What an answer says comes back equal through the other protocol. What one of them cannot say stands in a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.answer_events import (
    AnswerValue,
    Begin,
    CallBegin,
    CallText,
    Citation,
    Finish,
    Reasoning,
    Refusal,
    Sealed,
    Text,
    Usage,
)
from app.dialects.chat.stream_encoder import ChatStreamEncoder, encode_completion
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import ResponseObject
from app.dialects.responses.stream_encoder import ResponsesStreamEncoder
from app.dialects.sse import SseDecoder
from tests.dialects.responses.streams import CREATED_AT, RESPONSE_ID

NOT_SAID: Final = {
    "openai": {"Sealed": "encrypted reasoning has no place in a message", "block": "a message has one text"},
    "responses": {"choice": "a response has one answer", "reason": "only limits, filters and the end are told"},
}
"""What the encoder of a protocol leaves out, and why."""
WORDS: Final = st.text(min_size=1, max_size=6)
COUNTS: Final = st.integers(1, 10_000)


def write_chat(values: Sequence[AnswerValue]) -> bytes:
    encoder = ChatStreamEncoder()
    chunks = (encoder.encode(value) for value in values)
    return b"".join(b"data: %b\n\n" % chunk for chunk in chunks if chunk) + b"data: [DONE]\n\n"


def write_responses(values: Sequence[AnswerValue]) -> bytes:
    fields = {"model": b'"m"', "include": b'["reasoning.encrypted_content","message.output_text.logprobs"]'}
    lifecycle = LifecycleWriter(ResponseObject(RESPONSE_ID, CREATED_AT, fields))
    encoder = ResponsesStreamEncoder(lifecycle.response, lifecycle.events, {})
    usage = next((value.counts for value in values if isinstance(value, Usage)), None)
    reason = next((value.reason for value in values if isinstance(value, Finish)), None)
    frames = lifecycle.write_begin(b"", "m") + b"".join(encoder.encode([value]) for value in values)
    return frames + lifecycle.write_end(b"", model="m", output=encoder.items, usage=usage, finish=reason)


WRITERS: Final = {"openai": write_chat, "responses": write_responses}


def read(protocol: str, stream: bytes) -> list[AnswerValue]:
    decoder = PROVIDER_DIALECTS[protocol].make_decoder()
    return [value for event in SseDecoder().feed(stream) for value in decoder.decode(event.data or b"", event.name)]


def join(values: Sequence[AnswerValue]) -> list[Any]:
    """What values say, however it was cut: neighbours of one kind are one. Identity and places are left out."""
    found: list[list[Any]] = []
    for value in values:
        match value:
            case Text() | Refusal():
                key, piece = type(value).__name__, value.text
            case Reasoning():
                key, piece = f"Reasoning {value.is_summary}", value.text
            case CallText():
                key, piece = f"CallText {value.call}", value.text
            case Citation():
                key, piece = f"Citation {sorted(value.fields.items())}", ""
            case Begin() | Sealed():
                continue
            case _:
                key, piece = msgspec.json.encode([type(value).__name__, value]).decode(), ""
        if piece or not isinstance(value, Text | Refusal | Reasoning | CallText):
            found.append([key, piece])
    return [[key, "".join(piece for _, piece in run)] for key, run in itertools.groupby(found, lambda one: one[0])]


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerValue]:
    """Answers that both protocols can say: thoughts, what is said, calls in turn, the end."""
    values: list[AnswerValue] = [Begin("answer", 7, "m")]
    values += [Reasoning(text) for text in draw(st.lists(WORDS, max_size=3))]
    kind = draw(st.sampled_from([Text, Refusal]))
    values += [kind(text) for text in draw(st.lists(WORDS, max_size=4))]
    if kind is Text and len(values) > 1 and isinstance(values[-1], Text) and draw(st.booleans()):
        values.append(Citation({"url": "https://a.test", "title": "A", "start_index": 0, "end_index": 1}))
    count = draw(st.integers(0, 3))
    for number in range(count):
        values.append(CallBegin(number, f"call_{number}", f"tool_{number}", is_custom=draw(st.booleans())))
        values += [CallText(number, text) for text in draw(st.lists(WORDS, min_size=1, max_size=3))]
    ends = ["length", "content_filter", "tool_calls" if count else "stop"]
    counts = {"prompt_tokens": draw(COUNTS), "completion_tokens": draw(COUNTS)}
    details = {
        "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    total = {"total_tokens": sum(counts.values())}
    return [*values, Finish(draw(st.sampled_from(ends))), Usage({**counts, **total, **details})]


@given(answers(), st.permutations(["openai", "responses"]))
def test_an_answer_comes_back_through_both_protocols(values: list[AnswerValue], protocols: list[str]) -> None:
    passed: Sequence[AnswerValue] = values
    for protocol in protocols:
        passed = read(protocol, WRITERS[protocol](passed))
    assert join(passed) == join(values)


@given(answers())
def test_a_whole_answer_says_what_the_stream_says(values: list[AnswerValue]) -> None:
    decoder, body = PROVIDER_DIALECTS["openai"].make_decoder(), encode_completion(values)
    decoder.add_whole(body)
    whole = decoder.decode_whole(body)
    assert join(whole) == join(read("openai", write_chat(values)))


def test_what_a_protocol_cannot_say_stands_in_the_table() -> None:
    sealed: list[AnswerValue] = [
        Begin("a"),
        Sealed("reasoning", "gAAAA"),
        Text("x"),
        Text("y", block=1),
        Finish("stop"),
    ]
    two_choices: list[AnswerValue] = [
        Begin("a"),
        Text("x"),
        Text("y", choice=1),
        Finish("odd"),
        Finish("odd", choice=1),
    ]
    back = {protocol: read(protocol, write(sealed)) for protocol, write in WRITERS.items()}
    lost = {protocol for protocol, found in back.items() if not any(isinstance(one, Sealed) for one in found)}
    assert lost == {protocol for protocol, table in NOT_SAID.items() if "Sealed" in table}
    blocks = {protocol: [one for one in found if isinstance(one, Text)] for protocol, found in back.items()}
    assert "".join(one.text for one in blocks["openai"]) == "x\n\ny"
    choices = {
        protocol: [one.choice for one in read(protocol, write(two_choices)) if isinstance(one, Text)]
        for protocol, write in WRITERS.items()
    }
    assert (choices["openai"], choices["responses"]) == ([0, 1], [0])
    (reason,) = [one.reason for one in read("responses", write_responses(two_choices)) if isinstance(one, Finish)]
    assert reason == "stop"
