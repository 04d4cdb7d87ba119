"""A chat message of Chat Completions as an `Item`, what it has in common with messages of other protocols, and the
checks of its shape."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import orjson

from app.conversation.item import (
    TOOL_RESULT_ROLES,
    ContentPart,
    CountedContent,
    EditOperation,
    Item,
    ToolCall,
    may_precede_tool_result,
)
from app.conversation.json_text import (
    TOO_DEEP_MESSAGE,
    is_too_deep,
    may_be_too_deep,
    render_as_text,
    write_large_integers_as_text,
)
from app.conversation.names import MAX_NAME_CHARS, is_valid_name
from app.dialects.body.canonical_message import canonicalize_answer_text, canonicalize_message
from app.dialects.body.message_edits import OPERATIONS, apply_operations
from app.dialects.body.message_fields import (
    REASONING_FIELDS,
    build_counted_content,
    extract_text,
    extract_tool_calls,
    is_reasoning_part,
    list_attachments,
)
from app.errors import InvalidRequest

_REASONING_BLOCK: Final = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)

MESSAGE_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")

MessageFault = tuple[str, str, str]
"""The field, the complaint (to be read after the message's position), and the error code."""
_TOO_DEEP_FAULT: Final[MessageFault] = "", f" {TOO_DEEP_MESSAGE}", "invalid_value"


class BodyMessage(Item):
    """A message of any protocol. All that the core reads of it is read from the body of a chat message, so a message is
    the same message whichever protocol it came in."""

    __slots__ = ("_body", "_canonical_form")

    def __init__(self, raw: bytes, body: dict[str, Any] | None = None) -> None:
        self.raw = raw
        self._body = body
        self._canonical_form: bytes | None = b""
        """Empty until it is built: no canonical form is empty."""

    @property
    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The decoded message as Chat Completions would have it. What a chat message cannot express stands in it as a
        content part of an unknown type.

        Raises:
            InvalidRequest: the text is not valid.
        """

    # The properties below read `_body` first: a turn reads many of them, and `body` costs a call each time.

    @property
    def role(self) -> str:
        return str((self._body or self.body).get("role", ""))

    @property
    def name(self) -> str | None:
        name = (self._body or self.body).get("name")
        return name if isinstance(name, str) else None

    @property
    def text(self) -> str:
        """All text of the message: a string content, or its text and refusal parts, joined."""
        content = (self._body or self.body).get("content")
        return content if isinstance(content, str) else extract_text(content)

    @property
    def refusal_text(self) -> str | None:
        refusal = (self._body or self.body).get("refusal")
        return refusal if isinstance(refusal, str) else None

    @property
    def transcript_text(self) -> str:
        body = self._body or self.body
        content = body.get("content")
        if isinstance(content, str):
            return strip_reasoning(content)
        if not isinstance(content, list):
            return self.refusal_text or ""
        return strip_reasoning("\n".join(filter(None, map(_render_part, content))))

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls in order. A deprecated `function_call` counts as one call."""
        return [_read_call(call) for call in extract_tool_calls(self._body or self.body)]

    @property
    def calls_tools(self) -> bool:
        body = self._body or self.body
        return ("tool_calls" in body or "function_call" in body) and bool(extract_tool_calls(body))

    @property
    def result_for(self) -> str | None:
        call_id = (self._body or self.body).get("tool_call_id")
        return call_id if isinstance(call_id, str) else None

    @property
    def has_reasoning(self) -> bool:
        body = self._body or self.body
        content = body.get("content")
        return any(body.get(name) for name in REASONING_FIELDS) or (
            isinstance(content, list) and any(map(is_reasoning_part, content))
        )

    @property
    def counted_content(self) -> CountedContent:
        return build_counted_content(self._body or self.body)

    @property
    def attachments(self) -> list[ContentPart]:
        return list_attachments(self._body or self.body)

    @property
    def canonical_form(self) -> bytes | None:
        # A turn reads it several times, and it takes a walk through the whole text.
        if self._canonical_form == b"":
            self._canonical_form = canonicalize_message(self._body or self.body)
        return self._canonical_form

    @property
    def canonical_note(self) -> bytes:
        return canonicalize_message(self.body | {"role": "note"}) or b""

    @property
    def is_in_skeleton(self) -> bool:
        body = self._body or self.body
        role = body.get("role")
        return role == "user" or (role == "assistant" and not extract_tool_calls(body))

    @property
    def canonical_answer(self) -> str:
        return canonicalize_answer_text(self._body or self.body)


class ChatMessage(BodyMessage):
    """A chat message: its JSON text exactly as it came, decoded when something of it is first read."""

    __slots__ = ()

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        """Returns a message that the gateway makes itself.

        Integers beyond 64 bits become text.

        Raises:
            InvalidRequest: the body contains something that is nested too deeply to be written as JSON.
        """
        try:
            return cls(orjson.dumps(body), body)
        except TypeError as error:
            if not is_too_deep(body):
                body = write_large_integers_as_text(body)
                return cls(orjson.dumps(body), body)
            raise InvalidRequest(f"A message {TOO_DEEP_MESSAGE}", code="invalid_value", param="messages") from error

    @classmethod
    def from_text(cls, role: str, text: str) -> Self:
        """Returns a message of a role with nothing but a text."""
        return cls.from_body({"role": role, "content": text})

    @property
    def body(self) -> dict[str, Any]:
        """The decoded message.

        Raises:
            InvalidRequest: the text is not a JSON object.
        """
        if self._body is None:
            try:
                decoded = orjson.loads(self.raw)
            except orjson.JSONDecodeError as error:
                raise InvalidRequest(f"A message is not valid JSON: {error}.", param="messages") from error
            if not isinstance(decoded, dict):
                raise InvalidRequest("A message must be a JSON object.", code="invalid_type", param="messages")
            self._body = decoded
        return self._body

    def edit(self, operations: Sequence[EditOperation]) -> Self:
        return self.from_body(apply_operations(OPERATIONS, self.body, operations))


def decode_body(message: Item) -> dict[str, Any]:
    """Returns the body of a message of any protocol.

    Raises:
        InvalidRequest: its text is not valid.
    """
    assert isinstance(message, BodyMessage)
    return message.body


def build_hosted_call(fields: Mapping[str, Any], kind: str, unreadable: Collection[str]) -> ToolCall:
    """Returns a call that the provider carried out itself.

    Args:
        fields: of its item or block.
        unreadable: names of fields that say nothing to people.
    """
    call_id = fields.get("id")
    text = orjson.dumps({name: value for name, value in fields.items() if name not in unreadable}).decode()
    return ToolCall(call_id if isinstance(call_id, str) else None, kind, text, "other")


def check_messages(
    messages: Iterable[Item],
    *,
    first_index: int,
    may_begin_with_result: bool,
    format_position: Callable[[int], str] = "messages[{}]".format,
) -> None:
    """Checks the shape of the new messages of a request, or of the messages of a file, before they are stored. The
    provider checks everything else.

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
            complaint = f" has role {body['role']!r} but does not follow an assistant message with 'tool_calls'."
            fault = None if may_follow else (".role", complaint, "invalid_value")
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


def strip_reasoning(text: str) -> str:
    """Removes the `<think>` blocks that some models write into their answers."""
    return _REASONING_BLOCK.sub("", text).strip()


def _read_call(call: object) -> ToolCall:
    fields = call if isinstance(call, dict) else {}
    call_id = fields.get("id")
    call_id = call_id if isinstance(call_id, str) else None
    custom, function = fields.get("custom"), fields.get("function")
    if isinstance(custom, dict):
        return ToolCall(call_id, render_as_text(custom.get("name")), render_as_text(custom.get("input")), "custom")
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
        return ToolCall(call_id, render_as_text(name), render_as_text(arguments), "function")
    return ToolCall(call_id, render_as_text(fields.get("type")), render_as_text(call), "other")


def _render_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or is_reasoning_part(part):
        return ""
    text = part.get("text") or part.get("refusal")
    return text if isinstance(text, str) else f"[{part.get('type', 'attachment')}]"
