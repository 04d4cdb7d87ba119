"""The endpoints that take a response's request without answering it."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from app.api.edge.auth import Authenticator
from app.api.edge.request_reader import BodyBudget, BodyLimitMiddleware
from app.api.responses_resource import build_response_tool_routes
from app.errors import InvalidRequest
from app.pipeline.pipeline import Pipeline
from app.pipeline.turn.chat_request import Caller, ChatRequest
from tests.live import ScriptedUpstream
from tests.support.gateway import world
from tests.support.responses_turns import ResponsesTurns


class Services:
    """Stands for the authenticator and the pipeline: notes what they are asked."""

    def __init__(self) -> None:
        self.measured: list[ChatRequest] = []

    async def authenticate(self, headers: Any, scope: str) -> Caller:
        assert scope == "chat"
        return Caller(tenant=headers["x-tenant"])

    def authorize_request(self, request: ChatRequest, headers: Any) -> ChatRequest:
        return request

    async def measure_context(self, request: ChatRequest) -> dict[str, Any]:
        self.measured.append(request)
        return {"prompt_tokens": 42}


def client_of(services: Services) -> httpx.AsyncClient:
    def parse(body: bytes, headers: Any, caller: Caller, _: str) -> ChatRequest:
        return ResponsesTurns(None, tenant=caller.tenant).request(body.decode())

    app = FastAPI()
    app.add_middleware(BodyLimitMiddleware, limit_bytes=1_000, budget=BodyBudget(0, 1_000))
    app.include_router(build_response_tool_routes(cast(Pipeline, services), cast(Authenticator, services), parse))
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway/v1", headers={"x-tenant": "one"})


async def test_the_tokens_of_a_request_are_counted() -> None:
    services = Services()
    async with client_of(services) as client:
        answer = await client.post("/responses/input_tokens", content="Hello")
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": 42}
    (request,) = services.measured
    assert (request.caller.tenant, request.protocol) == ("one", "responses")


async def test_what_comes_later_is_refused_in_words() -> None:
    async with client_of(Services()) as client:
        with pytest.raises(InvalidRequest, match="not supported yet") as caught:
            await client.request("GET", "/responses", json={})
    assert (caught.value.status, caught.value.code) == (400, "unsupported_parameter")


async def test_the_count_has_the_stored_items_that_a_request_continues() -> None:
    async with world(ScriptedUpstream()) as w:

        async def ask(path: str, text: str, **fields: Any) -> Any:
            asked = {"model": "m", "input": text, **fields}
            return (await w.client.post(f"{w.base_url}/{path}", json=asked)).json()

        first = await ask("responses", "The gate opens at 06:40. " * 30)
        ways = [{"conversation": first["conversation_id"]}, {"previous_response_id": first["id"]}]
        counted = [(await ask("responses/input_tokens", "Go on", **way))["input_tokens"] for way in ways]
        begun = await ask("responses/input_tokens", "Go on", conversation="a-new-one")
        assert len(w.conversations()) == 1, "a count stores nothing"
        answer = await ask("responses", "Go on", **ways[0])
    assert counted == [answer["context"]["prompt_tokens"]] * 2
    assert begun["input_tokens"] < 20
