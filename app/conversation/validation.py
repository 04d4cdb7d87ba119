"""What a message must be before it is stored. Only shapes are judged; the provider judges the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from app.conversation.messages import Message
from app.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
TOOL_ROLES: Final = ("tool", "function")
INSTRUCTION_ROLES: Final = ("system", "developer")


def check_messages(
    messages: Iterable[Message],
    *,
    first_index: int,
    calls_open: bool,
    name_of: Callable[[int], str] = "messages[{}]".format,
) -> None:
    """Check new messages of a request, or of a file.

    Args:
        messages: in order.
        first_index: position of the first of them in the request's `messages`.
        calls_open: whether the message before them is an assistant message with tool calls, or a tool result, so that
            a tool result may follow.
        name_of: the name of the place with this index, for errors.

    Raises:
        InvalidRequest: naming the message and the field.
    """
    for index, message in enumerate(messages, start=first_index):
        where = name_of(index)
        _check_shape(message, where)
        role = message.role
        if role in TOOL_ROLES:
            if not calls_open:
                raise InvalidRequest(
                    f"{where} has role {role!r} but does not follow an assistant message with 'tool_calls'.",
                    param=f"{where}.role",
                    code="invalid_value",
                )
        else:
            calls_open = leaves_calls_open(message)


def leaves_calls_open(message: Message) -> bool:
    """Whether tool results may follow this message."""
    return message.role in TOOL_ROLES or (message.role == "assistant" and bool(message.tool_calls))


def _check_shape(message: Message, where: str) -> None:
    body = message.body
    role = body.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(ROLES)}.", code="invalid_value", param=f"{where}.role"
        )
    content = body.get("content")
    if content is not None and not isinstance(content, str | list):
        raise InvalidRequest(
            f"{where}.content must be a string, an array of content parts, or null.",
            code="invalid_type",
            param=f"{where}.content",
        )
    if isinstance(content, list):
        for part_index, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise InvalidRequest(
                    f"{where}.content[{part_index}] must be an object with a string 'type'.",
                    code="invalid_type",
                    param=f"{where}.content[{part_index}]",
                )
    calls = body.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise InvalidRequest(
            f"{where}.tool_calls must be an array of objects.", code="invalid_type", param=f"{where}.tool_calls"
        )
    if role == "tool" and not isinstance(body.get("tool_call_id"), str):
        raise InvalidRequest(
            f"{where}.tool_call_id must be the id of the tool call that this result answers.",
            code="missing_required_parameter",
            param=f"{where}.tool_call_id",
        )
