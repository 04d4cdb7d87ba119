"""Reads the tools and answer formats in the fields of a request, in the protocol of its client. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from app.conversation.item import CountedSchemas
from app.dialects import request_translation as request_fields
from app.dialects.body import counted_content
from app.dialects.chat import request as chat_request
from app.dialects.responses import request as responses_request

Protocol = Literal["chat", "responses"]

SCHEMA_FIELDS: Final[Mapping[Protocol, frozenset[str]]] = {
    "chat": counted_content.SCHEMA_FIELDS,
    "responses": request_fields.SCHEMA_FIELDS,
}
"""The fields of a request with schemas."""


def select_schema_fields(protocol: Protocol, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the fields with schemas, sorted by name: the order of the fields in a body has no meaning."""
    return {name: bytes(fields[name]) for name in sorted(SCHEMA_FIELDS[protocol] & fields.keys())}


def read_schemas(protocol: Protocol, decoded_fields: Mapping[str, Any]) -> CountedSchemas:
    """Reads the schemas in the decoded values of `select_schema_fields`."""
    read = counted_content.read_schemas if protocol == "chat" else request_fields.read_responses_schemas
    return read(decoded_fields)


def may_run_provider_tools(protocol: Protocol, fields: Mapping[str, bytes]) -> bool:
    """Returns whether the provider may run tools itself (web search, file search) and count their results as prompt
    tokens."""
    if protocol == "chat":
        return chat_request.may_run_provider_tools(fields)
    return responses_request.may_run_provider_tools(fields)
