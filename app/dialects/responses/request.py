"""Reads the fields of a Responses request. Errors name the field. Input items stay undecoded, because most of them are
already in the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
import orjson

from app.conversation.names import check_name
from app.dialects.capsule_parts import CAPSULE_MARKER
from app.dialects.items.input_items import encode_instructions, encode_text_input, find_item_groups, join_item_groups
from app.dialects.items.item_kinds import ItemFields
from app.dialects.request_body import (
    UNSUPPORTED,
    build_missing_error,
    build_type_error,
    build_value_error,
    check_request_names,
    decode_field,
    decode_typed_field,
    read_conversation_field,
)
from app.dialects.responses.tools import check_tool_choice, check_tools, list_tools
from app.errors import InvalidRequest

Truncation = Literal["auto", "disabled"]
LATER_FIELDS: Final[Mapping[str, str]] = {
    "background": "Background responses are not supported yet: leave out `background`, or send `false`.",
    "prompt": "Prompt templates are not supported yet: send `instructions` and `input`.",
    "starting_after": "The replay of a stream (`starting_after`) is not supported yet.",
}
"""Fields that ask for what the gateway cannot do yet, and the sentence that says so."""
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_NAME_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
"""OpenAI's limits of `metadata`."""


_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_item = msgspec.json.Decoder(ItemFields).decode


class ResponsesFields(msgspec.Struct, frozen=True):
    """What the gateway reads of the protocol's own fields."""

    raw_messages: Sequence[bytes]
    """The JSON text of each message: the instructions if there are any, then those of `input`."""
    item_groups: Sequence[Sequence[int]]
    """The indexes in `input` of the items of each message; none of them for the instructions."""
    model: str
    stream: bool
    max_output_tokens: int | None
    store: bool
    previous_response_id: str | None
    conversation: str | None
    truncation: Truncation
    compact_threshold: int | None
    """The prompt size in tokens above which this request is compacted; None for the policy's."""
    wants_compaction_item: bool
    """Whether the answer has an item for a compaction (`context_management`)."""
    input_before_trigger: bytes | None
    """The JSON text of `input` without a `compaction_trigger` at its end; None if it has none."""


def parse_responses_fields(fields: Mapping[str, bytes]) -> ResponsesFields:
    """Parses the fields of a body from `decode_body_fields`.

    Raises:
        InvalidRequest: a field is missing or invalid, or asks for what is not supported yet; `param` names it.
    """
    for name, message in LATER_FIELDS.items():
        if name in fields and decode_field(fields, name) not in (None, False):
            raise InvalidRequest(message, code=UNSUPPORTED, param=name)
    _check_passed_fields(fields)
    model = decode_typed_field(fields, "model", str)
    if not model:
        raise build_missing_error("model")
    check_name(model, "model")
    check_request_names(fields)
    previous_response_id = decode_typed_field(fields, "previous_response_id", str) or None
    conversation = read_conversation_field(fields)
    if previous_response_id is not None and conversation is not None:
        raise InvalidRequest(
            "Send `previous_response_id` or `conversation`, not both.",
            code="invalid_value",
            param="previous_response_id",
        )
    continues = previous_response_id is not None or conversation is not None
    instructions = _parse_instructions(fields)
    input_before_trigger = _cut_trigger(fields)
    if input_before_trigger is not None:
        fields = {**fields, "input": input_before_trigger}
    messages, item_groups = _parse_input(fields, may_begin_with_result=continues)
    thresholds = _parse_compaction_thresholds(fields)
    if not messages and not continues:
        raise build_missing_error("input", "Send `input`, or continue with `previous_response_id` or `conversation`.")
    return ResponsesFields(
        raw_messages=[*instructions, *messages],
        item_groups=[*([] for _ in instructions), *item_groups],
        model=model,
        stream=decode_typed_field(fields, "stream", bool) or False,
        max_output_tokens=_parse_positive_integer(fields, "max_output_tokens"),
        store=decode_typed_field(fields, "store", bool) is not False,
        previous_response_id=previous_response_id,
        conversation=conversation,
        truncation=_parse_truncation(fields),
        compact_threshold=min((one for one in thresholds if one is not None), default=None),
        wants_compaction_item=bool(thresholds),
        input_before_trigger=input_before_trigger,
    )


def may_run_provider_tools(fields: Mapping[str, bytes]) -> bool:
    """Returns whether the provider may run tools itself (web search, file search) and count their results as prompt
    tokens."""
    return "tools" in fields and any(listed.is_hosted for listed in list_tools(decode_field(fields, "tools")))


