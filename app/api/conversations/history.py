"""Endpoints for the history of a conversation: its turns in numbers, its log by `seq`, the branches of its family."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    After,
    Described,
    Order,
    Page,
    build_json_response,
    build_page_response,
    build_resource_router,
)
from app.conversations.history.conversation_history import ConversationHistory
from app.pipeline.turn.chat_request import Caller

MAX_TURNS: Final = 1_000
MAX_MESSAGES: Final = 200
DEFAULT_PAGE_SIZE: Final = 100
LAST_SEQ: Final = 2_147_483_647
TurnLimit = Annotated[int, Query(ge=1, le=MAX_TURNS, description="The most answers on a page.")]
MessageLimit = Annotated[int, Query(ge=1, le=MAX_MESSAGES, description="The most messages in the response.")]
FromSeq = Annotated[int, Query(ge=0, le=LAST_SEQ, description="The `seq` of the first message, counted from 0.")]


class PromptParts(Described):
    """Tokens of a prompt by what they are for. `verbatim` is the rest, with `instructions` where that is `null`."""

    instructions: int | None
    summaries: int
    user_text: int
    quotations: int
    verbatim: int


class TurnObject(Described):
    """An answer and its numbers. Most numbers are `null` for an answer that did not come through the gateway."""

    id: str
    object: Literal["conversation.turn"]
    turn: int
    seq: int
    created_at: int | None
    model: str | None
    policy: str | None
    status: str | None
    window: int | None
    limit: int | None
    threshold_tokens: int | None
    prompt_tokens: int | None
    reported_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    parts: PromptParts | None
    log_tokens: int | None
    saved_tokens: int | None
    compaction: dict[str, Any] | None
    summaries: int | None
    boundary_seq: int | None
    recovered: bool
    incomplete: bool
    finish_reason: str | None


class SpokenCall(Described):
    id: str | None
    name: str
    arguments: str


class Attachment(Described):
    type: Literal["image", "audio", "file"]
    detail: str


class MessageObject(Described):
    """A message of the log, in a form for people to read."""

    seq: int
    id: str
    object: Literal["conversation.message"]
    role: str
    text: str
    truncated: bool
    tool_calls: list[SpokenCall]
    tool_call_id: str | None
    name: str | None
    reasoning: str | None
    refusal: str | None
    attachments: list[Attachment]
    tokens: int
    turn: int
    created_at: int | None
    model: str | None
    finish_reason: str | None
    pinned: bool
    deleted: bool
    erased: bool
    incomplete: bool
    summary_id: str | None


class LogStretch(Described):
    """Consecutive messages of the log; `total` is the number of all messages in the log."""

    object: Literal["list"]
    total: int
    data: list[MessageObject]


class BranchObject(Described):
    """A conversation of a family; `fork_seq` is the `seq` of its first message that its parent does not have."""

    id: str
    object: Literal["conversation.branch"]
    parent_id: str | None
    fork_seq: int | None
    created_at: int | None
    updated_at: int | None
    messages: int
    tokens: int
    title: str | None
    current: bool


def build_history_routes(history: ConversationHistory, auth: Authenticator) -> APIRouter:
    """Builds the endpoints for turns, log and branches."""
    routes = build_resource_router("/v1/conversations/{conversation_id}", "conversations")
    reads = Depends(auth.require_scope("read"))

    @routes.get("/turns", response_model=Page[TurnObject])
    async def list_turns(
        conversation_id: str,
        limit: TurnLimit = DEFAULT_PAGE_SIZE,
        after: After = None,
        order: Order = "asc",
        caller: Caller = reads,
    ) -> Response:
        """List the answers of a conversation with their numbers."""
        page = await history.list_turns(caller, conversation_id, limit=limit, after=after, newest_first=order == "desc")
        return build_page_response(page)

    @routes.get("/log", response_model=LogStretch)
    async def read_log(
        conversation_id: str,
        from_seq: FromSeq = 0,
        limit: MessageLimit = DEFAULT_PAGE_SIZE,
        caller: Caller = reads,
    ) -> Response:
        """Messages of the log from a `seq` on."""
        return build_json_response(await history.read_log_page(caller, conversation_id, from_seq, limit))

    @routes.get("/branches", response_model=Page[BranchObject])
    async def list_branches(conversation_id: str, caller: Caller = reads) -> Response:
        """The family of a conversation."""
        return build_page_response(await history.list_family(caller, conversation_id))

    return routes
