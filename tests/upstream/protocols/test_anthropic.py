"""The headers of calls to a provider of the Messages API."""

from __future__ import annotations

from typing import Any

import pytest

from app.upstream.protocols.anthropic_provider import AnthropicProvider
from app.upstream.provider_contract import UpstreamRequest
from tests.live import ScriptedUpstream, serving


@pytest.mark.parametrize(
    ("options", "client", "name", "value"),
    [
        ({"api_key": "sk-own"}, None, "x-api-key", "sk-own"),
        ({}, "Bearer sk-ant-api03", "x-api-key", "sk-ant-api03"),
        # Somebody who is logged in, as Claude Code may be.
        ({}, "Bearer sk-ant-oat01", "authorization", "Bearer sk-ant-oat01"),
        ({"api_key": "sk-own", "auth_header": "api-key"}, None, "api-key", "sk-own"),
    ],
)
async def test_the_key_has_its_header(options: dict[str, Any], client: str | None, name: str, value: str) -> None:
    upstream = ScriptedUpstream()
    async with serving(upstream, lifespan="off") as address:
        provider = AnthropicProvider("anthropic", f"{address}/v1", **options)
        reply = await provider.send(UpstreamRequest("/messages", b"{}", authorization=client))
        await reply.aclose()
        await provider.aclose()
    (headers,) = upstream.headers
    assert headers[name] == value
    assert {"x-api-key", "authorization", "api-key"} & headers.keys() == {name}
    assert headers["anthropic-version"] == "2023-06-01"


async def test_the_beta_of_a_field_is_asked_for_beside_the_clients() -> None:
    upstream = ScriptedUpstream()
    async with serving(upstream, lifespan="off") as address:
        provider = AnthropicProvider("anthropic", f"{address}/v1", "sk")
        for body in (b"{}", b'{"thinking":{"block_binding":{}}}'):
            headers = {"anthropic-beta": "a", "anthropic-version": "2024-01-01"}
            reply = await provider.send(UpstreamRequest("/messages", body, headers=headers))
            await reply.aclose()
        await provider.aclose()
    betas = [sent["anthropic-beta"] for sent in upstream.headers]
    assert betas == ["a", "a,thinking-binding-controls-2026-08-01"]
    assert upstream.headers[0]["anthropic-version"] == "2024-01-01"
