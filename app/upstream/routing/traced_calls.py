"""Traces a model call as a span, from its request to the last byte of its answer. Callers start a span only
if the request is traced.

The names are OpenTelemetry's for generative AI (github.com/open-telemetry/semantic-conventions-genai). That document
has one span for a call with all its retries. Here each attempt has its own span, since each may go to another provider.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.sse import DONE_DATA, SseDecoder
from app.errors import UpstreamUnavailable
from app.observability.tracing import (
    CANCELLED_ERROR_TYPE,
    Span,
    SpanKind,
    error_type_name,
    fail_span,
    start_child_span,
    use_span,
)
from app.upstream.provider_contract import (
    ModelDeployment,
    ProviderProtocol,
    UpstreamProvider,
    UpstreamReply,
    UpstreamRequest,
)

SPAN_MODEL_CHARS: Final = 100
"""The most characters of a model's name in a span's name: a client may choose it."""
ERROR_IN_ANSWER: Final = "error_in_answer"
"""`error.type` of an answer with status 200 that reports a failure."""


def start_chat_span(deployment: ModelDeployment, retries: int) -> CallSpan:
    """Starts a span for an answer of a deployment, below the current span. OpenTelemetry calls this operation `chat` in
    both protocols.

    Args:
        deployment: where the call goes.
        retries: how many attempts at the same request there were before.
    """
    model = deployment.upstream_model
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": deployment.provider.name,
        "gen_ai.request.model": model,
    }
    if deployment.provider.protocol == "responses":
        attributes["openai.api.type"] = "responses"
    if retries:
        attributes["http.request.resend_count"] = retries
    name = f"chat {model[:SPAN_MODEL_CHARS]}"
    return CallSpan(start_child_span(name, SpanKind.CLIENT, attributes), deployment.provider.protocol)


def start_passthrough_span(provider: UpstreamProvider, request: UpstreamRequest) -> CallSpan:
    """Starts a span for a call of unknown content, below the current span."""
    attributes = {"http.request.method": request.method, "gen_ai.provider.name": provider.name}
    return CallSpan(start_child_span(request.method, SpanKind.CLIENT, attributes), None)


class CallSpan:
    """The span of one call. It reads what it needs from the answer, and ends with it.

    Args:
        span: the span.
        protocol: the protocol of the answer; None if it is of unknown content.
    """

    def __init__(self, span: Span, protocol: ProviderProtocol | None) -> None:
        self._span = span
        self._started_at = time.monotonic()
        self._answer = None if protocol is None else PROVIDER_DIALECTS[protocol].make_decoder()
        """Reads the answer; None if it is of unknown content."""
        self._events = SseDecoder()
        self._last_piece = b""
        self._has_ended = False

    async def send(self, provider: UpstreamProvider, request: UpstreamRequest) -> UpstreamReply:
        """Sends a call within the span, so that the headers sent upstream carry this span's context."""
        try:
            with use_span(self._span):
                reply = await provider.send(request)
        # Also on cancellation: a span that never ends is never exported.
        except BaseException as error:
            self._end_with_error(error)
            raise
        self._span.set_attributes({"http.response.status_code": reply.status})
        if reply.status >= 400:
            fail_span(self._span, str(reply.status))
        return reply

    async def read(self, reply: UpstreamReply) -> bytes:
        """Returns the whole body."""
        try:
            body = await reply.read()
        except BaseException as error:
            self._end_with_error(error)
            raise
        if self._answer is not None:
            with suppress(UpstreamUnavailable):
                self._answer.add_whole(body)
        self._end()
        return body

    async def iter_bytes(self, reply: UpstreamReply) -> AsyncIterator[bytes]:
        """Yields the body in pieces."""
        try:
            async for piece in reply.iter_bytes():
                if not self._last_piece and self._answer is not None:
                    seconds = time.monotonic() - self._started_at
                    self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
                self._last_piece = piece
                self._read_events(piece)
                yield piece
        except (UpstreamUnavailable, asyncio.CancelledError) as error:
            self._end_with_error(error)
            raise
        self._end()

    def close(self) -> None:
        """Ends the span. A stream that had not come to its end was cut."""
        if not self._has_ended:
            has_done = self._last_piece.rstrip().endswith(DONE_DATA)
            if not (has_done if self._answer is None else self._answer.has_ended):
                fail_span(self._span, CANCELLED_ERROR_TYPE)
            self._end()

    def _end_with_error(self, error: BaseException) -> None:
        fail_span(self._span, error_type_name(error))
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self._answer is not None:
                self._span.set_attributes(answer_attributes(self._answer))
                if self._answer.error_data is not None:
                    fail_span(self._span, ERROR_IN_ANSWER)
            self._span.end()

    def _read_events(self, piece: bytes) -> None:
        """Adds the events of a piece to the answer. What cannot be read is left out."""
        if self._answer is not None:
            with suppress(UpstreamUnavailable):
                for event in self._events.feed(piece):
                    if event.data and (text := event.data.strip()):
                        self._answer.decode(text, event.name)


def answer_attributes(answer: AnswerDecoder) -> dict[str, Any]:
    """Returns what an answer amounts to: names and numbers, no content."""
    attributes: dict[str, Any] = {
        "gen_ai.response.id": answer.id,
        "gen_ai.response.model": answer.model,
        "gen_ai.response.finish_reasons": [answer.finish] if answer.finish else None,
    }
    usage = answer.usage or {}
    attributes["gen_ai.usage.input_tokens"] = usage.get("prompt_tokens")
    attributes["gen_ai.usage.output_tokens"] = usage.get("completion_tokens")
    attributes["gen_ai.usage.cache_read.input_tokens"] = _usage_detail(usage, "prompt_tokens_details", "cached_tokens")
    attributes["gen_ai.usage.reasoning.output_tokens"] = _usage_detail(
        usage, "completion_tokens_details", "reasoning_tokens"
    )
    return {name: value for name, value in attributes.items() if isinstance(value, str | int | list)}


def _usage_detail(usage: Mapping[str, Any], group: str, name: str) -> Any:
    details = usage.get(group)
    return details.get(name) if isinstance(details, dict) else None
