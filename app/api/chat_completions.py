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
from app.api.edge.auth import Auth
from app.api.edge.connections import SLOW_CLIENT
from app.api.edge.disconnect import has_left
from app.api.edge.error_responses import error_body, error_headers, unexpected
from app.api.edge.request_body import LENGTH_HEADERS, ClientDisconnected, headers_among, read_body
from app.api.edge.response_headers import Head, RawHeader
from app.errors import GatewayError, InvalidRequest, UpstreamUnavailable, release_frames
from app.observability.log import log_scope
from app.observability.metric_families import REPLAYS
from app.observability.metrics import SILENT, Metrics
from app.observability.request_facts import note_error, note_request
from app.pipeline.admission.answer_replay import REPLAYED
from app.pipeline.admission.request_coalescing import Retries
from app.pipeline.admission.shared_attempt import Seat
from app.pipeline.chat_request import ChatRequest
from app.pipeline.respond.answer import StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import error_frames

LEAST_TOOL_BYTES: Final = 40
"""Of a tool with a name. What stands for less is not counted: so many cannot do harm."""
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Sizes:
    """The part of the settings that concerns lists in a request."""

    max_messages: int = 20_000
    max_tools: int = 1000

    def check(self, request: ChatRequest) -> None:
        """
        Raises:
            InvalidRequest: there is more in a list than may be.
        """
        if len(request.raws) > self.max_messages:
            raise _too_many("messages", len(request.raws), self.max_messages)
        tools = request.fields.get("tools")
        if tools is not None and len(tools) > self.max_tools * LEAST_TOOL_BYTES:
            self._check_tools(tools)

    def _check_tools(self, tools: bytes) -> None:
        try:
            count = len(_decode_array(tools))
        except msgspec.ValidationError:
            return  # no array: the provider's business
        if count > self.max_tools:
            raise _too_many("tools", count, self.max_tools)


