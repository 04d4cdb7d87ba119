"""The types and bounds of all request fields that the simulated model reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from app.errors import InvalidRequest

MAX_CHOICES: Final = 128
"""OpenAI's limit for `n`."""
MAX_DIMENSIONS: Final = 4096
MAX_SCHEMA_NUMBER: Final = 2**53
"""The largest number in a JSON schema: whole numbers up to this are exact in a float."""
JsonObject = dict[str, Any]
Size = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=-MAX_SCHEMA_NUMBER, le=MAX_SCHEMA_NUMBER)]


class _ToolCallFields(msgspec.Struct):
    function: JsonObject | None = None


class _MessageFields(msgspec.Struct):
    tool_calls: list[_ToolCallFields] | None = None


class _ResponseFormatFields(msgspec.Struct):
    json_schema: JsonObject | None = None


class _AllowedToolsFields(msgspec.Struct):
    tools: list[Any] | None = None
    mode: str | None = None


class _ToolChoiceFields(msgspec.Struct):
    type: str | None = None
    allowed_tools: _AllowedToolsFields | None = None


class _ToolFields(msgspec.Struct):
    type: str | None = None


class _ChatRequestFields(msgspec.Struct):
    """The fields of a chat completion request."""

    messages: list[_MessageFields]
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    tools: list[_ToolFields] | None = None
    tool_choice: str | _ToolChoiceFields | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormatFields | None = None


class _EmbeddingsRequestFields(msgspec.Struct):
    """The fields of an embeddings request."""

    model: str | None = None
    input: str | list[str | int | list[int]] = ""
    dimensions: Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: str | None = None


class _JsonSchemaKeywords(msgspec.Struct, rename="camel"):
    """The JSON schema keywords that are read."""

    type: str | list[str] = ""
    properties: JsonObject = {}
    required: list[str] = []
    enum: list[Any] = []
    any_of: list[Any] = []
    one_of: list[Any] = []
    all_of: list[Any] = []
    min_items: Size = 0
    max_items: Size = 0
    min_length: Size = 0
    max_length: Size = 0
    minimum: Number = 0.0
    maximum: Number = 0.0
    format: str = ""


def check_chat_request(body: Mapping[str, Any]) -> None:
    """Checks the fields of a chat completion request.

    Raises:
        InvalidRequest: a field has another type, or is out of bounds.
    """
    _check_fields(body, _ChatRequestFields)


def check_embeddings_request(body: Mapping[str, Any]) -> None:
    """Checks the fields of an embeddings request.

    Raises:
        InvalidRequest: a field has another type, or is out of bounds.
    """
    _check_fields(body, _EmbeddingsRequestFields)


def check_json_schema(schema: Mapping[str, Any]) -> None:
    """Checks one level of a JSON schema.

    Raises:
        InvalidRequest: a keyword has another type, or is out of bounds.
    """
    _check_fields(schema, _JsonSchemaKeywords, message_prefix="Invalid JSON schema: ")


def _check_fields(value: Mapping[str, Any], shape: type[msgspec.Struct], message_prefix: str = "") -> None:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at ")
        param = place.strip("`").removeprefix("$.") or None
        raise InvalidRequest(f"{message_prefix}{complaint} in {param}.", code="invalid_type", param=param) from error
