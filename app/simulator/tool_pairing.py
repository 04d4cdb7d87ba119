"""Checks whether tool calls and tool results of a prompt belong together, as strictly as OpenAI's API. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import InvalidRequest


def check_tool_pairing(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a call without a result, or a result without a call, in OpenAI's words.

    Raises:
        InvalidRequest: the first of them.
    """
    open_ids: Counter[str] = Counter()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or not open_ids[call_id]:
                description = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise InvalidRequest(f"Invalid parameter: {description}", param=f"messages.[{index}].role")
            open_ids[call_id] -= 1
            continue
        _check_all_answered(open_ids, index)
        calls = (message.get("tool_calls") or ()) if message.get("role") == "assistant" else ()
        open_ids = Counter(str(call.get("id")) for call in calls)
    _check_all_answered(open_ids, len(messages))


def _check_all_answered(open_ids: Counter[str], index: int) -> None:
    if open_ids.total():
        raise InvalidRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(open_ids.elements())}",
            param=f"messages.[{index}].role",
        )
