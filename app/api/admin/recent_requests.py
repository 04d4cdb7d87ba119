"""`/v1/admin/requests`: the model calls that ended last, each with its timeline. They are those of all tenants, so the
caller needs scope `admin`. They have no message's content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.edge.unknown_paths import CHAT_PATH, RESPONSES_PATH
from app.api.resource_schemas import (
    After,
    Described,
    Limit,
    Page,
    build_json_response,
    build_list_page,
    build_resource_router,
)
from app.conversations.items.item_building import build_answer_item_id
from app.errors import NotFound, UpstreamRefused
from app.observability.recent_requests import EndedRequest, RecentRequests
from app.observability.request_record import RequestStep, StepName
from app.pipeline.chat_request import Caller

DEFAULT_PAGE_SIZE: Final = 50
ANSWERED_STATUS: Final = 200
FIRST_ERROR_STATUS: Final = 400
DISCONNECTED: Final = "client_disconnected"
"""The error of a request whose client left before the end of the answer."""
PROTOCOLS: Final = {CHAT_PATH: "chat_completions", RESPONSES_PATH: "responses"}
"""The protocol of each endpoint."""


class RequestObject(Described):
    """A model call that has ended. What is unknown is null."""

    id: str
    object: str
    started_at: float
    endpoint: str
    protocol: str | None
    model: str | None
    answered_by: str | None
    provider: str | None
    attempts: int
    status: int
    error: str | None
    stream: bool | None
    tenant: str | None
    key_id: str | None
    conversation_id: str | None
    item_id: str | None
    """The item of the stored answer."""
    context_status: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    duration_ms: float
    first_byte_ms: float | None
    queue_ms: float | None
    compaction_ms: float | None


class RequestStepObject(Described):
    """A step of a request. Times are milliseconds since the request began."""

    name: str
    start_ms: float
    end_ms: float
    detail: dict[str, Any]


class RequestWithTimeline(RequestObject):
    timeline: list[RequestStepObject]


def build_recent_request_routes(recent_requests: RecentRequests | None, auth: Authenticator) -> APIRouter:
    """Builds the endpoints for recent requests.

    Args:
        recent_requests: the requests; None: none are kept.
    """
    routes = build_resource_router("/v1/admin", "telemetry")
    admin = Depends(auth.require_scope("admin"))

    async def read_requests() -> list[EndedRequest]:
        if recent_requests is None:
            raise NotFound("Recent requests are switched off.", hint="Set `telemetry.recent_requests` above 0.")
        # In a thread: the requests of other workers are in files.
        return await asyncio.to_thread(recent_requests.read_requests)

    @routes.get("/requests", response_model=Page[RequestObject])
    async def list_requests(
        limit: Limit = DEFAULT_PAGE_SIZE,
        after: After = None,
        outcome: Annotated[
            Literal["ok", "error"] | None,
            Query(description="`error`: a status of 400 or more, or an answer that was not complete."),
        ] = None,
        model: Annotated[str | None, Query(description="Only requests for this model, or answered by it.")] = None,
        conversation_id: Annotated[str | None, Query(description="Only requests of this conversation.")] = None,
        tenant: Annotated[str | None, Query(description="Only requests of this tenant.")] = None,
        caller: Caller = admin,
    ) -> Response:
        """List recent requests."""
        requests = await read_requests()
        if after is not None:
            requests = requests[_find_index(requests, after, param="after") + 1 :]
        selected = [
            request
            for request in requests
            if (outcome is None or outcome == ("ok" if _find_error(request) is None else "error"))
            and (model is None or model in (request.facts.model, _find_answering_model(request)))
            and conversation_id in (None, request.facts.conversation_id)
            and tenant in (None, request.tenant)
        ]
        page = [build_request_object(request) for request in selected[:limit]]
        return build_json_response(build_list_page(page, has_more=len(selected) > limit))

    @routes.get("/requests/{request_id}", response_model=RequestWithTimeline)
    async def get_request(request_id: str, caller: Caller = admin) -> Response:
        """Get a recent request."""
        requests = await read_requests()
        request = requests[_find_index(requests, request_id)]
        return build_json_response({**build_request_object(request), "timeline": build_timeline(request)})

    return routes


def build_request_object(request: EndedRequest) -> dict[str, Any]:
    """Builds the JSON object of a request. Unknown values are None."""
    facts, turn = request.facts, request.turn
    attempts = _list_attempts(request)
    reported_tokens = None if turn is None else turn.reported_tokens
    return {
        "object": "request",
        "id": request.id,
        "started_at": request.started_unix,
        "endpoint": request.endpoint,
        "protocol": PROTOCOLS.get(request.endpoint),
        "model": facts.model,
        "answered_by": _find_answering_model(request),
        "provider": attempts[-1]["provider"] if attempts else None,
        "attempts": len(attempts),
        "status": request.status,
        "error": _find_error(request),
        "stream": facts.stream,
        "tenant": request.tenant,
        "key_id": request.key_id,
        "conversation_id": facts.conversation_id,
        "item_id": None if request.answer is None else build_answer_item_id(*request.answer),
        "context_status": facts.context_status,
        "prompt_tokens": facts.prompt_tokens if reported_tokens is None else reported_tokens,
        "cached_tokens": None if turn is None else turn.cached_tokens,
        "completion_tokens": None if turn is None else turn.completion_tokens,
        "cost_usd": None if turn is None else turn.cost_usd,
        "duration_ms": _to_milliseconds(request.duration),
        "first_byte_ms": None if request.first_byte_seconds is None else _to_milliseconds(request.first_byte_seconds),
        "queue_ms": _sum_step_ms(request, "queue", later_step="resolve"),
        "compaction_ms": _sum_step_ms(request, "compaction", later_step="plan"),
    }


def build_timeline(request: EndedRequest) -> list[dict[str, Any]]:
    """Builds the steps of a request as JSON, ordered by their starts."""
    timeline = [
        _build_step_object(step.name, step.started_at - request.started_at, _find_end(request, step), step.detail)
        for step in request.steps
    ]
    if request.first_byte_seconds is not None:
        timeline.append(_build_step_object("first_byte", request.first_byte_seconds, request.first_byte_seconds))
    timeline.sort(key=lambda step: float(step["start_ms"]))
    return [*timeline, _build_step_object("end", request.duration, request.duration)]


def _build_step_object(name: str, start: float, end: float, detail: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Builds a step; `start` and `end` are seconds since the request began."""
    return {
        "name": name,
        "start_ms": _to_milliseconds(start),
        "end_ms": _to_milliseconds(end),
        "detail": dict(detail or {}),
    }


