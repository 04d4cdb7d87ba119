"""What Anthropic's clients ask for beside messages: the tokens of a request, and whether the gateway is there."""

from __future__ import annotations

import functools
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.edge.auth import Authenticator, read_request
from app.api.messages_request_parser import parse_messages_request
from app.api.model_calls import MessagesCountRequest
from app.api.resource_schemas import ERROR_RESPONSES, Described, describe_body, describe_messages_errors
from app.dialects.messages.context_edits import build_token_count
from app.pipeline.pipeline import Pipeline


def _build_count_schema() -> dict[str, Any]:
    """Builds the schema of a request's body. Its parts are among those of `POST /v1/messages`."""
    schema = MessagesCountRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    return {name: value for name, value in schema.items() if name != "$defs"}


class TokenCount(Described):
    """The tokens of a request; with edits also `context_management.original_input_tokens`."""

    input_tokens: int


def build_messages_routes(pipeline: Pipeline, auth: Authenticator) -> APIRouter:
    """Builds `POST /v1/messages/count_tokens` and `HEAD /`."""
    routes = APIRouter(tags=["messages"])

    @routes.head("/", include_in_schema=False)
    async def head() -> Response:
        return Response()

    @routes.post(
        "/v1/messages/count_tokens",
        response_model=TokenCount,
        responses=describe_messages_errors(ERROR_RESPONSES),
        openapi_extra=describe_body(_build_count_schema()),
    )
    async def count_message_tokens(request: Request) -> Response:
        """Count the tokens of a message request: the provider's count, or ours."""
        parsed = await read_request(auth, request, functools.partial(parse_messages_request, needs_limit=False))
        count = await pipeline.upstream_caller.ask_for_token_count(parsed)
        if count is None:
            measured = await pipeline.measure_context(parsed)
            count = orjson.dumps(build_token_count(measured["prompt_tokens"], measured.get("cleared_tokens")))
        return Response(count, media_type="application/json")

    return routes
