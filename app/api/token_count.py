"""`POST /v1/context/count`: counts the tokens of a request without sending it to a model."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.chat_request_parser import parse_chat_request
from app.api.edge.auth import Authenticator, read_request
from app.api.resource_schemas import ERROR_RESPONSES, Described, build_json_response, describe_body
from app.pipeline.pipeline import Pipeline

CHAT_REQUEST_SCHEMA: Final = {"$ref": "#/components/schemas/ChatCompletionRequest"}
"""Refers to the schema of the body of `POST /v1/chat/completions`."""


class Count(Described):
    """The tokens of a request, and how they compare to the model's window."""

    object: str
    model: str
    prompt_tokens: int
    window: int
    limit: int
    pressure: float
    compacts_above: int


def build_token_count_routes(pipeline: Pipeline, auth: Authenticator) -> APIRouter:
    """Builds the route `POST /v1/context/count`."""
    routes = APIRouter(prefix="/v1/context", tags=["context"])

    @routes.post(
        "/count",
        response_model=Count,
        responses=ERROR_RESPONSES,
        openapi_extra=describe_body(CHAT_REQUEST_SCHEMA),
    )
    async def count(request: Request) -> Response:
        """Count the tokens of a request."""
        parsed = await read_request(auth, request, parse_chat_request)
        return build_json_response(await pipeline.measure_context(parsed))

    return routes
