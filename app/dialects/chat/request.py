"""Reads the fields of a chat completion request. Errors name the field. Messages stay undecoded, because most of them
are already in the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from app.conversation.names import check_name
from app.dialects.request_body import check_request_names, decode_field
from app.errors import InvalidRequest

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_JSON_BOOLEANS: Final = {b"true": True, b"false": False}

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
    store = _parse_boolean(fields, "store") if "store" in fields else None
    check_request_names(fields)
    _check_tool_names(fields)
    return ChatFields(
        raw_messages=_parse_messages(fields),
        model=_parse_model(fields),
        stream=("stream" in fields and _parse_boolean(fields, "stream")) or False,
        wants_usage="stream_options" in fields and _parse_include_usage(fields),
        choice_count=("n" in fields and _parse_positive_integer(fields, "n")) or 1,
        max_output_tokens=_parse_max_output_tokens(fields),
        store=store,
    )


def may_run_provider_tools(fields: Mapping[str, bytes]) -> bool:
    """Returns whether the provider may run tools itself (web search, file search) and count their results as prompt
    tokens."""
    if not PROVIDER_TOOL_FIELDS.isdisjoint(fields):
        return True
    tools = decode_field(fields, "tools") if "tools" in fields else None
    tool_objects = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    # A tool without a type is a function: some clients leave the type out.
    return any(tool.get("type", "function") not in CLIENT_TOOL_TYPES for tool in tool_objects)


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
    if any(bytes(message)[:1] == b"[" for message in messages):
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


def _parse_include_usage(fields: Mapping[str, bytes]) -> bool:
    options = decode_field(fields, "stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequest("`stream_options` must be an object.", code="invalid_type", param="stream_options")
    return bool(options.get("include_usage"))


def _parse_boolean(fields: Mapping[str, bytes], name: str) -> bool | None:
    # The two usual values are recognized by their bytes, which is faster than to decode them.
    word = _JSON_BOOLEANS.get(bytes(fields.get(name, b"")))
    if word is not None:
        return word
    value = decode_field(fields, name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"`{name}` must be a boolean.", code="invalid_type", param=name)


def _parse_max_output_tokens(fields: Mapping[str, bytes]) -> int | None:
    """Returns the longest allowed answer, in tokens: OpenAI's newer field wins over the older one."""
    newer = _parse_positive_integer(fields, "max_completion_tokens") if "max_completion_tokens" in fields else None
    return newer or (_parse_positive_integer(fields, "max_tokens") if "max_tokens" in fields else None)


def _parse_positive_integer(fields: Mapping[str, bytes], name: str) -> int | None:
    """Returns the field's value; None if it is absent or not positive (some local servers take -1 for "no limit")."""
    value = decode_field(fields, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"`{name}` must be an integer.", code="invalid_type", param=name)
    return value if value > 0 else None
