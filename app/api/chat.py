"""`POST /v1/chat/completions`: bytes in, the exchange's answer out. A bare ASGI endpoint, since it is the hot path."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

from starlette.types import Receive, Scope, Send

from app.api.auth import Auth
from app.api.body import ClientDisconnected, headers_of, read_body
from app.api.errors import error_body, error_headers, unexpected
from app.api.schemas import parse_chat_request
from app.errors import GatewayError, UpstreamUnavailable
from app.exchange.answer import StreamedAnswer, WholeAnswer
from app.exchange.attempt import Seat
from app.exchange.attempts import Attempts
from app.exchange.frames import error_frames
from app.exchange.replay import REPLAYED
from app.observability.families import REPLAYS
from app.observability.log import log_scope
from app.observability.metrics import SILENT, Metrics
from app.observability.requests import note_error, note_request

log = logging.getLogger(__name__)

JSON_TYPE = "application/json"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""The last keeps nginx from holding a stream back."""


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
        attempts: Attempts,
        auth: Auth,
        *,
        body_limit_bytes: int,
        new_request_id: Callable[[], str],
        extra_headers: Mapping[str, str],
        metrics: Metrics = SILENT,
    ) -> None:
        self._attempts = attempts
        self._auth = auth
        self._body_limit_bytes = body_limit_bytes
        self._new_request_id = new_request_id
        self._extra_headers = extra_headers
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(send)
        headers = headers_of(scope)
        request_id = self._new_request_id()
        try:
            caller = await self._auth.caller(headers, "chat")
            body = await read_body(receive, headers, self._body_limit_bytes)
            request = parse_chat_request(body, headers, caller, request_id)
            note_request(request.model, stream=request.stream)
            request = self._auth.admit(request, headers)
            seat = self._attempts.seat(request, functools.partial(_has_left, receive))
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
                    async with _until_disconnect(receive, seat.hang_up):
                        await self._answer(seat, request_id, client)
                else:
                    # Nobody is watched for here: an answer that its client did not wait for is stored for its retry.
                    if len(body) > PAUSED_BYTES:
                        _has_left(receive)
                    await self._answer(seat, request_id, client)
            except asyncio.CancelledError:
                log.warning("a request was still running when the server had to stop")
                await self._send_stopped(request_id, client)

    async def _answer(self, seat: Seat, request_id: str, client: _Client) -> None:
        try:
            answer = await seat.answer()
            if REPLAYED.keys() <= answer.headers.keys():
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
        raw_headers = _raw({"content-type": JSON_TYPE, **answer.headers, **self._extra_headers})
        raw_headers.append((b"content-length", b"%d" % len(answer.body)))
        await client.begin(answer.status, raw_headers)
        await client.end(answer.body)

    async def _send_stream(self, answer: StreamedAnswer, request_id: str, client: _Client) -> None:
        """Send frames as they come, and where they fail unexpectedly an error: what began as a stream ends as one. The
        head goes out with the first of them, so that their generator has begun, and will clean up, whatever happens to
        the client."""
        async with aclosing(answer.frames) as frames:
            try:
                async for frame in frames:
                    if not client.has_head:
                        await self._send_head(answer, client)
                    await client.send({"type": "http.response.body", "body": frame, "more_body": True})
            except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
                if not client.has_head:
                    await self._send_head(answer, client)
                failure = unexpected(error, request_id)
                note_error(failure)
                frame = error_frames(failure)
                await client.send({"type": "http.response.body", "body": frame, "more_body": True})
            await client.end(b"")

    async def _send_head(self, answer: StreamedAnswer, client: _Client) -> None:
        raw_headers = _raw({**STREAM_HEADERS, **answer.headers, **self._extra_headers})
        await client.begin(200, raw_headers)

    def _refusal(self, error: GatewayError, request_id: str) -> WholeAnswer:
        note_error(error)
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

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_head = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def end(self, body: bytes) -> None:
        self.has_all = True
        await self.send({"type": "http.response.body", "body": body})


def _has_left(receive: Receive) -> bool:
    """Whether a client has hung up, as far as that is known: asks for its next message without waiting for it. (To be
    asked at all makes a server read on that had paused.)"""
    while True:
        asking = receive().__await__()
        try:
            next(asking)
        except StopIteration as answered:
            if answered.value["type"] == "http.disconnect":
                return True
        else:
            asking.close()
            return False


@asynccontextmanager
async def _until_disconnect(receive: Receive, on_disconnect: Callable[[], None]) -> AsyncIterator[None]:
    """Say when the client hangs up, and end quietly what runs inside if that gets it cancelled; servers swallow what is
    sent after that without a word."""
    running = asyncio.current_task()
    assert running is not None
    hung_up = False

    async def watch() -> None:
        nonlocal hung_up
        while (await receive())["type"] != "http.disconnect":
            pass
        hung_up = True
        on_disconnect()

    watcher = asyncio.ensure_future(watch())  # noqa: TID251 - cancelled below
    try:
        yield
    except asyncio.CancelledError:
        if not hung_up:
            raise
        running.uncancel()
    finally:
        watcher.cancel()


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
