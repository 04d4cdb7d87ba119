"""Checks whether tool calls and tool results of a prompt belong together, as strictly as OpenAI's API. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolPairingFault:
    """The fault in OpenAI's words, and the message that has it."""

    message: str
    param: str


def find_tool_pairing_fault(messages: Sequence[Mapping[str, Any]]) -> ToolPairingFault | None:
    """Returns the first call without a result, or result without a call; None if all belong together."""
    open_ids: Counter[str] = Counter()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in open_ids:
                description = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                return ToolPairingFault(f"Invalid parameter: {description}", f"messages.[{index}].role")
            open_ids[call_id] -= 1
            if not open_ids[call_id]:
                del open_ids[call_id]
            continue
        if open_ids:
            return _make_unanswered_fault(open_ids, index)
        if message.get("role") == "assistant":
            calls = message.get("tool_calls") or ()
            open_ids = Counter(str(call.get("id")) for call in calls if isinstance(call, Mapping))
    return _make_unanswered_fault(open_ids, len(messages)) if open_ids else None


def _make_unanswered_fault(open_ids: Counter[str], index: int) -> ToolPairingFault:
    description = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(open_ids.elements())}"
    )
    return ToolPairingFault(description, f"messages.[{index}].role")