def _too_many(name: str, count: int, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` has {count} elements; there may be {most}.",
        code="array_above_max_length",
        param=name,
        hint=f"Send fewer, or raise `limits.max_{name}`.",
    )


DEFAULT_SIZES: Final = Sizes()


log = logging.getLogger(__name__)

WHOLE_HEADERS: Final = {
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
(REPLAY_HEADER,) = REPLAYED


PAUSED_BYTES = 65_536
"""Behind a longer body uvicorn may have stopped reading, and does not see its client leave."""


class ChatEndpoint:
    """Parses, authenticates, and maps errors; decides nothing.

    Args:
        new_request_id: makes the id of a request; visible ASCII.
        extra_headers: sent with every answer (the simulated model announces itself).
    """

    def __init__(
        self,
        retries: Retries,
        auth: Auth,
        *,
        body_limit_bytes: int,
        new_request_id: Callable[[], str],
        extra_headers: Mapping[str, str],
        metrics: Metrics = SILENT,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._retries = retries
        self._auth = auth
        self._read_headers = {
            name.encode("latin-1"): name for name in LENGTH_HEADERS | READ_HEADERS | auth.read_headers
        }
        self._body_limit_bytes = body_limit_bytes
        self._new_request_id = new_request_id
        self._of_whole = Head({**WHOLE_HEADERS, **extra_headers})
        self._of_stream = Head({**STREAM_HEADERS, **extra_headers})
        self._metrics = metrics
        self._sizes = sizes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(send)
        headers = headers_among(scope, self._read_headers)
        request_id = self._new_request_id()
        try:
            caller = await self._auth.caller(headers, "chat")
            body = await read_body(receive, headers, self._body_limit_bytes)
            request = parse_chat_request(body, headers, caller, request_id)
            note_request(request.model, stream=request.stream)
            self._sizes.check(request)
            request = self._auth.admit(request, headers)
            seat = await self._retries.seat(request, functools.partial(has_left, receive))
        except ClientDisconnected:
            return
        except GatewayError as error:
            await self._send_whole(self._refusal(error, request_id), client)
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            await self._send_whole(self._refusal(unexpected(error, request_id), request_id), client)
            return
        with log_scope(request_id=request_id):
            try:
                if request.stream:
                    with _UntilDisconnect(scope, receive, seat):
                        await self._answer(seat, request_id, client)
                else:
                    # Nobody is watched for here: an answer that its client did not wait for is stored for its retry.
                    if len(body) > PAUSED_BYTES:
                        has_left(receive)
                    await self._answer(seat, request_id, client)
            except asyncio.CancelledError:
                log.warning("a request was still running when the server had to stop")
                await self._send_stopped(request_id, client)

    async def _answer(self, seat: Seat, request_id: str, client: _Client) -> None:
        try:
            answer = await seat.answer()
            if REPLAY_HEADER in answer.headers:
                self._metrics.counted(REPLAYS).add()
            if isinstance(answer, WholeAnswer):
                seat.hand_over()
        except GatewayError as error:
            answer = self._refusal(error, request_id)
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            answer = self._refusal(unexpected(error, request_id), request_id)
        if isinstance(answer, WholeAnswer):
            await self._send_whole(answer, client)
        else:
            await self._send_stream(answer, request_id, client)

    async def _send_stopped(self, request_id: str, client: _Client) -> None:
        """The server stops and has waited long enough: say so in the form that the answer has by now."""
        error = UpstreamUnavailable("The gateway is stopping and the answer was not complete.", status=503)
        if not client.has_head:
            await self._send_whole(self._refusal(error, request_id), client)
        elif not client.has_all:
            note_error(error)
            await client.end(error_frames(error))

    async def _send_whole(self, answer: WholeAnswer, client: _Client) -> None:
        headers = self._of_whole.with_own(answer.headers)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await client.begin(answer.status, headers)
        await client.end(answer.body)

    async def _send_stream(self, answer: StreamedAnswer, request_id: str, client: _Client) -> None:
        """Send frames as they come, and where they fail unexpectedly an error: what began as a stream ends as one. The
        head goes out with the first of them, so that their generator has begun, and will clean up, whatever happens to
        the client."""
        send = client.send
        async with aclosing(answer.frames) as frames:
            try:
                async for frame in frames:
                    if not client.has_head:
                        await self._send_head(answer, client)
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
                if not client.has_head:
                    await self._send_head(answer, client)
                failure = unexpected(error, request_id)
                note_error(failure)
                frame = error_frames(failure)
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await client.end(b"")

    def _send_head(self, answer: StreamedAnswer, client: _Client) -> Awaitable[None]:
        return client.begin(200, self._of_stream.with_own(answer.headers))

    def _refusal(self, error: GatewayError, request_id: str) -> WholeAnswer:
        note_error(error)
        release_frames(error)
        headers = {
            "x-context-status": "bypassed",
            **error.context_headers,
            "x-request-id": request_id,
            **error_headers(error),
        }
        return WholeAnswer(body=error_body(error), headers=headers, status=error.status)


class _Client:
    """Where an answer goes, and how far it has come.

    Attributes:
        has_head, has_all: the first and the last of it are sent, or just about to be.
    """

    __slots__ = ("has_all", "has_head", "send")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.has_head = False
        self.has_all = False

    def begin(self, status: int, headers: list[RawHeader]) -> Awaitable[None]:
        self.has_head = True
        return self.send({"type": "http.response.start", "status": status, "headers": headers})

    def end(self, body: bytes) -> Awaitable[None]:
        self.has_all = True
        return self.send({"type": "http.response.body", "body": body})


class _UntilDisconnect:
    """Says when the client hangs up, and ends quietly what runs inside if that gets it cancelled; servers swallow what
    is sent after that without a word."""

    __slots__ = ("_has_hung_up", "_receive", "_running", "_scope", "_seat", "_watcher")

    def __init__(self, scope: Scope, receive: Receive, seat: Seat) -> None:
        self._scope = scope
        self._receive = receive
        self._seat = seat
        self._has_hung_up = False

    def __enter__(self) -> None:
        running = asyncio.current_task()
        assert running is not None
        self._running = running
        self._watcher = asyncio.ensure_future(self._watch())  # noqa: TID251 - cancelled with the end

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if SLOW_CLIENT in self._scope:
            self._seat.be_cut()
            return
        self._has_hung_up = True
        self._seat.hang_up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        # A cancelled task keeps where it stood, and so this object: without letting go of it here the request would be
        # held in a circle until the garbage collector comes by.
        watcher = self._watcher
        del self._watcher
        watcher.cancel()
        if self._has_hung_up and isinstance(error, asyncio.CancelledError):
            self._running.uncancel()
            return True
        return False
