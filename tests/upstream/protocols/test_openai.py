"""HTTP to a provider, over real sockets: what arrives, what breaks, and how long it may take."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.errors import InvalidRequest, UpstreamUnavailable
from app.upstream.http.http_client_contract import HttpTimeouts
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import AnswerTimedOut, ConnectionDropped, UpstreamRequest
from tests.upstream.http.loopback_server import END, HEAD, Loopback, Received, Script, chunked, loopback, whole

CHAT = UpstreamRequest("/chat/completions", b'{"model":"m"}')
OK = whole(b'{"ok":true}', headers=b"Content-Type: application/json\r\n")


async def answer_ok(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


@asynccontextmanager
async def provider_at(
    script: Script,
    *,
    query: str = "",
    api_key: str | None = "secret",
    timeouts: HttpTimeouts | None = None,
    **more: str,
) -> AsyncIterator[tuple[OpenAIProvider, Loopback]]:
    async with loopback(script) as server:
        provider = OpenAIProvider("test", server.url + query, api_key, timeouts, **more)  # type: ignore[arg-type]
        try:
            yield provider, server
        finally:
            await provider.aclose()


async def test_a_call_arrives_as_it_was_made() -> None:
    async with provider_at(answer_ok) as (provider, server):
        call = UpstreamRequest(
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
            await (await provider.send(UpstreamRequest(CHAT.path, CHAT.body, authorization=authorization))).read()

    assert [request.headers.get("authorization") for request in server.requests] == ["Bearer theirs", None]


async def test_a_configured_key_is_never_replaced_by_the_clients() -> None:
    async with provider_at(answer_ok) as (provider, server):
        await (await provider.send(UpstreamRequest(CHAT.path, CHAT.body, authorization="Bearer theirs"))).read()

    assert server.requests[0].headers["authorization"] == "Bearer secret"


async def test_a_base_url_with_a_query_and_another_key_header_can_be_configured() -> None:
    async with provider_at(answer_ok, query="?api-version=2026-01-01", auth_header="api-key") as (provider, server):
        await (await provider.send(UpstreamRequest(CHAT.path, CHAT.body, query="x=%2F"))).read()
        await provider.aclose()

    assert server.requests[0].line == "POST /v1/chat/completions?api-version=2026-01-01&x=%2F HTTP/1.1"
    assert server.requests[0].headers["api-key"] == "secret"
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("path", ["/../admin", "/files/..", "/%2e%2e/admin", "/a/%2E./b", "/..\\admin"])
async def test_a_path_cannot_climb_out_of_the_base_url(path: str) -> None:
    provider = OpenAIProvider("test", "http://127.0.0.1:1/v1", "secret")

    with pytest.raises(InvalidRequest):
        await provider.send(UpstreamRequest(path))


async def test_a_path_cannot_smuggle_a_header_or_a_query() -> None:
    async with provider_at(answer_ok) as (provider, server):
        call = UpstreamRequest("/files/a b?x=1#f%20 HTTP/1.1\r\nX-Evil: 1", method="GET", query="q=\r\nX-Evil: 1")
        await (await provider.send(call)).read()

    assert server.requests[0].line == (
        "GET /v1/files/a%20b%3Fx=1%23f%20%20HTTP/1.1%0D%0AX-Evil:%201?q=%0D%0AX-Evil:%201 HTTP/1.1"
    )
    assert "x-evil" not in server.requests[0].headers
    assert "content-type" not in server.requests[0].headers


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "\u2028"])
async def test_a_header_cannot_smuggle_another(value: str) -> None:
    async with provider_at(answer_ok) as (provider, server):
        with pytest.raises(InvalidRequest, match="'x-mine'") as caught:
            await provider.send(UpstreamRequest(CHAT.path, CHAT.body, headers={"x-mine": value}))
        with pytest.raises(InvalidRequest):
            await provider.send(UpstreamRequest(CHAT.path, CHAT.body, headers={f"x{value}": "1"}))

    assert value not in str(caught.value)
    assert not server.requests


async def test_what_a_client_says_of_its_own_connection_is_not_passed_on() -> None:
    own = {"connection": "close", "te": "trailers", "expect": "100-continue", "transfer-encoding": "chunked"}
    async with provider_at(answer_ok) as (provider, server):
        await (await provider.send(UpstreamRequest(CHAT.path, CHAT.body, headers=own))).read()

    assert not own.keys() & server.requests[0].headers.keys()
    assert server.requests[0].headers["content-length"] == str(len(CHAT.body))


async def test_a_credential_in_the_base_url_is_sent_as_one() -> None:
    async with loopback(answer_ok) as server:
        provider = OpenAIProvider("test", server.url.replace("//", "//us%40er:pw@"))
        await (await provider.send(UpstreamRequest(CHAT.path, CHAT.body, authorization="Bearer theirs"))).read()
        await provider.aclose()

    assert server.requests[0].headers["authorization"] == "Basic dXNAZXI6cHc="
    assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"


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
        async for piece in reply.iter_bytes():
            seen.append(piece)
            turn.set()
        await reply.aclose()

    assert seen == [b"data: a\n", b"\n", b"data: b\n\n"]


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
async def test_answers_that_only_inform_are_skipped(interim: bytes) -> None:
    async def informed(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(interim + interim + OK)

    async with provider_at(informed) as (provider, server):
        for _ in range(2):
            reply = await provider.send(CHAT)
            assert (reply.status, await reply.read()) == (200, b'{"ok":true}')
            assert "link" not in reply.headers

    assert server.connections == 1


async def test_a_body_may_end_with_its_connection() -> None:
    async def until_closed(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall ")
        await writer.drain()
        writer.write(b"of it")
        writer.close()

    async with provider_at(until_closed) as (provider, _):
        assert await (await provider.send(CHAT)).read() == b"all of it"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_may_have_no_body(status: bytes) -> None:
    async def bodiless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %b\r\nETag: x\r\n\r\n" % status)

    async with provider_at(bodiless) as (provider, server):
        for _ in range(2):
            reply = await provider.send(CHAT)
            assert (str(reply.status), await reply.read()) == (status[:3].decode(), b"")

    assert server.connections == 1


async def test_a_connection_that_is_announced_to_close_is_not_used_again() -> None:
    async def closing(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", headers=b"Connection: close\r\n"))

    async with provider_at(closing) as (provider, server):
        for _ in range(3):
            assert await (await provider.send(CHAT)).read() == b"{}"

    assert server.connections == 3


async def test_an_idempotent_call_is_sent_again_when_a_kept_connection_is_closed() -> None:
    async def answer_one_each(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.close()
        else:
            writer.write(whole(b'{"data":[]}'))

    async with provider_at(answer_one_each) as (provider, server):
        for _ in range(2):
            assert await provider.list_models(None) == []

    assert (len(server.requests), server.connections) == (3, 2)


async def test_a_long_body_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with provider_at(answer_ok) as (provider, server):
        for _ in range(2):
            await (await provider.send(UpstreamRequest(CHAT.path, body))).read()

    assert [request.body for request in server.requests] == [body, body]
    assert server.connections == 1


async def test_a_call_that_is_answered_before_its_body_was_read_gets_that_answer() -> None:
    answered, is_over = asyncio.Event(), asyncio.Event()

    async def refuse_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"too long", "413 Content Too Large"))
        await answered.wait()
        writer.transport.abort()
        is_over.set()

    refusing = await asyncio.start_server(refuse_unread, "127.0.0.1")
    provider = OpenAIProvider("test", f"http://127.0.0.1:{refusing.sockets[0].getsockname()[1]}/v1")
    async with refusing, asyncio.timeout(30):
        reply = await provider.send(UpstreamRequest(CHAT.path, bytes(64_000_000)))
        assert (reply.status, await reply.read()) == (413, b"too long")
        await reply.aclose()
        await provider.aclose()
        answered.set()
        await is_over.wait()


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

    async with provider_at(hang, timeouts=HttpTimeouts(first_byte_seconds=0.05)) as (provider, server):
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

    timeouts = HttpTimeouts(first_byte_seconds=20, between_bytes_seconds=0.05)
    async with provider_at(slow_start, timeouts=timeouts) as (provider, _):
        reply = await provider.send(CHAT)
        pieces = reply.iter_bytes()
        assert await anext(pieces) == b"data: a\n\n"
        with pytest.raises(UpstreamUnavailable, match="stopped sending") as caught:
            await anext(pieces)
        assert caught.value.status == 504
        await reply.aclose()


async def test_headers_without_a_body_time_out_as_the_first_byte() -> None:
    async def headers_only(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await asyncio.sleep(30)

    async with provider_at(headers_only, timeouts=HttpTimeouts(first_byte_seconds=0.05)) as (provider, _):
        reply = await provider.send(CHAT)
        with pytest.raises(UpstreamUnavailable, match="stopped sending"):
            await reply.read()


async def test_the_whole_answer_has_a_limit_too() -> None:
    async def drip(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(chunked(b": still here\n\n"))
            await writer.drain()
            await asyncio.sleep(0.01)

    async with provider_at(drip, timeouts=HttpTimeouts(total_seconds=0.1)) as (provider, _):
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
            async for _ in reply.iter_bytes():
                started.set()

        consumer = asyncio.ensure_future(consume())
        await started.wait()
        assert not server.gone.is_set()
        consumer.cancel()
        async with asyncio.timeout(10):
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
        async with asyncio.timeout(10):
            await server.gone.wait()
        assert (await asyncio.gather(sending, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_an_answer_let_go_unread_closes_its_connection() -> None:
    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))

    async with provider_at(endless) as (provider, server):
        reply = await provider.send(CHAT)
        await reply.aclose()
        async with asyncio.timeout(10):
            await server.gone.wait()


@pytest.mark.parametrize(
    "body", [b'{"object":"list","data":[{"id":"m"},"odd"]}', b'{"models":[{"id":"m"}]}', b'[{"id":"m"}]']
)
async def test_model_lists_of_several_shapes_are_read(body: bytes) -> None:
    async def listing(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(body))

    async with provider_at(listing) as (provider, server):
        assert await provider.list_models(None) == [{"id": "m"}]
    assert server.requests[0].line == "GET /v1/models HTTP/1.1"


@pytest.mark.parametrize("answer", [whole(b"nope", "404 Not Found"), whole(b"<html>"), whole(b'{"data":3}')])
async def test_a_model_list_that_cannot_be_had_is_an_error(answer: bytes) -> None:
    async def refuse(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with provider_at(refuse) as (provider, _):
        with pytest.raises(UpstreamUnavailable, match="'test'"):
            await provider.list_models(None)
