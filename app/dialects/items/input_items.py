"""Groups the items of a request's `input` into messages, and checks what the gateway itself relies on. Pure.

The provider checks everything else. Only the fields that tell kinds and pairs are decoded: a resent history has
thousands of items, and most of their bytes are texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, get_args

import msgspec
import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.dialects.items.item_kinds import (
    OUTPUT_TYPES,
    ItemFields,
    find_message_role,
    is_client_call,
    is_hosted,
    read_call_id,
)
from app.dialects.request_body import build_missing_error, split_validation_error
from app.errors import InvalidRequest

ITEM_ROLES: Final = ("user", "assistant", "system", "developer")


class PartFields(msgspec.Struct):
    """The field that every content part has."""

    type: str


class MessageFields(msgspec.Struct):
    """A message. Its `type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[PartFields]


class MessageItem(MessageFields, tag_field="type", tag="message"):
    """A message with its `type`."""


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function."""

    call_id: str
    name: str
    arguments: str


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """The output of a function."""

    call_id: str
    output: str | list[PartFields]


class CustomToolCallOutput(FunctionCallOutput, tag_field="type", tag="custom_tool_call_output"):
    """The output of a custom tool."""


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """A model's reasoning."""


UsualItem = MessageItem | FunctionCall | CustomToolCall | FunctionCallOutput | CustomToolCallOutput | ReasoningItem
_usual_item_decoder: Final = msgspec.json.Decoder(UsualItem)
_message_decoder: Final = msgspec.json.Decoder(MessageFields)
_item_decoder: Final = msgspec.json.Decoder(ItemFields)
USUAL_TYPES: Final = tuple(str(shape.__struct_config__.tag) for shape in get_args(UsualItem))


class _Run(msgspec.Struct, eq=False):
    """Consecutive items that make up one message, and the outputs of its calls, by their indexes in `input`."""

    items: list[int]
    outputs: list[int]


class _ItemKind(msgspec.Struct):
    """What decides where an item belongs."""

    role: str
    """The role of its message."""
    call_id: str | None = None
    is_client_call: bool = False
    is_hosted_call: bool = False


def encode_text_input(text_json: bytes) -> bytes:
    """Returns the message of an `input` that is a text.

    Args:
        text_json: the text as a JSON string.
    """
    return b'[{"type":"message","role":"user","content":' + text_json + b"}]"


def encode_instructions(json_string: bytes) -> bytes:
    """Returns the message of a request's `instructions`, a JSON string."""
    return b"[" + json_string + b"]"


def join_item_groups(raw_items: Sequence[bytes], groups: Sequence[Sequence[int]]) -> list[bytes]:
    """Returns the raw text of a message for each group of indexes."""
    return [b"[" + b",".join([raw_items[index] for index in group]) + b"]" for group in groups]


def find_item_groups(
    raw_items: Sequence[bytes],
    *,
    may_begin_with_result: bool,
    open_calls: Collection[str] | None = None,
    field: str = "input",
) -> list[list[int]]:
    """Groups items into messages and returns the indexes of the items of each message.

    Consecutive items of a model are one message; every other item is a message of its own. An output that does not
    follow its call is moved behind it, because providers of Chat Completions refuse it elsewhere. An output whose call
    is not in `input` stays where it is.

    Args:
        raw_items: the JSON text of each item of `input`.
        may_begin_with_result: whether the request continues a log whose last calls may be open. Then the calls of
            outputs need not be in `input`.
        open_calls: the ids of these calls; None: they are not known.
        field: the name of the array, for errors.

    Raises:
        InvalidRequest: names the item and the field, such as `input[3].call_id`.
    """
    grouping = _Grouping(field, open_calls if may_begin_with_result else ())
    for index, raw in enumerate(raw_items):
        grouping.add_item(bytes(raw), index)
    groups: list[list[int]] = []
    for run in grouping.runs:
        groups.append(run.items)
        groups += [[output] for output in run.outputs]
    return groups


class _Grouping:
    """Collects runs of items, and the calls that have no output yet."""

    def __init__(self, field: str, open_calls: Collection[str] | None) -> None:
        self.runs: list[_Run] = []
        self._field = field
        self._open_calls = open_calls
        """The ids of the calls before the items; None: they are not known."""
        self._is_open = False
        """Whether the next item of a model belongs to the last run."""
        self._hosted_calls: set[str | None] = set()
        self._runs_by_open_call: dict[str | None, list[_Run]] = {}
        """The runs with calls that lack an output, by the id of the call. Some providers give calls of several rounds
        the same id; then an output belongs to the newest of them."""
        self._answered_calls: set[str | None] = set()

    def add_item(self, raw: bytes, index: int) -> None:
        where = f"{self._field}[{index}]"
        if may_be_too_deep(raw):
            _check_depth(raw, where)
        item = _decode_item(raw, where)
        if item.role == "tool" and item.call_id not in self._hosted_calls:
            self._add_output(item, index)
        elif item.role in ("assistant", "tool"):
            self._add_model_item(item, index)
        else:
            self.runs.append(_Run([index], []))
            self._is_open = False

    def _add_model_item(self, item: _ItemKind, index: int) -> None:
        if not self._is_open:
            self.runs.append(_Run([], []))
            self._is_open = True
        run = self.runs[-1]
        run.items.append(index)
        if item.is_client_call:
            self._runs_by_open_call.setdefault(item.call_id, []).append(run)
        elif item.is_hosted_call:
            self._hosted_calls.add(item.call_id)

    def _add_output(self, item: _ItemKind, index: int) -> None:
        call_id = item.call_id
        runs = self._runs_by_open_call.get(call_id)
        if runs:
            runs.pop().outputs.append(index)
            self._answered_calls.add(call_id)
            self._is_open = False
        elif call_id not in self._answered_calls and (self._open_calls is None or call_id in self._open_calls):
            self.runs.append(_Run([index], []))
            self._answered_calls.add(call_id)
            self._is_open = False
        else:
            param = f"{self._field}[{index}].call_id"
            raise InvalidRequest(
                f"The call of '{param}' already has an output."
                if call_id in self._answered_calls
                else f"No tool call found before its output: '{param}' must be the call_id of an earlier call.",
                code="invalid_value",
                param=param,
            )


def _decode_item(raw: bytes, where: str) -> _ItemKind:
    """Returns what kind of item a JSON text is.

    Raises:
        InvalidRequest: the item is no object, or a field on which the gateway relies is missing or has another type.
    """
    try:
        item = _usual_item_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_unusual_item(raw, where, error)
    match item:
        case MessageFields():
            return _ItemKind(item.role)
        case FunctionCall() | CustomToolCall():
            return _ItemKind("assistant", item.call_id, is_client_call=True)
        case FunctionCallOutput():
            return _ItemKind("tool", item.call_id)
    return _ItemKind("assistant")


def _decode_unusual_item(raw: bytes, where: str, error: Exception) -> _ItemKind:
    """Returns what kind of item a JSON text is: a message without a type, an item of another type, or no valid item."""
    try:
        fields = _item_decoder.decode(raw)
        if fields.type is None:
            return _ItemKind(_message_decoder.decode(raw).role)
    except msgspec.ValidationError as unusual_error:
        raise _build_field_error(unusual_error, where) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as unusual_error:
        raise InvalidRequest(f"'{where}' is not valid JSON: {unusual_error}.", param=where) from error
    if not isinstance(fields.type, str):
        param = where + ".type"
        raise InvalidRequest(f"Invalid type for '{param}': expected a string.", code="invalid_type", param=param)
    if fields.type in USUAL_TYPES:
        raise _build_field_error(error, where) from error
    item = msgspec.structs.asdict(fields)
    is_hosted_call = fields.type not in OUTPUT_TYPES and is_hosted(item)
    return _ItemKind(find_message_role(item), read_call_id(item), is_client_call(item), is_hosted_call)


def _build_field_error(error: Exception, where: str) -> InvalidRequest:
    """Returns the error for an item whose field is missing or has another type."""
    path, missing, said = split_validation_error(error)
    path = where + path
    if missing or said is None:
        return build_missing_error(f"{path}.{missing}")
    if said.startswith("Invalid enum value"):
        expected = ", ".join(f"'{role}'" for role in ITEM_ROLES)
        return InvalidRequest(
            f"Invalid value for '{path}': expected one of {expected}.", code="invalid_value", param=path
        )
    return InvalidRequest(f"Invalid type for '{path}': {said}.", code="invalid_type", param=path)


def _check_depth(raw: bytes, where: str) -> None:
    try:
        decoded = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"'{where}' is not valid JSON: {error}.", param=where) from error
    if is_too_deep(decoded):
        raise InvalidRequest(f"{where} {TOO_DEEP_MESSAGE}", code="invalid_value", param=where)
