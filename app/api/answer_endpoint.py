"""The endpoint of model calls: reads a request and sends the pipeline's answer. It is plain ASGI, because it passes the
bytes of requests and answers on as they are."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from app.api.edge.auth import Authenticator, ParseRequest
from app.api.edge.connections import SLOW_CLIENT
from app.api.edge.error_responses import build_error_body, build_error_headers, log_unexpected_error
from app.api.edge.headers import REQUEST_ID_SCOPE_KEY, encode_headers
from app.api.edge.request_reader import (
    ClientDisconnected,
    cancel_on_disconnect,
    has_disconnected,
    read_body,
    read_headers,
)
from app.api.request_options import DETAIL_HEADER
from app.dialects.answer_format import AnswerFormat
from app.errors import GatewayError, InvalidRequest, UpstreamUnavailable, drop_tracebacks
from app.observability.log import begin_log_scope
from app.observability.metric_families import REPLAYS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_record import record_caller, record_error, record_parsed_request
from app.pipeline.admission.shared_attempts import AttemptWaiter, SharedAttempts
from app.pipeline.resolve.answer_replay import REPLAY_HEADERS
from app.pipeline.turn.answer_types import StreamedAnswer, WholeAnswer
from app.pipeline.turn.chat_request import ChatRequest, ContextDetail

MIN_TOOL_BYTES: Final = 40
"""The least bytes of JSON that a tool with a name takes. A shorter `tools` field cannot hold too many real tools, so
its elements are not counted."""
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class RequestListLimits:
    """The settings' limits for lists in a request."""

    max_messages: int = 20_000
    max_tools: int = 1000

    def check_list_lengths(self, request: ChatRequest) -> None:
        """Refuses a request that is too large.

        Raises:
            InvalidRequest: a list has more elements than its limit.
        """
        if len(request.raw_messages) > self.max_messages:
            raise _too_many_error(request.messages_field, len(request.raw_messages), self.max_messages, "messages")
        tools = request.raw_fields.get("tools")
        if tools is not None and len(tools) > self.max_tools * MIN_TOOL_BYTES:
            self._check_tool_count(tools)

    def _check_tool_count(self, tools: bytes) -> None:
        try:
            count = len(_decode_array(tools))
        except msgspec.ValidationError:
            return  # not an array: the provider refuses it in its own words
        if count > self.max_tools:
            raise _too_many_error("tools", count, self.max_tools, "tools")


