"""`/v1/admin/requests`: the model calls that have ended, each with its timeline. They are those of all tenants, so the
caller needs scope `admin`. They have no message's content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.responses import Response

from app.api.edge.auth import Authenticator
from app.api.edge.unknown_paths import CHAT_PATH, RESPONSES_PATH
from app.api.resource_schemas import (
    MAX_UNIX_SECONDS,
    Described,
    Limit,
    Name,
    Page,
    build_json_response,
    build_list_page,
    build_resource_router,
)
from app.conversation.names import is_valid_name
from app.conversations.api_keys import KeyNames, read_key_names
from app.conversations.items.item_building import build_answer_item_id
from app.errors import NotFound
from app.observability.request_record import EndedRequest, RequestStep, StepName
from app.pipeline.turn.chat_request import Caller
from app.store.contract.keys import KeyStore
from app.store.contract.requests import RequestQuery
from app.store.request_history import (
    RequestHistory,
    find_answerer,
    find_error,
)

DEFAULT_PAGE_SIZE: Final = 50
PROTOCOLS: Final = {CHAT_PATH: "chat_completions", RESPONSES_PATH: "responses"}
"""The protocol of each endpoint."""

UnixTime = Annotated[float | None, Query(ge=0, le=MAX_UNIX_SECONDS, description="When they began, Unix seconds.")]


class RequestFilters(BaseModel):
    """The query of a list of requests. Most fields are those of `RequestQuery`."""

    limit: Limit = DEFAULT_PAGE_SIZE
    after: Annotated[Name | None, Query(description="The id of the last request on the page before.")] = None
    started_after: UnixTime = None
    started_before: UnixTime = None
    outcome: Annotated[
        Literal["ok", "error"] | None,
        Query(description="`error`: a status of 400 or more, or an answer that was not complete."),
    ] = None
    status: Annotated[int | None, Query(ge=100, le=599, description="Only requests with this status.")] = None
    min_duration_ms: Annotated[float | None, Query(ge=0, description="Only requests that took as long.")] = None
    model: Annotated[Name | None, Query(description="Only requests for this model, or answered by it.")] = None
    provider: Annotated[Name | None, Query(description="Only requests that called this provider last.")] = None
    context_status: Annotated[Name | None, Query(description="Such as `trimmed` or `bypassed`.")] = None
    conversation_id: Annotated[Name | None, Query(description="Only requests of this conversation.")] = None
    tenant: Annotated[Name | None, Query(description="Only requests of this tenant.")] = None
    key_id: Annotated[Name | None, Query(description="Only requests with this key.")] = None


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
    tenant_name: str | None
    """The name of its oldest key, if the tenant has no name of its own."""
    key_id: str | None
    key_name: str | None
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


def build_recent_request_routes(history: RequestHistory | None, keys: KeyStore, auth: Authenticator) -> APIRouter:
    """Builds the endpoints for requests.

    Args:
        history: the requests; None: none are kept.
        keys: the keys that requests name.
    """
    routes = build_resource_router("/v1/admin", "telemetry")
    admin = Depends(auth.require_scope("admin"))

    def require_history() -> RequestHistory:
        if history is None:
            raise NotFound("Requests are not kept.", hint="Set `telemetry.recent_requests` above 0.")
        return history

    @routes.get("/requests", response_model=Page[RequestObject])
    async def list_requests(filters: Annotated[RequestFilters, Query()], caller: Caller = admin) -> Response:
        """List requests."""
        kept = require_history()
        query = RequestQuery(
            limit=filters.limit + 1,
            after=None if filters.after is None else await _find_place(kept, filters.after),
            is_failed=None if filters.outcome is None else filters.outcome == "error",
            **filters.model_dump(exclude={"limit", "after", "outcome"}),
        )
        requests, names = await kept.list_requests(query), await read_key_names(keys)
        page = [build_request_object(request, names) for request in requests[: filters.limit]]
        return build_json_response(build_list_page(page, has_more=len(requests) > filters.limit))

    @routes.get("/requests/{request_id}", response_model=RequestWithTimeline)
    async def get_request(request_id: str, caller: Caller = admin) -> Response:
        """Get a request."""
        request = await _require_request(require_history(), request_id)
        found = build_request_object(request, await read_key_names(keys))
        return build_json_response({**found, "timeline": build_timeline(request)})

    return routes


async def _find_place(history: RequestHistory, request_id: str) -> tuple[float, str]:
    """Returns the place of the last request of the page before."""
    return (await _require_request(history, request_id, param="after")).started_unix, request_id


async def _require_request(history: RequestHistory, request_id: str, *, param: str | None = None) -> EndedRequest:
    request = await history.find_request(request_id) if is_valid_name(request_id) else None
    if request is None:
        raise NotFound(
            f"There is no request {request_id!r} among those that are kept.",
            param=param,
            hint="The oldest are forgotten: see `retention.request_hours` and `telemetry.recent_requests`.",
        )
    return request


def build_request_object(request: EndedRequest, names: KeyNames) -> dict[str, Any]:
    """Builds the JSON object of a request. Unknown values are None."""
    facts, turn = request.facts, request.turn
    provider, model = find_answerer(request)
    reported_tokens = None if turn is None else turn.reported_tokens
    return {
        "object": "request",
        "id": request.id,
        "started_at": request.started_unix,
        "endpoint": request.endpoint,
        "protocol": PROTOCOLS.get(request.endpoint),
        "model": facts.model,
        "answered_by": model,
        "provider": provider,
        "attempts": sum(step.name == "attempt" for step in request.steps),
        "status": request.status,
        "error": find_error(request),
        "stream": facts.stream,
        "tenant": request.tenant,
        "tenant_name": names.find_tenant_name(request.tenant),
        "key_id": request.key_id,
        "key_name": names.find_key_name(request.key_id),
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


def _to_milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
