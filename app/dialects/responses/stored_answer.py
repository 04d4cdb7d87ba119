"""Renders a stored answer again: as a response object, or as the events of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.conversation_types import LogMessage, StoredCompletion
from app.dialects.message_rendering import build_output_items
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import ResponseObject, find_incomplete_reason
from app.dialects.responses.stored_response import build_request_fields
from app.dialects.responses.stream_events import COMPLETED, INCOMPLETE, Item, write_whole_item

CREATED_AT: Final = "created_at"
"""Key in `LogMessage.meta`: the time that the response had for its client, in Unix seconds. The answer's own time in
the log is later."""
PROVIDER_FACTS_KEY: Final = "response"
"""Key in `LogMessage.meta`: what a Responses provider said about its answer (`ResponseObject.read_provider_facts`)."""


def render_stored_response(
    response_id: str,
    created_at: int,
    fields: Mapping[str, bytes],
    entry: LogMessage,
    model: str,
    gateway_fields: Mapping[str, Any],
) -> bytes:
    """Renders a stored answer as a response object.

    Args:
        created_at: Unix seconds.
        fields: the fields of the request that was answered, each as JSON.
        entry: the answer in the log; its facts are those of `ResponsesAnswerFormat.build_facts`.
        model: the name that the request has, used if the provider reported none.
        gateway_fields: `context_status`, `conversation_id` and `context`.
    """
    response = ResponseObject(response_id, created_at, fields)
    return _render_response(response, entry, model, gateway_fields, _build_shown_items(response, entry))


def render_stored_stream(
    response_id: str,
    created_at: int,
    fields: Mapping[str, bytes],
    entry: LogMessage,
    model: str,
    gateway_fields: Mapping[str, Any],
) -> Iterator[bytes]:
    """Renders a stored answer as the events of a stream: each text in one delta. Arguments as of
    `render_stored_response`."""
    response = ResponseObject(response_id, created_at, fields)
    lifecycle, items = LifecycleWriter(response), _build_shown_items(response, entry)
    status_fields = {name: value for name, value in gateway_fields.items() if name != "context"}
    yield lifecycle.write_begin(orjson.dumps(status_fields)[1:-1], (entry.meta or {}).get("model") or model)
    for index, item in enumerate(items):
        yield write_whole_item(item, index, lifecycle.events)
    last_response = _render_response(response, entry, model, gateway_fields, items)
    yield lifecycle.write_last_event(f"response.{_choose_status(entry)}", last_response)


def render_kept_response(
    response: StoredCompletion, answer: LogMessage, conversation_id: str, include: Sequence[str]
) -> bytes:
    """Renders a response that was kept as a response object.

    Args:
        answer: the answer in the log.
        include: what the object has besides, as `include` of a request.
    """
    fields = {**build_request_fields(response), "include": orjson.dumps(list(include))}
    facts = answer.meta or {}
    gateway_fields = {
        "context_status": facts.get("context_status", "full"),
        "conversation_id": conversation_id,
        "context": facts.get("context", {}),
    }
    created_at = int(facts.get(CREATED_AT, response.created_at.timestamp()))
    return render_stored_response(response.id, created_at, fields, answer, response.model, gateway_fields)


def _build_shown_items(response: ResponseObject, entry: LogMessage) -> list[Item]:
    return [response.hide_item(item) for item in build_output_items(entry.message, response.response_id)]


def _choose_status(entry: LogMessage) -> str:
    return COMPLETED if find_incomplete_reason((entry.meta or {}).get("finish_reason")) is None else INCOMPLETE


def _render_response(
    response: ResponseObject, entry: LogMessage, model: str, gateway_fields: Mapping[str, Any], items: list[Item]
) -> bytes:
    facts = entry.meta or {}
    return response.render(
        orjson.dumps(gateway_fields)[1:-1],
        status=_choose_status(entry),
        model=facts.get("model") or model,
        output=items,
        usage=facts.get("usage"),
        incomplete_reason=find_incomplete_reason(facts.get("finish_reason")),
        provider_facts=facts.get(PROVIDER_FACTS_KEY),
    )
