"""One HTTP/1.1 connection to a provider, for one call at a time. llhttp parses what comes.

A reader gets only what is framed without doubt: an answer with two lengths, or with a coding other than `chunked`, is
refused, and a connection with more data than was asked for is never used again (decision 25).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app.errors import UpstreamUnavailable
from app.upstream.http.http_client_contract import (
    BODILESS_METHODS,
    READ_BUFFER_BYTES,
    SINGLE_WRITE_BYTES,
    WRITE_PIECE_BYTES,
    HttpTimeouts,
    RequestHead,
    answer_timeout_error,
    call_failed_error,
    connection_dropped_error,
    incomplete_answer_error,
    silence_timeout_error,
)
from app.upstream.http.reply_timeouts import ReplyTimeout

HEAD_LIMIT_BYTES: Final = 64 * 1024
"""The longest status line and headers, including those of informational answers."""
STATUS_OK: Final = 200


class Http1Connection(asyncio.Protocol):
    """An open connection.

    Attributes:
        status: of the current answer; 0 before its head has come.
        headers: of the current answer, lower-case names.
        body_pieces: pieces of its body that were not taken yet.
        is_complete: whether the answer has come to its end; true before the first call.
        failure: why the rest of the answer will not come.
        is_open: whether the connection may be used.
        idle_since: loop time; set by the pool.

    Args:
        provider_name: for error messages.
        timeouts: time limits of its calls.
        on_free: called when the connection may be used for another call.
        on_lost: called when the connection is closed.
    """

    __slots__ = (
        *(
            "_has_framed_body",
            "_is_write_buffer_full",
            "_is_head_request",
            "_is_reading_paused",
            "_is_request_written",
            "_may_keep_alive",
            "_provider_name",
        ),
        *("_on_free", "_on_lost", "_parser", "_raw_headers", "_timeouts", "_transport", "_unread_bytes", "_waiter"),
        *(
            "failure",
            "headers",
            "idle_since",
            "is_complete",
            "is_open",
            "on_body",
            "on_header",
            "body_pieces",
            "status",
            "timeout",
        ),
    )

    def __init__(
        self,
        provider_name: str,
        timeouts: HttpTimeouts,
        on_free: Callable[[Http1Connection], None],
        on_lost: Callable[[Http1Connection], None],
    ) -> None:
        self._provider_name = provider_name
        self._timeouts = timeouts
        self._on_free = on_free
        self._on_lost = on_lost
        self._raw_headers: dict[bytes, bytes] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._unread_bytes = 0
        self.is_open = self._is_request_written = self._may_keep_alive = self._has_framed_body = True
        self._is_write_buffer_full = self._is_reading_paused = self._is_head_request = False
        self.idle_since = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_pieces: list[bytes] = []
        self.is_complete = True
        self.failure: UpstreamUnavailable | None = None
        self.timeout = ReplyTimeout(self._abort_after_timeout)
        self.on_header = self._raw_headers.__setitem__
        self.on_body = self.body_pieces.append
        self._parser = HttpResponseParser(self)
        # Some servers end lines with a bare LF, or put a space after a chunk's size. Both are unambiguous.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    async def send(self, head: RequestHead, body: bytes, deadline: float | None) -> None:
        """Sends a request and waits for `status` and `headers` of its answer; see `HttpClient.send`."""
        if not self.is_open:
            raise connection_dropped_error(self._provider_name)
        self.status = self._unread_bytes = 0
        self.is_complete = False
        self._raw_headers.clear()
        self._is_head_request = head.method == "HEAD"
        self.timeout.start(silence_seconds=self._timeouts.first_byte_seconds, deadline=deadline)
        length = b"content-length: %d\r\n\r\n" % len(body) if body or head.method not in BODILESS_METHODS else b"\r\n"
        try:
            if len(body) <= SINGLE_WRITE_BYTES:
                self._transport.write(head.raw + length + body)
            else:
                await self._write_long_body(head.raw + length, body)
            while not self.status and self.failure is None:
                await self._wait_for_change()
        # The answer will still come. On this connection it would be taken for the next request's answer.
        except asyncio.CancelledError:
            self.abort()
            raise
        if not self.status:
            raise self._pop_failure()

    def limit_silence_between_pieces(self) -> None:
        """Applies the limit for silence between pieces: the first piece has come."""
        self.timeout.waiting_since = None
        self.timeout.set_silence_limit(self._timeouts.between_bytes_seconds)

    async def wait_for_body(self) -> None:
        """Waits until there is a piece, or the end of the body.

        Raises:
            UpstreamUnavailable: the answer failed.
        """
        timeout = self.timeout
        if timeout.waiting_since is None:
            timeout.waiting_since = timeout.clock()
        try:
            while not self.body_pieces and not self.is_complete and self.failure is None:
                await self._wait_for_change()
        except asyncio.CancelledError:
            self.abort()
            raise
        timeout.waiting_since = None
        # Pieces that came before the failure are delivered first.
        if self.failure is not None and not self.body_pieces:
            raise self._pop_failure()

    def take_body(self) -> bytes:
        """Returns all pieces that have come, as one."""
        pieces = self.body_pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread_bytes = 0
        if self._is_reading_paused:
            self._resume_reading()
        return body

    def release(self) -> None:
        """Ends the current call. The connection is free if the answer is complete, else it is closed."""
        self.timeout.stop()
        if self.is_complete and self._may_keep_alive and self._is_request_written and self.is_open:
            self.body_pieces.clear()
            if self._is_reading_paused:
                self._resume_reading()
            self._on_free(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the connection at once, whatever is still under way."""
        self.timeout.stop()
        self.is_open = False
        self._transport.abort()

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        if self.is_open:
            self._transport.resume_reading()

    async def _write_long_body(self, head: bytes, body: bytes) -> None:
        """Writes a long body. A server may answer before it has read all of it, for example to refuse it; then the rest
        is not sent.
        """
        view = memoryview(body)
        written = 0
        self._is_request_written = False
        self._transport.write(head)
        while written < len(body) and self._is_head_awaited:
            self._transport.write(view[written : written + WRITE_PIECE_BYTES])
            written += WRITE_PIECE_BYTES
            while self._is_write_buffer_full and self._is_head_awaited:
                await self._wait_for_change()
        self._is_request_written = written >= len(body) and not self._is_write_buffer_full

    @property
    def _is_head_awaited(self) -> bool:
        """Says whether the head of an answer may still come."""
        return not self.status and self.failure is None

    def _wait_for_change(self) -> asyncio.Future[None]:
        """Returns a future that is done when data has come, can be written, or the connection has failed."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake_waiter(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _abort_with_failure(self, error: UpstreamUnavailable) -> None:
        if not self.is_complete and self.failure is None:
            self.failure = error
        self.abort()
        self._wake_waiter()

    def _abort_after_timeout(self) -> None:
        self._abort_with_failure(
            silence_timeout_error(self._provider_name) if self.status else answer_timeout_error(self._provider_name)
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._abort_with_failure(
                incomplete_answer_error(self._provider_name)
                if self.status
                else call_failed_error(self._provider_name, "its answer is not HTTP")
            )
            return
        self._unread_bytes += len(data)
        if self._unread_bytes > HEAD_LIMIT_BYTES:
            self._limit_unread_bytes()
        # An incomplete head is of no use to the waiting task.
        if self.status and self._waiter is not None:
            self._wake_waiter()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timeout.close()
        self.is_open = False
        if not self.status:
            self._set_failure(connection_dropped_error(self._provider_name))
        # A body without a length ends with the connection (RFC 9112, 6.3).
        elif exc is None and not self._has_framed_body:
            self.is_complete = True
        else:
            self._set_failure(incomplete_answer_error(self._provider_name))
        self._on_lost(self)
        self._wake_waiter()
        # The parser refers to this object: a reference cycle that only the garbage collector would free.
        del self._parser, self.on_header, self.on_body

    def _pop_failure(self) -> UpstreamUnavailable:
        """Returns the failure, to be raised. It is not kept here: its traceback would keep the request in memory
        (decision 29).
        """
        failure, self.failure = self.failure, connection_dropped_error(self._provider_name)
        return failure or connection_dropped_error(self._provider_name)

    def _set_failure(self, error: UpstreamUnavailable) -> None:
        if not self.is_complete and self.failure is None:
            self.failure = error

    def pause_writing(self) -> None:
        self._is_write_buffer_full = True

    def resume_writing(self) -> None:
        self._is_write_buffer_full = False
        self._wake_waiter()

    def _limit_unread_bytes(self) -> None:
        """Stops reading: much has come that was not taken. Either the reader is slow, or the data is no answer."""
        if not self.status:
            self._abort_with_failure(call_failed_error(self._provider_name, "the headers of its answer are too long"))
        elif self._unread_bytes > READ_BUFFER_BYTES and not self._is_reading_paused and not self.is_complete:
            # The data is in no body piece: endless chunk extensions or trailers.
            if not self.body_pieces:
                self._abort_with_failure(incomplete_answer_error(self._provider_name))
                return
            self._is_reading_paused = True
            self._transport.pause_reading()

    def on_message_begin(self) -> None:
        # Data after the answer, or before a request: the framing is in doubt, or somebody injects an answer.
        if self.is_complete:
            raise HttpParserError("data after the end of the answer")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        raw = self._raw_headers
        # An informational answer (1xx): the answer itself follows.
        if status < STATUS_OK:
            raw.clear()
            return
        self.headers = headers = {_decode_header_name(name): value.decode("latin-1") for name, value in raw.items()}
        raw.clear()
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise HttpParserError("a transfer coding that the request did not allow")
        self._has_framed_body = coding is not None or "content-length" in headers
        self.status = status
        # The parser would wait for a body that never comes: end the answer here, and do not use the connection again.
        if self._is_head_request:
            self.is_complete = True
            self._may_keep_alive = False

    def on_message_complete(self) -> None:
        if self.status:  # else it only informed, and the answer is still to come
            self.is_complete = True
            self._may_keep_alive = self._may_keep_alive and self._parser.should_keep_alive()


@functools.lru_cache(256)
def _decode_header_name(raw: bytes) -> str:
    """Returns a header's name in lower case. Cached: servers send the same few names again and again."""
    return raw.decode("latin-1").lower()
