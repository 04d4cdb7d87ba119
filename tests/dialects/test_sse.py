"""Bytes → events, whatever the line ends and however the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.sse import SseDecoder, SseEvent
from app.errors import UpstreamUnavailable


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.flush()


def data_of(*pieces: bytes) -> list[bytes | None]:
    return [event.data for event in decode(*pieces)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"], id="plain"),
        pytest.param(b'data:{"a":1}\n\n', [b'{"a":1}'], id="no space after the colon"),
        pytest.param(b"data:  two\n\n", [b" two"], id="only one space is taken off"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="bare CR"),
        pytest.param(b"data: a\n\r\ndata: b\r\n\ndata: c\n\n", [b"a", b"b", b"c"], id="mixed line ends"),
        pytest.param(b"data: a\r\n\r\ndata: b\n\n", [b"a", b"b"], id="CRLF then LF"),
        pytest.param(b"data: 1\ndata: 2\ndata:\n\n", [b"1\n2\n"], id="several data lines"),
        pytest.param(b"data\n\n", [b""], id="a field without a colon"),
        pytest.param(b": ping\n\ndata: a\n\n", [None, b"a"], id="a comment of its own"),
        pytest.param(b": OPENROUTER PROCESSING\ndata: a\n\n", [b"a"], id="a comment before data"),
        pytest.param(b":\n\n:\n\n", [None, None], id="bare colon keep-alives"),
        pytest.param(b"retry: 3000\n\n", [None], id="retry alone"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a", None], id="BOM at the start only"),
        pytest.param(b"data: a\n\n\n\n\ndata: b\n\n", [b"a", None, b"b"], id="superfluous blank lines"),
        pytest.param(b"data: a\n\ndata: b", [b"a", b"b"], id="no final blank line"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a", b"b"], id="one final line end"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_a_stream_is_read_as_the_specification_says(stream: bytes, expected: list[bytes | None]) -> None:
    assert data_of(stream) == expected
    assert data_of(*(stream[i : i + 1] for i in range(len(stream)))) == expected


def test_an_event_carries_its_name_and_its_bytes() -> None:
    (event,) = decode(b'event: error\nid: 7\ndata: {"error":{}}\n\n')

    assert event.name == b"error"
    assert event.data == b'{"error":{}}'
    assert event.raw == b'event: error\nid: 7\ndata: {"error":{}}\n\n'


def test_an_event_is_given_out_as_soon_as_its_blank_line_is_there() -> None:
    decoder = SseDecoder()

    assert [e.data for e in decoder.feed(b"data: a\n\ndata: b\n")] == [b"a"]
    assert decoder.feed(b"data: c") == []
    assert [e.data for e in decoder.feed(b"\n\ndata: d\n\n")] == [b"b\nc", b"d"]


def test_an_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    decoder = SseDecoder("greedy", max_event_bytes=1000)

    decoder.feed(b"data: never ending")
    decoder.feed(b"x" * 900)

    with pytest.raises(UpstreamUnavailable, match=r"'greedy'.*1000 bytes"):
        decoder.feed(b"x" * 900)


def test_an_event_in_very_many_pieces_takes_time_in_proportion() -> None:
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    for _ in range(200_000):
        assert decoder.feed(b"x" * 8) == []

    (event,) = decoder.feed(b"\n\n")
    assert event.data == b"x" * 1_600_000


_BITS = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"\n\n", b"data: ", b"data:", b"data: {}\n\n", b":", b"event: e", b"x", b"\xef\xbb\xbf"]
)


@given(st.lists(_BITS, max_size=24).map(b"".join), st.data())
def test_any_cutting_of_a_stream_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    events = decode(*pieces)

    assert events == decode(stream)
    assert b"".join(event.raw for event in events) == stream


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n")), max_size=10),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_was_framed_is_what_is_read(texts: list[str], end: str) -> None:
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()

    assert data_of(stream) == [text.encode() for text in texts]
