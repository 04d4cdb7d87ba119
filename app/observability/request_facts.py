"""What is known of the request under way, and the line that tells of it when it is over.

The rooms below the edge note what they find out; nothing that a client said is noted, names of models and
conversations aside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from app.observability.log import MAX_FIELD_CHARS, PRERENDERED_FIELDS, find_json_handler

LOGGER: Final = "concertina.requests"
LOG_MESSAGE: Final = "request"
_log = logging.getLogger(LOGGER)
_TEMPLATES: Final = {
    level: vars(logging.LogRecord(LOGGER, level, "", 0, LOG_MESSAGE, None, None))
    for level in (logging.INFO, logging.WARNING)
}
"""What records of requests have in common. To find out thread and process takes longer than to write the line."""


class ReportableError(Protocol):
    """An error that a client is told; `errors.GatewayError`."""

    @property
    def code(self) -> str | None: ...

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> int: ...


class ErrorFacts(msgspec.Struct, frozen=True):
    """What is kept of an error that a client is told. The error itself would keep its traceback, and so the request:
    facts live as long as any timer that the request set, the one of its idle connection included."""

    code: str | None
    name: str
    status: int


class RequestFacts(msgspec.Struct):
    """Of one request; None where it did not come to that.

    Attributes:
        error: the one that it ended with.
        compaction_ms: how long it waited for summaries.
    """

    error: ErrorFacts | None = None
    compaction_ms: int | None = None
    context_status: str | None = None
    conversation_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    request_id: str | None = None
    saved_tokens: int | None = None
    stream: bool | None = None


_NAMES: Final = RequestFacts.__struct_fields__
_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def begin_facts() -> RequestFacts:
    """Facts for the request that this task answers."""
    facts = RequestFacts()
    _current.set(facts)
    return facts


current_request_facts: Final[Callable[[], RequestFacts | None]] = _current.get
"""The facts of the request that this task works for; None where nobody wants to know."""


def record_request(model: str, *, stream: bool) -> None:
    """What the request asks for."""
    facts = _current.get()
    if facts is not None:
        facts.model, facts.stream = shorten_name(model), stream


def shorten_name(text: str) -> str | None:
    """A name that a client or a provider chose; None where it is too long to be one."""
    return text if len(text) <= MAX_FIELD_CHARS else None


def record_error(error: ReportableError, *, replaces: bool = False) -> None:
    """The client is told of an error, by a status or within a stream. The first one stands.

    Args:
        replaces: what was noted before is not told after all.
    """
    facts = _current.get()
    if facts is not None and (facts.error is None or replaces):
        facts.error = ErrorFacts(error.code, error.name, error.status)


def log_request(facts: RequestFacts, level: int, fields: dict[str, Any]) -> None:
    """Write the line of a request that is over.

    It is made without looking for the place in the code that it comes from, and written as it is: none of its fields
    can hold content. That takes a third of the time of an ordinary line.

    Args:
        level: info or warning.
        fields: the fields that come first; the facts are added to it.
    """
    if not _log.isEnabledFor(level):
        return
    values = zip(_NAMES, msgspec.structs.astuple(facts), strict=True)
    fields |= {name: value for name, value in values if value is not None}
    if facts.error is not None:
        fields["error"] = facts.error.name
    if (lines := find_json_handler()) is not None:
        lines.write_line(level, LOGGER, LOG_MESSAGE, fields)
        return
    record = logging.LogRecord.__new__(logging.LogRecord)
    now = time.time()
    record.__dict__ = {**_TEMPLATES[level], "created": now, "msecs": now % 1 * 1000, PRERENDERED_FIELDS: fields}
    _log.handle(record)
