"""Calls to providers over TLS, and through a proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from app.errors import UpstreamUnavailable
from app.upstream.base import Call
from app.upstream.openai import OpenAIProvider, Timeouts
from app.upstream.proxied import ProxiedClient
from tests.upstream.certificates import certified
from tests.upstream.loopback import END, HEAD, Received, chunked, loopback

CHAT = Call("/chat/completions", b'{"model":"m"}')
Runs = Callable[..., None]


async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunked(received.body[:5]))
    await writer.drain()
    writer.write(chunked(received.body[5:]) + END)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def runs(request: pytest.FixtureRequest) -> Runs:
    """Both loops have TLS of their own."""
    made: Runs = request.param
    return made


async def read(provider: OpenAIProvider, call: Call = CHAT) -> bytes:
    return await (await provider.send(call)).read()


def test_a_certified_server_is_called_over_one_connection(tmp_path: Path, runs: Runs) -> None:
    of_server, of_client = certified(tmp_path)

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server:
            provider = OpenAIProvider("test", server.url, ssl_context=of_client)
            assert [await read(provider) for _ in range(3)] == [CHAT.body] * 3
            body = bytes(range(256)) * 20_000
            assert await read(provider, Call(CHAT.path, body)) == body
            await provider.aclose()
            assert server.connections == 1

    runs(call())


@pytest.mark.parametrize("trusts", [True, False])
def test_a_server_that_is_not_the_one_is_not_called(tmp_path: Path, runs: Runs, trusts: bool) -> None:
    of_server, of_client = certified(tmp_path, name="elsewhere")

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server:
            url = f"https://localhost:{server.port}/v1?key=secret"
            provider = OpenAIProvider("test", url, ssl_context=of_client if trusts else None)
            with pytest.raises(UpstreamUnavailable, match="'test' could not be reached: ") as caught:
                await provider.send(CHAT)
            assert not any(word in str(caught.value) for word in ("localhost", "secret", "elsewhere"))
            await provider.aclose()
            assert not server.requests

    runs(call())


def test_a_server_that_speaks_no_tls_cannot_be_reached(runs: Runs) -> None:
    async def call() -> None:
        async with loopback(answer) as server:
            provider = OpenAIProvider("test", server.url.replace("http:", "https:"), timeouts=Timeouts(0.1))
            with pytest.raises(UpstreamUnavailable, match="could not be reached"):
                await provider.send(CHAT)
            await provider.aclose()

    runs(call())


def test_an_answer_cut_under_tls_broke_off(tmp_path: Path, runs: Runs) -> None:
    of_server, of_client = certified(tmp_path)

    async def cut(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(b"data: a\n\n"))
        await writer.drain()
        writer.transport.abort()

    async def call() -> None:
        async with loopback(cut, tls=of_server) as server:
            provider = OpenAIProvider("test", server.url, ssl_context=of_client)
            with pytest.raises(UpstreamUnavailable, match=r"broke off|closed the connection"):
                await read(provider)
            await provider.aclose()

    runs(call())


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy; gives its URL and, as they come, the first lines it was sent."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.split(b"\r\n")[0].decode())
        method, target, _ = lines[-1].split(" ")
        host, port = (target if method == "CONNECT" else target.split("/")[2]).split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far_writer.write(head.replace(f"http://{host}:{port}".encode(), b""))
        await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lines


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_a_provider_is_called_through_its_proxy() -> None:
    async with loopback(answer) as server, proxy() as (url, lines):
        provider = OpenAIProvider("test", server.url, proxy=url)
        assert isinstance(provider._client, ProxiedClient)
        assert await read(provider) == CHAT.body
        await provider.aclose()
        async with asyncio.timeout(10):
            await server.gone.wait()

    assert lines == [f"POST {server.url}/chat/completions HTTP/1.1"]


async def test_tls_goes_through_the_proxy_and_ends_at_the_provider(tmp_path: Path) -> None:
    of_server, of_client = certified(tmp_path)
    async with loopback(answer, tls=of_server) as server, proxy() as (url, lines):
        provider = OpenAIProvider("test", server.url, proxy=url, ssl_context=of_client)
        assert await read(provider) == CHAT.body
        await provider.aclose()
        async with asyncio.timeout(10):
            await server.gone.wait()

    assert lines == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]


async def test_aiohttp_is_loaded_for_proxies_only() -> None:
    script = "import sys; from app.upstream import openai; openai.OpenAIProvider('p', 'http://h'); print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert "app.upstream.direct" in told.decode().split()
    assert "aiohttp" not in told.decode().split()
