"""Collects the facts of the current request and writes its log line at the end.

The rooms below the edge record facts in a context variable. No fact is content: of what a client sends, only names of
models and conversations are recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from app.observability.log import MAX_FIELD_CHARS

LOGGER: Final = "concertina.requests"
LOG_MESSAGE: Final = "request"
_log = logging.getLogger(LOGGER)


class ReportableError(Protocol):
    """An error that is sent to a client; implemented by `errors.GatewayError`, which this room must not import."""

    @property
    def code(self) -> str | None: ...

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> int: ...


class ErrorFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts of an error that is sent to a client.

    The error itself is not kept, because its traceback refers to the request with its body. Facts live as long as any
    timer that the request has set, such as the timeout of its idle connection (decision 29).
    """

    code: str | None
    name: str
    status: int


class RequestFacts(msgspec.Struct, array_like=True):
    """The facts of one request. A fact is None if it does not apply, or if the request ended before it was known.

    The names of the fields are names in the log line.

    Attributes:
        error: the error that was sent to the client.
        compaction_ms: how long the request waited for summaries.
        context_status: the value of the header `x-context-status`.
        conversation_id: the request's conversation.
        model: the model that the request names.
        prompt_tokens: our count of the view.
        request_id: the id of the request.
        saved_tokens: the tokens of the log that were not sent.
        stream: whether the request asks for a stream.
        key: the name of the caller's API key.
        tenant: the caller's tenant.
        provider: the provider that answered.
        cost: the cost of the answer by list price, in US dollars.
        cached: the tokens of the prompt that the provider read from its cache.
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
    key: str | None = None
    tenant: str | None = None
    provider: str | None = None
    cost: float | None = None
    cached: int | None = None


_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def begin_request_facts() -> RequestFacts:
    """Starts the facts of the request that this task answers."""
    facts = RequestFacts()
    # Never reset: the server runs each request in a context of its own.
    _current.set(facts)
    return facts


current_request_facts: Final[Callable[[], RequestFacts | None]] = _current.get
"""Returns the facts of the current request; None outside of a request, or if requests are not observed at all."""


def record_requested_model(model: str, *, stream: bool) -> None:
    """Records the model that a request names, and whether it asks for a stream."""
    facts = _current.get()
    if facts is not None:
        # A client chose the name: if it is longer, it may be content.
        facts.model, facts.stream = model if len(model) <= MAX_FIELD_CHARS else None, stream


def record_tenant(tenant: str, key_name: str | None) -> None:
    """Records whose request it is."""
    facts = _current.get()
    if facts is not None:
        facts.tenant, facts.key = tenant, key_name


def record_error(error: ReportableError) -> None:
    """Records the error that is sent to the client, as a response or within a stream. The first error is kept."""
    facts = _current.get()
    if facts is not None and facts.error is None:
        facts.error = ErrorFacts(error.code, error.name, error.status)


def log_request(facts: RequestFacts, level: int, fields: dict[str, Any]) -> None:
    """Writes the log line of a request that has ended.

    Args:
        facts: the facts of the request.
        level: `logging.INFO` or `logging.WARNING`.
        fields: the fields that come first. The facts are added to this dict.
    """
    fields |= {name: value for name, value in msgspec.structs.asdict(facts).items() if value is not None}
    if facts.error is not None:
        fields["error"] = facts.error.name
    _log.log(level, LOG_MESSAGE, extra=fields)
