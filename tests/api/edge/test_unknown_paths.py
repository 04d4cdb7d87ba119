"""Paths that clients try and the gateway does not have: the error says what to use, as the client shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from app.settings import load_settings
from tests.live import ScriptedUpstream, create_test_app, serving
from tests.support.gateway import user, world

KEYS = {"message", "type", "param", "code"}
CHAT = "'/v1/chat/completions'"
RESPONSES = "'/v1/responses'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone() -> AsyncIterator[httpx.AsyncClient]:
    """A gateway without a provider: its simulated model answers."""
    app = create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
    async with serving(app) as address, httpx.AsyncClient(base_url=address) as client:
        yield client


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/completions", f"Use {CHAT}"),
        ("POST", "/v1/engines/gpt-4o/chat/completions", f"Use {CHAT}"),
        ("POST", "/v1/engines/gpt-4o/completions", "`model` of the body"),
        ("POST", "/openai/deployments/gpt-4o/chat/completions", "`model` of the body"),
        ("POST", "/v1/v1/chat/completions", f"Use {CHAT}"),
        ("POST", "/v1/v1/chat/completions", "base URL of the client ends with one '/v1'"),
        ("POST", "/v1/chat/completions/", f"Use {CHAT}"),
        ("POST", "/v1//chat/completions", f"Use {CHAT}"),
        ("POST", "/v1/chat", f"Use {CHAT}"),
        ("POST", "/chat/completions", f"Use {CHAT}"),
        ("POST", "/chat/completions", "base URL of the client ends with one '/v1'"),
        ("GET", "/models", "Use '/v1/models'"),
        ("GET", "/models/gpt-4o", "Use '/v1/models/gpt-4o'"),
        ("POST", "/embeddings", "Use '/v1/embeddings'"),
        ("POST", "/completions", f"Use {CHAT}"),
        ("POST", "/responses", f"Use {RESPONSES}"),
        ("POST", "/responses", "base URL of the client ends with one '/v1'"),
        ("POST", "/v1/v1/responses", f"Use {RESPONSES}"),
        ("POST", "/v1/responses/", f"Use {RESPONSES}"),
        ("GET", "/responses/resp_1", "Use '/v1/responses/resp_1'"),
        ("POST", "/api/chat", f"Use {CHAT}"),
        ("GET", "/v1", "such as '/v1/chat/completions'"),
        ("POST", "/v1", "such as '/v1/chat/completions'"),
        ("POST", "/v1/", "such as '/v1/chat/completions'"),
        ("GET", "/nowhere", "See /docs"),
        ("POST", "/v1/audio/speech", "the simulated model"),
        ("POST", "/v1/embeddings", "the simulated model"),
    ],
)
async def test_an_unknown_path_says_which_one_to_use(
    alone: httpx.AsyncClient, method: str, path: str, told: str
) -> None:
    answer = await alone.request(method, path, json={} if method == "POST" else None)
    error = answer.json()["error"]
    assert (answer.status_code, error.keys(), error["type"]) == (404, KEYS, "invalid_request_error")
    assert told in error["message"]
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["/messages", "/v1/v1/messages"])
async def test_clients_of_anthropic_are_told_in_the_shape_that_they_show(alone: httpx.AsyncClient, path: str) -> None:
    answer = await alone.post(path, json={})
    said = answer.json()
    assert (answer.status_code, said.keys(), said["type"]) == (404, {"type", "error", "request_id"}, "error")
    assert (said["error"].keys(), said["error"]["type"]) == ({"type", "message"}, "not_found_error")
    assert "Use '/v1/messages'" in said["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.asyncio(loop_scope="module")
async def test_clients_with_a_wrong_base_url_show_in_the_overview(alone: httpx.AsyncClient) -> None:
    before = (await alone.get("/v1/admin/overview")).json()["totals"]["refusals"]
    await alone.post("/chat/completions", json={})
    await alone.get("/favicon.ico")
    assert (await alone.get("/v1/admin/overview")).json()["totals"]["refusals"] == before + 1


async def test_a_provider_still_gets_the_paths_that_it_may_know() -> None:
    async with world(ScriptedUpstream()) as w:
        for path in ("/messages/batches", "/completions"):
            await w.client.post(f"{w.base_url}{path}", json={"model": "m"})
        assert w.upstream.paths == ["/v1/messages/batches", "/v1/completions"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [user("Hi")]}),
        ("/v1/responses", {"model": "m", "input": "Hi"}),
        ("/responses/", {"model": "m", "input": "Hi"}),
    ],
)
async def test_a_wrong_path_does_not_go_round_the_gateway(path: str, asked: dict[str, object]) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.post(f"{w.base_url}{path}", json=asked)
        assert w.upstream.paths == []
    own = CHAT if "messages" in asked else RESPONSES
    assert (answer.status_code, f"Use {own}" in answer.json()["error"]["message"]) == (404, True)
