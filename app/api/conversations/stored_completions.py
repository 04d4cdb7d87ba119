"""Stored completions in OpenAI's form: `GET /v1/chat/completions` and the paths below it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    METADATA_FILTER_SCHEMA,
    After,
    Deleted,
    Described,
    Limit,
    MetadataChange,
    Name,
    Order,
    Page,
    build_json_response,
    build_page_response,
    build_resource_router,
    parse_metadata_filter,
)
from app.conversations.stored_completions import StoredCompletions
from app.dialects.chat.stored_completion import build_deletion_object
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import CompletionQuery

ModelName = Annotated[Name | None, Query(description="Only completions of this model, by its name in the request.")]


class Completion(Described):
    """A stored completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    metadata: dict[str, str]
    conversation_id: str


class CompletionMessage(Described):
    """A message of the request that a completion answers."""

    id: str
    role: str
    name: str | None
    content_parts: list[Any] | None


def build_stored_completion_routes(completions: StoredCompletions, auth: Authenticator) -> APIRouter:
    """Builds the endpoints that list, read, change and delete stored completions."""
    routes = build_resource_router("/v1/chat/completions", "stored completions")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get("", response_model=Page[Completion], openapi_extra=METADATA_FILTER_SCHEMA)
    async def list_completions(
        request: Request,
        model: ModelName = None,
        after: After = None,
        limit: Limit = 20,
        order: Order = "asc",
        caller: Caller = reads,
    ) -> Response:
        """List stored completions."""
        query = CompletionQuery(
            limit=limit, descending=order == "desc", model=model, metadata=parse_metadata_filter(request)
        )
        return build_page_response(await completions.list_completions(caller, query, after))

    @routes.get("/{completion_id}", response_model=Completion)
    async def get_completion(completion_id: str, caller: Caller = reads) -> Response:
        """A stored completion."""
        return build_json_response(await completions.read_first_choice(caller, completion_id))

    @routes.post("/{completion_id}", response_model=Completion)
    async def update_completion(completion_id: str, change: MetadataChange, caller: Caller = manages) -> Response:
        """Replace a completion's metadata."""
        return build_json_response(await completions.replace_metadata(caller, completion_id, change.metadata or {}))

    @routes.delete("/{completion_id}", response_model=Deleted)
    async def delete_completion(completion_id: str, caller: Caller = manages) -> Response:
        """Delete a stored completion; its conversation stays."""
        await completions.delete_completion(caller, completion_id)
        return build_json_response(build_deletion_object(completion_id))

    @routes.get("/{completion_id}/messages", response_model=Page[CompletionMessage])
    async def list_completion_messages(
        completion_id: str, after: After = None, limit: Limit = 20, order: Order = "asc", caller: Caller = reads
    ) -> Response:
        """The messages that a completion answers."""
        page = await completions.list_messages(
            caller, completion_id, after=after, limit=limit, descending=order == "desc"
        )
        return build_page_response(page)

    return routes
