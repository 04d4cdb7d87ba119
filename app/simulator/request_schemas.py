"""What a request may hold: the types and bounds of all fields that the simulated model reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from app.errors import InvalidRequest

MOST_CHOICES: Final = 128
"""OpenAI's limit of `n`."""
MOST_DIMENSIONS: Final = 4096
LARGEST_NUMBER: Final = 2**53
"""Of a JSON schema: whole numbers up to this are exact in a float and can be written as JSON."""
Object = dict[str, Any]
Size = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


class _Call(msgspec.Struct):
    function: Object | None = None


class _Message(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _ResponseFormat(msgspec.Struct):
    json_schema: Object | None = None


class _AllowedTools(msgspec.Struct):
    tools: list[Any] | None = None
    mode: str | None = None


class _ToolChoice(msgspec.Struct):
    type: str | None = None
    allowed_tools: _AllowedTools | None = None


class _Tool(msgspec.Struct):
    type: str | None = None


class _Chat(msgspec.Struct):
    """A chat completion request."""

    messages: list[_Message]
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: Object | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = None


class _Embeddings(msgspec.Struct):
    """An embeddings request."""

    model: str | None = None
    input: str | list[str | int | list[int]] = ""
    dimensions: Annotated[int, Meta(ge=1, le=MOST_DIMENSIONS)] | None = None
    encoding_format: str | None = None


class _Keywords(msgspec.Struct, rename="camel"):
    """The keywords of a JSON schema that are read."""

    type: str | list[str] = ""
    properties: Object = {}
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


def check_chat(body: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidRequest: a field of a chat completion request has another type, or is out of bounds.
    """
    _check(body, _Chat)


def check_embeddings(body: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidRequest: a field of an embeddings request has another type, or is out of bounds.
    """
    _check(body, _Embeddings)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check one level of a JSON schema.

    Raises:
        InvalidRequest: a keyword has another type, or is out of bounds.
    """
    _check(schema, _Keywords, before="Invalid JSON schema: ")


def _check(value: Mapping[str, Any], shape: type[msgspec.Struct], before: str = "") -> None:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at ")
        param = place.strip("`").removeprefix("$.") or None
        raise InvalidRequest(f"{before}{complaint} in {param}.", code="invalid_type", param=param) from error
