"""Endpoints that search stored messages, in one conversation or in all of the caller's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from msgspec.structs import asdict
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    Described,
    Limit,
    Name,
    Page,
    build_json_response,
    build_list_page,
    build_resource_router,
    to_unix_seconds,
)
from app.conversations.history.conversation_history import ConversationHistory
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.id_lookup import IdLookup
from app.conversations.items.item_building import find_message_item_id
from app.conversations.search import ConversationSearch, SearchResult, build_search_excerpt
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationHit

Question = Annotated[str, Query(min_length=1, max_length=1000, description="The words to look for.")]


Include = Annotated[
    list[Literal["title"]],
    Query(default_factory=list, alias="include[]", description="`title`: the conversation's title."),
]


class FoundMessage(Described):
    """A message that matches a search."""

    id: str
    object: str
    conversation_id: str
    seq: int
    role: str
    score: float
    text: str
    created_at: int
    title: str | None = None
    """Only with `include[]=title`."""


class FoundIdObject(Described):
    """What an id names. `item_id` is the answer's item, null if there is none."""

    kind: Literal["request", "answer", "conversation"]
    id: str
    tenant: str | None
    conversation_id: str | None
    item_id: str | None


class FoundIds(Described):
    object: str
    data: list[FoundIdObject]


class FoundMessages(Page[FoundMessage]):
    """The messages that match a search, best first."""

    terms: list[str]
    complete: bool


def build_search_routes(
    conversation_search: ConversationSearch,
    id_lookup: IdLookup,
    records: ConversationRecords,
    history: ConversationHistory,
    auth: Authenticator,
) -> APIRouter:
    """Builds the endpoints of both searches, and of what an id names."""
    routes = build_resource_router("/v1", "search")
    reads = Depends(auth.require_scope("read"))

    @routes.get("/conversations/{conversation_id}/search", response_model=FoundMessages)
    async def search_conversation(
        conversation_id: str, q: Question, limit: Limit = 20, caller: Caller = reads
    ) -> Response:
        """Search a conversation."""
        conversation = await records.find_conversation(caller, conversation_id)
        return build_json_response(
            _build_search_page(await conversation_search.search_conversation(conversation, q, limit=limit), q)
        )

    @routes.get("/search", response_model=FoundMessages)
    async def search(q: Question, include: Include, limit: Limit = 20, caller: Caller = reads) -> Response:
        """Search all conversations."""
        result = await conversation_search.search_tenant(caller, q, limit=limit)
        body = _build_search_page(result, q)
        for row, hit in zip(body["data"], result.hits, strict=True):
            if caller.sees_all_tenants:
                row["tenant"] = hit.conversation.tenant
            if include:
                row["title"] = await history.find_title(hit.conversation)
        return build_json_response(body)

    @routes.get("/lookup", response_model=FoundIds)
    async def look_up(
        id: Annotated[Name, Query(description="Of a request, an answer or a conversation, or a client's own.")],
        caller: Caller = reads,
    ) -> Response:
        """What an id names."""
        found = await id_lookup.find(caller, id.strip())
        return build_json_response({"object": "list", "data": [asdict(one) for one in found]})

    return routes


def _build_search_page(result: SearchResult, query: str) -> dict[str, Any]:
    page = build_list_page([_build_found_message(hit, query) for hit in result.hits])
    return {**page, "terms": list(result.terms), "complete": result.is_complete}


def _build_found_message(hit: ConversationHit, query: str) -> dict[str, Any]:
    entry = hit.message
    return {
        "id": find_message_item_id(entry),
        "object": "conversation.message",
        "conversation_id": hit.conversation.id,
        "seq": entry.seq,
        "role": entry.message.role,
        "score": round(hit.score, 3),
        "text": build_search_excerpt(entry, query),
        "created_at": to_unix_seconds(entry.created_at),
    }
