"""`/v1/conversations/{id}/summaries`: lists, edits, regenerates, rolls back and deletes summaries."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.api.conversations.views import SummaryInView
from app.api.edge.auth import Authenticator
from app.api.edge.request_reader import has_disconnected
from app.api.resource_schemas import (
    After,
    Deleted,
    Described,
    Limit,
    Name,
    Order,
    Page,
    Strict,
    build_json_response,
    build_page_response,
    build_resource_router,
    describe_errors,
)
from app.conversations.summaries.summaries import SummaryRecords
from app.pipeline.admission.admission import Admission, CallLimits
from app.pipeline.turn.chat_request import Caller

MAX_TEXT_CHARS: Final = 1_000_000
MAX_INSTRUCTIONS_CHARS: Final = 10_000
MAX_REVISION: Final = 2**31 - 1
WITHOUT_NUL: Final = "^[^\\x00]*$"
Revision = Annotated[int, Field(ge=1, le=MAX_REVISION)]
Instructions = Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)]
CONFLICT_RESPONSE: Final = describe_errors({409: "The summary has a newer revision, or is being written."})
SUMMARY_FAILED_RESPONSE: Final = describe_errors({502: "No model returned an acceptable summary; nothing has changed."})


class SummaryEdit(Strict):
    """A summary's new text, written by a person."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS, pattern=WITHOUT_NUL)]
    revision: Annotated[
        Revision | None, Field(description="The revision that you have seen; 409 if there is a newer one.")
    ] = None


class SummaryRegeneration(Strict):
    """Options for a summary that a model writes anew."""

    instructions: Annotated[Instructions | None, Field(description="What the summary should focus on.")] = None
    model: Annotated[Name | None, Field(description="Left out: the model of the last answer.")] = None


class SummaryRollback(Strict):
    """The earlier revision whose text becomes the newest."""

    revision: Annotated[Revision, Field(description="The revision whose text becomes the newest.")]
    current_revision: Annotated[
        Revision | None, Field(description="The revision that you have seen; 409 if there is a newer one.")
    ] = None


class RevisionObject(Described):
    revision: int
    text: str
    kind: str
    model: str
    tokens: int
    created_at: int


class SummaryObject(SummaryInView):
    """A summary of a range of the log."""

    object: str
    conversation_id: str
    active: bool
    shown: bool
    """Whether the last request was sent with it. An active summary that is not shown was made ahead for a later one."""
    folds: list[str]
    prompt_version: str
    created_at: int
    duration_ms: int
    usage: dict[str, Any] | None
    text: str


class SummaryWithRevisions(SummaryObject):
    """A summary with all its revisions, oldest first."""

    revisions: list[RevisionObject]


def build_summary_routes(
    summaries: SummaryRecords, auth: Authenticator, admission: Admission, limits: CallLimits
) -> APIRouter:
    """Builds the endpoints that read and change summaries."""
    routes = build_resource_router("/v1/conversations/{conversation_id}/summaries", "summaries")
    reads = Depends(auth.require_scope("read"))

    @routes.get("", response_model=Page[SummaryObject])
    async def list_summaries(
        conversation_id: str,
        limit: Limit = 20,
        after: After = None,
        order: Order = "asc",
        with_inactive: Annotated[
            bool, Query(alias="all", description="Also folds, and summaries that others replace.")
        ] = False,
        caller: Caller = reads,
    ) -> Response:
        """List summaries."""
        page = await summaries.list_summaries(
            caller,
            conversation_id,
            limit=limit,
            after=after,
            newest_first=order == "desc",
            with_inactive=with_inactive,
        )
        return build_page_response(page)

    @routes.get("/{summary_id}", response_model=SummaryWithRevisions)
    async def get_summary(conversation_id: str, summary_id: str, caller: Caller = reads) -> Response:
        """A summary with its revisions."""
        return build_json_response(await summaries.read_summary(caller, conversation_id, summary_id))

    _add_change_routes(routes, summaries, auth, admission, limits)
    return routes


def _add_change_routes(
    routes: APIRouter,
    summaries: SummaryRecords,
    auth: Authenticator,
    admission: Admission,
    limits: CallLimits,
) -> None:
    manages = Depends(auth.require_scope("manage"))

    @routes.patch("/{summary_id}", response_model=SummaryWithRevisions, responses=CONFLICT_RESPONSE)
    async def edit_summary(
        conversation_id: str, summary_id: str, edit: SummaryEdit, caller: Caller = manages
    ) -> Response:
        """Edit a summary."""
        edited = await summaries.edit_summary(
            caller, conversation_id, summary_id, text=edit.text, revision=edit.revision
        )
        return build_json_response(edited)

    @routes.post(
        "/{summary_id}/regenerate",
        response_model=SummaryWithRevisions,
        responses=CONFLICT_RESPONSE | SUMMARY_FAILED_RESPONSE,
    )
    async def regenerate_summary(
        request: Request,
        conversation_id: str,
        summary_id: str,
        options: SummaryRegeneration | None = None,
        caller: Caller = manages,
    ) -> Response:
        """Regenerate a summary."""
        regeneration = options or SummaryRegeneration()
        await limits.admit(caller)
        # It calls a model, so it needs a slot as a chat request does.
        async with admission.hold_slot(caller.tenant, functools.partial(has_disconnected, request.receive)):
            summary_object = await summaries.regenerate_summary(
                caller, conversation_id, summary_id, instructions=regeneration.instructions, model=regeneration.model
            )
        return build_json_response(summary_object)

    @routes.post("/{summary_id}/rollback", response_model=SummaryWithRevisions, responses=CONFLICT_RESPONSE)
    async def roll_back_summary(
        conversation_id: str, summary_id: str, rollback: SummaryRollback, caller: Caller = manages
    ) -> Response:
        """Roll back to an earlier text."""
        chosen = await summaries.roll_back_summary(
            caller,
            conversation_id,
            summary_id,
            to_revision=rollback.revision,
            revision=rollback.current_revision,
        )
        return build_json_response(chosen)

    @routes.delete("/{summary_id}", response_model=Deleted)
    async def delete_summary(conversation_id: str, summary_id: str, caller: Caller = manages) -> Response:
        """Delete a summary.

        The messages that it stood for are verbatim again, until they are summarized anew.
        """
        return build_json_response(await summaries.delete_summary(caller, conversation_id, summary_id))
