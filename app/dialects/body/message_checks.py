"""Checks the shape of a chat message before it is stored. The provider checks everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from app.conversation.item import TOOL_RESULT_ROLES, Item, may_precede_tool_result
from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.conversation.names import MAX_NAME_CHARS, is_valid_name
from app.dialects.body.message import decode_body
from app.errors import InvalidRequest

MESSAGE_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")

MessageFault = tuple[str, str, str]
"""The field, the complaint (to be read after the message's position), and the error code."""
_TOO_DEEP_FAULT: Final[MessageFault] = "", f" {TOO_DEEP_MESSAGE}", "invalid_value"


def check_messages(
    messages: Iterable[Item],
    *,
    first_index: int,
    may_begin_with_result: bool,
    format_position: Callable[[int], str] = "messages[{}]".format,
) -> None:
    """Checks the new messages of a request, or the messages of a file.

    Args:
        messages: in order.
        first_index: the index of the first of them in the request's `messages`.
        may_begin_with_result: whether the message before them is an assistant message with tool calls, or a tool
            result. Then the first message may be a tool result.
        format_position: returns the name of the message with an index, for errors.

    Raises:
        InvalidRequest: names the message and the field.
    """
    before: Item | None = None
    for index, message in enumerate(messages, start=first_index):
        body = decode_body(message)
        # The count of brackets is cheap and clears most messages without a walk through the decoded body.
        fault = _TOO_DEEP_FAULT if may_be_too_deep(message.raw) and is_too_deep(body) else _find_fault(body)
        if fault is None and body["role"] in TOOL_RESULT_ROLES:
            may_follow = may_begin_with_result if before is None else may_precede_tool_result(before)
            fault = None if may_follow else _build_result_without_call_fault(body["role"])
        if fault is not None:
            field, complaint, code = fault
            where = format_position(index)
            raise InvalidRequest(where + complaint, code=code, param=where + field)
        before = message


def _find_fault(body: Mapping[str, Any]) -> MessageFault | None:
    """Returns what is wrong with a message by itself."""
    role = body.get("role")
    if role not in MESSAGE_ROLES:
        return ".role", f".role must be one of {', '.join(MESSAGE_ROLES)}.", "invalid_value"
    content = body.get("content")
    if isinstance(content, list):
        for part_index, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                field = f".content[{part_index}]"
                return field, f"{field} must be an object with a string 'type'.", "invalid_type"
    elif content is not None and not isinstance(content, str):
        return ".content", ".content must be a string, an array of content parts, or null.", "invalid_type"
    calls = body.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        return ".tool_calls", ".tool_calls must be an array of objects.", "invalid_type"
    name = body.get("name")
    if isinstance(name, str) and name and not is_valid_name(name):
        complaint = f".name must have at most {MAX_NAME_CHARS} characters, and no control characters."
        return ".name", complaint, "invalid_value"
    if role == "tool" and not isinstance(body.get("tool_call_id"), str):
        complaint = ".tool_call_id must be the id of the tool call that this result answers."
        return ".tool_call_id", complaint, "missing_required_parameter"
    return None


def _build_result_without_call_fault(role: str) -> MessageFault:
    return ".role", f" has role {role!r} but does not follow an assistant message with 'tool_calls'.", "invalid_value"
