"""`POST /v1/conversations/{id}/compact`: summarize now; as one object, or as a stream that tells how far it is."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from app.api.conversations.conversations import BUSY
from app.api.conversations.summaries import FAILED, Instructions, ModelName, SummaryObject
from app.api.conversations.views import RangeInView
from app.api.edge.auth import Auth
from app.api.edge.disconnect import has_left
from app.api.edge.error_responses import unexpected
from app.api.edge.request_body import headers_of
from app.api.edge.request_ids import REQUEST_ID
from app.api.resource_schemas import EVENTS, REFUSALS, Described, JsonRoute, Strict, json_response
from app.conversations.summaries.requested_compaction import Compaction, Compactions, CompactionWish
from app.errors import GatewayError, release_frames
from app.pipeline.admission.admission import Admission
from app.pipeline.chat_request import Caller
from app.pipeline.respond.stream_frames import DONE_FRAME, error_frames

STREAM_TYPE: Final = "text/event-stream"
STREAM_HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-cache, no-store", "x-accel-buffering": "no"}
"""The last keeps nginx from holding a stream back."""


class CompactionRequest(Strict):
    """What is to be summarized, and how."""

    instructions: Annotated[Instructions | None, Field(description="What the summaries should focus on.")] = None
    through_item: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="The last item that is to be summarized."),
    ] = None
    model: Annotated[ModelName | None, Field(description="Left out: the one that was asked last.")] = None
    policy: Annotated[ModelName | None, Field(description="Left out: the one that a request would have.")] = None
    dry_run: Annotated[bool, Field(description="Only tell what would be summarized; no model is asked.")] = False
    stream: Annotated[bool, Field(description="Tell of progress in server-sent events.")] = False


class CompactionObject(Described):
    """What came of a compaction, or would."""

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


def compact_routes(compactions: Compactions, auth: Auth, admission: Admission) -> APIRouter:
    """The endpoint."""
    routes = APIRouter(prefix="/v1/conversations", tags=["context"], responses=REFUSALS, route_class=JsonRoute)
    manages = Depends(auth.requires("manage"))

    @routes.post(
        "/{conversation_id}/compact",
        summary="Summarize now",
        responses={
            200: {"model": CompactionObject, "content": EVENTS},
            **BUSY,
            **FAILED,
        },
    )
    async def compact_conversation(
        request: Request,
        conversation_id: str,
        body: CompactionRequest | None = None,
        caller: Caller = manages,
    ) -> Response:
        asked = body or CompactionRequest()
        wish = CompactionWish(
            model=asked.model,
            policy=asked.policy,
            instructions=asked.instructions,
            through_item=asked.through_item,
        )
        if asked.dry_run:
            return json_response(await compactions.estimate(caller, conversation_id, wish))
        await admission.enter(caller.tenant, functools.partial(has_left, request.receive))
        give_back = functools.partial(admission.give_back, caller.tenant)
        try:
            compaction = await compactions.begin(caller, conversation_id, wish)
        except BaseException:
            give_back()
            raise
        compaction.on_end(give_back)
        if not (asked.stream or STREAM_TYPE in headers_of(request.scope).get("accept", "")):
            return json_response(await compaction.result())
        frames = _frames(compaction, str(request.scope.get(REQUEST_ID, "")))
        return StreamingResponse(frames, media_type=STREAM_TYPE, headers=dict(STREAM_HEADERS))

    return routes


async def _frames(compaction: Compaction, request_id: str) -> AsyncIterator[bytes]:
    """Events as they happen, then the end; a failure is the last of them."""
    events: AsyncGenerator[dict[str, Any], None] = compaction.events()
    async with aclosing(events):
        try:
            async for event in events:
                yield b"data: " + orjson.dumps(event) + b"\n\n"
        except GatewayError as error:
            release_frames(error)
            yield error_frames(error)
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody above us answers the client
            yield error_frames(unexpected(error, request_id))
            return
    yield DONE_FRAME
