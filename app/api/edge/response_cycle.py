"""How answers of the server begin: uvicorn looks at each header by itself, which takes longer than all else it does."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_TAB: Final = 9
_CONTROLS: Final = bytes(code for code in (*range(32), 127) if code != _TAB)
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
"""What the name of a header is made of, in lower case (RFC 9110, 5.1)."""
_LINE_END_BYTES: Final = 2
_go_on: Final = RequestResponseCycle.send
"""Bound here, since each piece of each stream comes by."""


class Cycle(RequestResponseCycle):
    """A request and its answer, whose head is checked and written as a whole. There is no access log."""

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]  # whatever can be awaited will do
        """See ASGI. What comes behind the head is uvicorn's."""
        if self.response_started or message["type"] != "http.response.start":
            return _go_on(self, message)
        return self._begin(message)

    def has_left(self) -> bool:
        """As `receive` would tell it. What comes from a client that had been paused is read on."""
        if self.disconnected or self.response_complete:
            return True
        self.flow.resume_reading()
        return False

    async def _begin(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        status: int = message["status"]
        headers = [*self.default_headers, *message.get("headers", ())]
        named = dict(headers)
        if not _is_token(b"".join(named)):
            headers = [(name.lower(), value) for name, value in headers]
            named = dict(headers)
            if not _is_token(b"".join(named)):
                raise RuntimeError("An answer has a header whose name cannot be sent.")
        lines = b"\r\n".join([*map(b": ".join, headers), b""])
        if _controls_in(lines) != _LINE_END_BYTES * len(headers):
            raise RuntimeError("An answer has a header that would be read as another one.")
        if named.get(b"transfer-encoding", b"").lower() == b"chunked":
            self.chunked_encoding = True
        elif b"content-length" in named:
            self.chunked_encoding = False
            self.expected_content_length = int(named[b"content-length"])
        elif self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        if b"connection" in named and b"close" in [part.strip() for part in named[b"connection"].lower().split(b",")]:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        self.transport.write(b"%b%b\r\n" % (STATUS_LINE[status], lines))


def _is_token(names: bytes) -> bool:
    return not names.translate(None, _TOKEN)


def _controls_in(lines: bytes) -> int:
    """How many characters there are that could end a line, or do worse."""
    return len(lines) - len(lines.translate(None, _CONTROLS))
