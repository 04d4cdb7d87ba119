"""What a provider's answers and failures become, told by respx in the place of a network: model lists of all providers,
and calls of those behind a proxy.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import httpx
import pytest
import respx

from app.errors import UpstreamUnavailable
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import ConnectionDropped, ModelDeployment, UpstreamRequest
from app.upstream.routing.router import RetryPolicy, Router
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute
from tests.upstream.scripted_provider import Time
from tests.upstream.transport_mocker import TransportMocker

BASE = "https://provider.example/v1"
CHAT = UpstreamRequest("/chat/completions", b'{"model":"m"}')


@pytest.fixture
def network() -> respx.MockRouter:
    return respx.mock(base_url=BASE, using=TransportMocker.name)


@pytest.fixture(params=[None, "http://proxy.example:3128"], ids=["direct", "proxied"])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[OpenAIProvider]:
    made = OpenAIProvider("p", BASE, "secret", proxy=request.param)
    yield made
    await made.aclose()


@pytest.fixture
async def proxied() -> AsyncIterator[OpenAIProvider]:
    made = OpenAIProvider("p", BASE, "secret", proxy="http://proxy.example:3128")
    yield made
    await made.aclose()


async def test_a_model_list_is_asked_for_with_the_providers_own_key(
    provider: OpenAIProvider, network: respx.MockRouter
) -> None:
    with network:
        route = network.get("/models").respond(json={"object": "list", "data": [{"id": "m"}, "odd"]})
        assert await provider.list_models("Bearer theirs") == [{"id": "m"}]

    headers = route.calls.last.request.headers
    assert (headers["authorization"], headers["accept-encoding"]) == ("Bearer secret", "identity")
    assert not {"cookie", "content-length", "connection"} & headers.keys()


async def test_a_cookie_of_one_answer_is_in_no_later_call(provider: OpenAIProvider, network: respx.MockRouter) -> None:
    with network:
        route = network.get("/models").respond(json=[], headers={"set-cookie": "tenant=one; Path=/"})
        for _ in range(2):
            await provider.list_models(None)

    assert [call.request.headers.get("cookie") for call in route.calls] == [None, None]


async def test_no_address_is_logged(network: respx.MockRouter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    provider = OpenAIProvider("p", f"{BASE}?key=secret")
    with network:
        network.get("/models").respond(json=[])
        await provider.list_models(None)
    await provider.aclose()
    assert "provider.example" not in caplog.text


@pytest.mark.parametrize("status", [204, 301, 401, 404, 429, 500])
async def test_a_refused_model_list_is_told_with_its_status(
    status: int, provider: OpenAIProvider, network: respx.MockRouter
) -> None:
    with network:
        network.get("/models").respond(status, headers={"location": "https://elsewhere.example/"})
        with pytest.raises(UpstreamUnavailable, match=f"'p' answered {status} instead of a model list"):
            await provider.list_models(None)


@pytest.mark.parametrize("body", [b"<html>", b'{"data":3}', b"3", b""])
async def test_a_model_list_that_is_none_is_told_so(
    body: bytes, provider: OpenAIProvider, network: respx.MockRouter
) -> None:
    with network:
        network.get("/models").respond(content=body)
        with pytest.raises(UpstreamUnavailable, match=r"'p' (is not JSON|contains no list)"):
            await provider.list_models(None)


@pytest.mark.parametrize(
    ("failure", "kind", "status", "said"),
    [
        (httpx.ConnectTimeout("x"), UpstreamUnavailable, 504, "could not be reached in time"),
        (httpx.ConnectError("secret.example"), UpstreamUnavailable, 502, "The proxy of provider 'p' could not be"),
        (httpx.ProxyError("403 Forbidden"), UpstreamUnavailable, 502, "its proxy answered with status 403"),
        (httpx.ReadError("x"), ConnectionDropped, 502, "closed the connection without an answer"),
        (httpx.WriteError("x"), ConnectionDropped, 502, "closed the connection without an answer"),
        (httpx.RemoteProtocolError("x"), UpstreamUnavailable, 502, "failed: x"),
        (httpx.LocalProtocolError("x"), UpstreamUnavailable, 502, "failed: LocalProtocolError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_each_failure_of_httpx_is_an_error_of_ours(
    failure: httpx.HTTPError,
    kind: type[UpstreamUnavailable],
    status: int,
    said: str,
    proxied: OpenAIProvider,
    network: respx.MockRouter,
) -> None:
    with network:
        network.post("/chat/completions").mock(side_effect=failure)
        with pytest.raises(UpstreamUnavailable, match=said) as caught:
            await proxied.send(CHAT)
    assert (type(caught.value), caught.value.status) == (kind, status)
    assert "secret" not in caught.value.message


class BrokenBody(httpx.AsyncByteStream):
    """A body that breaks off after one piece."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"data: a\n\n"
        raise self._failure


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (httpx.ReadError("x"), "broke off"),
        (httpx.RemoteProtocolError("x"), "broke off"),
        (httpx.ReadTimeout("x"), "stopped sending"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_a_body_that_fails_is_given_out_as_far_as_it_came(
    failure: Exception, said: str, proxied: OpenAIProvider, network: respx.MockRouter
) -> None:
    with network:
        network.post("/chat/completions").mock(return_value=httpx.Response(200, stream=BrokenBody(failure)))
        pieces = (await proxied.send(CHAT)).iter_bytes()
        assert await anext(pieces) == b"data: a\n\n"
        with pytest.raises(UpstreamUnavailable, match=said):
            await anext(pieces)


async def test_an_answer_that_is_no_success_is_an_answer_all_the_same(
    proxied: OpenAIProvider, network: respx.MockRouter
) -> None:
    with network:
        network.post("/chat/completions").respond(422, json={"error": {}}, headers={"X-Odd": "1", "Set-Cookie": "a=b"})
        reply = await proxied.send(CHAT)
        assert (reply.status, await reply.read()) == (422, b'{"error":{}}')
        assert reply.headers["x-odd"] == "1"
        assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    ("first", "pauses"),
    [
        (httpx.Response(429, headers={"retry-after": "3"}), [3.0]),
        (httpx.Response(503), [0.5]),
        (httpx.ReadError("x"), [0.0]),
        (httpx.ConnectError("x"), [0.5]),
    ],
    ids=["429", "503", "dropped", "unreachable"],
)
async def test_what_may_pass_is_tried_again_behind_a_proxy_too(
    first: httpx.Response | Exception, pauses: list[float], proxied: OpenAIProvider, network: respx.MockRouter
) -> None:
    time = Time()
    route = ModelRoute((ConfiguredDeployment("p"),))
    router = Router({"m": route}, {"p": proxied}, RetryPolicy(), sleep=time.sleep, clock=time.clock, random=lambda: 0.0)

    async def build_body(_: ModelDeployment) -> bytes:
        return CHAT.body

    with network:
        network.post("/chat/completions").mock(side_effect=[first, httpx.Response(200, json={})])
        routed = await router.send(router.resolve("m"), build_body)
    assert (routed.reply.status, routed.attempt_count, time.slept) == (200, 2, pauses)
