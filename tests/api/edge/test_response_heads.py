"""Heads as they are written, beside those of uvicorn itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.api.edge.connections import RequestCycle

LENGTHS = st.tuples(st.just(b"content-length"), st.sampled_from([b"2", b"3", b"4"]))
OTHERS = st.tuples(
    st.sampled_from([b"content-type", b"X-Request-Id", b"transfer-encoding", b"connection"]),
    st.sampled_from([b"text/plain", b"chunked", b"close", b"Keep-Alive, Close", b"a\tb", "é".encode()]),
)


class _Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


class _Flow:
    write_paused = False


def told(kind: type[RequestResponseCycle], method: str, keep_alive: bool, status: int, headers: Any) -> tuple[Any, ...]:
    """What one of the two writes, and how it goes on."""
    transport = _Transport()
    cycle = kind(
        scope={"method": method},  # type: ignore[typeddict-item]  # nothing else is read
        transport=transport,  # type: ignore[arg-type]
        flow=_Flow(),  # type: ignore[arg-type]
        logger=None,  # type: ignore[arg-type]
        access_logger=None,  # type: ignore[arg-type]
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )

    async def answer() -> str:
        try:
            await cycle.send({"type": "http.response.start", "status": status, "headers": headers})
            await cycle.send({"type": "http.response.body", "body": b"abc", "more_body": False})
        except (RuntimeError, ValueError) as error:
            return type(error).__name__
        return ""

    outcome = asyncio.run(answer())
    head, _, body = transport.written.partition(b"\r\n\r\n")
    lines = sorted(head.split(b"\r\n"))
    return outcome, lines, body, transport.closed, cycle.keep_alive, cycle.response_complete


@given(
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    keep_alive=st.booleans(),
    status=st.sampled_from([200, 204, 304, 404]),
    headers=st.lists(LENGTHS | OTHERS, max_size=4, unique_by=lambda pair: pair[0]),
)
def test_an_answer_is_what_uvicorn_itself_would_write(
    method: str, keep_alive: bool, status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    ours = told(RequestCycle, method, keep_alive, status, headers)
    theirs = told(RequestResponseCycle, method, keep_alive, status, headers)
    assert ours == theirs


@pytest.mark.parametrize(
    "header",
    [(b"x", b"a\r\nset-cookie: b"), (b"x", b"a\n"), (b"x", b"\x00"), (b"x\r\ny", b"a"), (b"x y", b"a"), (b"x:y", b"a")],
)
def test_a_header_that_would_be_read_as_another_is_not_sent(header: tuple[bytes, bytes]) -> None:
    outcome, lines, body, *_ = told(RequestCycle, "GET", True, 200, [header])
    assert outcome == "RuntimeError"
    assert (lines, body) == ([b""], b"")
