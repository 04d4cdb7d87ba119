"""What a client gets of a stream does not depend on how it was cut, nor on which chunks were known by their bytes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.answer_format import Progress
from app.dialects.chat.stream_splicer import ChatStreamSplicer
from app.dialects.sse import SseDecoder
from app.dialects.stream_relay import RelayOptions
from tests.live import DONE, chunk, usage_chunk

FIELDS = b'"context_status":"full","conversation_id":"conv_1"'
TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n", '"', "\\", "\\\\", "é", "😀", "data: ", "}\n\n", '"},"x":"', "\\u00e9", "ab"]),
    st.text(max_size=6),
)
KINDS: Sequence[dict[str, Any]] = ({}, {"system_fingerprint": None}, {"usage": None}, {"x": {"content": "y"}})


@st.composite
def plain_chunks(draw: st.DrawFn) -> list[bytes]:
    """Chunks of which several in a row are of one kind, in the spellings that servers use."""
    events: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        further, spaced = draw(st.sampled_from(KINDS)), draw(st.booleans())
        ascii_only = draw(st.booleans())
        for text in draw(st.lists(TEXTS, min_size=1, max_size=6)):
            body = orjson.loads(chunk({"content": text}, **further)[6:])
            separators = (", ", ": ") if spaced else (",", ":")
            said = json.dumps(body, separators=separators, ensure_ascii=ascii_only)
            events.append(b"data: %b\n\n" % said.encode())
    return events


ODD = st.sampled_from(
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm", "content": None}),
        chunk({"content": "a", "reasoning_content": "b"}),
        chunk({"content": "a"}, "length"),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
        chunk({}, "stop"),
        usage_chunk(5),
        b": a comment\n\n",
        b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"half \\ud83d"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00 more"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"cut\\"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"bad \xff"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\u00"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"e9"}}]}\n\n',
        b'data: {"error":{"message":"no"}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\r\n\r\n',
        b"event: x\ndata: {}\n\n",
        DONE,
    ]
)


def relayed(
    pieces: Sequence[bytes], *, include_usage: bool = False, early: Progress | None = None
) -> tuple[bytes, ChatStreamSplicer]:
    relay = ChatStreamSplicer(RelayOptions(FIELDS, lambda _: FIELDS + b',"context":{}', "m", include_usage), early)
    frames, decoder = b"", SseDecoder("m")
    for piece in pieces:
        if not relay.has_ended:
            frames += relay.relay_events(decoder.feed(piece))
    if not relay.has_ended:
        frames += relay.relay_events(decoder.flush())
    relay.record_stream_end()
    return frames, relay


def outcome(pieces: Sequence[bytes], *, include_usage: bool) -> tuple[object, ...]:
    frames, relay = relayed(pieces, include_usage=include_usage)
    told, failure = relay.answer, relay.stream_failure
    error = None if failure is None else (type(failure), failure.message)
    counted = (told.chunk_count, told.usage, told.finish, told.is_complete)
    return (
        frames,
        [told.build_message(), *told.build_alternatives()],
        counted,
        error,
        relay.is_upstream_done,
        relay.has_ended,
    )


@given(
    runs=st.lists(st.one_of(plain_chunks(), ODD.map(lambda one: [one])), max_size=6),
    ends=st.sampled_from([b"", DONE, chunk({}, "stop") + DONE]),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
    include_usage=st.booleans(),
)
def test_a_stream_comes_out_alike_wherever_it_is_cut(
    runs: list[list[bytes]], ends: bytes, cuts: list[int], include_usage: bool
) -> None:
    events = [event for run in runs for event in run]
    stream = b"".join(events) + ends
    places = [0, *sorted(place % (len(stream) + 1) for place in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    expected = outcome([*events, ends], include_usage=include_usage)
    assert outcome(pieces, include_usage=include_usage) == expected
