"""Reads `context_management` of a Messages request, and writes what was cleared as Anthropic tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson

from app.conversation.context_edits import ClearedContext, ContextEdits, ReasoningClearing, ToolResultClearing
from app.conversation.json_text import list_objects
from app.dialects.messages.request import build_place_error, describe_validation_error
from app.dialects.request_body import decode_field

EDITS_FIELD: Final = "context_management"
CLEAR_RESULTS: Final = "clear_tool_uses_20250919"
CLEAR_THINKING: Final = "clear_thinking_20251015"
COMPACT: Final = "compact_20260112"

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _InputTokens(msgspec.Struct, tag="input_tokens", frozen=True):
    value: _Count


class _ToolUses(msgspec.Struct, tag="tool_uses", frozen=True):
    value: _Count


class _Turns(msgspec.Struct, tag="thinking_turns", frozen=True):
    value: Annotated[int, msgspec.Meta(ge=1)]


class _AllTurns(msgspec.Struct, tag="all", frozen=True):
    pass


class _ClearToolUses(msgspec.Struct, tag=CLEAR_RESULTS, forbid_unknown_fields=True):
    """The defaults of both edits: platform.claude.com, "Context editing"."""

    trigger: _InputTokens | _ToolUses = _InputTokens(100_000)
    keep: _ToolUses = _ToolUses(3)
    clear_at_least: _InputTokens | None = None
    exclude_tools: tuple[str, ...] | None = None
    clear_tool_inputs: bool | tuple[str, ...] | None = None


class _ClearThinking(msgspec.Struct, tag=CLEAR_THINKING, forbid_unknown_fields=True):
    keep: _Turns | _AllTurns | Literal["all"] = _Turns(1)


def read_context_edits(fields: Mapping[str, bytes]) -> ContextEdits | None:
    """Reads what a request asks to clear. None if it has no `context_management`. A compaction is left out.

    Raises:
        InvalidRequest: an edit is unknown or not valid; message and `param` name the place.
    """
    config = decode_field(fields, EDITS_FIELD)
    if config is None:
        return None
    listed = config.get("edits") or []
    if not isinstance(listed, list):
        raise build_place_error(f"{EDITS_FIELD}.edits", "Input should be a valid list")
    rules = [_read_rule(edit, f"{EDITS_FIELD}.edits.{index}") for index, edit in enumerate(listed)]
    return ContextEdits(**{name: rule for one in rules for name, rule in one.items()})


def render_cleared_context(cleared: ClearedContext) -> dict[str, Any]:
    """Returns the fields of an answer that tell what was cleared."""
    told = (
        (CLEAR_THINKING, "cleared_thinking_turns", cleared.reasoning_turns, cleared.reasoning_tokens),
        (CLEAR_RESULTS, "cleared_tool_uses", cleared.results, cleared.result_tokens),
    )
    edits = [{"type": kind, name: count, "cleared_input_tokens": tokens} for kind, name, count, tokens in told if count]
    return {EDITS_FIELD: {"applied_edits": edits}}


def build_token_count(tokens: int, cleared_tokens: int | None) -> dict[str, Any]:
    """Builds the answer to a request for its tokens.

    Args:
        tokens: those of the messages as sent.
        cleared_tokens: those of them that its edits clear; None if it has none.
    """
    if cleared_tokens is None:
        return {"input_tokens": tokens}
    return {"input_tokens": tokens - cleared_tokens, EDITS_FIELD: {"original_input_tokens": tokens}}


def sum_cleared_tokens(config: object) -> int:
    """Returns the tokens that a provider says it has cleared, from the `context_management` of its answer."""
    edits = config.get("applied_edits") if isinstance(config, dict) else None
    counts = [edit.get("cleared_input_tokens") for edit in list_objects(edits)]
    return sum(count for count in counts if isinstance(count, int))


def drop_thinking_edits(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Builds the field without the edits that the API refuses in a request without thinking; nothing if there is none
    of these."""
    match decode_field(fields, EDITS_FIELD):
        case {"edits": list(edits)} as config:
            kept = [edit for edit in edits if not (isinstance(edit, dict) and edit.get("type") == CLEAR_THINKING)]
            return {} if kept == edits else {EDITS_FIELD: orjson.dumps({**config, "edits": kept} if kept else None)}
    return {}


def _read_rule(edit: object, place: str) -> dict[str, Any]:
    """Returns the field of `ContextEdits` that an edit sets, with its value; none for a compaction."""
    match edit:
        case {"type": "compact_20260112"}:
            return {}
        case {"type": str(kind)} if kind not in (CLEAR_RESULTS, CLEAR_THINKING):
            expected = f"{CLEAR_THINKING!r}, {CLEAR_RESULTS!r}, {COMPACT!r}"
            problem = f"Input tag {kind[:64]!r} found using 'type' does not match any of the expected tags: {expected}"
            raise build_place_error(place, problem)
    try:
        decoded = msgspec.convert(edit, _ClearToolUses | _ClearThinking)
    except msgspec.ValidationError as error:
        raise describe_validation_error(error, place) from error
    if isinstance(decoded, _ClearThinking):
        turns = decoded.keep.value if isinstance(decoded.keep, _Turns) else None
        return {"reasoning": ReasoningClearing(turns, counts_turns_with_reasoning=True)}
    trigger, least = decoded.trigger, decoded.clear_at_least
    rule = ToolResultClearing(
        trigger_tokens=trigger.value if isinstance(trigger, _InputTokens) else None,
        trigger_results=trigger.value if isinstance(trigger, _ToolUses) else None,
        keep=decoded.keep.value,
        clear_at_least_tokens=least.value if least else 0,
        exclude_tools=decoded.exclude_tools or (),
        inputs=decoded.clear_tool_inputs or False,
    )
    return {"results": rule}
