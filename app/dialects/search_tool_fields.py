"""The search tool in the fields of a request of either protocol, and in the calls and results of Chat Completions.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from app.dialects.body.message import ChatMessage
from app.dialects.search_tool import (
    MAX_QUERY_CHARS,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    TOOL_PARAMETERS,
    InvalidArguments,
    SearchToolQuery,
    parse_search_arguments,
)

TOOL_DEFINITION: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "parameters": TOOL_PARAMETERS},
}
DEFINITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": TOOL_DEFINITION,
    "responses": {"type": "function", **TOOL_DEFINITION["function"], "strict": False},
    "messages": {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "input_schema": TOOL_PARAMETERS},
}
"""The definition in the form of each protocol."""
_CHOICES_WITHOUT_TOOLS: Final = (None, "auto", "none")


def accepts_search_tool(decode_field: Callable[[str], Any]) -> bool:
    """Whether the search tool can be added to a request: not if it uses deprecated functions, has a tool of the same
    name, or forces what a provider refuses without tools.

    Args:
        decode_field: returns a decoded field of the request by its name.
    """
    if decode_field("functions") is not None or decode_field("function_call") is not None:
        return False
    tools = decode_field("tools")
    if tools is not None and not isinstance(tools, list):
        return False
    # With a tool added, a provider would accept a `tool_choice` that it refuses in a request without tools.
    if not tools:
        return decode_field("tool_choice") in _CHOICES_WITHOUT_TOOLS
    return all(_read_function_name(tool) != TOOL_NAME for tool in tools)


def add_search_tool(fields: Mapping[str, bytes], definition: Mapping[str, Any] = TOOL_DEFINITION) -> dict[str, bytes]:
    """Adds the search tool to the fields of a request, after the client's tools, whose bytes do not change."""
    tools_json = bytes(fields.get("tools", b"[]")).strip()
    client_tools = tools_json[1:-1].strip() if tools_json.startswith(b"[") else b""
    return {**fields, "tools": b"[%b%b%b]" % (client_tools, b"," if client_tools else b"", orjson.dumps(definition))}


def build_next_round_fields(
    fields: Mapping[str, bytes],
    decode_field: Callable[[str], Any],
    client_tools: bytes | None,
    *,
    is_last_round: bool,
    protocol: str = "chat",
) -> dict[str, bytes]:
    """Builds the fields of a further round's request.

    Args:
        fields: JSON text of each field of the request with the search tool.
        decode_field: returns a decoded field of this request by its name.
        client_tools: JSON text of the client's tools; None if it has none.
        is_last_round: the model must answer now.
        protocol: the protocol of the request.
    """
    fields = dict(fields)
    # A client may force the tool by its name. In a further round that would force one search after another.
    if _read_function_name(decode_field("tool_choice")) == TOOL_NAME:
        fields.pop("tool_choice")
    # The client's tools must stay callable, so the search tool is removed. If it is the only tool it stays in the list,
    # because some providers refuse tool messages without tools; it cannot be called.
    if is_last_round and client_tools is not None:
        fields["tools"] = client_tools
    elif is_last_round:
        fields["tool_choice"] = b'{"type":"none"}' if protocol == "messages" else b'"none"'
    return fields


def is_search_call(call: Mapping[str, Any]) -> bool:
    """Whether a tool call of a message calls the search tool."""
    return _read_function_name(call) == TOOL_NAME


def parse_search_call(call: Mapping[str, Any]) -> SearchToolQuery | InvalidArguments:
    """Parses what a call of the search tool asks for."""
    return parse_search_arguments(call["function"].get("arguments"))


def build_result_message(call: Mapping[str, Any], text: str) -> ChatMessage:
    """Builds the message with the result of a call."""
    return ChatMessage.from_body({"role": "tool", "tool_call_id": call["id"], "content": text})


def shorten_call_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call for the next round's prompt, with arguments that are a short JSON object.

    Some servers parse the arguments of earlier calls, and refuse a prompt in which they are not an object.
    """
    raw_function = call.get("function")
    function = raw_function if isinstance(raw_function, dict) else {}
    arguments = function.get("arguments")
    tool_query = parse_search_arguments(arguments)
    if isinstance(tool_query, InvalidArguments):
        arguments = "{}"
    elif not isinstance(arguments, str) or len(arguments) > MAX_QUERY_CHARS:
        arguments = orjson.dumps({"query": tool_query.query}).decode()
    return {**call, "function": {**function, "arguments": arguments}}


def _read_function_name(tool: object) -> object:
    """Reads the function's name in a declared tool, a `tool_choice` or a tool call."""
    match tool:
        case {"function": function}:
            return function.get("name") if isinstance(function, dict) else None
        case {"type": "function" | "tool", "name": name} | {"name": name, "input_schema": _}:
            return name
    return None
