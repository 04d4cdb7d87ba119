"""`POST /v1/conversations/{id}/compact`: compacts a conversation now, and answers with one object or with a stream of
progress events."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from app.api.conversations.conversations import BUSY_RESPONSE
from app.api.conversations.summaries import SUMMARY_FAILED_RESPONSE, Instructions, SummaryObject
from app.api.conversations.views import RangeInView
from app.api.edge.auth import Authenticator
from app.api.edge.error_responses import log_unexpected_error
from app.api.edge.headers import REQUEST_ID_SCOPE_KEY
from app.api.edge.request_reader import has_disconnected, read_headers
from app.api.resource_schemas import (
    EVENT_STREAM_CONTENT,
    Described,
    Name,
    Strict,
    build_json_response,
    build_resource_router,
)
from app.conversations.summaries.requested_compaction import RequestedCompactions, RunningCompaction
from app.conversations.views.stored_turn import StoredTurnRequest
from app.dialects.chat.stream_frames import DONE_FRAME, render_error_frames
from app.errors import GatewayError, drop_tracebacks
from app.pipeline.admission.admission import Admission, CallLimits
from app.pipeline.turn.chat_request import Caller

EVENT_STREAM_TYPE: Final = "text/event-stream"
STREAM_HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-cache, no-store", "x-accel-buffering": "no"}
"""`x-accel-buffering: no` keeps nginx from buffering the stream."""


class CompactionRequest(Strict):
    """Options of a compaction."""

    instructions: Annotated[Instructions | None, Field(description="What the summaries should focus on.")] = None
    through_item: Annotated[
        Name | None,
        Field(
            description="The last item that is to be summarized: its id, or `#` and its `seq`, such as `#12`.",
        ),
    ] = None
    model: Annotated[Name | None, Field(description="Left out: the model of the last answer.")] = None
    policy: Annotated[Name | None, Field(description="Left out: the policy that a request would have.")] = None
    dry_run: Annotated[bool, Field(description="Only report what would be summarized; no model is called.")] = False
    stream: Annotated[bool, Field(description="Report progress in server-sent events.")] = False


class CompactionObject(Described):
    """The result of a compaction, or of a dry run."""

    object: str
    conversation_id: str
    policy: str
    window: int
    model: str
    dry_run: bool
    summaries: list[SummaryObject]
    to_summarize: list[RangeInView] | None = None
    tokens_before: int
    tokens_after: int
    ran: bool
    outcome: str
    reason: str | None = None
    duration_ms: int
    usage: dict[str, Any] | None
    warnings: list[str]
    capsule: str | None = None


def build_compaction_routes(
    compactions: RequestedCompactions, auth: Authenticator, admission: Admission, limits: CallLimits
) -> APIRouter:
    """Builds the endpoint for compaction on request."""
    routes = build_resource_router("/v1/conversations", "context")
    manages = Depends(auth.require_scope("manage"))

    @routes.post(
        "/{conversation_id}/compact",
        responses={
            200: {"model": CompactionObject, "content": EVENT_STREAM_CONTENT},
            **BUSY_RESPONSE,
            **SUMMARY_FAILED_RESPONSE,
        },
    )
    async def compact_conversation(
        request: Request,
        conversation_id: str,
        body: CompactionRequest | None = None,
        caller: Caller = manages,
    ) -> Response:
        """Compact a conversation now."""
        options = body or CompactionRequest()
        turn_request = StoredTurnRequest(
            model=options.model, policy=options.policy, summarize="now", instructions=options.instructions
        )
        if options.dry_run:
            return build_json_response(
                await compactions.estimate_compaction(caller, conversation_id, turn_request, options.through_item)
            )
        await limits.admit(caller)
        await admission.acquire_slot(caller.tenant, functools.partial(has_disconnected, request.receive))
        give_back = functools.partial(admission.release_slot, caller.tenant)
        try:
            compaction = await compactions.start_compaction(caller, conversation_id, turn_request, options.through_item)
        except BaseException:  # a cancellation, too: whatever happens, the slot must be released
            give_back()
            raise
        # The compaction goes on if the client disconnects, so the slot is released with its end and not with the
        # request's.
        compaction.task.add_done_callback(lambda _: give_back())
        if not (options.stream or EVENT_STREAM_TYPE in read_headers(request.scope).get("accept", "")):
            return build_json_response(await compaction.wait_for_result())
        frames = _stream_progress_frames(compaction, str(request.scope.get(REQUEST_ID_SCOPE_KEY, "")))
        return StreamingResponse(frames, media_type=EVENT_STREAM_TYPE, headers=dict(STREAM_HEADERS))

    return routes


async def _stream_progress_frames(compaction: RunningCompaction, request_id: str) -> AsyncIterator[bytes]:
    """Yields a frame for each progress event, then `[DONE]`; a failure is sent as the last frame."""
    events: AsyncGenerator[dict[str, Any], None] = compaction.stream_events()
    async with aclosing(events):
        try:
            async for event in events:
                yield b"data: " + orjson.dumps(event) + b"\n\n"
        except GatewayError as error:
            drop_tracebacks(error)
            yield render_error_frames(error)
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            yield render_error_frames(log_unexpected_error(error, request_id))
            return
    yield DONE_FRAME
