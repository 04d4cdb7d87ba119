"""Stored responses in OpenAI's form: the paths below `/v1/responses`, and what the gateway does not do there yet."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.api.edge.auth import Authenticator, ParseRequest, read_request
from app.api.edge.request_reader import read_headers
from app.api.resource_schemas import (
    After,
    Deleted,
    Described,
    Limit,
    Order,
    Page,
    build_json_response,
    build_page_response,
    build_resource_router,
    describe_body,
)
from app.conversations.stored_responses import StoredResponses
from app.errors import InvalidRequest
from app.pipeline.pipeline import Pipeline
from app.pipeline.turn.chat_request import Caller

LATER: Final = "is not supported yet."
LATER_QUERY: Final = Query(include_in_schema=False)
RESPONSES_REQUEST_SCHEMA: Final = {"$ref": "#/components/schemas/ResponsesRequest"}
"""Refers to the schema of the body of `POST /v1/responses`."""
Include = Annotated[
    list[str] | None, Query(alias="include", description="What the items have besides: `reasoning.encrypted_content`.")
]
IncludeInBrackets = Annotated[list[str] | None, Query(alias="include[]", include_in_schema=False)]
"""`include`, as OpenAI's clients write arrays."""


class ResponseBody(Described):
    """A stored response."""

    id: str
    object: str
    created_at: float
    status: str
    model: str
    output: list[dict[str, Any]]
    conversation_id: str


class InputItem(Described):
    """An item that the model was asked with."""

    id: str
    type: str


class InputTokens(Described):
    """The size of a request."""

    object: str
    input_tokens: int


def build_stored_response_routes(responses: StoredResponses, auth: Authenticator) -> APIRouter:
    """Builds the endpoints that read and delete stored responses."""
    routes = build_resource_router("/v1/responses", "responses")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get("/{response_id}", response_model=ResponseBody)
    async def get_response(
        response_id: str,
        include: Include = None,
        include_in_brackets: IncludeInBrackets = None,
        stream: Annotated[bool, LATER_QUERY] = False,
        starting_after: Annotated[int | None, LATER_QUERY] = None,
        caller: Caller = reads,
    ) -> Response:
        """A stored response."""
        for name, is_wanted in (("stream", stream), ("starting_after", starting_after is not None)):
            if is_wanted:
                raise _build_later_error(f"The replay of a stored response as a stream (`{name}`) {LATER}", name)
        body = await responses.read_response(caller, response_id, [*(include or ()), *(include_in_brackets or ())])
        return Response(body, media_type="application/json")

    @routes.delete("/{response_id}", response_model=Deleted)
    async def delete_response(response_id: str, caller: Caller = manages) -> Response:
        """Delete a stored response; its conversation stays."""
        await responses.delete_response(caller, response_id)
        return build_json_response({"id": response_id, "object": "response", "deleted": True})

    @routes.post("/{response_id}/cancel")
    async def cancel_response(response_id: str, caller: Caller = manages) -> Response:
        """Cancel a background response."""
        await responses.find_response(caller, response_id)
        # No response is created in the background yet, and OpenAI cancels no others.
        raise InvalidRequest("Cannot cancel a synchronous response.", param="id")

    @routes.get("/{response_id}/input_items", response_model=Page[InputItem])
    async def list_input_items(
        response_id: str,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
        include: Include = None,
        include_in_brackets: IncludeInBrackets = None,
        caller: Caller = reads,
    ) -> Response:
        """The items that a response answers, earlier turns included."""
        page = await responses.list_input_items(
            caller,
            response_id,
            after=after,
            limit=limit,
            descending=order == "desc",
            include=[*(include or ()), *(include_in_brackets or ())],
        )
        return build_page_response(page)

    return routes


def build_response_tool_routes(pipeline: Pipeline, auth: Authenticator, parse_request: ParseRequest) -> APIRouter:
    """Builds the endpoints that take a response's request without answering it. They come before those of stored
    responses, because their paths look like ids."""
    routes = build_resource_router("/v1/responses", "responses")

    @routes.post(
        "/input_tokens",
        response_model=InputTokens,
        openapi_extra=describe_body(RESPONSES_REQUEST_SCHEMA),
    )
    async def count_input_tokens(request: Request) -> Response:
        """Count the input tokens of a request."""
        measured = await pipeline.measure_context(await read_request(auth, request, parse_request))
        return build_json_response({"object": "response.input_tokens", "input_tokens": measured["prompt_tokens"]})

    @routes.get("", include_in_schema=False)
    async def refuse_web_socket(request: Request) -> Response:
        """Not supported yet."""
        await auth.authenticate(read_headers(request.scope), "chat")
        raise _build_later_error(f"The Responses API over a WebSocket {LATER} Use `POST /v1/responses`.")

    return routes


def _build_later_error(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_parameter", param=param)
