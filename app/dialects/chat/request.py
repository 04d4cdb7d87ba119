"""Reads the fields of a chat completion request. Errors name the field. Messages stay undecoded, because most of them
are already in the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from app.conversation.json_text import list_objects
from app.conversation.names import check_name
from app.dialects.request_body import check_request_names, decode_field, decode_typed_field
from app.errors import InvalidRequest

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode

CLIENT_TOOL_TYPES: Final = ("function", "custom")
"""Tools of these types are run by the client; all others by the provider."""
PROVIDER_TOOL_FIELDS: Final = frozenset({"web_search_options", "search_parameters", "plugins"})
"""Fields that let a provider run a search itself: of OpenAI, xAI and OpenRouter."""


class _Named(msgspec.Struct):
    name: Any = None


class _Tool(_Named):
    """A tool or a function, as far as it has names."""

    function: _Named | None = None
    custom: _Named | None = None


_decode_tools = msgspec.json.Decoder(list[_Tool]).decode


class ChatFields(msgspec.Struct, frozen=True):
    """What the gateway reads of the protocol's own fields."""

    raw_messages: Sequence[bytes]
    model: str
    stream: bool
    wants_usage: bool
    choice_count: int
    max_output_tokens: int | None
    store: bool | None


def parse_chat_fields(fields: Mapping[str, bytes]) -> ChatFields:
    """Parses the fields of a body from `decode_body_fields`.

    Raises:
        InvalidRequest: a field is missing or invalid; `param` names it.
    """
    store = decode_typed_field(fields, "store", bool)
    check_request_names(fields)
    _check_tool_names(fields)
    return ChatFields(
        raw_messages=_parse_messages(fields),
        model=_parse_model(fields),
        stream=decode_typed_field(fields, "stream", bool) or False,
        wants_usage=bool((decode_typed_field(fields, "stream_options", dict) or {}).get("include_usage")),
        choice_count=_parse_positive_integer(fields, "n") or 1,
        # OpenAI's newer field wins over the older one.
        max_output_tokens=_parse_positive_integer(fields, "max_completion_tokens")
        or _parse_positive_integer(fields, "max_tokens"),
        store=store,
    )


def may_run_provider_tools(fields: Mapping[str, bytes]) -> bool:
    """Returns whether the provider may run tools itself (web search, file search) and count their results as prompt
    tokens."""
    if not PROVIDER_TOOL_FIELDS.isdisjoint(fields):
        return True
    if "tools" not in fields:
        return False
    tools = list_objects(decode_field(fields, "tools"))
    # A tool without a type is a function: some clients leave the type out.
    return any(tool.get("type", "function") not in CLIENT_TOOL_TYPES for tool in tools)


def _parse_messages(fields: Mapping[str, bytes]) -> list[bytes]:
    raw = fields.get("messages")
    if raw is None:
        raise InvalidRequest("You must provide `messages`.", code="missing_required_parameter", param="messages")
    try:
        messages = _decode_array(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest("`messages` must be an array.", code="invalid_type", param="messages") from error
    if not messages:
        raise InvalidRequest("`messages` must not be empty.", code="empty_array", param="messages")
    # In the log an array is a message of the Responses API.
    for message in messages:
        if memoryview(message)[0] == ord("["):
            raise InvalidRequest("A message must be a JSON object.", code="invalid_type", param="messages")
    return messages  # type: ignore[return-value]  # msgspec.Raw is a view of the bytes


def _check_tool_names(fields: Mapping[str, bytes]) -> None:
    for field in ("tools", "functions"):
        # Tools of another form are left to who reads them.
        with suppress(msgspec.DecodeError, RecursionError):
            for index, tool in enumerate(_decode_tools(fields[field]) if field in fields else ()):
                for name in (tool.name, tool.function and tool.function.name, tool.custom and tool.custom.name):
                    if isinstance(name, str) and name:
                        check_name(name, f"{field}[{index}].name")


def _parse_model(fields: Mapping[str, bytes]) -> str:
    model = decode_field(fields, "model")
    if model is None:
        raise InvalidRequest("You must provide a `model`.", code="missing_required_parameter", param="model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("`model` must be a non-empty string.", code="invalid_type", param="model")
    return check_name(model, "model")


def _parse_positive_integer(fields: Mapping[str, bytes], name: str) -> int | None:
    """Returns the field's value; None if it is absent or not positive (some local servers take -1 for "no limit")."""
    value = decode_typed_field(fields, name, int) if name in fields else None
    return value if value and value > 0 else None
