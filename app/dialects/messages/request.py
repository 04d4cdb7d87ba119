"""Reads the fields of a Messages request. Errors name the place as Anthropic does, such as `messages.3.content.0`. The
content of blocks stays undecoded, because most of it is already in the log. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.conversation.names import check_name
from app.dialects.messages.errors import THREAD_UNSUPPORTED
from app.dialects.messages.message import MessagesMessage, render_native_message
from app.dialects.request_body import check_request_names, decode_field, split_validation_error
from app.errors import InvalidRequest

FIELD_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("stream",), bool),
    **dict.fromkeys(("max_tokens", "top_k"), int),
    **dict.fromkeys(("stop_sequences", "tools"), list),
    **dict.fromkeys(("metadata", "thinking", "tool_choice", "output_config", "context_management"), dict),
}
"""Fields that the gateway reads, by the type that they must have."""
TYPE_WORDS: Final[Mapping[type, str]] = {
    bool: "a valid boolean",
    int: "a valid integer",
    str: "a valid string",
    list: "a valid list",
    dict: "a valid dictionary",
}
_INDEX: Final = re.compile(r"\[(\d+|\.\.\.)\]")


class _BlockFields(msgspec.Struct):
    """The fields of a block that tell its kind, and pair calls with results."""

    type: str
    id: Any = None
    tool_use_id: Any = None


class _MessageFields(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_BlockFields]


class _RawMessage(msgspec.Struct):
    content: list[msgspec.Raw]


class MessagesFields(msgspec.Struct, frozen=True):
    """What the gateway reads of the protocol's own fields."""

    raw_messages: Sequence[bytes]
    """The raw text of each message of the log's kind: the system prompt if there is one, then those of `messages`."""
    message_indexes: Sequence[Sequence[int]]
    """The index in `messages` of each of them; none for the system prompt."""
    model: str
    stream: bool
    max_output_tokens: int | None


_message_decoder: Final = msgspec.json.Decoder(_MessageFields)
_decode_raw_message: Final = msgspec.json.Decoder(_RawMessage).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parse_messages_fields(
    fields: Mapping[str, bytes], *, may_begin_with_result: bool, needs_limit: bool = True
) -> MessagesFields:
    """Parses the fields of a body from `decode_body_fields`.

    Args:
        may_begin_with_result: whether the request continues a log whose last calls may be open.
        needs_limit: whether `max_tokens` is required.

    Raises:
        InvalidRequest: a field is missing or invalid; message and `param` name the place.
    """
    if "thread" in fields:
        # Anthropic's clients then go on without a thread.
        raise InvalidRequest(
            "thread: This gateway holds no threads. Send the full conversation without `thread`.",
            code=THREAD_UNSUPPORTED,
            param="thread",
        )
    model = decode_field(fields, "model")
    if not isinstance(model, str) or not model:
        raise build_place_error("model", "Field required" if model is None else "Input should be a valid string")
    check_name(model, "model")
    check_request_names(fields)
    values = {name: _decode_typed_field(fields, name, kind) for name, kind in FIELD_TYPES.items() if name in fields}
    limit = values.get("max_tokens")
    if limit is None and needs_limit:
        raise build_place_error("max_tokens", "Field required")
    if limit is not None and limit < 1:
        raise build_place_error("max_tokens", "Input should be greater than or equal to 1")
    _check_tools(values.get("tools") or ())
    system = _parse_system(fields)
    messages, indexes = split_messages(_decode_messages(fields), may_begin_with_result=may_begin_with_result)
    return MessagesFields(
        raw_messages=[*system, *messages],
        message_indexes=[*([] for _ in system), *indexes],
        model=model,
        stream=bool(values.get("stream")),
        max_output_tokens=limit,
    )


def split_messages(
    raw_messages: Sequence[bytes], *, may_begin_with_result: bool
) -> tuple[list[bytes], list[list[int]]]:
    """Splits messages of the API into messages as the log has them: each result is one, and so is the rest of its
    message. A message without results keeps its bytes.

    Returns:
        The raw texts, and for each the index of its message.

    Raises:
        InvalidRequest: names the message and the block.
    """
    raws: list[bytes] = []
    indexes: list[list[int]] = []
    open_calls: set[Any] | None = None if may_begin_with_result else set()
    """The ids of calls that the next message may answer; None if they are not known."""
    for index, raw in enumerate(raw_messages):
        message = _decode_message(raw, index)
        if isinstance(message.content, str) or not (b'"tool_result"' in raw or b'"tool_use"' in raw):
            raws.append(MessagesMessage.from_native(raw).raw)
            indexes.append([index])
            open_calls = set() if message.role != "system" else open_calls
            continue
        results = [place for place, block in enumerate(message.content) if block.type == "tool_result"]
        _check_results(message, results, open_calls, index)
        units = _split_at_results(raw, message.role, results, len(message.content))
        raws += units
        indexes += [[index]] * len(units)
        answered = {message.content[place].tool_use_id for place in results}
        calls = {block.id for block in message.content if block.type == "tool_use"}
        # Results of one answer may stand in several messages: the API joins them.
        open_calls = calls | ((open_calls or set()) - answered if results else set())
    return raws, indexes