def _find_end(request: EndedRequest, step: RequestStep) -> float:
    """Returns when a step ended, in seconds since the request began: with the request, if it was still running."""
    return request.duration if step.ended_at is None else min(step.ended_at - request.started_at, request.duration)


def _sum_step_ms(request: EndedRequest, name: StepName, *, later_step: StepName) -> float | None:
    """Returns the milliseconds of all steps with a name: 0 if the request came to a later step without one, None if it
    did not get as far."""
    steps = [step for step in request.steps if step.name == name]
    if not steps:
        return 0.0 if any(step.name == later_step for step in request.steps) else None
    seconds = sum(_find_end(request, step) - (step.started_at - request.started_at) for step in steps)
    return _to_milliseconds(seconds)


def _list_attempts(request: EndedRequest) -> list[Mapping[str, Any]]:
    """Returns the calls of providers for the answer."""
    return [step.detail for step in request.steps if step.name == "attempt"]


def _find_answering_model(request: EndedRequest) -> str | None:
    """Returns the provider's model whose answer the client got; None if it got none."""
    attempts = _list_attempts(request)
    return attempts[-1]["model"] if attempts and request.status == ANSWERED_STATUS else None


def _find_error(request: EndedRequest) -> str | None:
    """Returns the code of the error that ended the request; None if it was answered."""
    if (error := request.facts.error) is not None:
        return error.code or error.name
    if not request.is_complete:
        return DISCONNECTED
    # The gateway's own errors are in the facts. This one is a provider's, passed through.
    return UpstreamRefused.name if request.status >= FIRST_ERROR_STATUS else None


def _find_index(requests: Sequence[EndedRequest], request_id: str, *, param: str | None = None) -> int:
    index = next((index for index, request in enumerate(requests) if request.id == request_id), None)
    if index is None:
        raise NotFound(
            f"There is no request {request_id!r} among the recent ones.",
            param=param,
            hint="The oldest are forgotten: see `telemetry.recent_requests`.",
        )
    return index


def _to_milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
