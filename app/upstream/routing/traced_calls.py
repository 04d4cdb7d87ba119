"""A model call as a span, from its request to the last byte of its answer. Nothing is looked at while nobody traces.

The names are OpenTelemetry's for generative AI (github.com/open-telemetry/semantic-conventions-genai). That document
would have one span for a call with all its retries; here each try has its own, since each may go to another provider.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from app.errors import UpstreamUnavailable
from app.observability.tracing import CANCELLED, Span, current_span, error_type_of, leave, make_current
from app.upstream.protocols.sse import DONE, EventDecoder
from app.upstream.protocols.stream_collector import Collector
from app.upstream.provider import Call, Deployment, Provider, Reply

MODEL_CHARS: Final = 100
"""Of a model's name in a span's: it may be a client's."""
LAST_PIECES: Final = 16
"""Of a stream: usage and the reason for its end stand there; the first piece has its id and model."""
TOLD_ERROR: Final = "error_in_answer"
"""`error.type` of an answer that began well and says that it failed."""
_PORTS: Final = {"http": 80, "https": 443}
_PROVIDERS: Final = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "api.anthropic.com": "anthropic",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
}
"""Well-known values of `gen_ai.provider.name`, by the end of the host's name."""


def place_of(name: str, base_url: str) -> dict[str, str | int]:
    """Where a provider's calls go: its well-known name, or else the configured one, and host and port."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        host, port = "", 0
    known = next(
        (known for end, known in _PROVIDERS.items() if host == end or host.endswith(("." + end, "-" + end))), name
    )
    return {"gen_ai.provider.name": known, **({"server.address": host, "server.port": port} if host else {})}


def span_of(deployment: Deployment, resends: int) -> CallSpan | None:
    """A span for a chat completion of a deployment; None where its request is not traced.

    Args:
        resends: how many tries of the same request there were before.
    """
    parent = current_span()
    if not parent.is_recording:
        return None
    model = deployment.upstream_model
    told: dict[str, str | int] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": deployment.provider.name,
        "gen_ai.request.model": model,
    }
    if resends:
        told["http.request.resend_count"] = resends
    return CallSpan(parent.child(f"chat {model[:MODEL_CHARS]}", "client", told), reads=True)


def span_of_unknown(provider: Provider, call: Call) -> CallSpan | None:
    """A span for a call of which nothing is known but where it goes; None where its request is not traced."""
    parent = current_span()
    if not parent.is_recording:
        return None
    told = {"http.request.method": call.method, "gen_ai.provider.name": provider.name}
    return CallSpan(parent.child(call.method, "client", told), reads=False)


class CallSpan:
    """The span of one call: is told what the answer amounts to, and ends with it.

    Args:
        reads: the answer is a chat completion, or an error, and can be read.
    """

    __slots__ = ("_began", "_first", "_has_ended", "_last", "_pieces", "_reads", "_span")

    def __init__(self, span: Span, *, reads: bool) -> None:
        self._span = span
        self._began = time.monotonic()
        self._reads = reads
        self._first: bytes | None = None
        self._last: deque[bytes] = deque(maxlen=LAST_PIECES)
        self._pieces = 0
        self._has_ended = False

    async def send(self, provider: Provider, call: Call) -> Reply:
        """Send a call within the span, so that what it carries upstream is this span's context."""
        token = make_current(self._span)
        try:
            reply = await provider.send(call)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            leave(token)
        self._span.set({"http.response.status_code": reply.status})
        if reply.status >= 400:
            self._span.fail(str(reply.status))
        return reply

    async def read(self, reply: Reply) -> bytes:
        """The whole body."""
        try:
            body = await reply.read()
        except BaseException as error:
            self._fail(error)
            raise
        self._end(_of_body(body) if self._reads else Collector())
        return body

    async def chunks(self, reply: Reply) -> AsyncIterator[bytes]:
        """The body in pieces."""
        last = self._last
        try:
            async for piece in reply.chunks():
                if self._first is None:
                    self._first = piece
                    if self._reads:
                        self._span.set({"gen_ai.response.time_to_first_chunk": time.monotonic() - self._began})
                else:
                    last.append(piece)
                self._pieces += 1
                yield piece
        except (UpstreamUnavailable, asyncio.CancelledError) as error:
            self._fail(error)
            raise
        self._end(self._of_stream())

    def let_go(self) -> None:
        """Nobody reads on. A stream that had not come to its end was cut."""
        if not self._has_ended:
            if not self._is_told():
                self._span.fail(CANCELLED)
            self._end(self._of_stream())

    def _is_told(self) -> bool:
        """Whether the stream's last event has come."""
        newest = self._last[-1] if self._last else self._first or b""
        return newest.rstrip().endswith(DONE)

    def _fail(self, error: BaseException) -> None:
        self._span.fail(error_type_of(error))
        self._end(self._of_stream())

    def _end(self, collector: Collector) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._span.set(attributes_of(collector))
            if collector.error is not None:
                self._span.fail(TOLD_ERROR)
            self._span.end()

    def _of_stream(self) -> Collector:
        """What the first piece and the last ones say."""
        collector = Collector()
        if self._first is None or not self._reads:
            return collector
        rest = b"".join(self._last)
        if self._pieces <= LAST_PIECES + 1:
            _add_events(collector, self._first + rest)
        else:
            _add_events(collector, self._first)
            _add_events(collector, rest.partition(b"\n\n")[2])
        return collector


def _of_body(body: bytes) -> Collector:
    collector = Collector()
    try:
        collector.add_completion(body)
    except UpstreamUnavailable:
        return Collector()
    return collector


def _add_events(collector: Collector, data: bytes) -> None:
    decoder = EventDecoder()
    try:
        for event in [*decoder.feed(data), *decoder.finish()]:
            text = event.data.strip() if event.data else b""
            if text and text != DONE:
                collector.add(text)
    except UpstreamUnavailable:
        return


def attributes_of(collector: Collector) -> dict[str, Any]:
    """What an answer amounted to: names and numbers."""
    told: dict[str, Any] = {
        "gen_ai.response.id": collector.id,
        "gen_ai.response.model": collector.model,
        "gen_ai.response.finish_reasons": [collector.finish_reason] if collector.finish_reason else None,
    }
    usage = collector.usage or {}
    told["gen_ai.usage.input_tokens"] = usage.get("prompt_tokens")
    told["gen_ai.usage.output_tokens"] = usage.get("completion_tokens")
    told["gen_ai.usage.cache_read.input_tokens"] = _detail(usage, "prompt_tokens_details", "cached_tokens")
    told["gen_ai.usage.reasoning.output_tokens"] = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    return {name: value for name, value in told.items() if isinstance(value, str | int | list)}


def _detail(usage: Mapping[str, Any], group: str, name: str) -> Any:
    details = usage.get(group)
    return details.get(name) if isinstance(details, dict) else None