def _split_at_results(raw: bytes, role: str, results: Sequence[int], count: int) -> list[bytes]:
    if not results or count == 1:
        return [MessagesMessage.from_native(raw).raw]
    blocks = [bytes(block) for block in _decode_raw_message(raw).content]
    others = [block for place, block in enumerate(blocks) if place not in results]
    groups = [[blocks[place]] for place in results] + ([others] if others else [])
    return [MessagesMessage.from_raw_blocks(role, group).raw for group in groups]


def _check_results(message: _MessageFields, results: Sequence[int], open_calls: set[Any] | None, index: int) -> None:
    for place in results:
        block, where = message.content[place], f"messages.{index}.content.{place}"
        assert isinstance(block, _BlockFields)
        if message.role != "user":
            raise build_place_error(where, "`tool_result` blocks can only be in `user` messages")
        if not isinstance(block.tool_use_id, str):
            raise build_place_error(f"{where}.tool_use_id", "Field required")
        if open_calls is not None and block.tool_use_id not in open_calls:
            raise build_place_error(
                where,
                f"unexpected `tool_use_id` found in `tool_result` blocks: {block.tool_use_id[:64]}. Each `tool_result` "
                "block must have a corresponding `tool_use` block in the previous message",
            )


def _decode_messages(fields: Mapping[str, bytes]) -> list[bytes]:
    raw = fields.get("messages")
    if raw is None:
        raise build_place_error("messages", "Field required")
    try:
        messages = [bytes(message) for message in _decode_array(raw)]
    except msgspec.ValidationError as error:
        raise build_place_error("messages", "Input should be a valid list") from error
    if not messages:
        raise build_place_error("messages", "at least one message is required")
    return messages


def _decode_message(raw: bytes, index: int) -> _MessageFields:
    where = f"messages.{index}"
    try:
        if may_be_too_deep(raw) and is_too_deep(orjson.loads(raw)):
            raise build_place_error(where, TOO_DEEP_MESSAGE)
        return _message_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, orjson.JSONDecodeError) as error:
        raise describe_validation_error(error, where) from error


def describe_validation_error(error: Exception, where: str) -> InvalidRequest:
    """Builds the error for what does not have the type that it must have.

    Args:
        where: the place of what was decoded.
    """
    path, missing, said = split_validation_error(error)
    path = where + _INDEX.sub(r".\1", path)
    if missing or said is None:
        return build_place_error(f"{path}.{missing}", "Field required")
    if path.endswith(".role") and said.startswith("Invalid enum value"):
        said = "Input should be 'user', 'assistant' or 'system'"
    return build_place_error(path, said)


def _parse_system(fields: Mapping[str, bytes]) -> list[bytes]:
    """Returns the message of the system prompt; none if there is no text in it."""
    value = decode_field(fields, "system")
    if value is not None and not isinstance(value, str | list):
        raise build_place_error("system", "Input should be a valid string or a list of text blocks")
    if not value:
        return []
    for index, block in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise build_place_error(f"system.{index}", "Input should be a block of type 'text' with a `text`")
    return [MessagesMessage.from_native(render_native_message("system", bytes(fields["system"]))).raw]


def _check_tools(tools: Sequence[object]) -> None:
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise build_place_error(f"tools.{index}", "Input should be a valid dictionary")
        name = tool.get("name")
        if isinstance(name, str) and name:
            check_name(name, f"tools.{index}.name")


def _decode_typed_field(fields: Mapping[str, bytes], name: str, kind: type) -> Any:
    value = decode_field(fields, name)
    # JSON's booleans are no integers, Python's are.
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise build_place_error(name, f"Input should be {TYPE_WORDS[kind]}")
    return value


def build_place_error(path: str, problem: str) -> InvalidRequest:
    """Builds an error that names the place as Anthropic does."""
    return InvalidRequest(f"{path}: {problem}", code="invalid_value", param=path)