def _check_passed_fields(fields: Mapping[str, bytes]) -> None:
    """Checks fields of which only the provider, or the answer, makes use."""
    if "tools" in fields:
        check_tools(decode_field(fields, "tools"))
    if "tool_choice" in fields:
        check_tool_choice(decode_field(fields, "tool_choice"))
    if "metadata" in fields:
        _check_metadata(decode_typed_field(fields, "metadata", dict) or {})
    for name in ("text", "reasoning", "stream_options", "prompt_cache_options"):
        decode_typed_field(fields, name, dict)
    if not all(isinstance(one, str) for one in decode_typed_field(fields, "include", list) or ()):
        raise InvalidRequest("`include` must be an array of strings.", code="invalid_type", param="include")


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_METADATA_PAIRS:
        raise build_value_error("metadata", f"must have at most {MAX_METADATA_PAIRS} pairs")
    for name, value in metadata.items():
        # The place is not named by the pair's name, which may be of any length.
        check_name(name, "metadata", MAX_METADATA_NAME_CHARS)
        param = f"metadata.{name}"
        if not isinstance(value, str):
            raise build_type_error(param, str)
        if len(value) > MAX_METADATA_VALUE_CHARS or "\0" in value:
            raise build_value_error(param, f"must have at most {MAX_METADATA_VALUE_CHARS} characters, and no NUL")


def _parse_instructions(fields: Mapping[str, bytes]) -> list[bytes]:
    if not decode_typed_field(fields, "instructions", str):
        return []
    return [encode_instructions(bytes(fields["instructions"]))]


def _parse_input(
    fields: Mapping[str, bytes], *, may_begin_with_result: bool
) -> tuple[list[bytes], Sequence[Sequence[int]]]:
    """Returns the messages of `input`, and the indexes of the items of each."""
    raw = bytes(fields.get("input", b"null"))
    if raw[:1] != b"[":
        text = decode_field(fields, "input")
        if text is None or text == "":
            return [], []
        if not isinstance(text, str):
            raise InvalidRequest("`input` must be a string or an array.", code="invalid_type", param="input")
        return [encode_text_input(raw)], [[0]]
    items = [bytes(item) for item in _decode_array(raw)]
    # A referenced item may be the call of an output, and the range of a capsule may have it. The items are grouped
    # again when the references are resolved.
    may_begin_with_result |= _find_item(items, "item_reference") is not None or CAPSULE_MARKER in raw
    groups = find_item_groups(items, may_begin_with_result=may_begin_with_result)
    return join_item_groups(items, groups), groups


def _cut_trigger(fields: Mapping[str, bytes]) -> bytes | None:
    """Returns `input` without the `compaction_trigger` at its end; None if it has none.

    Raises:
        InvalidRequest: the trigger stands elsewhere.
    """
    raw = bytes(fields.get("input", b"null"))
    if raw[:1] != b"[" or b'"compaction_trigger"' not in raw:
        return None
    items = [bytes(item) for item in _decode_array(raw)]
    trigger = _find_item(items, "compaction_trigger")
    if trigger is None:
        return None
    if trigger != len(items) - 1:
        raise InvalidRequest(
            "`compaction_trigger` must be the last item of `input`.", code="invalid_value", param=f"input[{trigger}]"
        )
    return b"[" + b",".join(items[:-1]) + b"]"


def _find_item(items: Sequence[bytes], item_type: str) -> int | None:
    """Returns the index of the first item of a type."""
    marker = orjson.dumps(item_type)
    for index, item in enumerate(items):
        # Most items do not have these bytes, so they are not decoded.
        if marker in item:
            with suppress(msgspec.DecodeError):  # no object: the grouping of the items refuses it
                if _decode_item(item).type == item_type:
                    return index
    return None


def _parse_truncation(fields: Mapping[str, bytes]) -> Truncation:
    match decode_typed_field(fields, "truncation", str):
        case None | "disabled":
            return "disabled"
        case "auto":
            return "auto"
    raise build_value_error("truncation", "must be `auto` or `disabled`")


def _parse_compaction_thresholds(fields: Mapping[str, bytes]) -> list[int | None]:
    """Returns the threshold of each compaction in `context_management`, or None if it has none."""
    thresholds: list[int | None] = []
    for index, entry in enumerate(decode_typed_field(fields, "context_management", list) or ()):
        path = f"context_management[{index}]"
        if not isinstance(entry, dict):
            raise build_type_error(path, dict)
        if entry.get("type") != "compaction":
            raise build_value_error(f"{path}.type", "must be `compaction`")
        threshold = entry.get("compact_threshold")
        thresholds.append(
            None if threshold is None else _check_positive_integer(threshold, f"{path}.compact_threshold")
        )
    return thresholds


def _parse_positive_integer(fields: Mapping[str, bytes], name: str) -> int | None:
    value = decode_field(fields, name)
    return None if value is None else _check_positive_integer(value, name)


def _check_positive_integer(value: object, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise build_type_error(param, int)
    if value < 1:
        raise build_value_error(param, "must be at least 1")
    return value
