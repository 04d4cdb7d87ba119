"""What is cleared from old messages by rule, because the policy of a conversation says so, or because a client asks for
it; and what was cleared."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class ToolResultClearing:
    """Context editing: old tool results are cleared once the view is above one of the triggers (None: never)."""

    trigger_tokens: int | None = None
    keep: int = 3
    """How many of the newest results stay."""
    clear_at_least_tokens: int = 0
    """Nothing is cleared if that would free fewer tokens than this."""
    exclude_tools: tuple[str, ...] = ()
    inputs: bool | tuple[str, ...] = False
    """Whether the arguments of the calls are cleared too, or those of which tools."""
    trigger_results: int | None = None
    """How many results the view may have that are not cleared."""


@dataclass(frozen=True, slots=True)
class ReasoningClearing:
    """Context editing: reasoning is cleared from all turns but the newest `keep_turns` (None: never)."""

    keep_turns: int | None = None
    counts_turns_with_reasoning: bool = False
    """Whether only turns with reasoning count."""


class ContextEdits(msgspec.Struct, frozen=True):
    """What a client asks to clear."""

    results: ToolResultClearing = ToolResultClearing()
    reasoning: ReasoningClearing = ReasoningClearing()


class ClearedContext(msgspec.Struct, frozen=True):
    """What was cleared because a client asked for it. Tokens are calibrated."""

    results: int = 0
    result_tokens: int = 0
    """The arguments of calls included."""
    reasoning_turns: int = 0
    reasoning_tokens: int = 0
    """Estimated from the length of the JSON text: prompts are counted without reasoning."""
