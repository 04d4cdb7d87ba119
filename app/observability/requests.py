"""What is known of the request under way, and the line that tells of it when it is over.

The rooms below the edge note what they find out; nothing that a client said is noted, names of models and
conversations aside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from app.observability.log import MAX_FIELD_CHARS, TOLD

LOGGER: Final = "concertina.requests"
_log = logging.getLogger(LOGGER)
_TEMPLATES: Final = {
    level: vars(logging.LogRecord(LOGGER, level, "", 0, "request", None, None))
    for level in (logging.INFO, logging.WARNING)
}
"""What records of requests have in common. To find out thread and process takes longer than to write the line."""


class RequestFacts:
    """Of one request; None where it did not come to that.

    Attributes:
        error: the `code` of the error that it ended with.
        compaction_ms: how long it waited for summaries.
    """

    __slots__ = (
        "compaction_ms",
        "context_status",
        "conversation_id",
        "error",
        "model",
        "prompt_tokens",
        "request_id",
        "saved_tokens",
        "stream",
    )

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.model: str | None = None
        self.stream: bool | None = None
        self.conversation_id: str | None = None
        self.context_status: str | None = None
        self.prompt_tokens: int | None = None
        self.saved_tokens: int | None = None
        self.compaction_ms: int | None = None
        self.error: str | None = None


_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def begin_facts() -> RequestFacts:
    """Facts for the request that this task answers."""
    facts = RequestFacts()
    _current.set(facts)
    return facts


def request_facts() -> RequestFacts | None:
    """The facts of the request that this task works for; None where nobody wants to know."""
    return _current.get()


def note_request(model: str, *, stream: bool) -> None:
    """What the request asks for."""
    facts = _current.get()
    if facts is not None:
        facts.model, facts.stream = model, stream


def note_error(code: str | None) -> None:
    """The request has come to an error. The first one stands."""
    facts = _current.get()
    if facts is not None and facts.error is None:
        facts.error = code


def tell(
    facts: RequestFacts,
    *,
    ids: Mapping[str, str],
    level: int,
    method: str,
    route: str | None,
    status: int,
    **numbers: Any,
) -> None:
    """Write the line of a request that is over.

    It is made without looking for the place in the code that it comes from, and written as it is: none of its fields
    can hold content. That takes a third of the time of an ordinary line.

    Args:
        ids: of its span.
        level: info or warning.
        numbers: further fields, in milliseconds where their names say so; None is left out.
    """
    if not _log.isEnabledFor(level):
        return
    fields: dict[str, Any] = {"method": method, "route": route, "status": status, **numbers}
    for name in RequestFacts.__slots__:
        value = getattr(facts, name)
        if value is not None and not (isinstance(value, str) and len(value) > MAX_FIELD_CHARS):
            fields[name] = value
    fields.update(ids)
    record = logging.LogRecord.__new__(logging.LogRecord)
    now = time.time()
    vars(record).update(_TEMPLATES[level], created=now, msecs=now % 1 * 1000, **{TOLD: fields})
    _log.handle(record)
