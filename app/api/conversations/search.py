"""Search over stored messages: in one conversation, or in all of the caller's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from app.api.edge.auth import Auth
from app.api.resource_schemas import REFUSALS, Described, Limit, Page, json_response, page_of, unix_seconds
from app.conversations.history.conversations import Records
from app.conversations.history.history import History
from app.conversations.items.items import message_item_id
from app.conversations.search import Hit, Hits, Searching, excerpt
from app.pipeline.chat_request import Caller

Question = Annotated[str, Query(min_length=1, max_length=1000, description="The words to look for.")]


Include = Annotated[
    list[Literal["title"]],
    Query(default_factory=list, alias="include[]", description="`title`: what the conversation is called."),
]


class FoundMessage(Described):
    """A message that was found."""

    id: str
    object: str
    conversation_id: str
    seq: int
    role: str
    score: float
    text: str
    created_at: int
    title: str | None = None
    """Only where it is asked for."""


class FoundMessages(Page):
    """What a search found, best first."""

    data: list[FoundMessage]
    terms: list[str]
    complete: bool
    limited: bool


def search_routes(searching: Searching, records: Records, history: History, auth: Auth) -> APIRouter:
    """Both searches."""
    routes = APIRouter(prefix="/v1", tags=["search"], responses=REFUSALS)
    reads = Depends(auth.requires("read"))

    @routes.get(
        "/conversations/{conversation_id}/search",
        summary="Search a conversation",
        responses={200: {"model": FoundMessages}},
    )
    async def search_conversation(
        conversation_id: str, q: Question, limit: Limit = 20, caller: Caller = reads
    ) -> Response:
        conversation = await records.of(caller, conversation_id)
        return json_response(_body(await searching.within(conversation, q, limit=limit), q))

    @routes.get("/search", summary="Search all conversations", responses={200: {"model": FoundMessages}})
    async def search(q: Question, include: Include, limit: Limit = 20, caller: Caller = reads) -> Response:
        found = await searching.everywhere(caller, q, limit=limit)
        body = _body(found, q)
        if include:
            for row, hit in zip(body["data"], found.hits, strict=True):
                row["title"] = await history.title(hit.conversation)
        return json_response(body)

    return routes


def _body(found: Hits, query: str) -> dict[str, Any]:
    page = page_of([_message(hit, query) for hit in found.hits], has_more=False)
    return {**page, "terms": list(found.terms), "complete": found.is_complete, "limited": found.is_limited}


def _message(hit: Hit, query: str) -> dict[str, Any]:
    entry = hit.message
    return {
        "id": message_item_id(entry),
        "object": "conversation.message",
        "conversation_id": hit.conversation.id,
        "seq": entry.seq,
        "role": entry.message.role,
        "score": round(hit.score, 3),
        "text": excerpt(entry, query),
        "created_at": unix_seconds(entry.created_at),
    }
