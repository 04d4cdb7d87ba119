"""HTTP to a provider, over real sockets: what arrives, what breaks, and how long it may take."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.errors import InvalidRequest, UpstreamUnavailable
from app.upstream.base import AnswerTimedOut, Call, ConnectionDropped
from app.upstream.openai import OpenAIProvider, Timeouts
from tests.upstream.loopback import END, HEAD, Loopback, Received, Script, chunked, loopback, whole

CHAT = Call("/chat/completions", b'{"model":"m"}')
OK = whole(b'{"ok":true}', headers=b"Content-Type: application/json\r\n")


async def answer_ok(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


@asynccontextmanager
async def provider_at(
    script: Script, *, query: str = "", api_key: str | None = "secret", timeouts: Timeouts | None = None, **more: str
) -> AsyncIterator[tuple[OpenAIProvider, Loopback]]:
    async with loopback(script) as server:
        provider = OpenAIProvider("test", server.url + query, api_key, timeouts, **more)  # type: ignore[arg-type]
        try:
            yield provider, server
        finally:
            await provider.aclose()


async def test_a_call_arrives_as_it_was_made() -> None:
    async with provider_at(answer_ok) as (provider, server):
        call = Call(
            CHAT.path,
            CHAT.body,
            headers={
                "openai-project": "p",
                "host": "evil",
                "content-length": "1",
                "cookie": "c=1",
                "accept-encoding": "br",
            },
            query="a=1",
        )
        reply = await provider.send(call)
        assert (reply.status, await reply.read()) == (200, b'{"ok":true}')
        await reply.aclose()

    (request,) = server.requests
    assert request.line == "POST /v1/chat/completions?a=1 HTTP/1.1"
    assert request.body == CHAT.body
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["openai-project"] == "p"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] != "evil"
    assert "cookie" not in request.headers


async def test_the_clients_own_key_is_passed_on_where_none_is_configured() -> None:
    async with provider_at(answer_ok, api_key="") as (provider, server):
        for authorization in ("Bearer theirs", None):
            await (await provider.send(Call(CHAT.path, CHAT.body, authorization=authorization))).read()

    assert [request.headers.get("authorization") for request in server.requests] == ["Bearer theirs", None]


async def test_a_configured_key_is_never_replaced_by_the_clients() -> None:
    async with provider_at(answer_ok) as (provider, server):
        await (await provider.send(Call(CHAT.path, CHAT.body, authorization="Bearer theirs"))).read()

    assert server.requests[0].headers["authorization"] == "Bearer secret"


async def test_a_base_url_with_a_query_and_another_key_header_can_be_configured() -> None:
    async with provider_at(answer_ok, query="?api-version=2026-01-01", auth_header="api-key") as (provider, server):
        await (await provider.send(Call(CHAT.path, CHAT.body, query="x=%2F"))).read()
        await provider.aclose()

    assert server.requests[0].line == "POST /v1/chat/completions?api-version=2026-01-01&x=%2F HTTP/1.1"
    assert server.requests[0].headers["api-key"] == "secret"
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("path", ["/../admin", "/files/..", "/%2e%2e/admin", "/a/%2E./b", "/..\\admin"])
async def test_a_path_cannot_climb_out_of_the_base_url(path: str) -> None:
    provider = OpenAIProvider("test", "http://127.0.0.1:1/v1", "secret")

    with pytest.raises(InvalidRequest):
        await provider.send(Call(path))


async def test_a_path_cannot_smuggle_a_header_or_a_query() -> None:
    async with provider_at(answer_ok) as (provider, server):
        call = Call("/files/a b?x=1#f%20 HTTP/1.1\r\nX-Evil: 1", method="GET", query="q=\r\nX-Evil: 1")
        await (await provider.send(call)).read()

    assert server.requests[0].line == (
        "GET /v1/files/a%20b%3Fx=1%23f%20%20HTTP/1.1%0D%0AX-Evil:%201?q=%0D%0AX-Evil:%201 HTTP/1.1"
    )
    assert "x-evil" not in server.requests[0].headers
    assert "content-type" not in server.requests[0].headers


async def test_connections_are_reused_and_cookies_are_not() -> None:
    async def with_cookie(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", headers=b"Set-Cookie: tenant=one; Path=/\r\n"))

    async with provider_at(with_cookie) as (provider, server):
        for _ in range(3):
            reply = await provider.send(CHAT)
            assert "set-cookie" not in reply.headers
            await reply.read()

    assert server.connections == 1
    assert all("cookie" not in request.headers for request in server.requests)


async def test_a_redirect_is_not_followed() -> None:
    async def redirect(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"", "307 Temporary Redirect", b"Location: http://127.0.0.1:1/\r\n"))

    async with provider_at(redirect) as (provider, _):
        reply = await provider.send(CHAT)
        assert reply.status == 307
        await reply.aclose()


async def test_a_stream_is_given_out_as_it_arrives() -> None:
    turn = asyncio.Event()

    async def dribble(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for piece in (b"data: a\n", b"\n", b"data: b\n\n"):
            writer.write(chunked(piece))
            await turn.wait()
            turn.clear()
        writer.write(END)

    async with provider_at(dribble) as (provider, _):
        reply = await provider.send(CHAT)
        seen = []
        async for piece in reply.chunks():
            seen.append(piece)
            turn.set()
        await reply.aclose()

    assert seen == [b"data: a\n", b"\n", b"data: b\n\n"]


async def test_a_compressed_answer_is_decoded_and_its_headers_say_so() -> None:
    async def zipped(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(gzip.compress(b'{"ok":true}'), headers=b"Content-Encoding: gzip\r\n"))

    async with provider_at(zipped) as (provider, _):
        reply = await provider.send(CHAT)
        assert await reply.read() == b'{"ok":true}'
        assert not {"content-encoding", "content-length"} & reply.headers.keys()


async def test_an_unreachable_provider_is_named_but_not_its_key() -> None:
    provider = OpenAIProvider("nowhere", "http://127.0.0.1:1/v1?key=secret", "secret")

    with pytest.raises(UpstreamUnavailable, match="'nowhere' could not be reached") as caught:
        await provider.send(CHAT)
    assert caught.value.status == 502
    assert "secret" not in str(caught.value)
    await provider.aclose()


async def test_an_unknown_host_is_unreachable() -> None:
    provider = OpenAIProvider("nowhere", "http://host.invalid/v1")

    with pytest.raises(UpstreamUnavailable, match="could not be reached"):
        await provider.send(CHAT)
    await provider.aclose()


async def test_a_provider_that_never_answers_times_out() -> None:
    async def hang(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with provider_at(hang, timeouts=Timeouts(first_byte_seconds=0.05)) as (provider, server):
        with pytest.raises(AnswerTimedOut) as caught:
            await provider.send(CHAT)
        assert caught.value.status == 504
        assert server.connections == 1


async def test_the_first_byte_may_take_longer_than_the_pauses_between_bytes() -> None:
    async def slow_start(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.sleep(0.2)
        writer.write(chunked(b"data: a\n\n"))
        await asyncio.sleep(30)

    timeouts = Timeouts(first_byte_seconds=20, between_bytes_seconds=0.05)
    async with provider_at(slow_start, timeouts=timeouts) as (provider, _):
        reply = await provider.send(CHAT)
        pieces = reply.chunks()
        assert await anext(pieces) == b"data: a\n\n"
        with pytest.raises(UpstreamUnavailable, match="fell silent") as caught:
            await anext(pieces)
        assert caught.value.status == 504
        await reply.aclose()


async def test_headers_without_a_body_time_out_as_the_first_byte() -> None:
    async def headers_only(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.sleep(30)

    async with provider_at(headers_only, timeouts=Timeouts(first_byte_seconds=0.05)) as (provider, _):
        reply = await provider.send(CHAT)
        with pytest.raises(UpstreamUnavailable, match="fell silent"):
            await reply.read()


async def test_the_whole_answer_has_a_limit_too() -> None:
    async def drip(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(chunked(b": still here\n\n"))
            await writer.drain()
            await asyncio.sleep(0.01)

    async with provider_at(drip, timeouts=Timeouts(whole_seconds=0.1)) as (provider, _):
        reply = await provider.send(CHAT)
        with pytest.raises(UpstreamUnavailable) as caught:
            await reply.read()
        assert caught.value.status == 504


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(HEAD + chunked(b"data: a\n\n") + b"ff\r\ndata:", id="chunk cut short"),
        pytest.param(HEAD + chunked(b"data: a\n\n"), id="last chunk missing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: a\n\n", id="shorter than announced"),
        pytest.param(HEAD + chunked(b"data: a\n\n") + b"no chunk\r\n", id="garbage between chunks"),
    ],
)
async def test_a_body_that_breaks_off_is_an_error(sent: bytes) -> None:
    async def cut(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with provider_at(cut) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match=r"broke off|failed"):
            await (await provider.send(CHAT)).read()


async def test_a_reset_connection_is_an_error() -> None:
    async def reset(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))
        await writer.drain()
        writer.transport.abort()

    async with provider_at(reset) as (provider, _):
        reply = await provider.send(CHAT)
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            await reply.read()


async def test_an_answer_that_is_not_http_is_an_error() -> None:
    async def garbage(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    async with provider_at(garbage) as (provider, _):
        with pytest.raises(UpstreamUnavailable):
            await provider.send(CHAT)


async def test_a_connection_closed_while_idle_is_told_apart() -> None:
    async def answer_once(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            writer.write(OK)
        else:
            writer.close()

    async with provider_at(answer_once) as (provider, server):
        await (await provider.send(CHAT)).read()
        with pytest.raises(ConnectionDropped):
            await provider.send(CHAT)


async def test_a_cancelled_consumer_closes_the_upstream_connection_at_once() -> None:
    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))

    async with provider_at(endless) as (provider, server):
        reply = await provider.send(CHAT)
        started = asyncio.Event()

        async def consume() -> None:
            async for _ in reply.chunks():
                started.set()

        consumer = asyncio.ensure_future(consume())
        await started.wait()
        assert not server.gone.is_set()
        consumer.cancel()
        async with asyncio.timeout(1):
            await server.gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await consumer


async def test_a_call_cancelled_before_its_answer_closes_the_connection_too() -> None:
    async def silent(_: Received, writer: asyncio.StreamWriter) -> None:
        received.set()

    received = asyncio.Event()
    async with provider_at(silent) as (provider, server):
        sending = asyncio.ensure_future(provider.send(CHAT))
        await received.wait()
        sending.cancel()
        async with asyncio.timeout(1):
            await server.gone.wait()
        assert (await asyncio.gather(sending, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_an_answer_let_go_unread_closes_its_connection() -> None:
    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))

    async with provider_at(endless) as (provider, server):
        reply = await provider.send(CHAT)
        await reply.aclose()
        async with asyncio.timeout(1):
            await server.gone.wait()


@pytest.mark.parametrize(
    "body", [b'{"object":"list","data":[{"id":"m"},"odd"]}', b'{"models":[{"id":"m"}]}', b'[{"id":"m"}]']
)
async def test_model_lists_of_several_shapes_are_read(body: bytes) -> None:
    async def listing(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(body))

    async with provider_at(listing) as (provider, server):
        assert await provider.models(None) == [{"id": "m"}]
    assert server.requests[0].line == "GET /v1/models HTTP/1.1"


@pytest.mark.parametrize("answer", [whole(b"nope", "404 Not Found"), whole(b"<html>"), whole(b'{"data":3}')])
async def test_a_model_list_that_cannot_be_had_is_an_error(answer: bytes) -> None:
    async def refuse(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with provider_at(refuse) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="'test'"):
            await provider.models(None)
