"""The search tool in a request: the state of its rounds, and the requests with the tool. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from app.dialects.search_tool_fields import (
    DEFINITIONS,
    accepts_search_tool,
    add_search_tool,
    build_next_round_fields,
)
from app.pipeline.turn.chat_request import ChatRequest

MAX_SEARCH_ROUNDS: Final = 8
"""How many rounds one answer may take in addition to the first. In the last round the model cannot search."""
MAX_CALLS_PER_ROUND: Final = 8
"""How many searches one message may ask for; further calls get a result that says so."""


def may_offer_search_tool(request: ChatRequest, strip_fields: Sequence[str]) -> bool:
    """Whether the search tool can be added to a request: not if it asks for several choices, if the provider takes no
    tools, or if the tool cannot stand beside the request's own (`accepts_search_tool`)."""
    return request.choice_count == 1 and "tools" not in strip_fields and accepts_search_tool(request.decode_field)


def offer_search_tool(request: ChatRequest) -> ChatRequest:
    """Adds the search tool after the client's tools."""
    return replace(request, raw_fields=add_search_tool(request.raw_fields, DEFINITIONS[request.protocol]))


def build_next_round_request(
    request: ChatRequest, request_without_tool: ChatRequest, *, is_last_round: bool
) -> ChatRequest:
    """Builds the request of a further round.

    Args:
        request: the request with the search tool.
        request_without_tool: the client's request.
        is_last_round: the model must answer now.
    """
    client_tools = request_without_tool.raw_fields["tools"] if request_without_tool.decode_field("tools") else None
    fields = build_next_round_fields(
        request.raw_fields,
        request.decode_field,
        client_tools,
        is_last_round=is_last_round,
        protocol=request.protocol,
    )
    return replace(request, raw_fields=fields)
