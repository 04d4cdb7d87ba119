"""Defines the search tool: adds it to a request, and parses the model's calls of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import replace

from app.pipeline.chat_request import ChatRequest

TOOL_NAME: Final = "recall_conversation"
TOOL_DEFINITION: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": (
            "Searches the earlier messages of this conversation that are no longer shown word for word, and returns "
            "those that hold words of the query, each with its number. Use it when an exact detail, wording, name, "
            "number or tool result from earlier is needed and is not to be seen above."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words that the wanted messages contain."},
                "before": {"type": "integer", "description": "Only messages with a smaller number than this."},
                "after": {"type": "integer", "description": "Only messages with a larger number than this."},
            },
            "required": ["query"],
        },
    },
}
MAX_SEARCH_ROUNDS: Final = 8
"""How many rounds one answer may take in addition to the first. In the last round the model cannot search."""
MAX_CALLS_PER_ROUND: Final = 8
"""How many searches one message may ask for; further calls get a result that says so."""
MAX_QUERY_CHARS: Final = 2_000
_TOOL_JSON: Final = orjson.dumps(TOOL_DEFINITION)
_CHOICES_WITHOUT_TOOLS: Final = (None, "auto", "none")


class SearchToolSession:
    """The state of the search tool in one turn; it changes while the answer is made.

    Attributes:
        request_without_tool: the client's request, without the tool.
        instructions_tokens: tokens of the instructions of `request_without_tool`.
        searches: each search so far, `{query, found}`; `found` holds the seqs of the messages that the model got.
        first_usage: the upstream's usage of the first round, if there were several rounds.
        rounds: how many rounds there were in addition to the first.
    """

    __slots__ = ("first_usage", "instructions_tokens", "request_without_tool", "rounds", "searches")

    def __init__(self, request_without_tool: ChatRequest, instructions_tokens: int) -> None:
        self.request_without_tool = request_without_tool
        self.instructions_tokens = instructions_tokens
        self.searches: list[dict[str, Any]] = []
        self.first_usage: Mapping[str, Any] | None = None
        self.rounds = 0

    def select_planned_prompt_usage(self, usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Returns the usage of the planned prompt alone: after several rounds `usage` is a sum over their prompts."""
        return self.first_usage if self.rounds else usage


class SearchToolQuery(msgspec.Struct, frozen=True):
    """The parsed arguments of a call: search messages with `after` < seq < `before`."""

    query: str
    after: int | None = None
    before: int | None = None


class InvalidArguments(msgspec.Struct, frozen=True):
    """Arguments that cannot be used; `reason` is the tool result that the model gets."""

    reason: str


def may_offer_search_tool(request: ChatRequest, strip_fields: Sequence[str]) -> bool:
    """Whether the search tool can be added to a request.

    It cannot if the request asks for several choices, uses deprecated functions, has a tool of the same name, or if the
    provider takes no tools.
    """
    if request.choice_count != 1 or "tools" in strip_fields:
        return False
    if request.decode_field("functions") is not None or request.decode_field("function_call") is not None:
        return False
    tools = request.decode_field("tools")
    if tools is not None and not isinstance(tools, list):
        return False
    # With a tool added, a provider would accept a `tool_choice` that it refuses in a request without tools.
    if not tools:
        choice = request.decode_field("tool_choice")
        return any(choice == allowed for allowed in _CHOICES_WITHOUT_TOOLS)
    return all(_read_function_name(tool) != TOOL_NAME for tool in tools)


def add_search_tool(request: ChatRequest) -> ChatRequest:
    """Adds the search tool after the client's tools, whose bytes do not change."""
    tools_json = bytes(request.raw_fields.get("tools", b"[]")).strip()
    client_tools = tools_json[1:-1].strip() if tools_json.startswith(b"[") else b""
    tools = b"[%b%b%b]" % (client_tools, b"," if client_tools else b"", _TOOL_JSON)
    return replace(request, raw_fields={**request.raw_fields, "tools": tools})


def build_next_round_request(
    request: ChatRequest, request_without_tool: ChatRequest, *, is_last_round: bool
) -> ChatRequest:
    """Builds the request of a further round.

    Args:
        request: the request with the search tool.
        request_without_tool: the client's request.
        is_last_round: the model must answer now.
    """
    fields = dict(request.raw_fields)
    # A client may force the tool by its name. In a further round that would force one search after another.
    if _read_function_name(request.decode_field("tool_choice")) == TOOL_NAME:
        fields.pop("tool_choice")
    # The client's tools must stay callable, so the search tool is removed. If it is the only tool it stays in the list,
    # because some providers refuse tool messages without tools; it cannot be called.
    if is_last_round and request_without_tool.decode_field("tools"):
        fields["tools"] = request_without_tool.raw_fields["tools"]
    elif is_last_round:
        fields["tool_choice"] = b'"none"'
    return replace(request, raw_fields=fields)


def is_search_call(call: Mapping[str, Any]) -> bool:
    """Whether a tool call of a message calls the search tool."""
    return _read_function_name(call) == TOOL_NAME


def parse_search_arguments(arguments: object) -> SearchToolQuery | InvalidArguments:
    """Parses the arguments of a call: JSON text, or an object from servers that decode arguments."""
    try:
        decoded = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return InvalidArguments("The arguments are not valid JSON.")
    if not isinstance(decoded, dict):
        return InvalidArguments("The arguments must be a JSON object.")
    query = decoded.get("query")
    if not isinstance(query, str) or not query.strip():
        return InvalidArguments("`query` must be a string of words to look for.")
    seq_limits = []
    for name in ("after", "before"):
        seq_limit = _parse_number(decoded.get(name))
        if isinstance(seq_limit, InvalidArguments):
            return InvalidArguments(f"`{name}` must be the number of a message.")
        seq_limits.append(seq_limit)
    return SearchToolQuery(query.strip()[:MAX_QUERY_CHARS], *seq_limits)


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


def _parse_number(value: object) -> int | InvalidArguments | None:
    """Parses a whole number that models write as a number or a string; None for no value."""
    if value is None or value == "":
        return None
    # A bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return InvalidArguments("not a number")
    try:
        return int(value)
    except (ValueError, OverflowError):
        return InvalidArguments("not a number")


def _read_function_name(tool: object) -> object:
    """Reads the function's name in a declared tool, a `tool_choice` or a tool call."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
