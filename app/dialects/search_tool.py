"""The search tool in no protocol's words: its name, what models are told of it, and the arguments of a call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

TOOL_NAME: Final = "recall_conversation"
TOOL_DESCRIPTION: Final = (
    "Searches the earlier messages of this conversation that are no longer shown word for word, and returns "
    "those that hold words of the query, each with its number. Use it when an exact detail, wording, name, "
    "number or tool result from earlier is needed and is not to be seen above."
)
TOOL_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Words that the wanted messages contain."},
        "before": {"type": "integer", "description": "Only messages with a smaller number than this."},
        "after": {"type": "integer", "description": "Only messages with a larger number than this."},
    },
    "required": ["query"],
}
"""A JSON schema."""
MAX_QUERY_CHARS: Final = 2_000


class SearchToolQuery(msgspec.Struct, frozen=True):
    """The parsed arguments of a call: search messages with `after` < seq < `before`."""

    query: str
    after: int | None = None
    before: int | None = None


class InvalidArguments(msgspec.Struct, frozen=True):
    """Arguments that cannot be used; `reason` is the tool result that the model gets."""

    reason: str


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
        try:
            seq_limits.append(_parse_number(decoded.get(name)))
        except (ValueError, OverflowError):
            return InvalidArguments(f"`{name}` must be the number of a message.")
    return SearchToolQuery(query.strip()[:MAX_QUERY_CHARS], *seq_limits)


def _parse_number(value: object) -> int | None:
    """Parses a whole number that models write as a number or a string; None for no value.

    Raises:
        ValueError, OverflowError: the value is no such number.
    """
    if value is None or value == "":
        return None
    # A bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return int(value)
