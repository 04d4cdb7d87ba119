"""Reads which compaction a Messages request asks for, and writes it as a block. Pure.

Anthropic's API has two forms: the edit `compact_20260112` compacts above a threshold, before the answer; the field
`compaction` asks for a compaction and for no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from app.conversation.context_edits import ContextEdits
from app.dialects.answer_format import NewCompaction
from app.dialects.messages.context_edits import COMPACT, EDITS_FIELD, read_context_edits
from app.dialects.messages.errors import INCOMPLETE_TURN, NOTHING_TO_SUMMARIZE
from app.dialects.messages.message_body import Block
from app.dialects.messages.request import build_place_error, describe_validation_error
from app.dialects.messages.stream_encoder import build_usage
from app.dialects.request_body import decode_field
from app.errors import InvalidRequest

COMPACTION_FIELD: Final = "compaction"
COMPACTION_TYPE: Final = "compaction"
DEFAULT_TRIGGER_TOKENS: Final = 150_000
"""Anthropic's, for an edit without a trigger."""


class _Trigger(msgspec.Struct, tag="input_tokens", frozen=True):
    value: Annotated[int, msgspec.Meta(ge=1)]


class _Compact(msgspec.Struct, tag=COMPACT):
    trigger: _Trigger | None = None
    instructions: str | None = None
    pause_after_compaction: bool | None = None


class _CompactionConfig(msgspec.Struct):
    type: Literal["summarize"]
    instructions: str | None = None


class RequestedCompaction(msgspec.Struct, frozen=True):
    """The compaction that a request asks for."""

    instructions: str | None
    threshold_tokens: int | None = None
    """The prompt above which the conversation is compacted; None: it is compacted now, and there is no answer."""
    pauses: bool = False
    """Whether there is no answer after a compaction."""


def read_requested_compaction(fields: Mapping[str, bytes]) -> RequestedCompaction | None:
    """Returns the compaction that a request asks for; None if it asks for none.

    Args:
        fields: of a request whose messages are valid.

    Raises:
        InvalidRequest: the field or the edit is not valid, or there is nothing to compact; message and `param` name the
            place.
    """
    config = decode_field(fields, COMPACTION_FIELD) if COMPACTION_FIELD in fields else None
    if config is not None:
        if decode_field(fields, EDITS_FIELD) is not None:
            raise build_place_error(COMPACTION_FIELD, f"cannot be combined with `{EDITS_FIELD}`")
        read = _convert(config, _CompactionConfig, COMPACTION_FIELD)
        _check_messages(decode_field(fields, "messages"))
        return RequestedCompaction(_strip(read.instructions))
    if COMPACT.encode() not in bytes(fields.get(EDITS_FIELD, b"")):
        return None
    edits = (decode_field(fields, EDITS_FIELD) or {}).get("edits")
    for index, edit in enumerate(edits if isinstance(edits, list) else ()):
        if isinstance(edit, dict) and edit.get("type") == COMPACT:
            compact = _convert(edit, _Compact, f"{EDITS_FIELD}.edits.{index}")
            threshold = compact.trigger.value if compact.trigger else DEFAULT_TRIGGER_TOKENS
            return RequestedCompaction(_strip(compact.instructions), threshold, bool(compact.pause_after_compaction))
    return None


def read_own_edits(fields: Mapping[str, bytes]) -> ContextEdits | None:
    """Reads what a request asks the gateway to clear. None if it has no `context_management`.

    Raises:
        InvalidRequest: that, or the compaction that the request asks for, is not valid.
    """
    read_requested_compaction(fields)
    return read_context_edits(fields)


class AddedCompaction:
    """The compaction that an answer begins with, if there is one.

    Attributes:
        blocks: its block.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._usage: dict[str, Any] = {}

    def set(self, compaction: NewCompaction, *, is_signed: bool) -> None:
        """Sets the compaction.

        Args:
            is_signed: whether the client asked for it and for no answer: the block then has a signature.
        """
        name = "signature" if is_signed else "encrypted_content"
        self.blocks = [{"type": COMPACTION_TYPE, "content": compaction.summary or None, name: compaction.capsule}]
        self._usage = build_usage(compaction.usage)

    def add_to_usage(self, usage: dict[str, Any], *, has_answer: bool = True) -> dict[str, Any]:
        """Returns an answer's usage with what each call has used, if there is a compaction: its tokens stand there
        only."""
        if not self.blocks:
            return usage
        calls = [{"type": "compaction", **self._usage}, *([{"type": "message", **usage}] if has_answer else [])]
        return {**usage, "iterations": calls}


def _convert(value: object, kind: type[Any], place: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise describe_validation_error(error, place) from error


def _strip(instructions: str | None) -> str | None:
    return (instructions or "").strip() or None


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """Checks that messages can be compacted: they say something, and do not end with calls that have no results."""
    kinds = [_list_kinds(message["content"]) for message in messages]
    said = [kind for message, one in zip(messages, kinds, strict=True) if message["role"] != "system" for kind in one]
    if all(kind == COMPACTION_TYPE for kind in said):
        raise InvalidRequest("messages: there is nothing to summarize", code=NOTHING_TO_SUMMARIZE, param="messages")
    if messages[-1]["role"] == "assistant" and "tool_use" in kinds[-1]:
        place = f"messages.{len(messages) - 1}"
        raise InvalidRequest(
            f"{place}: the turn ends with `tool_use` blocks without results", code=INCOMPLETE_TURN, param=place
        )


def _list_kinds(content: str | list[dict[str, Any]]) -> list[str]:
    """Returns the types of a message's blocks; a text is one block, an empty one none."""
    if isinstance(content, str):
        return ["text"] if content else []
    return [block["type"] for block in content]
