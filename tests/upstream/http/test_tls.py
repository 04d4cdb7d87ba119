"""Calls to providers over TLS, and through a proxy."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from app.assembly.providers_and_routes import build_providers
from app.errors import UpstreamUnavailable
from app.settings import load_settings
from app.upstream.http.aiohttp_transport import load_trusted_ca_context
from app.upstream.http.http_client import HttpClient
from app.upstream.http.http_client_contract import HttpTimeouts
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import UpstreamRequest
from tests.upstream.http.certificates import DAY, Authority, certified
from tests.upstream.http.loopback_server import END, HEAD, Received, chunked, loopback

CHAT = UpstreamRequest("/chat/completions", b'{"model":"m"}')
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


async def read(provider: OpenAIProvider, call: UpstreamRequest = CHAT) -> bytes:
    return await (await provider.send(call)).read()


def test_a_certified_server_is_called_over_one_connection(tmp_path: Path, runs: Runs) -> None:
    of_server, of_client = certified(tmp_path)

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server:
            provider = OpenAIProvider("test", server.url, ssl_context=of_client)
            assert [await read(provider) for _ in range(3)] == [CHAT.body] * 3
            body = bytes(range(256)) * 20_000
            assert await read(provider, UpstreamRequest(CHAT.path, body)) == body
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
            provider = OpenAIProvider("test", server.url.replace("http:", "https:"), timeouts=HttpTimeouts(0.1))
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
async def proxy(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy; gives its URL and, as they come, the first lines and the credentials that it was sent."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.split(b"\r\n")[0].decode())
        method, target, _ = lines[-1].split(" ")
        lines.extend(line.decode() for line in head.split(b"\r\n") if line.lower().startswith(b"proxy-"))
        host, port = (target if method == "CONNECT" else target.split("/")[2]).split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far_writer.write(head.replace(f"http://{host}:{port}".encode(), b""))
        await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=tls)
    async with server:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}", lines


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
        assert isinstance(provider._client, HttpClient)
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


def test_a_proxy_may_be_reached_over_tls_and_with_credentials(tmp_path: Path, runs: Runs) -> None:
    authority = Authority(tmp_path)
    of_client = load_trusted_ca_context(str(authority.file))
    of_server = authority.server("127.0.0.1")

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server, proxy(of_server) as (url, lines):
            with_credentials = url.replace("//", "//us%40er:p%3Aw@")
            provider = OpenAIProvider("test", server.url, proxy=with_credentials, ssl_context=of_client)
            body = bytes(range(256)) * 20_000
            assert await read(provider, UpstreamRequest(CHAT.path, body)) == body
            await provider.aclose()
            credentials = lines[1].lower()
            assert lines[0] == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
            assert credentials == "proxy-authorization: basic " + base64.b64encode(b"us@er:p:w").decode().lower()
            assert not [name for name in server.requests[0].headers if name.startswith("proxy-")]

    runs(call())


class Wrong:
    """A server whose certificate is wrong, what the client trusts, and what the client is to say of it."""

    def __init__(self, said: str, hint: str, *names: str, trusts: bool = True, **times: dt.timedelta) -> None:
        self.said = said
        self.hint = hint
        self._names = names or ("127.0.0.1",)
        self._trusts = trusts
        self._times = times

    def contexts(self, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
        authority = Authority(folder)
        trusted = load_trusted_ca_context(str(authority.file)) if self._trusts else None
        return authority.server(*self._names, **self._times), trusted


WRONG = {
    "unknown authority": Wrong("certificate is not trusted", "providers.test.ca_file", trusts=False),
    "expired": Wrong("certificate has expired", "clock", starts=-2 * DAY, ends=-DAY),
    "not yet valid": Wrong("certificate is not valid yet", "clock", starts=DAY, ends=2 * DAY),
    "other name": Wrong("certificate is for another name", "providers.test.base_url", "elsewhere.example"),
}


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("name", WRONG)
def test_the_error_says_what_is_wrong_with_a_certificate(
    name: str, has_proxy: bool, tmp_path: Path, runs: Runs
) -> None:
    wrong = WRONG[name]
    of_server, of_client = wrong.contexts(tmp_path)

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server:
            await check_fault(server.port, of_client, [f"its {wrong.said}", wrong.hint], has_proxy=has_proxy)
            assert not server.requests

    runs(call())


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
def test_the_error_says_that_a_server_signed_its_certificate_itself(
    has_proxy: bool, tmp_path: Path, runs: Runs
) -> None:
    of_server, _ = certified(tmp_path)

    async def call() -> None:
        async with loopback(answer, tls=of_server) as server:
            said = ["its certificate is not trusted", "self-signed", "SSL_CERT_FILE"]
            await check_fault(server.port, None, said, has_proxy=has_proxy)

    runs(call())


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
def test_the_error_says_that_a_server_speaks_no_tls(has_proxy: bool, runs: Runs) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def call() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1") as server:
            said = ["TLS could not be set up", "providers.test.base_url"]
            await check_fault(server.sockets[0].getsockname()[1], None, said, has_proxy=has_proxy)

    runs(call())


async def check_fault(port: int, tls: ssl.SSLContext | None, said: list[str], *, has_proxy: bool) -> None:
    """Call a server on 127.0.0.1, and look for all of `said` in the error."""
    async with proxy() as (url, _):
        base_url = f"https://127.0.0.1:{port}/v1?key=secret"
        provider = OpenAIProvider("test", base_url, proxy=url if has_proxy else None, ssl_context=tls)
        with pytest.raises(UpstreamUnavailable, match="Provider 'test' could not be reached: ") as caught:
            await provider.send(CHAT)
        await provider.aclose()
    message = caught.value.message
    assert [part for part in said if part not in message] == []
    assert not any(word in message for word in ("127.0.0.1", "?key", "elsewhere", "permitted"))


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
async def test_a_provider_s_ca_file_is_trusted(has_proxy: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with loopback(answer, tls=authority.server("127.0.0.1")) as server, proxy() as (url, lines):
        section = {"base_url": server.url, "api_key": "k", "ca_file": str(authority.file)}
        if has_proxy:
            section["proxy"] = url
        settings = load_settings(environ={}, arguments={("providers", "test"): section})
        provider = build_providers(settings)["test"]
        assert await (await provider.send(CHAT)).read() == CHAT.body
        await provider.aclose()
        assert len(lines) == has_proxy


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
async def test_what_ssl_cert_file_names_is_trusted(
    has_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL reads the variable when the roots are loaded: once in a process."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    load_trusted_ca_context.cache_clear()
    try:
        async with loopback(answer, tls=authority.server("127.0.0.1")) as server, proxy() as (url, _):
            provider = OpenAIProvider("test", server.url, proxy=url if has_proxy else None)
            assert await read(provider) == CHAT.body
            await provider.aclose()
    finally:
        load_trusted_ca_context.cache_clear()


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "proxied"])
async def test_no_proxy_is_taken_from_the_environment(has_proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with loopback(answer) as server, proxy() as (url, lines):
        provider = OpenAIProvider("test", server.url, proxy=url if has_proxy else None)
        assert await read(provider) == CHAT.body
        await provider.aclose()
        assert len(lines) == has_proxy


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_error_says_that_it_is_the_proxy_that_cannot_be_reached(scheme: str) -> None:
    provider = OpenAIProvider("test", f"{scheme}://127.0.0.1:1/v1", proxy="http://user:secret@127.0.0.1:9")
    with pytest.raises(UpstreamUnavailable, match="The proxy of provider 'test' could not be reached: ") as caught:
        await provider.send(CHAT)
    assert "secret" not in caught.value.message
    assert "9" not in caught.value.message
    await provider.aclose()


async def test_the_error_says_that_the_proxy_refused() -> None:
    async def refuse(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    async with loopback(refuse) as server:
        url = f"http://127.0.0.1:{server.port}"
        provider = OpenAIProvider("test", "https://127.0.0.1:1/v1", proxy=url)
        with pytest.raises(UpstreamUnavailable, match="its proxy answered with status 407") as caught:
            await provider.send(CHAT)
        assert "providers.test.proxy" in caught.value.message
        await provider.aclose()
