"""`POST /v1/chat/completions`: bytes in, the exchange's answer out. A bare ASGI endpoint, since it is the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

from starlette.types import Receive, Scope, Send

from app.api.auth import authenticate
from app.api.body import ClientDisconnected, headers_of, read_body
from app.api.errors import error_body, error_headers, unexpected
from app.api.schemas import parse_chat_request
from app.errors import GatewayError
from app.exchange.answer import StreamedAnswer, WholeAnswer
from app.exchange.story import Exchange

JSON_TYPE = "application/json"
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class ChatEndpoint:
    """Parses, authenticates, and maps errors; decides nothing.

    Args:
        new_request_id: makes the id of a request.
        extra_headers: sent with every answer (the simulated model announces itself).
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        body_limit_bytes: int,
        new_request_id: Callable[[], str],
        extra_headers: Mapping[str, str],
    ) -> None:
        self._exchange = exchange
        self._body_limit_bytes = body_limit_bytes
        self._new_request_id = new_request_id
        self._extra_headers = extra_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_id = self._new_request_id()
        try:
            body = await read_body(receive, headers, self._body_limit_bytes)
            request = parse_chat_request(body, headers, authenticate(headers), request_id)
            answer = await self._exchange.answer(request)
        except ClientDisconnected:
            return
        except GatewayError as error:
            answer = self._refusal(error, headers, request_id)
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            answer = self._refusal(unexpected(error), headers, request_id)
        if isinstance(answer, WholeAnswer):
            await self._send_whole(answer, send)
        else:
            await self._send_stream(answer, receive, send)

    def _refusal(self, error: GatewayError, headers: Mapping[str, str], request_id: str) -> WholeAnswer:
        named = {"x-conversation-id": error.conversation_id} if error.conversation_id else {}
        return WholeAnswer(
            body=error_body(error),
            headers={
                "x-context-status": "bypassed",
                "x-request-id": request_id,
                **named,
                **error_headers(error),
            },
            status=error.status,
        )

    async def _send_whole(self, answer: WholeAnswer, send: Send) -> None:
        raw_headers = _raw({"content-type": JSON_TYPE, **answer.headers, **self._extra_headers})
        raw_headers.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": raw_headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _send_stream(self, answer: StreamedAnswer, receive: Receive, send: Send) -> None:
        raw_headers = _raw({**STREAM_HEADERS, **answer.headers, **self._extra_headers})
        async with aclosing(answer.frames) as frames, _until_disconnect(receive):
            await send({"type": "http.response.start", "status": 200, "headers": raw_headers})
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def _until_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel what runs inside when the client hangs up; servers swallow what is sent after that without a word."""
    running = asyncio.current_task()
    assert running is not None
    hung_up = False

    async def watch() -> None:
        nonlocal hung_up
        while (await receive())["type"] != "http.disconnect":
            pass
        hung_up = True
        running.cancel()

    watcher = asyncio.ensure_future(watch())
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
