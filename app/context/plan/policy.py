"""Context policies: how a view is made when a conversation outgrows its window. Parameters only, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

PolicyKind = Literal["additive", "checkpoint", "fade", "prune", "window"]
SummaryStrategy = Literal["additive", "recursive"]
RecallMode = Literal["off", "quote", "tool"]
RestoreMode = Literal["none", "quotes"]
TriggerType = Literal["token_ratio", "remaining_tokens", "messages_to_refine"]
SummarizerForm = Literal["auto", "conversation", "transcript"]

STAGES_OF_KIND: Final[Mapping[PolicyKind, tuple[str, ...]]] = {
    "additive": ("clear_tool_results", "clear_reasoning"),
    "checkpoint": ("mask_results", "cap_messages", "fade_results", "drop_oldest", "share_evenly"),
    "fade": ("mask_results", "cap_messages", "fade_results", "prune_by_position", "drop_oldest", "share_evenly"),
    "prune": ("truncate_results", "tell_old_rounds", "drop_results", "drop_oldest"),
    "window": ("keep_last", "drop_oldest"),
}
"""The stages that shorten a view, in order, unless a policy names its own (`context.stages.stage_registry`)."""
CHECKPOINT_KEEP_TURNS: Final = 2
MAX_SUMMARY_TOKENS: Final[Mapping[PolicyKind, int]] = {
    "additive": 4096,
    "checkpoint": 2048,
    "fade": 4096,
    "prune": 4096,
    "window": 4096,
}
"""The longest summary where none is configured."""


@dataclass(frozen=True, slots=True)
class SummarizerPolicy:
    """How the old part of a conversation is summarized.

    `model` is the model that writes summaries, ``same`` for the request's own; `fallbacks` are asked when it fails.
    `prompt` replaces the built-in instruction, `update_prompt` the one for a checkpoint after the first.
    `form`: ``conversation`` sends the same messages as the last view and the instruction after them, so that the
    provider's prompt cache is hit; ``transcript`` sends them fenced; ``auto`` the first where it can.
    `parameters` are sent along with the call. `max_summary_tokens` bounds each summary.
    """

    enabled: bool = True
    model: str = "same"
    fallbacks: tuple[str, ...] = ()
    max_summary_tokens: int = 4096
    prompt: str | None = None
    update_prompt: str | None = None
    form: SummarizerForm = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class CheckpointTrigger:
    """When a checkpoint is written, besides that something must have overflowed; without a type, always then."""

    type: TriggerType | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class ToolResultClearing:
    """Context editing: old tool results are cleared once the view is above `trigger_tokens` (None: never)."""

    trigger_tokens: int | None = None
    keep: int = 3
    """How many of the newest results stay."""
    clear_at_least_tokens: int = 0
    """Nothing is cleared where it would free less than this."""
    exclude_tools: tuple[str, ...] = ()
    inputs: bool = False
    """Whether the arguments of the calls are cleared too."""


@dataclass(frozen=True, slots=True)
class ReasoningClearing:
    """Context editing: reasoning is cleared from all but the newest turns (None: never)."""

    keep_turns: int | None = None


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """Parameters of a policy; ratios are of the context window unless said otherwise."""

    name: str = "additive"
    kind: PolicyKind = "additive"
    stages: tuple[str, ...] | None = None
    """Stages that shorten a view, in order; None for those of the kind."""
    reserve_ratio: float = 0.05
    """Kept free for the answer, on top of what the request asks for."""
    regrow_ratio: float = 0.5
    """A view goes back before the boundary of the last one only when that takes less than this share."""
    target_ratio: float = 0.75
    """What a cut leaves, as a share of the limit that was passed …"""
    step_ratio: float = 0.25
    """… and the quanta in which messages are left out."""
    recall: RecallMode | None = None
    """Whether old messages that bear on the newest one are quoted, or the model may search for them."""
    recall_ratio: float = 0.15
    """The most that quotes may take."""
    restore: RestoreMode = "quotes"
    """Whether messages that the client leaves out of its history may be quoted."""
    pin_ratio: float = 0.5
    """The most that pinned messages may take."""

    threshold_ratio: float = 0.7
    """Compaction starts when the estimated prompt is above this share …"""
    token_floor: int = 4096
    """… and above this many tokens."""
    buffer_turns: int = 4
    """How many of the last turns stay verbatim, if they fit."""
    buffer_max_ratio: float = 0.3
    """The most that they may take."""
    fold_ratio: float = 0.3
    """Chunks above this share are folded into one."""
    prepare_ratio: float = 0.6
    """Above this share the next chunk is made ahead, after an answer."""
    min_gain_ratio: float = 0.1
    """A compaction must make the view at least this share smaller."""
    strategy: SummaryStrategy = "additive"
    """``recursive``: one rolling summary, rewritten with each compaction."""

    keep_turns: int | None = None
    """Turns that stay verbatim after a checkpoint (None: 2), or in policy `window` (None: all that fit)."""
    keep_tokens: int | None = None
    """Policy `window`: the most tokens that messages may take."""
    trigger: CheckpointTrigger = field(default_factory=CheckpointTrigger)

    mask_pressure: float = 0.8
    """Pressure from which on consumed tool results are masked."""
    mask_chars: int = 300
    """About what remains of a masked result."""
    result_ratio: float = 0.3
    """The most that one tool result may take of the effective budget …"""
    result_max_chars: int = 400_000
    arguments_ratio: float = 0.15
    """… and the arguments of one tool call."""
    arguments_max_chars: int = 200_000
    oldest_share: float = 0.2
    """Of what the newest tool result may keep, how much the oldest may."""
    fade_bands: tuple[tuple[float, float], ...] = ((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0))
    """Pressure from which on, and the share of the cap per result that is left then; the first that matches."""
    position_pruning: bool = False
    keep_last_assistants: int = 3
    """Turns at the end that are safe from pruning by position."""
    soft_trim_ratio: float = 0.3
    """Relative age from which on a large result keeps its head and tail …"""
    hard_clear_ratio: float = 0.5
    """… and from which on nothing but a placeholder."""
    soft_trim_chars: int = 1_500
    min_prunable_tool_chars: int = 50_000
    emergency_chars: int = 200
    """What each message may keep at least when nothing else helped."""
    max_tool_result_tokens: int = 2_000
    """Policy `prune`: larger results are truncated first."""
    summarize_after_turns: int = 4
    """Policy `prune`: tool rounds older than this many turns are told in a line per call."""
    told_result_chars: int = 200
    clear_tool_results: ToolResultClearing = field(default_factory=ToolResultClearing)
    clear_reasoning: ReasoningClearing = field(default_factory=ReasoningClearing)
    summarizer: SummarizerPolicy = field(default_factory=SummarizerPolicy)

    @property
    def stage_names(self) -> tuple[str, ...]:
        return STAGES_OF_KIND[self.kind] if self.stages is None else self.stages

    @property
    def recall_mode(self) -> RecallMode:
        if self.recall is not None:
            return self.recall
        return "quote" if self.kind == "additive" else "off"

    @property
    def checkpoint_keep_turns(self) -> int:
        """Turns that stay verbatim after a checkpoint."""
        return CHECKPOINT_KEEP_TURNS if self.keep_turns is None else self.keep_turns

    @property
    def is_additive_without_stages(self) -> bool:
        """Whether a view under the line stays as it is: policy `additive` with no stage at work."""
        edits = self.clear_tool_results.trigger_tokens is not None or self.clear_reasoning.keep_turns is not None
        return self.kind == "additive" and self.stages is None and not edits

    @property
    def may_summarize(self) -> bool:
        """Whether a model may be asked for summaries."""
        return self.kind in {"additive", "checkpoint"} and self.summarizer.enabled

    @property
    def has_replacing_summaries(self) -> bool:
        """Whether a new summary stands for everything before it, earlier summaries included."""
        return self.kind == "checkpoint" or self.strategy == "recursive"
