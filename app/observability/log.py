"""Logging: one line for each event, JSON for machines or text for a terminal. Never a message's content, never a key.

What a line tells beside its text comes from `extra`: numbers, claims and short names. Longer texts are left out, since
they could only be content; what looks like a key or a password in a library's message is blotted out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import sys
import threading
import time
from collections import deque
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import orjson

from app.observability.tracing import current_span

LogFormat = Literal["auto", "json", "text"]

MAX_FIELD_CHARS = 200
FLUSH_SECONDS: Final = 0.05
"""How long an ordinary line may wait for others. A system call for each takes longer than to make it."""
PRERENDERED_FIELDS: Final = "told_fields"
"""The attribute of a record whose fields are all there is to tell, names and numbers by the one who made it."""

_LEVELS: Final = {logging.INFO: "info", logging.WARNING: "warning"}
"""Of lines that are not looked into."""
_root: Final = logging.getLogger()

_scope: ContextVar[dict[str, str] | None] = ContextVar("log_scope", default=None)
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRETS = re.compile(
    r"(://)[^\s@/]+(?=@)"  # a password in an address
    r"|(\b[sp]k-)[\w-]{6,}"  # a key as OpenAI and others write them
    r"|(\bbearer\s+)[^\s'\",)}\]]+|(\bbasic\s+)[A-Za-z0-9+/=]{12,}",
    re.IGNORECASE,
)
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What ends a line, steers a terminal, or turns the direction of what is read."""
_PLAIN_VALUE = re.compile(r"[^\s\"'=]+")


class log_scope:  # noqa: N801 - used as a function is, and a generator would take three times as long
    """Within it, every line of this task names the request, and the conversation once it is known."""

    __slots__ = ("_fields", "_token")

    def __init__(self, *, request_id: str, conversation_id: str | None = None) -> None:
        self._fields = {"request_id": request_id}
        if conversation_id is not None:
            self._fields["conversation_id"] = conversation_id
        self._token: Token[dict[str, str] | None] | None = None

    def __enter__(self) -> None:
        self._token = _scope.set(self._fields)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _scope.reset(self._token)


def set_log_conversation(conversation_id: str) -> None:
    """From here on, the lines of this request name its conversation too."""
    scope = _scope.get()
    if scope is not None:
        scope["conversation_id"] = conversation_id


def configure_logging(level: str, log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send every library's log lines to one stream, standard error unless told otherwise; replaces what was set up."""
    stream = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = BufferedLogHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    flush_log()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def find_json_handler() -> BufferedLogHandler | None:
    """What takes all lines and makes JSON of them; None where others want to see records as well."""
    handlers = _root.handlers
    only = handlers[0] if len(handlers) == 1 else None
    return only if isinstance(only, BufferedLogHandler) and type(only.formatter) is JsonFormatter else None


def flush_log() -> None:
    """Write what waits to be written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class BufferedLogHandler(logging.Handler):
    """Writes lines to a stream in the order in which they came: those of an event loop up to a warning together, within
    `FLUSH_SECONDS`; warnings and worse at once with all before them, as is everything on a terminal and outside of an
    event loop. The end of the process writes the rest; one that is killed loses it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._buffer: deque[str] = deque()
        self._write_lock = threading.Lock()
        self._flush_loop: asyncio.AbstractEventLoop | None = None
        """Where `flush` is due."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a line. Without the lock of other handlers: a `deque` needs none."""
        try:
            self._buffer.append(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a line that cannot be made is no fault of whoever wrote it
            self.handleError(record)
            return True
        if self._is_terminal or record.levelno >= logging.WARNING:
            self.flush()
        else:
            self._schedule_flush()
        return True

    def write_line(self, level: int, logger: str, message: str, fields: dict[str, Any]) -> None:
        """Take a line that is not looked into; as `handle` does, without a record."""
        self._buffer.append(_render_json_line(level, logger, message, time.time(), fields) + "\n")
        if self._is_terminal or level >= logging.WARNING:
            self.flush()
        else:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._flush_loop is not loop:
            self._flush_loop = loop
            loop.call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what waits. Where nobody takes it there is nobody to be told."""
        with self._write_lock:
            self._flush_loop = None
            lines = []
            while self._buffer:
                lines.append(self._buffer.popleft())
            if lines:
                with contextlib.suppress(OSError, ValueError):
                    self._write("".join(lines))

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(text.encode("ascii", "backslashreplace").decode())
        self._stream.flush()


class JsonFormatter(logging.Formatter):
    """A line as one JSON object: `time`, `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        if (told := getattr(record, PRERENDERED_FIELDS, None)) is not None:
            return _render_json_line(record.levelno, record.name, record.msg, record.created, told)
        line: dict[str, Any] = {
            "time": _record_time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redact_secrets(record.getMessage()),
            **collect_fields(record),
        }
        if record.exc_info:
            line["exception"] = _redact_secrets(self.formatException(record.exc_info))
        return _escape_control_characters(json.dumps(line, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """A line for eyes: time, level, message, then the fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {name}={_quote_value(value)}" for name, value in collect_fields(record).items())
        message = _escape_control_characters(_redact_secrets(record.getMessage()))
        line = f"{_record_time(record):%H:%M:%S} {record.levelname.lower():7} {message}{fields}"
        if not record.exc_info:
            return line
        told = _redact_secrets(self.formatException(record.exc_info)).split("\n")
        return "\n".join([line, *(f"  {_escape_control_characters(part)}" for part in told)])


def _render_json_line(level: int, logger: str, message: str, created: float, fields: dict[str, Any]) -> str:
    """The same line where there is nothing to look for: orjson writes it in a tenth of the time."""
    second = int(created)
    line = {
        "time": f"{_format_second(second)}.{int((created - second) * 1000):03}+00:00",
        "level": _LEVELS[level],
        "logger": logger,
        "message": message,
        **fields,
    }
    if "model" in fields:
        line["model"] = _redact_name(fields["model"])
    text = orjson.dumps(line).decode()
    return text if text.isascii() and "\x7f" not in text else _escape_control_characters(text)


@functools.lru_cache(maxsize=2)
def _format_second(unix_seconds: int) -> str:
    """A time of day but for the parts of a second: the lines of a second share it."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def collect_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of the current scope and of the record's `extra`, without whatever could be content, and the span."""
    if (told := getattr(record, PRERENDERED_FIELDS, None)) is not None:
        return {name: _redact_value(value) for name, value in told.items()}
    extra = {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
    named = {**(_scope.get() or {}), **extra, **current_span().ids}
    return {name: _redact_value(value) for name, value in named.items() if _is_loggable(value)}


def _is_loggable(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_FIELD_CHARS)


def _redact_value(value: Any) -> Any:
    return _redact_secrets(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=256)
def _redact_name(name: str) -> str:
    return _redact_secrets(name)


def _redact_secrets(text: str) -> str:
    return _SECRETS.sub(lambda match: f"{match[match.lastindex or 0]}***", text)


def _escape_control_characters(text: str) -> str:
    """A text that stays on its line and leaves a terminal alone, whoever wrote it."""
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _quote_value(value: Any) -> str:
    """A value that cannot be read as two, or as another field."""
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text) and text.isprintable():
        return text
    return _escape_control_characters(json.dumps(text, ensure_ascii=False))


def _record_time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
