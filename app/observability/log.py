"""Writes log lines: one line for each event, as JSON for machines or as text for a terminal.

A line never contains content or keys. Its fields come from `extra`: numbers, booleans and short names. Longer texts are
left out, because they may be content. Whatever looks like a key or a password in a library's message is replaced.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TextIO

from app.observability.tracing import current_span_ids

LogFormat = Literal["auto", "json", "text"]

FLUSH_SECONDS = 0.05
MAX_FIELD_CHARS = 200
"""A longer text is left out of the fields, because it may be content."""
_scope: ContextVar[dict[str, str] | None] = ContextVar("log_scope", default=None)
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRETS = re.compile(
    r"(://)[^\s@/]+(?=@)"  # a password in an address
    r"|(\b[sp]k-)[\w-]{6,}"  # a key as OpenAI and others write them
    r"|(\bbearer\s+)[^\s'\",)}\]]+|(\bbasic\s+)[A-Za-z0-9+/=]{12,}",
    re.IGNORECASE,
)
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that end a line, control a terminal, or turn the direction of text. A name with them could forge lines."""
_NUMBERS = (bool, int, float)
_encode_json = json.JSONEncoder(ensure_ascii=False).encode
_PLAIN_VALUE = re.compile(r"[^\s\"'=]+")


def begin_log_scope(request_id: str) -> None:
    """Adds the request's id to each further line of this task, and the conversation's id once that is known."""
    # Never reset: the server runs each request in a context of its own.
    _scope.set({"request_id": request_id})


def set_log_conversation(conversation_id: str) -> None:
    """Adds the conversation's id to all further lines of this request."""
    # The dict is changed in place: the pipeline may run in another task than the request, with a copy of its context.
    scope = _scope.get()
    if scope is not None:
        scope["conversation_id"] = conversation_id


def configure_logging(level: str, log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Sends the log lines of the gateway and of all libraries to one stream, and replaces the handlers of before.

    Args:
        level: the lowest level that is written.
        log_format: `auto` is text on a terminal, else JSON.
        stream: the stream; None for standard error.
    """
    stream = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    if isinstance(stream, io.TextIOWrapper):
        # The stream's encoding may lack a character, or a text has half a surrogate pair.
        stream.reconfigure(errors="backslashreplace")
    handler = LogHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, those of an event loop together: a write for each request lets other threads in and
    takes a sixth of a turn. Warnings, and lines of other threads, are written at once.

    A stream that fails or is closed is ignored: there is no other place to report it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._flush_loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which a flush is due."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - as the library does: no request fails because of its log line
            self.handleError(record)
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or record.levelno >= logging.WARNING:
            self.flush()
        elif loop is not self._flush_loop:
            self._flush_loop = loop
            loop.call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Writes the lines that wait."""
        with self.lock or nullcontext(), suppress(OSError, ValueError):
            self._flush_loop = None
            lines, self._lines = self._lines, []
            self.stream.write("".join(lines))
            self.stream.flush()


class JsonFormatter(logging.Formatter):
    """Renders a line as one JSON object: `time`, `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _record_time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redact_secrets(record.getMessage()),
            **collect_log_fields(record),
        }
        if record.exc_info:
            line["exception"] = _redact_secrets(self.formatException(record.exc_info))
        return _escape_control_characters(_encode_json(line))


class TextFormatter(logging.Formatter):
    """Renders a line for people: time, level, message, then the fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {name}={_quote_value(value)}" for name, value in collect_log_fields(record).items())
        message = _escape_control_characters(_redact_secrets(record.getMessage()))
        line = f"{_record_time(record):%H:%M:%S} {record.levelname.lower():7} {message}{fields}"
        if not record.exc_info:
            return line
        trace_lines = _redact_secrets(self.formatException(record.exc_info)).split("\n")
        return "\n".join([line, *(f"  {_escape_control_characters(part)}" for part in trace_lines)])


def collect_log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields of a record: the current scope, `extra` and the current span, without what may be content."""
    attributes = {**(_scope.get() or {}), **vars(record), **current_span_ids()}
    # In one expression: each request writes a line, with some twenty fields.
    return {
        name: _redact_secrets(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if name not in _OWN_ATTRIBUTES
        and (isinstance(value, _NUMBERS) or (isinstance(value, str) and len(value) <= MAX_FIELD_CHARS))
    }


def _mask_secret(match: re.Match[str]) -> str:
    return f"{match[match.lastindex or 0]}***"


_redact_secrets: Final[Callable[[str], str]] = partial(_SECRETS.sub, _mask_secret)
_escape_control_characters: Final[Callable[[str], str]] = partial(
    _CONTROL_CHARACTERS.sub, lambda found: f"\\u{ord(found[0]):04x}"
)


def _quote_value(value: Any) -> str:
    """Renders a value of a text line. Quotes it if it could be read as several values, or as another field."""
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text) and text.isprintable():
        return text
    return _escape_control_characters(_encode_json(text))


def _record_time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
