"""However an answer's bytes are cut into pieces it is the same answer, and what is missing is always noticed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from urllib.parse import urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client import HttpClient
from app.upstream.http.http_client_contract import HttpTimeouts, RequestHead
from tests.upstream.http.loopback_server import END, chunked

HEAD = RequestHead("POST", "/v1", {"host": "test"})
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12).map(lambda name: f"x-{name}")
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=4)
PIECES = st.lists(st.binary(min_size=1, max_size=60), max_size=6)
CUTS = st.lists(st.integers(0, 700), max_size=12)
Said = tuple[int, dict[str, str], bytes] | str
"""Status, headers and body, or why there are none."""


def answered(pieces: list[bytes], *, ends: bool) -> Said:
    """What the client makes of an answer that comes in these pieces.

    Args:
        ends: the server closes the connection after them.
    """
    return asyncio.run(_answered(pieces, ends=ends))


async def _answered(pieces: list[bytes], *, ends: bool) -> Said:
    is_over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"{}")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if not ends:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        is_over.set()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        url = urlsplit(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client = HttpClient("test", url, HttpTimeouts(), None, None)
        try:
            reply = await client.send(HEAD, b"{}", None, None)
            return reply.status, dict(reply.headers), await reply.read()
        except UpstreamUnavailable as error:
            return error.message
        finally:
            await client.aclose()
            await is_over.wait()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place for place in at if place < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def rendered(status: int, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}".encode("latin-1")


@st.composite
def framed(draw: st.DrawFn) -> tuple[bytes, Said, bool]:
    """The bytes of an answer, what it says, and whether it ends with its connection."""
    status = draw(st.sampled_from([200, 201, 400, 429, 500]))
    headers, pieces = draw(HEADERS), draw(PIECES)
    body = b"".join(pieces)
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nX-Hint: 1\r\n\r\n"]))
    head = interim + rendered(status, headers)
    framing = draw(st.sampled_from(["length", "chunks", "trailers", "end"]))
    if framing == "length":
        sized = {**headers, "content-length": str(len(body))}
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, (status, sized, body), False
    if framing == "end":
        return head + b"\r\n" + body, (status, headers, body), True
    end = END if framing == "chunks" else b"0\r\nX-Trailer: 1\r\n\r\n"
    sent = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunked, pieces)) + end
    return sent, (status, headers, body), False


@given(framed(), CUTS)
@settings(max_examples=150, deadline=None)
def test_any_cutting_of_an_answer_says_the_same(answer: tuple[bytes, Said, bool], at: list[int]) -> None:
    sent, said, ends = answer
    assert answered(cut(sent, at), ends=ends) == said


@given(framed().filter(lambda answer: not answer[2]), CUTS, st.data())
@settings(max_examples=100, deadline=None)
def test_an_answer_that_lacks_anything_is_never_taken_for_whole(
    answer: tuple[bytes, Said, bool], at: list[int], data: st.DataObject
) -> None:
    sent = answer[0][: data.draw(st.integers(0, len(answer[0]) - 1))]
    assert answered(cut(sent, at), ends=True) in (
        "Provider 'test' closed the connection without an answer.",
        "The answer of provider 'test' broke off.",
    )


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_an_answer_or_an_error_of_ours(pieces: list[bytes], begun: bytes) -> None:
    answered([begun, *pieces], ends=True)