def _too_many_error(name: str, count: int, max_count: int, limited: str) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` has {count} elements; there may be {max_count}.",
        code="array_above_max_length",
        param=name,
        hint=f"Send fewer, or raise `limits.max_{limited}`.",
    )


log = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 15.0
"""Proxies cut silent connections after 30 to 60 seconds."""
JSON_HEADERS: Final = {"content-type": "application/json"}
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-accel-buffering": "no",
}
"""`x-accel-buffering: no` keeps nginx from buffering the stream."""
(REPLAY_HEADER,) = REPLAY_HEADERS


READ_PAUSE_BYTES = 65_536
"""After a longer body uvicorn may have paused reading; it then does not notice that its client disconnects. The number
is uvicorn's `HIGH_WATER_LIMIT`."""


class AnswerEndpoint:
    """Authenticates a request, parses it, hands it to the pipeline, and turns errors into answers.

    Args:
        parse_request: parses a request of the endpoint's protocol.
        list_limits: the limits for lists in a request.
        extra_headers: sent with every answer; the simulated model announces itself by them.
        context_detail: how much of `context` an answer has whose request says nothing about it.
        silence_seconds: the longest time between two frames of a stream that has begun.
    """

    def __init__(
        self,
        shared_attempts: SharedAttempts,
        authenticator: Authenticator,
        parse_request: ParseRequest,
        list_limits: RequestListLimits,
        *,
        extra_headers: Mapping[str, str],
        context_detail: ContextDetail = "full",
        silence_seconds: float = SILENCE_SECONDS,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._context_detail = context_detail
        self._silence_seconds = silence_seconds
        self._shared_attempts = shared_attempts
        self._authenticator = authenticator
        self._parse_request = parse_request
        self._json_headers = {**JSON_HEADERS, **extra_headers}
        self._stream_headers = {**STREAM_HEADERS, **extra_headers}
        self._metrics = metrics
        self._list_limits = list_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _ResponseSender(send)
        headers = read_headers(scope)
        headers.setdefault(DETAIL_HEADER, self._context_detail)
        request_id = scope[REQUEST_ID_SCOPE_KEY]
        try:
            # Before the body is read: a caller without a valid key must not make the gateway read and hold it.
            caller = await self._authenticator.authenticate(headers, "chat")
            body = await read_body(scope, receive, caller.tenant)
            request = self._parse_request(body, headers, caller, request_id)
            if query := scope.get("query_string"):
                forwarded = msgspec.structs.replace(request.forwarded, query=query.decode("latin-1"))
                request = msgspec.structs.replace(request, forwarded=forwarded)
            record_parsed_request(request.model, stream=request.delivery.stream)
            self._list_limits.check_list_lengths(request)
            request = self._authenticator.authorize_request(request, headers)
            if caller.sees_all_tenants and request.continuation.conversation_id is not None:
                entered = await self._authenticator.enter_conversation(caller, request.continuation.conversation_id)
                request = msgspec.structs.replace(request, caller=entered)
            if request.caller is not caller:  # the body names an end user, or an operator a conversation
                record_caller(request.caller.tenant, caller.api_key_name, caller.api_key_id)
            begin_log_scope(request_id)
            waiter = self._shared_attempts.join_or_start(request, functools.partial(has_disconnected, receive))
        except ClientDisconnected:
            return  # nobody is there to receive an answer
        except GatewayError as error:
            await self._send_json(_build_error_answer(error, scope), client)
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            await self._send_json(_build_error_answer(log_unexpected_error(error, request_id), scope), client)
            return
        try:
            if request.delivery.stream:
                # Servers silently discard what is sent after a disconnect, so the answer is ended.
                async with cancel_on_disconnect(receive, functools.partial(_note_slow_client, scope, waiter)):
                    await self._send_answer(waiter, scope, client)
            else:
                # A disconnect does not cancel a whole answer: it is finished and stored for the client's retry.
                if len(body) > READ_PAUSE_BYTES:
                    # Called for its side effect: uvicorn reads again, and so notices a later disconnect.
                    has_disconnected(receive)
                await self._send_answer(waiter, scope, client)
        except asyncio.CancelledError:
            # A client's own cancellation ends in `cancel_on_disconnect`; this one comes from the server's shutdown.
            # It is not raised again, so that the client still gets an error in place of a broken connection.
            log.warning("the shutdown ended a request that was still running")
            await self._send_shutdown_error(scope, client, waiter.answer_format)

    async def _send_answer(self, waiter: AttemptWaiter, scope: Scope, client: _ResponseSender) -> None:
        request_id = scope[REQUEST_ID_SCOPE_KEY]
        try:
            answer = await waiter.wait_for_answer()
            if REPLAY_HEADER in answer.headers:
                self._metrics.counter_series(REPLAYS).inc()
        except GatewayError as error:
            answer = _build_error_answer(error, scope)
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            answer = _build_error_answer(log_unexpected_error(error, request_id), scope)
        if isinstance(answer, WholeAnswer):
            await self._send_json(answer, client)
        else:
            await self._send_stream(answer, request_id, client, waiter)

    async def _send_shutdown_error(self, scope: Scope, client: _ResponseSender, answer_format: AnswerFormat) -> None:
        """Tells the client that the server stops before its answer is complete: as an error response if nothing is sent
        yet, else as an error event at the end of the stream."""
        error = UpstreamUnavailable("The gateway is stopping and the answer was not complete.", status=503)
        if not client.has_sent_head:
            await self._send_json(_build_error_answer(error, scope), client)
        elif not client.has_sent_all:
            record_error(error)
            client.has_sent_all = True
            await client.send({"type": "http.response.body", "body": answer_format.render_error_frames(error)})

    async def _send_json(self, answer: WholeAnswer, client: _ResponseSender) -> None:
        headers = encode_headers({**self._json_headers, **answer.headers})
        headers.append((b"content-length", b"%d" % len(answer.body)))
        client.has_sent_head = True
        await client.send({"type": "http.response.start", "status": answer.status, "headers": headers})
        client.has_sent_all = True
        await client.send({"type": "http.response.body", "body": answer.body})

    async def _send_stream(
        self, answer: StreamedAnswer, request_id: str, client: _ResponseSender, waiter: AttemptWaiter
    ) -> None:
        """Sends the frames of a stream as they come. An unexpected failure is sent as an error frame, because the
        status is already sent.

        The head is sent with the first frame and not before: by then the frames' generator has started, so its cleanup
        runs even if the client disconnects at once.
        """
        send = client.send
        async with aclosing(answer.frames) as frames:
            heartbeat = None
            try:
                async for frame in frames:
                    if not client.has_sent_head:
                        await self._send_stream_head(answer, client)
                        if waiter.attempt.request.delivery.event_style != "off":
                            heartbeat = _Heartbeat(client, waiter.answer_format, self._silence_seconds)
                    client.last_sent_at = time.monotonic()
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
                if not client.has_sent_head:
                    await self._send_stream_head(answer, client)
                failure = error if isinstance(error, GatewayError) else log_unexpected_error(error, request_id)
                record_error(failure)
                drop_tracebacks(failure)
                frame = waiter.answer_format.render_error_frames(failure)
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            finally:
                if heartbeat is not None:
                    heartbeat.stop()
            client.has_sent_all = True
            await send({"type": "http.response.body", "body": b""})

    def _send_stream_head(self, answer: StreamedAnswer, client: _ResponseSender) -> Awaitable[None]:
        headers = encode_headers({**self._stream_headers, **answer.headers})
        client.has_sent_head = True
        return client.send({"type": "http.response.start", "status": 200, "headers": headers})


def _note_slow_client(scope: Scope, waiter: AttemptWaiter) -> None:
    if SLOW_CLIENT in scope:  # the gateway cut this connection, the client did not hang up
        waiter.cut_off()


def _build_error_answer(error: GatewayError, scope: Scope) -> WholeAnswer:
    record_error(error)
    drop_tracebacks(error)
    headers = {
        "x-context-status": "bypassed",
        **error.context_headers,
        "x-request-id": scope[REQUEST_ID_SCOPE_KEY],
        **build_error_headers(error),
    }
    return WholeAnswer(body=build_error_body(error, scope), headers=headers, status=error.status)


class _ResponseSender(msgspec.Struct):
    """Sends one response; whoever sends remembers here how much of it is sent.

    Attributes:
        send: sends an ASGI message.
        last_sent_at: when the last frame of a stream was sent, on the monotonic clock.
        has_sent_head, has_sent_all: the head, or the last piece, is sent or is being sent.
    """

    send: Send
    has_sent_head: bool = False
    has_sent_all: bool = False
    last_sent_at: float = 0.0


class _Heartbeat:
    """Sends a frame without content whenever nothing was sent for a while: proxies and clients cut silent streams.

    It has a timer and no task, because nearly every stream ends before its first beat.
    """

    def __init__(self, client: _ResponseSender, answer_format: AnswerFormat, silence_seconds: float) -> None:
        self._client = client
        self._answer_format = answer_format
        self._silence_seconds = silence_seconds
        self._sending: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(silence_seconds, self._beat)

    def _beat(self) -> None:
        client, now = self._client, time.monotonic()
        silent_seconds = now - client.last_sent_at
        is_due = silent_seconds >= self._silence_seconds and (self._sending is None or self._sending.done())
        if is_due and (frame := self._answer_format.render_heartbeat()):
            client.last_sent_at, silent_seconds = now, 0.0
            self._sending = asyncio.ensure_future(self._send(frame))  # noqa: TID251 - cancelled by `stop`
        remaining = max(self._silence_seconds - silent_seconds, self._silence_seconds / 10)
        self._timer = asyncio.get_running_loop().call_later(remaining, self._beat)

    async def _send(self, frame: bytes) -> None:
        await self._client.send({"type": "http.response.body", "body": frame, "more_body": True})

    def stop(self) -> None:
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
