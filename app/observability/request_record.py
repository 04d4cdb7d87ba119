"""Records one request while it runs: who asked, who answered, what it cost, when each step began and ended. The log
line, the span and the list of recent requests show it. Nothing of it is content: of what a client sends, only names of
models and conversations are recorded.

The rooms below the edge find the record of the current request in a context variable.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from app.observability.log import MAX_FIELD_CHARS
from app.observability.metrics import TurnFacts
from app.observability.tracing import trace_work

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LOGGER: Final = "concertina.requests"
LOG_MESSAGE: Final = "request"
_log = logging.getLogger(LOGGER)

StepName = Literal[
    "read",
    "queue",
    "join",
    "resolve",
    "recall",
    "lease",
    "plan",
    "quotations",
    "compaction",
    "summary",
    "attempt",
    "store",
    "cache_lost",
]
"""The names of steps; docs/telemetry.md says what each is."""
MAX_STEPS: Final = 64
"""How many steps of one request are kept. An answer with the search tool has the most: about four for each round."""


class RequestStep(msgspec.Struct, array_like=True):
    """A step of a request. Times are monotonic seconds; `ended_at` is None while the step runs.

    `array_like`, here and below, makes its JSON shorter.

    Attributes:
        detail: names and numbers, such as the provider and its status.
    """

    name: StepName
    started_at: float
    ended_at: float | None = None
    detail: dict[str, Any] = {}

    def end(self, at: float, *, error: str | None = None) -> None:
        """Ends the step.

        Args:
            error: why it failed; set in `detail`.
        """
        self.ended_at = at
        if error is not None:
            self.detail["error"] = error


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


class RequestRecord(msgspec.Struct):
    """The record of one request, filled while it runs.

    Attributes:
        seconds: the monotonic clock of all steps.
        started_at: when the request began, in monotonic seconds.
        started_unix: the same, in Unix seconds.
        facts: what the log line has.
        key_id: the id of the caller's API key.
        turn: the numbers of the answer; None if there was none.
        answer: the place of the stored answer: its seq, and its link as hex digits.
        answer_id: the id that the client got with the stored answer, such as `chatcmpl-…`.
        steps: in the order in which they began.
    """

    seconds: Callable[[], float]
    started_at: float
    started_unix: float
    facts: RequestFacts = msgspec.field(default_factory=RequestFacts)
    key_id: str | None = None
    turn: TurnFacts | None = None
    answer: tuple[int, str] | None = None
    answer_id: str | None = None
    steps: list[RequestStep] = []

    def begin_step(self, name: StepName, detail: dict[str, Any] | None = None) -> RequestStep:
        """Begins a step now. A step that is not ended ends with the request."""
        step = RequestStep(name, self.seconds(), None, detail or {})
        if len(self.steps) < MAX_STEPS:
            self.steps.append(step)
        return step

    def end_step(self, step: RequestStep) -> None:
        """Ends a step now."""
        step.ended_at = self.seconds()

    def add_step(self, name: StepName, started_at: float, detail: dict[str, Any] | None = None) -> None:
        """Adds a step that ends now."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append(RequestStep(name, started_at, self.seconds(), detail or {}))


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A model call that has ended.

    Attributes:
        endpoint: the path of the request.
        status: the answer's status; 499 if none was sent.
        is_complete: whether the whole answer was handed to the server.
        started_unix: when it began, in Unix seconds.
        started_at: the same, in the monotonic seconds of its steps.
        duration: seconds from the start to the end.
        first_byte_seconds: seconds from the start to the first byte of the answer's body; None if nothing was sent.
        answer: the place of the stored answer in its conversation: seq, and link as hex digits.
        answer_id: the id that the client got with it.
    """

    id: str | None
    endpoint: str
    status: int
    is_complete: bool
    started_unix: float
    started_at: float
    duration: float
    first_byte_seconds: float | None
    tenant: str | None
    key_id: str | None
    facts: RequestFacts
    turn: TurnFacts | None
    steps: list[RequestStep]
    answer: tuple[int, str] | None = None
    answer_id: str | None = None


encode_request: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(EndedRequest).decode
"""Decodes the record of a request. The database keeps records for days: new fields of these structs come last, with a
default, so that records of other versions can be read."""


def decode_requests(records: Iterable[str]) -> list[EndedRequest]:
    """Decodes requests, without those that cannot be read: a newer version may know other steps."""
    requests = []
    for record in records:
        with contextlib.suppress(msgspec.DecodeError):
            requests.append(_decode(record))
    return requests


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def begin_request_record(seconds: Callable[[], float], started_unix: float) -> RequestRecord:
    """Starts the record of the request that this task answers."""
    record = RequestRecord(seconds, seconds(), started_unix)
    # Never reset: the server runs each request in a context of its own.
    _current.set(record)
    return record


current_request_record: Final[Callable[[], RequestRecord | None]] = _current.get
"""Returns the record of the current request; None outside of a request, or if requests are not observed at all."""


def leave_request_record() -> None:
    """Ends the recording in this task. For work that a request has started and does not wait for."""
    _current.set(None)


def record_caller(tenant: str, key_name: str | None, key_id: str | None) -> None:
    """Records whose request it is."""
    record = _current.get()
    if record is not None:
        record.facts.tenant, record.facts.key, record.key_id = tenant, key_name, key_id


def record_parsed_request(model: str, *, stream: bool) -> None:
    """Records that the request is authenticated, read and parsed: the model that it names, and whether it asks for a
    stream.
    """
    record = _current.get()
    if record is not None:
        # A client chose the name: if it is longer, it may be content.
        record.facts.model, record.facts.stream = model if len(model) <= MAX_FIELD_CHARS else None, stream
        record.add_step("read", record.started_at)


def record_error(error: ReportableError) -> None:
    """Records the error that is sent to the client, as a response or within a stream. The first error is kept."""
    record = _current.get()
    if record is not None and record.facts.error is None:
        record.facts.error = ErrorFacts(error.code, error.name, error.status)


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


def timed_step(
    name: StepName, *, span: str | None = None
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Coroutine[Any, Any, Result]]]:
    """Decorates a coroutine function: each run is a step in the timeline of the request.

    Args:
        span: if given, each run also gets a child span of the current span, with this name.
    """

    def decorate(
        function: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
        @functools.wraps(function)
        async def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            work = function(*args, **kwargs)
            if span is not None:
                work = trace_work(span, work)
            record = _current.get()
            if record is None:
                return await work
            step = record.begin_step(name)
            try:
                return await work
            finally:
                step.ended_at = record.seconds()

        return run

    return decorate
