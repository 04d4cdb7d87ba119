"""`POST /v1/chat/completions`: bytes in, the exchange's answer out. A bare ASGI endpoint, since it is the hot path."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from app.api.chat_request_parser import READ_HEADERS, parse_chat_request
from app.api.edge.auth import Authenticator
from app.api.edge.connections import SLOW_CLIENT
from app.api.edge.disconnect import has_disconnected
from app.api.edge.error_responses import build_error_body, build_error_headers, log_unexpected_error
from app.api.edge.request_body import BODY_HEADERS, ClientDisconnected, read_body, read_selected_headers
from app.api.edge.response_headers import RawHeader, ResponseHeaders
from app.errors import GatewayError, InvalidRequest, UpstreamUnavailable, drop_tracebacks
from app.observability.log import log_scope
from app.observability.metric_families import REPLAYS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_facts import record_error, record_request
from app.pipeline.admission.answer_replay import REPLAY_HEADERS
from app.pipeline.admission.request_coalescing import RequestCoalescing
from app.pipeline.admission.shared_attempt import AttemptWaiter
from app.pipeline.chat_request import ChatRequest
from app.pipeline.respond.answer import StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import render_error_frames

MIN_TOOL_BYTES: Final = 40
"""Of a tool with a name. What stands for less is not counted: so many cannot do harm."""
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class RequestSizeLimits:
    """The part of the settings that concerns lists in a request."""

    max_messages: int = 20_000
    max_tools: int = 1000

    def check_request(self, request: ChatRequest) -> None:
        """
        Raises:
            InvalidRequest: there is more in a list than may be.
        """
        if len(request.raw_messages) > self.max_messages:
            raise _too_many_error("messages", len(request.raw_messages), self.max_messages)
        tools = request.raw_fields.get("tools")
        if tools is not None and len(tools) > self.max_tools * MIN_TOOL_BYTES:
            self._check_tools(tools)

    def _check_tools(self, tools: bytes) -> None:
        try:
            count = len(_decode_array(tools))
        except msgspec.ValidationError:
            return  # no array: the provider's business
        if count > self.max_tools:
            raise _too_many_error("tools", count, self.max_tools)


def _too_many_error(name: str, count: int, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` has {count} elements; there may be {most}.",
        code="array_above_max_length",
        param=name,
        hint=f"Send fewer, or raise `limits.max_{name}`.",
    )


DEFAULT_SIZE_LIMITS: Final = RequestSizeLimits()


log = logging.getLogger(__name__)

JSON_HEADERS: Final = {
    "content-type": "application/json",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
}
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-content-type-options": "nosniff",
    "x-accel-buffering": "no",
}
"""The last keeps nginx from holding a stream back."""
(REPLAY_HEADER,) = REPLAY_HEADERS


READ_PAUSE_BYTES = 65_536
"""Behind a longer body uvicorn may have stopped reading, and does not see its client leave."""


class ChatCompletionsEndpoint:
    """Parses, authenticates, and maps errors; decides nothing.

    Args:
        new_request_id: makes the id of a request; visible ASCII.
        extra_headers: sent with every answer (the simulated model announces itself).
    """

    def __init__(
        self,
        request_coalescing: RequestCoalescing,
        authenticator: Authenticator,
        *,
        body_limit_bytes: int,
        new_request_id: Callable[[], str],
        extra_headers: Mapping[str, str],
        metrics: Metrics = NO_METRICS,
        size_limits: RequestSizeLimits = DEFAULT_SIZE_LIMITS,
    ) -> None:
        self._request_coalescing = request_coalescing
        self._authenticator = authenticator
        self._read_headers = {
            name.encode("latin-1"): name for name in BODY_HEADERS | READ_HEADERS | authenticator.credential_headers
        }
        self._body_limit_bytes = body_limit_bytes
        self._new_request_id = new_request_id
        self._json_headers = ResponseHeaders({**JSON_HEADERS, **extra_headers})
        self._stream_headers = ResponseHeaders({**STREAM_HEADERS, **extra_headers})
        self._metrics = metrics
        self._size_limits = size_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _ResponseSender(send)
        headers = read_selected_headers(scope, self._read_headers)
        request_id = self._new_request_id()
        try:
            caller = await self._authenticator.authenticate(headers, "chat")
            body = await read_body(receive, headers, self._body_limit_bytes)
            request = parse_chat_request(body, headers, caller, request_id)
            record_request(request.model, stream=request.stream)
            self._size_limits.check_request(request)
            request = self._authenticator.authorize_request(request, headers)
            waiter = await self._request_coalescing.join_attempt(request, functools.partial(has_disconnected, receive))
        except ClientDisconnected:
            return
        except GatewayError as error:
            await self._send_json(self._build_error_answer(error, request_id), client)
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            await self._send_json(self._build_error_answer(log_unexpected_error(error, request_id), request_id), client)
            return
        with log_scope(request_id=request_id):
            try:
                if request.stream:
                    with _DisconnectWatcher(scope, receive, waiter):
                        await self._send_answer(waiter, request_id, client)
                else:
                    # Nobody is watched for here: an answer that its client did not wait for is stored for its retry.
                    if len(body) > READ_PAUSE_BYTES:
                        has_disconnected(receive)
                    await self._send_answer(waiter, request_id, client)
            except asyncio.CancelledError:
                log.warning("a request was still running when the server had to stop")
                await self._send_shutdown_error(request_id, client)

    async def _send_answer(self, waiter: AttemptWaiter, request_id: str, client: _ResponseSender) -> None:
        try:
            answer = await waiter.wait_for_answer()
            if REPLAY_HEADER in answer.headers:
                self._metrics.counter_series(REPLAYS).add()
            if isinstance(answer, WholeAnswer):
                waiter.record_delivery()
        except GatewayError as error:
            answer = self._build_error_answer(error, request_id)
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            answer = self._build_error_answer(log_unexpected_error(error, request_id), request_id)
        if isinstance(answer, WholeAnswer):
            await self._send_json(answer, client)
        else:
            await self._send_stream(answer, request_id, client)

    async def _send_shutdown_error(self, request_id: str, client: _ResponseSender) -> None:
        """The server stops and has waited long enough: say so in the form that the answer has by now."""
        error = UpstreamUnavailable("The gateway is stopping and the answer was not complete.", status=503)
        if not client.has_sent_head:
            await self._send_json(self._build_error_answer(error, request_id), client)
        elif not client.has_sent_all:
            record_error(error)
            await client.send_last(render_error_frames(error))

    async def _send_json(self, answer: WholeAnswer, client: _ResponseSender) -> None:
        headers = self._json_headers.merge_headers(answer.headers)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await client.send_head(answer.status, headers)
        await client.send_last(answer.body)

    async def _send_stream(self, answer: StreamedAnswer, request_id: str, client: _ResponseSender) -> None:
        """Send frames as they come, and where they fail unexpectedly an error: what began as a stream ends as one. The
        head goes out with the first of them, so that their generator has begun, and will clean up, whatever happens to
        the client."""
        send = client.send
        async with aclosing(answer.frames) as frames:
            try:
                async for frame in frames:
                    if not client.has_sent_head:
                        await self._send_stream_head(answer, client)
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
                if not client.has_sent_head:
                    await self._send_stream_head(answer, client)
                failure = log_unexpected_error(error, request_id)
                record_error(failure)
                frame = render_error_frames(failure)
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await client.send_last(b"")

    def _send_stream_head(self, answer: StreamedAnswer, client: _ResponseSender) -> Awaitable[None]:
        return client.send_head(200, self._stream_headers.merge_headers(answer.headers))

    def _build_error_answer(self, error: GatewayError, request_id: str) -> WholeAnswer:
        record_error(error)
        drop_tracebacks(error)
        headers = {
            "x-context-status": "bypassed",
            **error.context_headers,
            "x-request-id": request_id,
            **build_error_headers(error),
        }
        return WholeAnswer(body=build_error_body(error), headers=headers, status=error.status)


class _ResponseSender:
    """Where an answer goes, and how far it has come.

    Attributes:
        has_head, has_all: the first and the last of it are sent, or just about to be.
    """

    __slots__ = ("has_sent_all", "has_sent_head", "send")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.has_sent_head = False
        self.has_sent_all = False

    def send_head(self, status: int, headers: list[RawHeader]) -> Awaitable[None]:
        self.has_sent_head = True
        return self.send({"type": "http.response.start", "status": status, "headers": headers})

    def send_last(self, body: bytes) -> Awaitable[None]:
        self.has_sent_all = True
        return self.send({"type": "http.response.body", "body": body})


class _DisconnectWatcher:
    """Says when the client hangs up, and ends quietly what runs inside if that gets it cancelled; servers swallow what
    is sent after that without a word."""

    __slots__ = ("_has_disconnected", "_receive", "_request_task", "_scope", "_waiter", "_watcher")

    def __init__(self, scope: Scope, receive: Receive, waiter: AttemptWaiter) -> None:
        self._scope = scope
        self._receive = receive
        self._waiter = waiter
        self._has_disconnected = False

    def __enter__(self) -> None:
        running = asyncio.current_task()
        assert running is not None
        self._request_task = running
        self._watcher = asyncio.ensure_future(self._watch_for_disconnect())  # noqa: TID251 - cancelled with the end

    async def _watch_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if SLOW_CLIENT in self._scope:
            self._waiter.cut_off_slow_client()
            return
        self._has_disconnected = True
        self._waiter.disconnect()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        # A cancelled task keeps where it stood, and so this object: without letting go of it here the request would be
        # held in a circle until the garbage collector comes by.
        watcher = self._watcher
        del self._watcher
        watcher.cancel()
        if self._has_disconnected and isinstance(error, asyncio.CancelledError):
            self._request_task.uncancel()
            return True
        return False
