"""The tool by which a model searches what its view leaves out: how it is offered, and what a call of it asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import replace

from app.pipeline.chat_request import ChatRequest

RECALL: Final = "recall_conversation"
TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": RECALL,
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
MAX_ROUNDS: Final = 8
"""How often one answer may be gone on with after a search; then the model has to answer."""
MAX_CALLS: Final = 8
"""How many searches one message may ask for."""
MAX_QUERY_CHARS: Final = 2_000
_DECLARED: Final = orjson.dumps(TOOL)
_CHOICES_WITHOUT_TOOLS: Final = (None, "auto", "none")


class Recalled:
    """What the tool came to in one answer; filled while that is given.

    Attributes:
        asked: the request without the tool.
        instructions_tokens: of the request without the tool.
        searches: what was looked for and the seqs of the messages that the model was shown: `{query, found}`.
        first_usage: what the upstream reported of the first round, where there were several.
        rounds: how often the answer was gone on with.
    """

    __slots__ = ("asked", "first_usage", "instructions_tokens", "rounds", "searches")

    def __init__(self, asked: ChatRequest, instructions_tokens: int) -> None:
        self.asked = asked
        self.instructions_tokens = instructions_tokens
        self.searches: list[dict[str, Any]] = []
        self.first_usage: Mapping[str, Any] | None = None
        self.rounds = 0

    def usage_of_view(self, usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What was reported of the prompt that was planned: `usage`, unless that is a sum over several prompts."""
        return self.first_usage if self.rounds else usage


class Wanted(msgspec.Struct, frozen=True):
    """What a call asks for: messages with `after` < seq < `before`."""

    query: str
    after: int | None = None
    before: int | None = None


class Unusable(msgspec.Struct, frozen=True):
    """Arguments that cannot be used, and what the model is told of them."""

    reason: str


def may_be_offered(request: ChatRequest, strip_fields: Sequence[str]) -> bool:
    """Whether the tool can stand beside the client's own.

    Not where there are several choices, deprecated functions, a tool of the same name, a provider that takes no tools,
    or a `tool_choice` that without tools is the provider's to refuse.
    """
    if request.choices != 1 or "tools" in strip_fields:
        return False
    if request.value("functions") is not None or request.value("function_call") is not None:
        return False
    tools = request.value("tools")
    if tools is not None and not isinstance(tools, list):
        return False
    if not tools:
        choice = request.value("tool_choice")
        return any(choice == allowed for allowed in _CHOICES_WITHOUT_TOOLS)
    return all(_name_of(tool) != RECALL for tool in tools)


def offering(request: ChatRequest) -> ChatRequest:
    """The request with the tool as the last of its tools; the client's own keep their bytes."""
    own = bytes(request.fields.get("tools", b"[]")).strip()
    listed = own[1:-1].strip() if own.startswith(b"[") else b""
    tools = b"[%b%b%b]" % (listed, b"," if listed else b"", _DECLARED)
    return replace(request, fields={**request.fields, "tools": tools})


def going_on(request: ChatRequest, asked: ChatRequest, *, last: bool) -> ChatRequest:
    """The request for a further round.

    Args:
        request: with the tool.
        asked: without it.
        last: the model may not search again: the tool is gone, or, where the client has none, no tool may be called.
    """
    fields = dict(request.fields)
    if _name_of(request.value("tool_choice")) == RECALL:
        fields.pop("tool_choice")
    if last and asked.value("tools"):
        fields["tools"] = asked.fields["tools"]
    elif last:
        fields["tool_choice"] = b'"none"'
    return replace(request, fields=fields)


def is_recall(call: Mapping[str, Any]) -> bool:
    """Whether a tool call of a message is one of this tool."""
    return _name_of(call) == RECALL


def wanted(arguments: object) -> Wanted | Unusable:
    """What the arguments of a call ask for."""
    try:
        given = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return Unusable("The arguments are not valid JSON.")
    if not isinstance(given, dict):
        return Unusable("The arguments must be a JSON object.")
    query = given.get("query")
    if not isinstance(query, str) or not query.strip():
        return Unusable("`query` must be a string of words to look for.")
    limits = []
    for name in ("after", "before"):
        limit = _number(given.get(name))
        if isinstance(limit, Unusable):
            return Unusable(f"`{name}` must be the number of a message.")
        limits.append(limit)
    return Wanted(query.strip()[:MAX_QUERY_CHARS], *limits)


def repeated(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call as the model is shown it again: some servers parse arguments, so they must be an object, and short."""
    called = call.get("function")
    function = called if isinstance(called, dict) else {}
    arguments = function.get("arguments")
    asked = wanted(arguments)
    if isinstance(asked, Unusable):
        arguments = "{}"
    elif not isinstance(arguments, str) or len(arguments) > MAX_QUERY_CHARS:
        arguments = orjson.dumps({"query": asked.query}).decode()
    return {**call, "function": {**function, "arguments": arguments}}


def _number(value: object) -> int | Unusable | None:
    """A whole number, however it is written."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return Unusable("not a number")
    try:
        return int(value)
    except (ValueError, OverflowError):
        return Unusable("not a number")


def _name_of(tool: object) -> object:
    """The name of a declared, chosen or called function."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
