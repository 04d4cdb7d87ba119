"""One HTTP/1.1 connection to a provider, for one call at a time; llhttp reads what comes.

Nothing is handed to a reader that is not framed without doubt: an answer with two lengths, or with a coding besides
`chunked`, is refused, and a connection on which more comes than was asked for is never used again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app.errors import UpstreamUnavailable
from app.upstream.http.client import (
    READ_BUFFER_BYTES,
    Head,
    Timeouts,
    broke_off,
    dropped,
    failed,
    fell_silent,
    unanswered_in_time,
)
from app.upstream.http.timeouts import Watch, Watches

HEAD_LIMIT_BYTES: Final = 64 * 1024
"""Of status line and headers, those of answers that only inform included."""
JOINED_BYTES: Final = 64 * 1024
"""A body up to so long is copied behind its head, to be one write."""
WRITE_BYTES: Final = 1024 * 1024
"""Of a longer body: so much at a time, and the next when the socket has taken it."""
BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
"""Methods for which no body needs no length (RFC 9110, 8.6)."""
SWITCHING_PROTOCOLS: Final = 101
OK: Final = 200


class Connection(asyncio.Protocol):
    """A connection that stands.

    Attributes:
        status: of the answer under way; 0 before its head has come.
        headers: of the same, lower-case names.
        pieces: of its body, not taken yet.
        is_complete: nothing more of it is to come; so too while there was no call.
        failure: why nothing more will come, where it should.
        is_open: it may be used.
        idle_since: loop time; for whoever keeps it.

    Args:
        on_free: called when it may be used for another call.
        on_lost: called when it is closed.
    """

    __slots__ = (
        *("_is_framed", "_is_full", "_is_head", "_is_paused", "_is_written", "_keeps_alive", "_name"),
        *("_on_free", "_on_lost", "_parser", "_raw_headers", "_timeouts", "_transport", "_unread_bytes", "_waiter"),
        *(
            "failure",
            "headers",
            "idle_since",
            "is_complete",
            "is_open",
            "on_body",
            "on_header",
            "pieces",
            "status",
            "watch",
        ),
    )

    def __init__(
        self,
        name: str,
        timeouts: Timeouts,
        watches: Watches,
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._name = name
        self._timeouts = timeouts
        self._on_free = on_free
        self._on_lost = on_lost
        self._raw_headers: dict[bytes, bytes] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._unread_bytes = 0
        self.is_open = self._is_written = self._keeps_alive = self._is_framed = True
        self._is_full = self._is_paused = self._is_head = False
        self.idle_since = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.is_complete = True
        self.failure: UpstreamUnavailable | None = None
        self.watch = Watch(watches, self._expire)
        self.on_header = self._raw_headers.__setitem__
        self.on_body = self.pieces.append
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    async def ask(self, head: Head, body: bytes, ends_at: float | None) -> None:
        """Send a request, and wait until `status` and `headers` of its answer are there; see `Client.send`."""
        if not self.is_open:
            raise dropped(self._name)
        self.status = self._unread_bytes = 0
        self.is_complete = False
        self._raw_headers.clear()
        self._is_head = head.method == "HEAD"
        self.watch.begin(silence_seconds=self._timeouts.first_byte_seconds, ends_at=ends_at)
        length = b"content-length: %d\r\n\r\n" % len(body) if body or head.method not in BODILESS else b"\r\n"
        try:
            if len(body) <= JOINED_BYTES:
                self._transport.write(head.raw + length + body)
            else:
                await self._write_in_turns(head.raw + length, body)
            while not self.status and self.failure is None:
                await self._news()
        except asyncio.CancelledError:
            self.abort()
            raise
        if not self.status:
            raise self._take_failure()

    def begin_reading(self) -> None:
        """The first piece has come: from now on what counts is the silence between pieces."""
        self.watch.waiting_since = None
        self.watch.limit_silence(self._timeouts.between_bytes_seconds)

    async def more(self) -> None:
        """Wait until there is a piece, or the end.

        Raises:
            UpstreamUnavailable: there will be neither.
        """
        watch = self.watch
        if watch.waiting_since is None:
            watch.waiting_since = watch.now()
        try:
            while not self.pieces and not self.is_complete and self.failure is None:
                await self._news()
        except asyncio.CancelledError:
            self.abort()
            raise
        watch.waiting_since = None
        if self.failure is not None and not self.pieces:
            raise self._take_failure()

    def take(self) -> bytes:
        """All pieces that have come, as one."""
        pieces = self.pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread_bytes = 0
        if self._is_paused:
            self._read_on()
        return taken

    def let_go(self) -> None:
        """The answer is not needed any more. The connection is free if it has come whole, else it is closed."""
        self.watch.stop()
        if self.is_complete and self._keeps_alive and self._is_written and self.is_open:
            self.pieces.clear()
            if self._is_paused:
                self._read_on()
            self._on_free(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is still under way."""
        self.watch.stop()
        self.is_open = False
        self._transport.abort()

    def _read_on(self) -> None:
        self._is_paused = False
        if self.is_open:
            self._transport.resume_reading()

    async def _write_in_turns(self, head: bytes, body: bytes) -> None:
        """Write a long body. A server may answer before it has read it all, and then it need not get the rest."""
        view = memoryview(body)
        written = 0
        self._is_written = False
        self._transport.write(head)
        while written < len(body) and self._is_awaited:
            self._transport.write(view[written : written + WRITE_BYTES])
            written += WRITE_BYTES
            while self._is_full and self._is_awaited:
                await self._news()
        self._is_written = written >= len(body) and not self._is_full

    @property
    def _is_awaited(self) -> bool:
        """Whether the head of an answer may still come."""
        return not self.status and self.failure is None

    def _news(self) -> asyncio.Future[None]:
        """Done when something has come, or can be written, or has failed."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: UpstreamUnavailable) -> None:
        if not self.is_complete and self.failure is None:
            self.failure = error
        self.abort()
        self._wake()

    def _expire(self) -> None:
        self._fail(fell_silent(self._name) if self.status else unanswered_in_time(self._name))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail(broke_off(self._name) if self.status else failed(self._name, "its answer is not HTTP"))
            return
        self._unread_bytes += len(data)
        if self._unread_bytes > HEAD_LIMIT_BYTES:
            self._hold_back()
        if self.status and self._waiter is not None:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.end()
        self.is_open = False
        if not self.status:
            self._lose(dropped(self._name))
        elif exc is None and not self._is_framed:
            self.is_complete = True
        else:
            self._lose(broke_off(self._name))
        self._on_lost(self)
        self._wake()
        del self._parser, self.on_header, self.on_body

    def _take_failure(self) -> UpstreamUnavailable:
        """The failure, to be raised. It does not stay here: it would keep its traceback, and so the request."""
        failure, self.failure = self.failure, dropped(self._name)
        return failure or dropped(self._name)

    def _lose(self, error: UpstreamUnavailable) -> None:
        if not self.is_complete and self.failure is None:
            self.failure = error

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def _hold_back(self) -> None:
        """Much has come that nobody has taken: the reader is slow, or none of it is an answer."""
        if not self.status:
            self._fail(failed(self._name, "the headers of its answer are too long"))
        elif self._unread_bytes > READ_BUFFER_BYTES and not self._is_paused and not self.is_complete:
            if not self.pieces:
                self._fail(broke_off(self._name))
                return
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise HttpParserError("more than was asked for")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        raw = self._raw_headers
        if status < OK:
            raw.clear()
            return
        self.headers = headers = {_name_of(name): value.decode("latin-1") for name, value in raw.items()}
        raw.clear()
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise HttpParserError("a transfer coding that was not asked for")
        self._is_framed = coding is not None or "content-length" in headers
        self.status = status
        if self._is_head:
            self.is_complete = True
            self._keeps_alive = False

    def on_message_complete(self) -> None:
        if self.status:  # else it only informed, and the answer is still to come
            self.is_complete = True
            self._keeps_alive = self._keeps_alive and self._parser.should_keep_alive()


@functools.lru_cache(256)
def _name_of(raw: bytes) -> str:
    """A header's name as it is known here; servers use the same few again and again."""
    return raw.decode("latin-1").lower()
