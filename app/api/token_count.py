"""`POST /v1/context/count`: what a request would weigh, before it is sent."""

from __future__ import annotations

from typing import Final

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.chat_request_parser import parse_chat_request
from app.api.edge.auth import Auth
from app.api.edge.request_body import headers_of, read_body
from app.api.resource_schemas import REFUSALS, Described
from app.pipeline.pipeline import Exchange

CHAT_REQUEST: Final = {"$ref": "#/components/schemas/ChatCompletionRequest"}
"""Described with the chat endpoint (`api.openapi`)."""


class Count(Described):
    """What a request weighs."""

    object: str
    model: str
    prompt_tokens: int
    window: int
    limit: int
    pressure: float
    compacts_above: int


def context_routes(exchange: Exchange, auth: Auth, *, body_limit_bytes: int) -> APIRouter:
    """Endpoints on the context of a request."""
    routes = APIRouter(prefix="/v1/context", tags=["context"])

    @routes.post(
        "/count",
        summary="Count the tokens of a request",
        responses={200: {"model": Count}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": CHAT_REQUEST}}}},
    )
    async def count(request: Request) -> Response:
        headers = headers_of(request.scope)
        caller = await auth.caller(headers, "chat")
        body = await read_body(request.receive, headers, body_limit_bytes)
        parsed = parse_chat_request(body, headers, caller, request_id="")
        measured = await exchange.measure(auth.admit(parsed, headers))
        return Response(orjson.dumps(measured), media_type="application/json")

    return routes
