"""Renders a stored answer again: as a response object, or as the events of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from app.conversation.conversation_types import LogMessage, StoredCompletion
from app.dialects.answer_format import StoredAnswer
from app.dialects.message_rendering import build_output_items
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import ResponseObject, choose_status
from app.dialects.responses.stored_response import build_request_fields
from app.dialects.responses.stream_events import Item, write_whole_item

CREATED_AT: Final = "created_at"
"""Key in `LogMessage.meta`: the time that the response had for its client, in Unix seconds. The answer's own time in
the log is later."""
COMPLETED_AT: Final = "completed_at"
"""Key in `LogMessage.meta`: when a response was complete, in Unix seconds. Older answers do not have it."""
PROVIDER_FACTS_KEY: Final = "response"
"""Key in `LogMessage.meta`: what a Responses provider said about its answer (`ResponseObject.read_provider_facts`)."""


def identify_response(
    response_id: str, facts: Mapping[str, Any], created_at: float, fields: Mapping[str, bytes]
) -> ResponseObject:
    """Returns the object of a stored answer, with the times that it had for its client.

    Args:
        created_at: the time of an answer of which the log has none.
    """
    begun = int(facts.get(CREATED_AT, created_at))
    return ResponseObject(response_id, begun, fields, lambda: facts.get(COMPLETED_AT, begun))


def render_stored_response(response: ResponseObject, stored: StoredAnswer) -> bytes:
    """Renders a stored answer as a response object.

    Args:
        response: has the identity that the answer had for its client, and the fields of its request.
    """
    facts = stored.facts
    return response.render(
        orjson.dumps(stored.all_fields)[1:-1],
        model=stored.model_name,
        output=_build_shown_items(response, stored.entry),
        usage=facts.get("usage"),
        finish=facts.get("finish_reason"),
        provider_facts=facts.get(PROVIDER_FACTS_KEY),
    )


def render_stored_stream(response: ResponseObject, stored: StoredAnswer) -> Iterator[bytes]:
    """Renders a stored answer as the events of a stream: each text in one delta. Arguments as of
    `render_stored_response`."""
    lifecycle = LifecycleWriter(response)
    yield lifecycle.write_begin(orjson.dumps(stored.gateway_fields)[1:-1], stored.model_name)
    for index, item in enumerate(_build_shown_items(response, stored.entry)):
        yield write_whole_item(item, index, lifecycle.events)
    kind = f"response.{choose_status(stored.facts.get('finish_reason'))}"
    yield lifecycle.write_last_event(kind, render_stored_response(response, stored))


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
    gateway_fields = {"context_status": facts.get("context_status", "full"), "conversation_id": conversation_id}
    stored = StoredAnswer(answer, response.model, gateway_fields, facts.get("context", {}))
    return render_stored_response(
        identify_response(response.id, facts, response.created_at.timestamp(), fields), stored
    )


def _build_shown_items(response: ResponseObject, entry: LogMessage) -> list[Item]:
    return [response.hide_item(item) for item in build_output_items(entry.message, response.response_id)]
