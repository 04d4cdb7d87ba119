"""Endpoints that show a conversation's view: the one that would be sent now, and the one that was sent for an
answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    After,
    Described,
    Name,
    Order,
    Page,
    build_json_response,
    build_resource_router,
    describe_errors,
)
from app.conversations.views.stored_turn import StoredTurnRequest
from app.conversations.views.view_pages import ViewPageQuery, ViewPages
from app.pipeline.turn.chat_request import Caller

MAX_MESSAGES: Final = 1_000
DEFAULT_MESSAGES: Final = 100
MessageLimit = Annotated[int, Query(ge=1, le=MAX_MESSAGES, description="The most messages on a page.")]
Model = Annotated[Name | None, Query(description="Left out: the model of the last answer.")]
Include = Annotated[
    list[Literal["sent"]],
    Query(
        default_factory=list,
        alias="include[]",
        description="`sent`: also all messages as they are sent to the model, and what each stands for.",
    ),
]


def _parse_view_page_query(
    include: Include, limit: MessageLimit = DEFAULT_MESSAGES, after: After = None, order: Order = "desc"
) -> ViewPageQuery:
    return ViewPageQuery(limit, newest_first=order == "desc", after=after, with_sent=bool(include))


ViewPageDependency = Annotated[ViewPageQuery, Depends(_parse_view_page_query)]


class MessageInView(Described):
    """A message of the log and its fate in the view."""

    id: str
    seq: int
    role: str
    disposition: Literal[
        "verbatim", "anchor", "pinned", "masked", "truncated", "cleared", "told", "summarized", "dropped"
    ]
    summary_id: str | None
    tokens: int
    shown_tokens: int
    pinned: bool
    quoted: bool
    reason: str
    text: str


class SummaryInView(Described):
    """A summary in a view."""

    id: str
    from_item: str | None
    through_item: str | None
    from_seq: int
    to_seq: int
    through_turn: int
    tokens: int
    kind: Literal["model", "mechanical", "edited", "part"]
    model: str
    revision: int
    replaced_tokens: int | None = None


class RangeInView(Described):
    """A range of the log that is going to be summarized."""

    from_item: str | None
    through_item: str | None
    from_seq: int
    to_seq: int
    folds: list[str]


class SentPart(Described):
    """A part of a message that the gateway wrote. It stands for the messages `[from_seq, to_seq)` of the log. `text` is
    its piece of the content; all parts together are the content. A passage has no `text`."""

    kind: Literal["introduction", "summary", "note", "passage"]
    from_seq: int | None
    to_seq: int | None
    summary_id: str | None
    text: str | None


class SentPlace(Described):
    """The origin of a message that is sent: the messages `[from_seq, to_seq)` of the log. A quotation and user text
    stand for the messages that their parts name; a quotation was made for the message `before_seq`."""

    kind: Literal["instructions", "summary", "user_text", "quotation", "message"]
    from_seq: int | None
    to_seq: int | None
    before_seq: int | None
    parts: list[SentPart]


class UserTextInView(Described):
    """How many of the hidden user messages are shown as user text, and which."""

    messages: int
    verbatim: int
    shortened: int
    left_out: int
    tokens: int
    seqs: list[int]


class ViewObject(Described):
    """The fields that both kinds of views have."""

    object: str
    conversation_id: str
    model: str
    policy: str
    window: int
    limit: int
    prompt_tokens: int
    pressure: float
    compacts_above: int
    status: Literal["full", "summarized", "trimmed"]
    fits: bool
    dropped_messages: int
    user_text: UserTextInView
    summaries: list[SummaryInView]
    messages: Page[MessageInView]
    sent: list[dict[str, Any]] | None = None
    sent_places: list[SentPlace] | None = None


class PreviewObject(ViewObject):
    """The view that would be sent now."""

    instructions: list[dict[str, Any]]
    to_summarize: list[RangeInView]
    notes: list[dict[str, Any]]


class SeenObject(ViewObject):
    """The view that was sent for an answer; `exact` says whether it is reproduced byte for byte, `inexact_reason` why
    not, and `inexact_seqs` which messages differ, as far as that is known. `instructions` is null if they are not kept:
    the answer is older than this version of the gateway, or somebody erased them."""

    item_id: str
    reason: str
    would_have_been_tokens: int | None
    exact: bool
    inexact_reason: str | None
    inexact_seqs: list[int]
    instructions: list[dict[str, Any]] | None


def build_view_routes(view_pages: ViewPages, auth: Authenticator, *, policies: Sequence[str]) -> APIRouter:
    """Builds the endpoints of both views.

    Args:
        policies: the names of all policies.
    """
    left_out = "Left out: the policy that a request would have."
    policy_query = Query(None, description=left_out, json_schema_extra={"enum": list(policies)})
    routes = build_resource_router("/v1/conversations/{conversation_id}", "context")
    reads = Depends(auth.require_scope("read"))

    @routes.get(
        "/context",
        response_model=PreviewObject,
        responses=describe_errors({409: "The request names no model, and there is no answer yet that has one."}),
    )
    async def preview_context(
        conversation_id: str,
        page: ViewPageDependency,
        model: Model = None,
        policy: Name | None = policy_query,
        caller: Caller = reads,
    ) -> Response:
        """What would be sent now.

        Plans the next request without making it: no model is called.
        """
        return build_json_response(
            await view_pages.preview_next_view(
                caller, conversation_id, StoredTurnRequest(model=model, policy=policy), page
            )
        )

    @routes.get("/items/{item_id}/context", response_model=SeenObject)
    async def context_of_item(
        conversation_id: str,
        item_id: str,
        page: ViewPageDependency,
        caller: Caller = reads,
    ) -> Response:
        """What the model saw for an answer."""
        return build_json_response(await view_pages.show_sent_view(caller, conversation_id, item_id, page))

    return routes
