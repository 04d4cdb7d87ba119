"""Validates objects and events of the Responses API against the types of the official `openai` package."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

CODES_OUTSIDE_THE_TYPES: Final = {"context_length_exceeded", "insufficient_quota"}
"""Error codes that OpenAI sends in a stream and that clients look for, although its types do not list them."""


@functools.cache
def event_types() -> dict[str, Any]:
    """The class of each event, by its `type`."""
    union = typing.get_args(ResponseStreamEvent)[0]
    return {
        name: event_class
        for event_class in typing.get_args(union)
        for name in typing.get_args(event_class.model_fields["type"].annotation)
    }


def validate_response(response: Mapping[str, Any]) -> Response:
    """Raises `pydantic.ValidationError` if a required field is missing or a value has another type."""
    return Response.model_validate_json(orjson.dumps(_with_listed_code(response)), strict=True)


def validate_event(event: Mapping[str, Any]) -> Any:
    """As `validate_response`; raises `KeyError` for an event that OpenAI does not have."""
    if "response" in event:
        event = {**event, "response": _with_listed_code(event["response"])}
    return event_types()[event["type"]].model_validate_json(orjson.dumps(event), strict=True)


def accumulate_events(events: Sequence[Mapping[str, Any]]) -> tuple[list[Any], Any]:
    """Gives the events to the official client's accumulation.

    Returns:
        The items as the deltas made them, and the completed response; None if the last event says something else.
    """
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(construct_type_unchecked(type_=typing.cast(Any, ResponseStreamEvent), value=dict(event)))
    snapshot = state._ResponseStreamState__current_snapshot  # type: ignore[attr-defined]  # it has no other name
    return list(snapshot.output), state._completed_response


def _with_listed_code(response: Mapping[str, Any]) -> Mapping[str, Any]:
    error = response.get("error")
    if error and error["code"] in CODES_OUTSIDE_THE_TYPES:
        return {**response, "error": {**error, "code": "server_error"}}
    return response
