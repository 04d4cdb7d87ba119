"""Schemas of pages, metadata and errors, and builders of JSON responses, which all endpoints for stored objects use."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.conversation.names import MAX_NAME_CHARS, NAME_PATTERN
from app.errors import InvalidRequest

MAX_PAGE_SIZE: Final = 100
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="The most objects on a page.")]
After = Annotated[str | None, Query(description="The id of the last object on the page before.")]
Order = Literal["asc", "desc"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]
"""A name that a client chooses, such as that of a model or a policy."""
_WITHOUT_NUL: Final = "^[^\\x00]*$"
"""A pattern for text without NUL, which Postgres cannot store."""
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64, pattern=NAME_PATTERN)],
        Annotated[str, Field(max_length=512, pattern=_WITHOUT_NUL)],
    ],
    Field(max_length=16, json_schema_extra={"additionalProperties": False}),
]
"""OpenAI's limits: at most 16 pairs, names of 64 and values of 512 characters."""
MAX_UNIX_SECONDS: Final = 253_402_300_799
"""The end of the year 9999, after which Python's `datetime` has no date."""
_METADATA_QUERY: Final = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)
METADATA_FILTER_SCHEMA: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "style": "deepObject",
            "explode": True,
            "description": "Only objects with all of these pairs: `metadata[topic]=demo`.",
            "schema": {"type": "object"},
        }
    ]
}
"""`openapi_extra` of a route that calls `parse_metadata_filter`."""


class Described(BaseModel):
    """A JSON object in /openapi.json; it may have more fields than are described."""

    model_config = ConfigDict(extra="allow")


EVENT_STREAM_CONTENT: Final[dict[str, Any]] = {
    "text/event-stream": {"schema": {"description": "Events with JSON as their data; the last one has `[DONE]`."}}
}
"""`content` of a response that may be a stream."""


class ErrorDetails(Described):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Described):
    """OpenAI's error body, used with every error status."""

    error: ErrorDetails


class MessagesErrorDetails(Described):
    type: str
    message: str


class MessagesErrorBody(Described):
    """Anthropic's error body, used with every error status below `/v1/messages`."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str | None = None


Row = TypeVar("Row")


class ObjectList(Described, Generic[Row]):
    """A list of all objects."""

    object: Literal["list"]
    data: list[Row]


class Page(ObjectList[Row], Generic[Row]):
    """OpenAI's list object: a page of objects."""

    first_id: str | None
    last_id: str | None
    has_more: bool


class Strict(BaseModel):
    """A request body that the gateway defines (not OpenAI): unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class MetadataChange(BaseModel):
    """What can be changed of a stored object."""

    metadata: Metadata | None


class Deleted(Described):
    """The answer to a deletion."""

    id: str
    object: str
    deleted: bool


def describe_errors(descriptions: Mapping[int | str, str]) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route, from a sentence for each status."""
    return {status: {"model": ErrorBody, "description": sentence} for status, sentence in descriptions.items()}


def describe_messages_errors(responses: Mapping[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route of the Messages API: the same, with errors of its form."""
    return {
        status: {**described, "model": MessagesErrorBody} if "model" in described else described
        for status, described in responses.items()
    }


def describe_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that reads its JSON body itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


ERROR_RESPONSES: Final = describe_errors(
    {
        400: "The request cannot be used; `param` names the place.",
        401: "The key is missing, unknown or no longer valid.",
        403: "The key does not allow this.",
        404: "There is no such object, or it belongs to another tenant.",
        413: "The request is larger than the gateway accepts.",
        503: "The store is unavailable; try again.",
    }
)
"""`responses` of every route that reads or writes stored objects."""


class StrictJsonRoute(APIRoute):
    """A route that parses its JSON body strictly: Python's parser accepts lone surrogates and NaN, which cannot be
    stored."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        return orjson.loads(await self.body())


def build_resource_router(prefix: str, tag: str) -> APIRouter:
    """Builds the router of endpoints for stored objects, with the errors that each of them may answer."""
    return APIRouter(prefix=prefix, tags=[tag], responses=ERROR_RESPONSES, route_class=StrictJsonRoute)


def parse_metadata_filter(request: Request) -> dict[str, str]:
    """Returns the pairs of `metadata[name]=value` in the query.

    Raises:
        InvalidRequest: `metadata` without a name, or a parameter that stands twice: only one would count.
    """
    pairs = request.query_params.multi_items()
    names = [name for name, _ in pairs]
    for name in names:
        if name == "metadata":
            raise InvalidRequest("Filter by metadata as `metadata[name]=value`.", param="metadata")
        if names.count(name) > 1 and "[" not in name:
            raise InvalidRequest(f"`{name}` stands twice in the query; send it once.", param=name)
    return {found[1]: value for name, value in pairs if (found := _METADATA_QUERY.fullmatch(name)) is not None}


def to_unix_seconds(moment: datetime | None) -> int:
    """Returns a time as OpenAI writes it; 0 for None."""
    return 0 if moment is None else int(moment.timestamp())


def build_json_response(body: Any, *, conversation_id: str | None = None, status: int = 200) -> Response:
    """Builds a JSON response.

    Args:
        conversation_id: sent as `X-Conversation-Id`, for bodies that do not name their conversation.
    """
    headers = None if conversation_id is None else {"x-conversation-id": conversation_id}
    return Response(orjson.dumps(body), status, media_type="application/json", headers=headers)


def build_page_response(
    page: tuple[Sequence[Mapping[str, Any]], bool], *, conversation_id: str | None = None
) -> Response:
    """Builds the JSON response for a page of objects, and whether more follow."""
    objects, has_more = page
    return build_json_response(build_list_page(objects, has_more=has_more), conversation_id=conversation_id)


def build_list_page(objects: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Builds OpenAI's list object."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
